"""Configurations for Ray clusters: with Ray's own schema, and the Kubernetes manifest by what its parts refer to."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers.cluster import APPLIED, needs_ray
from helpers.paths import ROOT

from runtime.base.errors import TickError
from server.cluster.ray_cluster import serve_config

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
# Ray's own modules warn of what they use.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SCALE = ROOT / "server" / "cluster"
SHIPPED: dict[str, Any] = yaml.safe_load((SCALE / "serve.yaml").read_text("utf-8"))
MANIFEST: dict[tuple[str, str], dict[str, Any]] = {
    (item["kind"], item["metadata"]["name"]): item
    for item in yaml.safe_load_all((SCALE / "kuberay.yaml").read_text("utf-8"))
}
ON_KUBERNETES = yaml.safe_load(MANIFEST["RayService", "tickrt"]["spec"]["serveConfigV2"])
CONFIGS = {
    "serve.yaml": SHIPPED,
    "kuberay.yaml": ON_KUBERNETES,
    "fixed": serve_config(APPLIED, "redis://here"),
    "scaled": serve_config(replace(APPLIED, replicas=(1, 4), gpus=1), "redis://here"),
}


@needs_ray()
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_ray_serve_takes_the_configuration_and_the_application_its_arguments(config: dict[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    ray_serve = importlib.import_module("server.cluster.ray_serve")
    (application,) = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == "server.cluster.ray_serve:app"
    arguments = ray_serve.ReplicaArguments.model_validate(application.args)
    (deployment,) = application.deployments
    assert deployment.name == ray_serve.app(arguments)._bound_deployment.name
    with pytest.raises(ValueError, match="no_such"):
        ray_serve.ReplicaArguments.model_validate({**application.args, "no_such": 1})
    broken = {**config, "applications": [{**config["applications"][0], "deployments": [{"num_replicas": 2}]}]}
    with pytest.raises(ValueError, match="name"):
        ServeDeploySchema.model_validate(broken)


@pytest.fixture
def ray_serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, with what it takes of Ray in place of Ray, whose import takes seconds."""
    statuses = iter([{"a": "DEPLOYING", "b": "RUNNING"}, {"a": "RUNNING", "b": "DEPLOYING"}, {"a": "RUNNING"}])

    def status() -> Any:
        found = next(statuses)
        parts = {"Replica": SimpleNamespace(message="of the replica"), "other": SimpleNamespace(message="")}
        states = {each: SimpleNamespace(status=found[each], message="", deployments=parts) for each in found}
        return SimpleNamespace(applications=states)

    context = SimpleNamespace(app_name="demo", replica_id=SimpleNamespace(unique_id="7"))
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
    modules = {
        "ray": {"init": lambda address, **options: None, "util": util},
        "ray.serve": {
            "deployment": lambda **options: lambda made: made, "get_replica_context": lambda: context,
            "status": status, "Application": object,
        },
        "ray.serve.schema": {"ApplicationStatusOverview": object},
    }  # fmt: skip
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["ray"].serve = sys.modules["ray.serve"]  # type: ignore[attr-defined]
    known = sys.modules.pop("server.cluster.ray_serve", None)
    yield importlib.import_module("server.cluster.ray_serve")
    del sys.modules["server.cluster.ray_serve"]
    if known is not None:
        sys.modules["server.cluster.ray_serve"] = known


