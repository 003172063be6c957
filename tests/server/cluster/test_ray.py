"""Configurations for Ray clusters: with Ray's own schema, and the Kubernetes manifest by what its parts refer to."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers.cluster import APPLIED, needs_ray
from helpers.paths import ROOT

from runtime.base.errors import TickError
from server.cluster.autoscaling import Load, latest_loads, policy, wanted_replicas
from server.cluster.ray_cluster import RayCluster, cause, serve_config

IDLE = Load(sessions=0, places=10, queue_wait_s=0.0)
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


def test_what_ray_serve_is_told() -> None:
    config = serve_config(APPLIED, "redis://here")
    assert config["proxy_location"] == "Disabled"
    (application,) = config["applications"]
    assert application["args"] == {
        "config": "/configs/demo.toml", "redis": "redis://here", "host": "127.0.0.1", "has_edge": True
    }  # fmt: skip
    (deployment,) = application["deployments"]
    assert deployment["num_replicas"] == 2
    assert deployment["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 0}
    assert "autoscaling_config" not in deployment


def test_a_range_of_replicas_is_scaled_and_a_model_on_gpus_has_one_each() -> None:
    (application,) = serve_config(replace(APPLIED, replicas=(1, 4), gpus=1, url=""), "")["applications"]
    (deployment,) = application["deployments"]
    bounds = deployment["autoscaling_config"]
    assert (bounds["min_replicas"], bounds["max_replicas"]) == (1, 4)
    assert "num_replicas" not in deployment
    assert deployment["ray_actor_options"] == {"num_cpus": 0, "num_gpus": 1}
    assert application["args"]["has_edge"] is False


def test_a_reload_is_a_change_of_the_user_config_alone() -> None:
    before, after = (serve_config(replace(APPLIED, builds=number), "") for number in (1, 2))
    assert before != after
    for config in (before, after):
        del config["applications"][0]["deployments"][0]["user_config"]
    assert before == after


class Recorded(RayCluster):
    """A cluster of which nothing runs: `started` has what would be done, in order. status: of its application."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.started: list[tuple[Any, ...]] = []
        self.status = ("RUNNING", "")

    def run(self, name: str, *arguments: str) -> None:
        self.started.append((name, *arguments))

    def start_redis(self) -> None:
        self.started.append(("redis",))

    def start_edge(self, bind: str) -> None:
        self.started.append(("edge", bind))

    def wait_ready(self, replicas: int, has_edge: bool = True, timeout_s: float = 0.0) -> None:
        self.started.append(("ready", replicas, has_edge))

    def serve_status(self, wait_s: float = 0.0) -> dict[str, tuple[str, str]]:
        return {"demo": self.status}


@pytest.fixture
def recorded(cluster: RayCluster) -> Recorded:
    return Recorded(cluster.folder)


def test_a_folder_says_what_it_was_started_with_until_it_is_stopped(recorded: Recorded) -> None:
    assert recorded.applied is None
    recorded.deploy(APPLIED)
    ((program, *words),) = recorded.started
    (path,) = (Path(word) for word in words if word.endswith(".json"))
    assert (program, json.loads(path.read_text())) == ("serve", serve_config(APPLIED, recorded.redis_url))
    assert RayCluster(recorded.folder).applied == APPLIED
    recorded.stop()
    assert recorded.applied is None


def test_of_what_ray_serve_says_a_replicas_own_error_is_reported() -> None:
    text = "Failed to start: \n  raise ConfigError(what)\nruntime.base.errors.ConfigError: no GPU\n  fix: add one\n"
    assert cause(text) == "no GPU"
    assert cause("no such module") == "no such module"


def test_a_command_that_fails_is_reported_with_its_last_line(cluster: RayCluster) -> None:
    cluster.run("works", "-c", "")
    with pytest.raises(TickError, match="fails has ended with status 3: no room"):
        cluster.run("fails", "-c", "import sys; print('no room'); sys.exit(3)")
    assert cluster.launched == {}


DEPLOYMENT: Any = SimpleNamespace(target="cpu", path=Path("demo.toml"))


