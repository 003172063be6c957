"""Every budget of the tick in one process: depths x features, several runs of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from profiling.bench.result import BUSY, OVERHEAD_MS, against_budget, budget_of, budget_text, rounded
from profiling.bench.session import BenchSession
from profiling.bench.sweep import common_of
from profiling.bench.workload import GUIDANCE, Workload, workload_of
from profiling.significance import MAX_SAMPLES, thinned
from runtime.config.deployment import Deployment

# Guidance and DCW of each row of the budgets.
FEATURES = ((1.0, False), (GUIDANCE, False), (GUIDANCE, True))


def grid_workloads(deployment: Deployment, frames: int, steps: int) -> list[Workload]:
    """Every workload with a budget. Raises ConfigError."""
    return [
        workload_of(deployment, depth, frames, steps, guidance=guidance, dcw=dcw)
        for depth in OVERHEAD_MS["plain"]
        for guidance, dcw in FEATURES
    ]


def measure_grid(session: BenchSession, loads: Sequence[Workload], ticks: int, repeats: int) -> dict[str, Any]:
    """Run all workloads, `repeats` times one after the other; the result is one JSON object. Raises TickError."""
    rounds = [[session.measure(load, ticks)[0] for load in loads] for _ in range(repeats)]
    points = [_point(session, load, runs) for load, runs in zip(loads, zip(*rounds, strict=True), strict=True)]
    every = [result for results in rounds for result in results]
    return {**common_of(every), "kind": "budgets", "ticks": ticks, "repeats": repeats, "points": points}


def _point(session: BenchSession, load: Workload, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One workload: medians over its runs, and the largest number of allocations."""
    overhead = rounded({name: median(run[name] for run in runs) for name in ("overhead_ms", "overhead_ratio")})
    return {
        "depth": load.depth,
        "variant": load.variant,
        "rows": runs[0]["rows"],
        **{name: {"p50": median(run[name]["p50"] for run in runs)} for name in ("tick_ms", "engine_ms")},
        **overhead,
        "overhead_ms_runs": [run["overhead_ms"] for run in runs],
        **against_budget(budget_of(session.deployment.target, load), overhead),
        "allocations_per_tick": max(run["allocations_per_tick"] for run in runs),
        "is_noisy": any(run["is_noisy"] for run in runs),
        "samples": {
            name: [thinned(run["samples"][name][0], MAX_SAMPLES // len(runs) or 1) for run in runs]
            for name in ("overhead_ratio", "engine_ms p50")
        },
    }


def print_grid(console: Console, result: Mapping[str, Any]) -> None:
    """The grid as a table."""
    title = f"{result['bundle']} on {result['target']}: ms of a tick over the bare engine, {result['repeats']} runs"
    table = Table("depth", title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("features", min_width=len("guidance+dcw"))
    for column in ("tick", "over", "of runs", "ratio", "budget", "alloc."):
        table.add_column(column, justify="right", no_wrap=True)
    for point in result["points"]:
        runs_ms = point["overhead_ms_runs"]
        table.add_row(
            str(point["depth"]),
            point["variant"],
            f"{point['tick_ms']['p50']:.2f}",
            f"{point['overhead_ms']:.3f}",
            f"{min(runs_ms):.2f}..{max(runs_ms):.2f}",
            f"{point['overhead_ratio']:.3f}",
            budget_text(point),
            f"{point['allocations_per_tick']:g}",
        )
    console.print(table)
    if any(point["is_noisy"] for point in result["points"]):
        console.print(BUSY, style="yellow")
