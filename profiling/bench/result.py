"""One run as a result: a JSON object, and a table; and the budgets that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from profiling.bench.statistics import Percentiles, Quartiles
from profiling.bench.steady_stream import Measurement, Site
from profiling.bench.workload import Workload
from profiling.provenance import provenance
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment, Target
from runtime.engines.engine import EngineSet
from runtime.tick.record import PHASES, TickRecord

# Milliseconds of a tick over the bare engine on a CPU, by features and depth; and tick over bare engine.
OVERHEAD_MS: Mapping[str, Mapping[int, float]] = {
    "plain": {1: 0.20, 4: 0.35, 8: 0.60},
    "guidance": {1: 0.30, 4: 0.70, 8: 1.2},
    "guidance+dcw": {1: 0.40, 4: 0.90, 8: 1.6},
}
CPU_RATIO = 1.08
GPU_RATIO = 1.02
# Quartiles of the ratio further apart than this: the machine had other work.
NOISY_SPREAD = 0.1
BUSY = "The machine was busy: quartiles lie far apart. Repeat the run on a quiet machine."


@dataclass(frozen=True)
class Budget:
    """The most that a tick may cost: tick over bare engine, and on a CPU milliseconds over it."""

    ratio: float
    overhead_ms: float | None = None

    def is_kept(self, overhead_ms: float, ratio: float) -> bool:
        """Whether both are within the budget."""
        return ratio <= self.ratio and (self.overhead_ms is None or overhead_ms <= self.overhead_ms)


def budget_of(target: Target, load: Workload) -> Budget | None:
    """The budget of a workload; None where none is stated."""
    if target != "cpu":
        return Budget(GPU_RATIO)
    overhead_ms = OVERHEAD_MS.get(load.variant, {}).get(load.depth)
    return None if overhead_ms is None else Budget(CPU_RATIO, overhead_ms)


def shape_of(load: Workload) -> dict[str, Any]:
    """The workload's properties: equal in all results that can be compared."""
    return {
        "variant": load.variant,
        "guidance": load.guidance,
        "depth": load.depth,
        "frames": load.frames,
        "steps": load.steps,
        "tokens": load.tokens,
        "sessions": load.sessions,
    }


def result_of(measured: Measurement, bundle: Bundle, deployment: Deployment, engines: EngineSet) -> dict[str, Any]:
    """A run as one JSON object. Keys in milliseconds end in `_ms`."""
    load, last = measured.workload, measured.records[-1]
    overhead_ms, ratio = measured.overhead_ms, measured.overhead_ratio
    return {
        "kind": "tick",
        **shape_of(load),
        "rows": last.rows,
        "executes": last.executes,
        "ticks": len(measured.records),
        "tick_ms": percentiles(measured.ticks_ms),
        "engine_ms": percentiles(measured.engine_ms),
        "decoder_in_tick_ms": percentiles([record.engine_ms for record in measured.records]),
        "overhead_ms": round(overhead_ms.median, 4),
        "overhead_ms_quartiles": quartiles(overhead_ms),
        "overhead_ratio": round(ratio.median, 4),
        "overhead_ratio_quartiles": quartiles(ratio),
        "overhead_inside_tick": round(measured.overhead_inside_tick, 4),
        "is_noisy": ratio.spread > NOISY_SPREAD,
        **against_budget(budget_of(deployment.target, load), overhead_ms.median, ratio.median),
        "captured": last.replayed > 0,
        "competitors": {name: _competitor(times_ms, measured) for name, times_ms in measured.competitors_ms.items()},
        "finished_per_s": round(measured.finished_per_s, 3),
        "audio_s_per_s": round(measured.finished_per_s * load.frames / bundle.latents.frame_rate_hz, 3),
        "allocations_per_tick": sum(measured.allocations) / len(measured.allocations),
        "shared_vs_alone": measured.worst_difference,
        "phases_ms": rounded(phases(measured.records)),
        **provenance(bundle, deployment, engines),
    }


def against_budget(budget: Budget | None, overhead_ms: float, ratio: float) -> dict[str, Any]:
    """The budget, and whether these are within it; a workload without a budget is."""
    if budget is None:
        return {"budget": None, "within_budget": True}
    return {"budget": asdict(budget), "within_budget": budget.is_kept(overhead_ms, ratio)}


