"""tickrt-cluster: several replicas of a deployment on this machine, as on many: Ray Serve, HAProxy, Redis."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from runtime.base.errors import ConfigError, StoreError, TickError
from runtime.commands.command_line import CommandLine, Config, Version, need_packages
from runtime.commands.terminal import Terminal, cells, print_line
from runtime.config.deployment import HOST_TARGETS, Deployment, load_deployment
from runtime.pipeline.building import build_engines
from server.config import load_settings
from server.process import open_socket

if TYPE_CHECKING:
    from server.cluster.ray_cluster import AppliedConfig, RayCluster

HOST = "127.0.0.1"
app = CommandLine()
FolderOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Holds the cluster's sockets and logs. [default: one in the temporary folder]"),
]


@app.callback()
def tickrt_cluster(version: Version = False) -> None:
    """Try several replicas on this machine. One that dies is replaced, and its sessions go on at another one."""


@app.command()
def up(
    config: Config,
    replicas: Annotated[
        str, typer.Option(metavar="N|MIN..MAX", help="How many; a range follows live sessions and queues.")
    ] = "2",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The edge's port; 0: any free one.")] = 8000,
    edge: Annotated[
        bool | None,
        typer.Option("--edge/--no-edge", help="HAProxy as one address for all. [default: where it is installed]"),
    ] = None,
    folder: FolderOption = None,
) -> None:
    """Start replicas of a deployment on this machine, and return once they are ready."""
    cluster = open_cluster(folder)
    from server.cluster.local_cluster import find_program, program

    if cluster.members():
        running = cluster.applied
        what = f"a cluster of {running.config} runs{at(running)}" if running else "parts of a cluster run"
        raise ConfigError(f"{what}, in {cluster.folder}", fix="tickrt-cluster down, or another --folder")
    counts = replica_counts(replicas)
    deployment = load_deployment(config)
    check_cores(counts[1], deployment)
    load_settings(deployment.tables.get("server", {}), deployment.path.parent)
    has_edge = find_program("haproxy") is not None if edge is None else edge
    for name in ("redis-server", "haproxy") if has_edge else ("redis-server",):
        program(name)
    bind = free_address(port) if has_edge else None
    print_line(f"{deployment.path.name}: building engines that are missing")
    build_engines(deployment.path, deployment.target, quiet=True)
    print_line(f"{deployment.path.name}: starting {replicas} replicas (logs: {cluster.folder / 'logs'})")
    applied = cluster.start(deployment, deployment.loaded_bundle.name, counts, bind)
    print_status(cluster)
    print_line(f"ready{at(applied)}")


@app.command()
def status(folder: FolderOption = None) -> None:
    """Print the replicas of the cluster on this machine, and what Ray Serve says of them."""
    cluster = open_cluster(folder)
    applied = running_cluster(cluster)
    print_status(cluster)
    for name, (state, message) in cluster.serve_status().items():
        print_line(f"Ray Serve: {name} is {state}{f': {message}' if message else ''}{at(applied)}")


@app.command()
def reload(folder: FolderOption = None) -> None:
    """Replace the engines by the current builds, one replica after another; sessions play on."""
    cluster = open_cluster(folder)
    applied = running_cluster(cluster)
    build_engines(Path(applied.config), load_deployment(Path(applied.config)).target)
    cluster.reload()
    print_line(f"the replicas open these engines, one after another (logs: {cluster.ray_logs}/worker-*.err)")


@app.command()
def down(folder: FolderOption = None) -> None:
    """End the cluster on this machine, also one of which parts are gone."""
    cluster = open_cluster(folder)
    found = len(cluster.members())
    cluster.stop()
    print_line(f"ended {found} processes" if found else f"no cluster runs in {cluster.folder}")


def open_cluster(folder: Path | None) -> RayCluster:
    """The cluster of a folder. Raises BuildError where the extra `scale` is not installed."""
    need_packages("ray", "redis", "psutil", extra="scale")
    from server.cluster.ray_cluster import RayCluster

    return RayCluster(folder or Path(tempfile.gettempdir()) / f"tickrt-cluster-{os.getuid()}")


def running_cluster(cluster: RayCluster) -> AppliedConfig:
    """What a cluster was started with. Raises TickError where none runs in its folder."""
    applied = cluster.applied
    if applied is None or not cluster.members():
        raise TickError(f"no cluster runs in {cluster.folder}", fix="tickrt-cluster up CONFIG")
    return applied


def replica_counts(text: str) -> tuple[int, int]:
    """The fewest and the most of "2" or "1..4". Raises ConfigError."""
    found = re.fullmatch(r"([1-9][0-9]{0,2})(?:\.\.([1-9][0-9]{0,2}))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise ConfigError(f"--replicas {text}: expected a number, or the fewest and the most", fix="--replicas 1..4")
    return least, most


def check_cores(replicas: int, deployment: Deployment) -> None:
    """Raises ConfigError where this machine has fewer cores than replicas that compute on them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if deployment.target in HOST_TARGETS and replicas > cores:
        raise ConfigError(
            f"{replicas} replicas need a core each, and this machine has {cores}", fix=f"--replicas {cores}"
        )


def free_address(port: int) -> str:
    """The "HOST:PORT" of a port of this machine; port 0: of any free one. Raises ConfigError where it is in use."""
    with open_socket(HOST, port, 65536) as listener:
        return f"{HOST}:{listener.getsockname()[1]}"


def at(applied: AppliedConfig) -> str:
    """Where clients reach a cluster."""
    return f" on {applied.url} (open it in a browser to play)" if applied.url else ", each replica on its own address"


def print_status(cluster: RayCluster) -> None:
    """Print a table of the replicas, from their leases. Raises TickError where their Redis is gone."""
    try:
        leases = cluster.leases()
    except (ConfigError, StoreError) as error:
        raise TickError(f"the cluster's Redis is gone: {error.what}", fix="tickrt-cluster down, and up again") from None
    table = Table("replica", "state", "sessions", "queue, s", "address")
    for lease in leases:
        sessions = f"{lease.sessions} of {lease.capacity}"
        wait = f"{lease.queue_wait_s:.1f}"
        table.add_row(*cells(lease.name, lease.state, sessions, wait, lease.url or lease.address))
    Terminal().print(table)


def main() -> None:
    """Entry point of tickrt-cluster."""
    app(prog_name="tickrt-cluster")
