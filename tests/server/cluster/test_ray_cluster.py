"""What Ray Serve is told, and what a folder says of its cluster. Ray itself: tests/integration/test_ray_cluster.py."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.cluster import APPLIED

from runtime.base.errors import TickError
from server.cluster.ray_cluster import RayCluster, cause, serve_config


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


def test_a_folder_says_what_it_was_started_with_until_it_is_stopped(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.applied is None
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(cluster, "run", lambda *words: asked.append(words))
    cluster.deploy(APPLIED)
    ((program, *words),) = asked
    (path,) = (Path(word) for word in words if word.endswith(".json"))
    assert (program, json.loads(path.read_text())) == ("serve", serve_config(APPLIED, cluster.redis_url))
    assert RayCluster(cluster.folder).applied == APPLIED
    cluster.stop()
    assert cluster.applied is None


def test_of_what_ray_serve_says_a_replicas_own_error_is_reported() -> None:
    text = "Failed to start: \n  raise ConfigError(what)\nruntime.base.errors.ConfigError: no GPU\n  fix: add one\n"
    assert cause(text) == "no GPU"
    assert cause("no such module") == "no such module"


def test_a_command_that_fails_is_reported_with_its_last_line(cluster: RayCluster) -> None:
    cluster.run("works", "-c", "")
    with pytest.raises(TickError, match="fails has ended with status 3: no room"):
        cluster.run("fails", "-c", "import sys; print('no room'); sys.exit(3)")
    assert cluster.launched == {}


@pytest.mark.parametrize("bind", ["127.0.0.1:8000", None])
def test_the_parts_of_a_cluster_are_started_in_order(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, bind: str | None
) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cluster, "run", lambda *words: started.append(words))
    monkeypatch.setattr(cluster, "start_redis", lambda: started.append(("redis",)))
    monkeypatch.setattr(cluster, "start_edge", lambda at: started.append(("edge", at)))
    monkeypatch.setattr(cluster, "wait_ready", lambda count, has_edge: started.append(("ready", count, has_edge)))
    monkeypatch.setattr(cluster, "serve_status", lambda wait_s: {"demo": ("RUNNING", "")})
    deployment = type("Deployment", (), {"target": "cpu", "path": Path("demo.toml")})()
    applied = cluster.start(deployment, "demo", (1, 3), bind)
    edge = ["edge"] if bind else []
    assert [name for name, *_ in started] == ["redis", *edge, "ray", "serve", "ready"]
    ray, serve, ready = started[-3:]
    assert ray[ray.index("--port") + 1] == applied.ray.rpartition(":")[2]
    assert ray[ray.index("--num-cpus") + 1] == "3"
    assert applied.ray in serve
    assert ready == ("ready", 1, bool(bind))
    assert cluster.applied == applied
    monkeypatch.setattr(cluster, "serve_status", lambda wait_s: {"demo": ("DEPLOY_FAILED", "no GPU")})
    with pytest.raises(TickError, match="demo is DEPLOY_FAILED: no GPU"):
        cluster.start(deployment, "demo", (1, 3), bind)
    assert cluster.applied is None


def test_a_start_that_fails_leaves_nothing(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_redis() -> None:
        cluster.launch("redis", sys.executable, "-c", "import time; time.sleep(600)")
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "start_redis", start_redis)
    deployment = type("Deployment", (), {"target": "cpu", "path": Path("demo.toml")})()
    with pytest.raises(KeyboardInterrupt):
        cluster.start(deployment, "demo", (1, 1), None)
    assert cluster.members() == []
    assert cluster.applied is None


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