def phases(records: Sequence[TickRecord]) -> dict[str, float]:
    """Median milliseconds in each phase of a tick."""
    return {name: float(np.median([record.phases_ms[name] for record in records])) for name in PHASES}


def percentiles(samples_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99, rounded."""
    return rounded(asdict(Percentiles.of(samples_ms)))


def quartiles(values: Quartiles) -> list[float]:
    """The lower and the upper quartile, rounded."""
    return [round(values.low, 4), round(values.high, 4)]


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Rounded to a tenth of a microsecond."""
    return {name: round(value, 4) for name, value in values.items()}


def _competitor(times_ms: list[float], measured: Measurement) -> dict[str, float]:
    """Its time, and the median of its paired ratios to a tick, which also does the step."""
    ratio = float(np.median(np.asarray(times_ms[1:]) / np.asarray(measured.ticks_ms)))
    return {**percentiles(times_ms), "over_tick": round(ratio, 4)}


def print_result(console: Console, result: Mapping[str, Any], sites: Sequence[Site]) -> None:
    """The result as a table."""
    title = f"{result['bundle']} on {result['target']}: depth {result['depth']}, {result['variant']}"
    table = Table("what", "value", title=title, title_justify="left", show_header=False)
    for name, text in _lines(result):
        table.add_row(name, text)
    console.print(table)
    if result["is_noisy"]:
        console.print(BUSY, style="yellow")
    for count, size_bytes, site in sites[:5]:
        console.print(f"allocated {count} times, {size_bytes} bytes in all:", *site, sep="\n  ", style="yellow")


def _lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    tick, engine, decoder = result["tick_ms"], result["engine_ms"], result["decoder_in_tick_ms"]
    low_ms, high_ms = result["overhead_ms_quartiles"]
    low, high = result["overhead_ratio_quartiles"]
    ratio, inside = result["overhead_ratio"], result["overhead_inside_tick"]
    return [
        ("shape", f"{result['rows']} rows x {result['frames']} frames, {result['steps']} steps"),
        ("tick", f"p50 {tick['p50']:.2f} ms   p95 {tick['p95']:.2f}   p99 {tick['p99']:.2f}"),
        ("bare engine", f"p50 {engine['p50']:.2f} ms   (within the tick {decoder['p50']:.2f})"),
        ("overhead", f"{result['overhead_ms']:.3f} ms  (quartiles {low_ms:.3f} to {high_ms:.3f})"),
        ("tick / engine", f"{ratio:.3f}  (quartiles {low:.3f} to {high:.3f}; within the tick {inside:.3f})"),
        ("budget", f"{budget_text(result)}  {verdict(result)}"),
        *((name, f"p50 {each['p50']:.2f} ms   ({each['over_tick']:.2f} x the tick)")
          for name, each in result["competitors"].items()),
        ("throughput", f"{result['finished_per_s']:.2f} generations/s, {result['audio_s_per_s']:.1f} s of audio/s"),
        ("allocations", f"{result['allocations_per_tick']:g} per tick"),
        ("shared vs alone", f"{result['shared_vs_alone']:.1e} largest difference"),
        ("phases", "  ".join(f"{name} {value:.3f}" for name, value in result["phases_ms"].items()) + " ms"),
        ("from", f"commit {result['commit'] or 'unknown'}, engine {result['engine_sha256'][:12]}"),
    ]  # fmt: skip


def budget_text(result: Mapping[str, Any]) -> str:
    """The budget: "0.35, 1.08" (milliseconds, ratio)."""
    budget = result["budget"]
    if budget is None:
        return "none stated"
    overhead_ms = budget["overhead_ms"]
    return f"{budget['ratio']:.2f}" if overhead_ms is None else f"{overhead_ms:.2f}, {budget['ratio']:.2f}"


def verdict(result: Mapping[str, Any]) -> str:
    """Whether the budget is kept, with markup; empty where there is none."""
    if result["budget"] is None:
        return ""
    return "[green]kept[/]" if result["within_budget"] else "[red]missed[/]"
