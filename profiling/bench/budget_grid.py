"""Every budget of the tick in one process: depths x features, several runs of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console

from profiling.bench.result import BUSY, OVERHEAD_MS, against_budget, budget_of, budget_text, rounded
from profiling.bench.session import BenchSession
from profiling.bench.sweep import common_of
from profiling.bench.workload import GUIDANCE, Workload, workload_of
from profiling.significance import MAX_SAMPLES, thinned
from runtime.commands.tables import print_table
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
    rows = [
        (
            str(point["depth"]),
            point["variant"],
            f"{point['tick_ms']['p50']:.2f}",
            f"{point['overhead_ms']:.3f}",
            f"{min(point['overhead_ms_runs']):.2f}..{max(point['overhead_ms_runs']):.2f}",
            f"{point['overhead_ratio']:.3f}",
            budget_text(point),
            f"{point['allocations_per_tick']:g}",
        )
        for point in result["points"]
    ]
    columns = ("depth", "features", "tick", "over", "of runs", "ratio", "budget", "alloc.")
    print_table(console, title, columns, rows, 2)
    if any(point["is_noisy"] for point in result["points"]):
        console.print(BUSY, style="yellow")