def test_the_states_are_printed_once_nothing_is_being_deployed(
    ray_serve: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(ray_serve, "time", SimpleNamespace(sleep=slept_s.append, monotonic=lambda: 100.0))
    monkeypatch.setattr(sys, "argv", ["ray_serve", "127.0.0.1:1", "5"])
    ray_serve.main()
    assert json.loads(capsys.readouterr().out) == {"a": ["RUNNING", "of the replica"]}
    assert slept_s == [ray_serve.POLL_S] * 2


def test_a_deployment_that_takes_too_long_is_printed_as_it_is(
    ray_serve: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = iter([100.0, 104.9, 105.1])
    monkeypatch.setattr(ray_serve, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(now_s)))
    monkeypatch.setattr(sys, "argv", ["ray_serve", "127.0.0.1:1", "5"])
    ray_serve.main()
    states = json.loads(capsys.readouterr().out)
    assert {name: status for name, (status, _) in states.items()} == {"a": "RUNNING", "b": "DEPLOYING"}


@pytest.mark.parametrize(("host", "listens_at"), [(None, "10.0.0.7"), ("127.0.0.1", "127.0.0.1")])
def test_a_replica_is_a_server_of_its_own_which_the_edge_knows_before_ray_serve_does(
    host: str | None, listens_at: str, ray_serve: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    class Server:
        def __init__(self, config: Any, **options: Any) -> None:
            done.append((config.name, options))

        def wait_ready(self) -> None:
            done.append("ready")

        async def check(self) -> None:
            done.append("checked")

        async def load(self) -> Any:
            return SimpleNamespace(metrics=lambda: {"sessions": 2.0})

        async def drain(self) -> None:
            done.append("drained")

    class Replica(ray_serve.Replica):  # type: ignore[misc, name-defined]
        def __del__(self) -> None:
            """Ray Serve awaits the real one, Python would not."""

    monkeypatch.setattr(ray_serve, "ReplicaServer", Server)
    monkeypatch.setattr(ray_serve, "time", SimpleNamespace(sleep=done.append))
    monkeypatch.setattr(ray_serve, "log_to_stderr", lambda level: done.append(level))
    arguments = ray_serve.ReplicaArguments(config="demo.toml", redis="redis://here", host=host, has_edge=False)
    replica = Replica(arguments)
    options = {"name": "demo-7", "redis": "redis://here", "host": listens_at, "has_edge": False}
    assert done == ["info", ("demo.toml", options), "ready", ray_serve.EDGE_S]
    asyncio.run(replica.check_health())
    assert asyncio.run(replica.record_autoscaling_stats()) == {"sessions": 2.0}
    asyncio.run(ray_serve.Replica.__del__(replica))
    assert done[4:] == ["checked", "drained"]
    del replica._server
    asyncio.run(ray_serve.Replica.__del__(replica))


def test_only_a_changed_user_config_reloads_and_what_fails_keeps_the_replica(
    ray_serve: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    reloaded: list[int] = []

    class Replica(ray_serve.Replica):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._server, self._user_config = Server(), None

        def __del__(self) -> None:
            """Ray Serve awaits the real one, Python would not."""

    class Server:
        async def reload(self) -> None:
            reloaded.append(1)
            if len(reloaded) == 2:
                raise TickError("no such engine")

    replica = Replica()
    for builds, count in ((1, 0), (1, 0), (2, 1), (2, 1), (3, 2)):
        asyncio.run(replica.reconfigure({"builds": builds}))
        assert len(reloaded) == count
    assert "the old ones stay in use: no such engine" in caplog.text


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_functions_that_a_configuration_names_exist(config: dict[str, Any]) -> None:
    (deployment,) = config["applications"][0]["deployments"]
    scaling = deployment.get("autoscaling_config")
    if scaling is not None:
        module, _, name = scaling["policy"]["policy_function"].partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def containers(item: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(pod, container) of a Deployment or a RayService."""
    spec = item["spec"]
    groups = [spec["rayClusterConfig"]["headGroupSpec"], *spec["rayClusterConfig"]["workerGroupSpecs"]] if (
        item["kind"] == "RayService"
    ) else [spec]  # fmt: skip
    pods = [group["template"]["spec"] for group in groups]
    return [(pod, container) for pod in pods for container in pod["containers"]]


def test_the_manifest_has_all_parts_and_what_they_refer_to() -> None:
    assert set(MANIFEST) == {
        ("RayService", "tickrt"), ("Deployment", "tickrt-redis"), ("Service", "tickrt-redis"),
        ("Deployment", "tickrt-edge"), ("Service", "tickrt"),
    }  # fmt: skip
    versions = {"RayService": "ray.io/v1", "Deployment": "apps/v1", "Service": "v1"}
    assert all(item["apiVersion"] == versions[kind] for (kind, _), item in MANIFEST.items())
    labels = [
        item["spec"]["template"]["metadata"]["labels"] for (kind, _), item in MANIFEST.items() if kind == "Deployment"
    ]
    for (kind, _), item in MANIFEST.items():
        if kind == "Service":
            assert item["spec"]["selector"] in labels
        elif kind == "Deployment":
            assert item["spec"]["selector"]["matchLabels"] == item["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("name", [name for name in MANIFEST if name[0] != "Service"], ids=str)
def test_every_container_has_an_image_and_mounts_volumes_that_there_are(name: tuple[str, str]) -> None:
    for pod, container in containers(MANIFEST[name]):
        assert container["name"]
        assert container["image"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def test_the_parts_of_the_manifest_reach_each_other() -> None:
    redis = f"tickrt-redis:{MANIFEST['Service', 'tickrt-redis']['spec']['ports'][0]['port']}"
    cluster = MANIFEST["RayService", "tickrt"]["spec"]["rayClusterConfig"]
    assert cluster["gcsFaultToleranceOptions"]["redisAddress"] == redis
    assert ON_KUBERNETES["applications"][0]["args"]["redis"] == f"redis://{redis}/0"
    haproxy, slots = (container for _, container in containers(MANIFEST["Deployment", "tickrt-edge"]))
    variables = {item["name"]: item["value"] for item in haproxy["env"]}
    config = (SCALE / "haproxy.cfg").read_text("utf-8")
    assert all(f"${{{name}}}" in config for name in variables)
    assert slots["command"] == [
        "python", "-m", "server.cluster.edge", f"redis://{redis}/0", variables["EDGE_SOCKET"]
    ]  # fmt: skip
    (port,) = (item["port"] for item in MANIFEST["Service", "tickrt"]["spec"]["ports"])
    assert variables["EDGE_BIND"] == f":{port}"
    bounds = ON_KUBERNETES["applications"][0]["deployments"][0]["autoscaling_config"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (bounds["min_replicas"], bounds["max_replicas"])
