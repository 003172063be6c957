"""Several runs in one process: a sweep of depth, frames or steps; every budget, depths x features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from profiling.bench.result import BUSY, OVERHEAD_MS, against_budget, budget_of, budget_text, rounded
from profiling.bench.session import BenchSession
from profiling.bench.workload import GUIDANCE, Workload, workload_of
from profiling.comparison import MAX_SAMPLES, thinned
from profiling.output import save_plot
from runtime.base.errors import ConfigError
from runtime.commands.terminal import print_table
from runtime.config.deployment import Deployment

NAMES = ("depth", "frames", "steps")
BAR = 12
# Properties that are stated once where all points share them.
COMMON = (
    "bundle", "target", "commit", "switches", "threads", "engine_sha256", "versions", "machine", "variant", "guidance",
    "depth", "frames", "steps", "tokens", "sessions",
)  # fmt: skip
# Guidance and DCW of each row of the budgets.
FEATURES = ((1.0, False), (GUIDANCE, False), (GUIDANCE, True))


@dataclass(frozen=True, slots=True)
class Sweep:
    """The name and the values of the number that changes."""

    name: str
    values: tuple[int, ...]


def parse_sweep(text: str) -> Sweep:
    """ "depth=1,2,4,8". Raises ConfigError."""
    name, _, listed = text.partition("=")
    fix = f"tickrt-bench sweep CONFIG depth=1,2,4,8, of {', '.join(NAMES)}"
    if name not in NAMES:
        raise ConfigError(f"there is no sweep over {name!r}", fix=fix)
    try:
        values = tuple(int(value) for value in listed.split(","))
    except ValueError:
        raise ConfigError(f"{listed!r} is not a list of whole numbers", fix=fix) from None
    if min(values) < 1 or len(set(values)) != len(values):
        raise ConfigError(f"{listed!r}: expected different numbers, each 1 or more", fix=fix)
    return Sweep(name, values)


def common_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The properties of COMMON that all results share."""
    first = results[0]
    return {name: first[name] for name in COMMON if all(result[name] == first[name] for result in results)}


def sweep_result(sweep: Sweep, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All points as one JSON object: the properties they share, and each result without these."""
    common = common_of(results)
    own = [{name: value for name, value in result.items() if name not in common} for result in results]
    points = [{sweep.name: value, **point} for value, point in zip(sweep.values, own, strict=True)]
    return {**common, "kind": "sweep", "over": sweep.name, "values": list(sweep.values), "points": points}


def print_sweep(console: Console, result: Mapping[str, Any]) -> None:
    """The sweep as a table."""
    title = f"{result['bundle']} on {result['target']}: {result['variant']}, by {result['over']}"
    most_ms = max(point["tick_ms"]["p50"] for point in result["points"])
    columns = (result["over"], "rows", "tick p50", "engine", "overhead", "ratio", "ms per row", "MiB", "")
    print_table(console, title, columns, [_row(point, result["over"], most_ms) for point in result["points"]], 0)
    if result["over"] == "depth" and len(points := result["points"]) > 1:
        first, *_, last = sorted(points, key=lambda point: int(point["depth"]))
        each = (last["resident_mib"] - first["resident_mib"]) / (last["depth"] - first["depth"])
        console.print(f"memory: {each:.1f} MiB per slot", highlight=False)


def _row(point: Mapping[str, Any], over: str, most_ms: float) -> tuple[str, ...]:
    tick_ms = point["tick_ms"]["p50"]
    return (
        str(point[over]),
        str(point["rows"]),
        f"{tick_ms:.2f}",
        f"{point['engine_ms']['p50']:.2f}",
        f"{point['overhead_ms']:.2f}",
        f"{point['overhead_ratio']:.3f}",
        f"{tick_ms / point['rows']:.3f}",
        f"{point['resident_mib']:.0f}",
        ("█" * max(1, round(BAR * tick_ms / most_ms))).ljust(BAR),
    )


def plot_sweep(console: Console, path: Path, result: Mapping[str, Any]) -> None:
    """Draw the sweep: over the rows in a sweep of depth, else over the number that changes."""
    over = "rows" if result["over"] == "depth" else result["over"]
    title = f"{result['bundle']} on {result['target']}, {result['variant']}"
    save_plot(console, path, title, (over, "ms (p50)"), sweep_lines(result, over))


def sweep_lines(result: Mapping[str, Any], over: str) -> dict[str, list[tuple[float, float]]]:
    """The times of ticks and of the bare engine, over a property of the points."""
    return {
        name: [(float(point[over]), float(point[key]["p50"])) for point in result["points"]]
        for name, key in (("tick", "tick_ms"), ("bare engine", "engine_ms"))
    }


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
