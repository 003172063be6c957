"""Configurations for Ray clusters: with Ray's own schema, and the Kubernetes manifest by what its parts refer to."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from typing import Any

import pytest
from helpers.cluster import APPLIED, needs_ray
from helpers.paths import ROOT

from runtime.errors import TickError
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
    arguments = ray_serve.Arguments.model_validate(application.args)
    (deployment,) = application.deployments
    assert deployment.name == ray_serve.app(arguments)._bound_deployment.name
    with pytest.raises(ValueError, match="no_such"):
        ray_serve.Arguments.model_validate({**application.args, "no_such": 1})
    broken = {**config, "applications": [{**config["applications"][0], "deployments": [{"num_replicas": 2}]}]}
    with pytest.raises(ValueError, match="name"):
        ServeDeploySchema.model_validate(broken)


@needs_ray()
def test_only_a_changed_user_config_reloads_and_what_fails_keeps_the_replica(caplog: pytest.LogCaptureFixture) -> None:
    ray_serve = importlib.import_module("server.cluster.ray_serve")
    reloaded: list[int] = []

    class Replica(ray_serve.Replica.func_or_class):  # type: ignore[misc, name-defined]
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
