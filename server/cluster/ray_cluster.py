"""A cluster on this machine whose replicas Ray Serve runs: a Ray instance of its own, Redis, HAProxy.

Ray is used by its commands, in processes of their own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runtime.base.errors import TickError
from runtime.config.deployment import HOST_TARGETS, Deployment
from runtime.engines.manifest import write_atomically
from server.cluster.local_cluster import START_S, LocalCluster, free_port

RECORD = "cluster.json"
OBJECT_STORE_BYTES = 80_000_000  # Ray's minimum; nothing is kept there.
RAY = ("-c", "from ray.scripts.scripts import main; main()")
SERVE = ("-c", "from ray.serve.scripts import cli; cli()")


@dataclass(frozen=True)
class AppliedConfig:
    """What a cluster was started with. replicas: the fewest and the most. builds: how often engines were reloaded.

    url: where clients reach it; "" where they reach the replicas themselves. ray: address of its Ray instance.
    """

    config: str
    app: str
    url: str
    ray: str
    replicas: tuple[int, int]
    gpus: int
    builds: int = field(default=1)


def serve_config(applied: AppliedConfig, redis: str) -> dict[str, Any]:
    """The configuration of Ray Serve for one application with replicas on this machine only."""
    least, most = applied.replicas
    autoscaling = {
        "min_replicas": least,
        "max_replicas": most,
        "upscale_delay_s": 2,
        "downscale_delay_s": 60,
        "policy": {"policy_function": "server.cluster.autoscaling:policy"},
    }
    deployment = {
        "name": "Replica",
        "ray_actor_options": {"num_cpus": 0 if applied.gpus else 1, "num_gpus": applied.gpus},
        "user_config": {"builds": applied.builds},
        **({"num_replicas": least} if least == most else {"autoscaling_config": autoscaling}),
    }
    application = {
        "name": applied.app,
        "route_prefix": None,
        "import_path": "server.cluster.ray_serve:app",
        "args": {"config": applied.config, "redis": redis, "host": "127.0.0.1", "has_edge": bool(applied.url)},
        "deployments": [deployment],
    }
    return {"proxy_location": "Disabled", "applications": [application]}


def cause(message: str) -> str:
    """What a replica's own error says, of what Ray Serve says with its traceback; all of it where there is none."""
    found = re.search(r"^runtime\.base\.errors\.\w+: (.+)$", message, re.MULTILINE)
    return found[1] if found else message


class RayCluster(LocalCluster):
    """A cluster in `folder`, whose file cluster.json says what it was started with."""

    @property
    def ray_logs(self) -> Path:
        """The folder of Ray's logs; worker-*.err are those of the replicas."""
        return self.folder / "ray/session_latest/logs"

    @property
    def applied(self) -> AppliedConfig | None:
        """What the cluster was started with; None where `folder` has none."""
        try:
            found = json.loads((self.folder / RECORD).read_text("utf-8"))
        except FileNotFoundError:
            return None
        return AppliedConfig(**{**found, "replicas": tuple(found["replicas"])})

    def start(self, deployment: Deployment, app: str, replicas: tuple[int, int], bind: str | None) -> AppliedConfig:
        """Start a cluster with an edge at `bind` ("HOST:PORT"), or without; ends what it has started where that fails.

        replicas: the fewest and the most. Returns once the fewest are ready. Raises ConfigError where
        Redis or HAProxy is not installed, and TickError where something does not start.
        """
        address = f"127.0.0.1:{free_port()}"
        url = "" if bind is None else f"http://{bind}"
        applied = AppliedConfig(
            str(deployment.path), app, url, address, replicas, int(deployment.target not in HOST_TARGETS)
        )
        try:
            self._record(applied)
            self.start_redis()
            if bind is not None:
                self.start_edge(bind)
            self._start_ray(applied)
            self.deploy(applied)
            self._wait_deployed()
            self.wait_ready(replicas[0], has_edge=bind is not None)
        except BaseException:
            self.stop()
            raise
        return applied

    def _start_ray(self, applied: AppliedConfig) -> None:
        ports = {name: str(free_port()) for name in ("ray-client-server-port", "dashboard-agent-listen-port")}
        flags = {
            "port": applied.ray.rpartition(":")[2],
            "node-ip-address": "127.0.0.1",
            "include-dashboard": "false",
            "include-log-monitor": "false",
            "temp-dir": str(self.folder / "ray"),
            "num-cpus": str(max(applied.replicas[1], 1)),
            "object-store-memory": str(OBJECT_STORE_BYTES),
            **ports,
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        self.run("ray", *RAY, "start", "--head", "--disable-usage-stats", *words)

    def deploy(self, applied: AppliedConfig) -> None:
        """Have Ray Serve apply a configuration: it starts, ends, or reloads replicas until they are as it says."""
        path = self.folder / "serve.json"
        path.write_text(json.dumps(serve_config(applied, self.redis_url), indent=1), "utf-8")
        self.run("serve", *SERVE, "run", str(path), "--non-blocking", "--address", applied.ray)
        self._record(applied)

    def _wait_deployed(self) -> None:
        """Wait until Ray Serve has done what was asked. Raises TickError with the error of a replica that fails."""
        for name, (status, message) in self.serve_status(wait_s=START_S).items():
            if status != "RUNNING":
                raise TickError(f"{name} is {status}: {message}", fix=f"see {self.ray_logs}")

    def reload(self) -> None:
        """Replace the engines by the current builds, one replica after another.

        One that cannot open them keeps the old ones, and logs why.
        """
        applied = self.applied
        assert applied is not None
        self.deploy(replace(applied, builds=applied.builds + 1))
        self._wait_deployed()

    def serve_status(self, wait_s: float = 0.0) -> dict[str, tuple[str, str]]:
        """What Ray Serve says of each application: its status, and why. Raises TickError where it does not answer.

        wait_s: how long it may wait for what is being deployed.
        """
        applied = self.applied
        assert applied is not None
        command = [sys.executable, "-m", "server.cluster.ray_serve", applied.ray, str(wait_s)]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise TickError("Ray Serve does not answer", fix="tickrt-cluster down, and up again")
        return {name: (status, cause(message)) for name, (status, message) in json.loads(done.stdout).items()}

    def run(self, name: str, *arguments: str) -> None:
        """Run a Python program of the cluster to its end. Raises TickError where it fails."""
        process = self.launch(name, sys.executable, *arguments)
        process.wait()
        del self.launched[name]
        if process.returncode:
            raise TickError(f"{name} has ended with status {process.returncode}: {self.last_line(name)}")

    def stop(self) -> None:
        """End all processes of the cluster, and forget it; its logs stay."""
        super().stop()
        (self.folder / RECORD).unlink(missing_ok=True)

    def _record(self, applied: AppliedConfig) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.folder / RECORD, json.dumps(asdict(applied)).encode())