@pytest.mark.parametrize("bind", ["127.0.0.1:8000", None])
def test_the_parts_of_a_cluster_are_started_in_order(recorded: Recorded, bind: str | None) -> None:
    applied = recorded.start(DEPLOYMENT, "demo", (1, 3), bind)
    edge = ["edge"] if bind else []
    assert [name for name, *_ in recorded.started] == ["redis", *edge, "ray", "serve", "ready"]
    ray, serve, ready = recorded.started[-3:]
    assert ray[ray.index("--port") + 1] == applied.ray.rpartition(":")[2]
    assert ray[ray.index("--num-cpus") + 1] == "3"
    assert applied.ray in serve
    assert ready == ("ready", 1, bool(bind))
    assert recorded.applied == applied
    recorded.status = ("DEPLOY_FAILED", "no GPU")
    with pytest.raises(TickError, match="demo is DEPLOY_FAILED: no GPU"):
        recorded.start(DEPLOYMENT, "demo", (1, 3), bind)
    assert recorded.applied is None


def test_a_start_that_fails_leaves_nothing(cluster: RayCluster) -> None:
    class Failing(RayCluster):
        def start_redis(self) -> None:
            self.launch("redis", sys.executable, "-c", "import time; time.sleep(600)")
            raise KeyboardInterrupt

    failing = Failing(cluster.folder)
    with pytest.raises(KeyboardInterrupt):
        failing.start(DEPLOYMENT, "demo", (1, 1), None)
    assert failing.members() == []
    assert failing.applied is None


def test_the_states_are_those_that_a_process_with_ray_prints(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster._record(APPLIED)
    asked: list[list[str]] = []
    printed = {"demo": ["RUNNING", ""], "other": ["DEPLOY_FAILED", "x\nruntime.base.errors.ConfigError: no GPU\n"]}
    done = subprocess.CompletedProcess[str]([], 0, json.dumps(printed), "")

    def run(command: list[str], **options: Any) -> Any:
        asked.append(command)
        return done

    monkeypatch.setattr("server.cluster.ray_cluster.subprocess.run", run)
    assert cluster.serve_status(2.5) == {"demo": ("RUNNING", ""), "other": ("DEPLOY_FAILED", "no GPU")}
    assert asked == [[sys.executable, "-m", "server.cluster.ray_serve", APPLIED.ray, "2.5"]]
    done.returncode = 1
    with pytest.raises(TickError, match="Ray Serve does not answer"):
        cluster.serve_status()


@pytest.mark.parametrize(
    ("sessions", "wanted"),
    [([0], 1), ([7], 1), ([8], 2), ([10, 4], 2), ([10, 5], 3), ([0, 0, 0], 1), ([7, 7, 7], 3), ([8, 7, 7], 4)],
)
def test_sessions_have_room_with_some_places_to_spare(sessions: list[int], wanted: int) -> None:
    assert wanted_replicas([Load(number, 10, 0.0) for number in sessions]) == wanted


@pytest.mark.parametrize(
    ("waits_s", "wanted"), [([2.5], 2), ([2.5, 3.0], 3), ([0.1, 9.0], 1), ([0.6, 0.6, 0.6], 3), ([1.9], 1)]
)
def test_a_replica_more_where_every_queue_is_long_and_none_less_until_one_is_short(
    waits_s: list[float], wanted: int
) -> None:
    assert wanted_replicas([Load(0, 10, wait_s) for wait_s in waits_s]) == wanted


def series(**values: float) -> dict[str, list[Any]]:
    """One metric: an old value and the latest one of each replica."""
    return {name: [SimpleNamespace(value=-1.0), SimpleNamespace(value=value)] for name, value in values.items()}


METRICS = {
    "sessions": series(a=8, b=3),
    "places": series(a=10, b=10),
    "queue_wait_s": series(a=0.5, b=0.25) | {"c": []},
    "running": series(a=1),
}


def test_the_latest_values_of_replicas_that_have_reported_all() -> None:
    assert latest_loads(METRICS) == [Load(8, 10, 0.5), Load(3, 10, 0.25)]
    assert latest_loads({**METRICS, "places": series(b=10)}) == [Load(3, 10, 0.25)]
    assert Load(8, 10, 0.5).metrics() == {"sessions": 8, "places": 10, "queue_wait_s": 0.5}


@pytest.mark.parametrize(("metrics", "wanted"), [(METRICS, 2), ({}, 3), (None, 3)])
def test_the_policy_keeps_what_there_is_until_a_replica_has_reported(metrics: Any, wanted: int) -> None:
    assert policy(SimpleNamespace(target_num_replicas=3, raw_metrics=metrics)) == (wanted, {})


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
        for pod, container in containers(item) if kind != "Service" else ():
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
