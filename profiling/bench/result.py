"""One run as a result: a JSON object, and a table; and the budgets that it is compared with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.bench.statistics import percentiles, ratios_to_neighbours
from profiling.bench.steady_stream import Measurement, Site
from profiling.bench.workload import Workload
from profiling.comparison import thinned
from profiling.provenance import provenance
from runtime.config.bundle import Bundle
from runtime.config.deployment import HOST_TARGETS, Deployment, Target
from runtime.engines.engine import EngineSet
from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord

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


def budget_of(target: Target, load: Workload) -> dict[str, float]:
    """Figure of a result -> the most that it may be; empty where no budget is stated."""
    if target not in HOST_TARGETS:
        return {"overhead_ratio": GPU_RATIO}
    overhead_ms = OVERHEAD_MS.get(load.variant, {}).get(load.depth)
    return {} if overhead_ms is None else {"overhead_ms": overhead_ms, "overhead_ratio": CPU_RATIO}


def against_budget(budget: Mapping[str, float], figures: Mapping[str, float]) -> dict[str, Any]:
    """The budget, and whether all figures are within it."""
    return {"budget": budget, "within_budget": all(figures[name] <= limit for name, limit in budget.items())}


def budget_text(result: Mapping[str, Any]) -> Text:
    """Limits and verdict: "0.35, 1.08 kept"."""
    if not result["budget"]:
        return Text("none stated")
    limits = ", ".join(f"{limit:.2f}" for limit in result["budget"].values())
    return Text.assemble(f"{limits} ", verdict(result))


def verdict(result: Mapping[str, Any]) -> Text:
    """Whether a result keeps its limits, in colour."""
    return Text("kept", "green") if result["within_budget"] else Text("missed", "red")


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
    """A run as one JSON object. Keys in milliseconds end in `_ms`; `samples` are those of figures, in rounds."""
    load, last = measured.workload, measured.records[-1]
    overhead_ms, ratio = measured.overhead_ms, measured.overhead_ratio
    overhead = rounded({"overhead_ms": overhead_ms.median, "overhead_ratio": ratio.median})
    return {
        "kind": "tick",
        **shape_of(load),
        "rows": last.rows,
        "executes": last.executes,
        "ticks": len(measured.records),
        "tick_ms": rounded(percentiles(measured.ticks_ms)),
        "engine_ms": rounded(percentiles(measured.engine_ms)),
        "decoder_in_tick_ms": rounded(percentiles([record.engine_ms for record in measured.records])),
        **overhead,
        "overhead_ms_quartiles": [round(overhead_ms.low, 4), round(overhead_ms.high, 4)],
        "overhead_ratio_quartiles": [round(ratio.low, 4), round(ratio.high, 4)],
        "overhead_inside_tick": round(measured.overhead_inside_tick, 4),
        "is_noisy": ratio.spread > NOISY_SPREAD,
        **against_budget(budget_of(deployment.target, load), overhead),
        "captured": last.replayed > 0,
        "competitors": {name: competitor(times_ms, measured) for name, times_ms in measured.competitors_ms.items()},
        "finished_per_s": round(measured.finished_per_s, 3),
        "audio_s_per_s": round(measured.finished_per_s * load.frames / bundle.latents.frame_rate_hz, 3),
        "resident_mib": round(resident_bytes() / (1 << 20), 1),
        "allocations_per_tick": sum(measured.allocations) / len(measured.allocations),
        "shared_vs_alone": measured.worst_difference,
        "phases_ms": rounded(phases(measured.records)),
        "samples": {
            "overhead_ratio": [thinned(ratios_to_neighbours(measured.ticks_ms, measured.engine_ms))],
            "engine_ms p50": [thinned(measured.engine_ms)],
        },
        **provenance(bundle, deployment, engines.decoder.manifest),
    }


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system has no /proc."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


def phases(records: Sequence[TickRecord]) -> dict[str, float]:
    """Median milliseconds in each phase of a tick."""
    return {name: float(np.median([record.phases_ms[name] for record in records])) for name in PHASES}


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Rounded to a tenth of a microsecond."""
    return {name: round(value, 4) for name, value in values.items()}


def competitor(times_ms: list[float], measured: Measurement) -> dict[str, float]:
    """Its time, and the median of its ratios to the tick right before it."""
    ratio = float(np.median(np.asarray(times_ms[1:]) / np.asarray(measured.ticks_ms)))
    return rounded({**percentiles(times_ms), "over_tick": ratio})


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


def _lines(result: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
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
        ("budget", budget_text(result)),
        *((name, f"p50 {each['p50']:.2f} ms   ({each['over_tick']:.2f} x the tick)")
          for name, each in result["competitors"].items()),
        ("throughput", f"{result['finished_per_s']:.2f} generations/s, {result['audio_s_per_s']:.1f} s of audio/s"),
        ("allocations", f"{result['allocations_per_tick']:g} per tick"),
        ("shared vs alone", f"{result['shared_vs_alone']:.1e} largest difference"),
        ("phases", "  ".join(f"{name} {value:.3f}" for name, value in result["phases_ms"].items()) + " ms"),
        ("from", f"commit {result['commit'] or 'unknown'}, engine {result['engine_sha256'][:12]}"),
    ]  # fmt: skip
