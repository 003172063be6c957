"""The cluster bench's result as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

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
    console.print(_transport(f"{title}, {sessions}\np50 / p95", result["transport"]))
    console.print(_failover("ms since a replica or the store ended, median / largest", result["failover"]))
    for format, capacity in result["capacity"].items():
        console.print(_needs(format, capacity))
    if any(run["underruns"] for run in result["transport"].values()):
        console.print(BUSY, style="yellow")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    return table


def _transport(title: str, runs: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table(title, "", *runs)
    for name, label in LATENCIES.items():
        table.add_row(label, *(_pair(run[name], "p50", "p95", 2) for run in runs.values()))
    for name, (label, factor, digits) in FIGURES.items():
        table.add_row(label, *(f"{factor * run[name]:.{digits}f}" for run in runs.values()))
    return table


def _failover(title: str, losses: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table(title, "", *LOSSES.values(), "rounds")
    for name, loss in losses.items():
        table.add_row(name, *(_pair(loss[figure], "p50", "max", 0) for figure in LOSSES), str(loss["rounds"]))
    return table


def _needs(format: str, capacity: Mapping[str, Any]) -> Table:
    per_replica, share = capacity["listeners_per_replica"], capacity["replica_share"]
    title = f"{format}: {per_replica} listeners per replica, each {share:.1%} of it; one replica is spare"
    table = _table(title, *NEEDS.values())
    for needs in capacity["points"]:
        table.add_row(*(f"{needs[name]:,}" for name in NEEDS))
    return table


def _pair(values: Mapping[str, float], first: str, second: str, digits: int) -> str:
    return f"{values[first]:.{digits}f} / {values[second]:.{digits}f}" if values else "-"
