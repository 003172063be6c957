"""The cluster bench's result as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from runtime.commands.tables import print_table

LATENCIES = {"get_ms": "GET, ms", "ping_ms": "ping of a session, ms", "audio_ms": "a control and its audio, ms"}
# Figure -> label, factor, digits.
FIGURES = {
    "edge_cores": ("HAProxy, % of a core", 100.0, 1),
    "kbit_per_s_per_session": ("audio, kbit/s by session", 1.0, 0),
    "store_bytes_per_s_per_session": ("to Redis, bytes/s by session", 1.0, 0),
    "server_cpu": ("a replica, cores", 1.0, 2),
    "ticks_share": ("ticks of a replica, % of time", 100.0, 0),
    "underruns": ("underruns", 1.0, 0),
}
LOSSES = {"noticed_ms": "connection lost", "resumed_ms": "resumed", "gap_ms": "silence"}
NEEDS = {
    "listeners": "listeners", "replicas": "replicas", "edge_cores": "HAProxy, cores",
    "audio_mbit_per_s": "audio, Mbit/s", "store_mb_per_s": "to Redis, MB/s",
}  # fmt: skip


BUSY = "Sessions had underruns: the machine was too busy for these figures. Take fewer --sessions, or a quiet machine."


def print_cluster(console: Console, result: Mapping[str, Any]) -> None:
    """Transport, failover, and what listeners need."""
    title = f"{result['bundle']} on {result['target']}: {result['replicas']} replicas"
    sessions = f"{result['sessions']} live sessions, mode {result['mode']}"
    runs, losses = result["transport"], result["failover"]
    print_table(console, f"{title}, {sessions}\np50 / p95", ("", *runs), [*_transport(runs)])
    title = "ms since a replica or the store ended, median / largest"
    print_table(console, title, ("", *LOSSES.values(), "rounds"), [*_failover(losses)])
    for format, capacity in result["capacity"].items():
        title = (
            f"{format}: {capacity['listeners_per_replica']} listeners per replica, each "
            f"{capacity['replica_share']:.1%} of it; one replica is spare"
        )
        rows = [[f"{needs[name]:,}" for name in NEEDS] for needs in capacity["points"]]
        print_table(console, title, tuple(NEEDS.values()), rows, 0)
    if any(run["underruns"] for run in result["transport"].values()):
        console.print(BUSY, style="yellow")


def _transport(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, label in LATENCIES.items():
        yield label, *(_pair(run[name], "p50", "p95", 2) for run in runs.values())
    for name, (label, factor, digits) in FIGURES.items():
        yield label, *(f"{factor * run[name]:.{digits}f}" for run in runs.values())


def _failover(losses: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, loss in losses.items():
        yield name, *(_pair(loss[figure], "p50", "max", 0) for figure in LOSSES), str(loss["rounds"])


def _pair(values: Mapping[str, float], first: str, second: str, digits: int) -> str:
    return f"{values[first]:.{digits}f} / {values[second]:.{digits}f}" if values else "-"
