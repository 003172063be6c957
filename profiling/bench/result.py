"""One run as a card: for people a table, for machines one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from profiling.bench.statistics import Percentiles
from profiling.bench.steady_stream import Result
from profiling.bench.workload import Workload
from profiling.provenance import provenance
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.engines.engine import EngineSet
from runtime.tick.record import PHASES, TickRecord

# Tick over bare engine on a CPU, by the features in use; and on a GPU.
BUDGETS = {"plain": 1.04, "guidance": 1.08, "guidance+dcw": 1.12}
GPU_BUDGET = 1.02


def shape_of(load: Workload) -> dict[str, Any]:
    """What the slots did: what must be equal for two results to be comparable."""
    return {
        "variant": load.variant,
        "guidance": load.guidance,
        "depth": load.depth,
        "frames": load.frames,
        "steps": load.steps,
        "tokens": load.tokens,
        "sessions": load.sessions,
    }


def report(result: Result, bundle: Bundle, deployment: Deployment, engines: EngineSet) -> dict[str, Any]:
    """The result as one JSON object."""
    load, last = result.workload, result.records[-1]
    budget = budget_of(deployment, load)
    return {
        "kind": "tick",
        **shape_of(load),
        "rows": last.rows,
        "executes": last.executes,
        "ticks": len(result.records),
        "tick_ms": percentiles(result.ticks_ms),
        "engine_ms": percentiles(result.engine_ms),
        "decoder_in_tick_ms": percentiles([r.engine_ms for r in result.records]),
        "overhead_ratio": round(result.overhead.median, 4),
        "overhead_quartiles": [round(result.overhead.low, 4), round(result.overhead.high, 4)],
        "overhead_inside_tick": round(result.overhead_inside, 4),
        "captured": last.replayed > 0,
        "beside": {name: _rival(times, result) for name, times in result.beside_ms.items()},
        "is_noisy": result.overhead.is_noisy,
        "budget": budget,
        "within_budget": budget is None or result.overhead.median <= budget,
        "finished_per_s": round(result.finished_per_s, 3),
        "audio_s_per_s": round(result.finished_per_s * load.frames / bundle.latents.frame_rate_hz, 3),
        "allocations_per_tick": sum(result.allocations) / len(result.allocations),
        "shared_vs_alone": result.worst_difference,
        "phases_ms": rounded(phases(result.records)),
        **provenance(bundle, deployment, engines),
    }


def budget_of(deployment: Deployment, load: Workload) -> float | None:
    """The most that tick over engine may be, None where nothing is promised."""
    return BUDGETS.get(load.variant) if deployment.target == "cpu" else GPU_BUDGET


def phases(records: Sequence[TickRecord]) -> dict[str, float]:
    """Median time in each phase."""
    return {name: float(np.median([record.phases_ms[name] for record in records])) for name in PHASES}


def percentiles(samples_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99."""
    return rounded(asdict(Percentiles.of(samples_ms)))


def rounded(values: dict[str, float]) -> dict[str, float]:
    """To a tenth of a microsecond."""
    return {name: round(value, 4) for name, value in values.items()}


def _rival(times_ms: list[float], result: Result) -> dict[str, float]:
    """Its time, and how much longer it takes than a tick, which does more than it: the median of paired ratios."""
    ratio = float(np.median(np.asarray(times_ms[1:]) / np.asarray(result.ticks_ms)))
    return {**percentiles(times_ms), "over_tick": round(ratio, 4)}


def print_card(console: Console, card: dict[str, Any], sites: list[tuple[int, int, tuple[str, ...]]]) -> None:
    """The result for people."""
    title = f"{card['bundle']} on {card['target']}: depth {card['depth']}, {card['variant']}"
    table = Table("what", "value", title=title, title_justify="left", show_header=False)
    tick, engine = card["tick_ms"], card["engine_ms"]
    low, high = card["overhead_quartiles"]
    table.add_row("shape", f"{card['rows']} rows x {card['frames']} frames, {card['steps']} steps")
    table.add_row("tick", f"p50 {tick['p50']:.2f} ms   p95 {tick['p95']:.2f}   p99 {tick['p99']:.2f}")
    decoder = card["decoder_in_tick_ms"]
    table.add_row("bare engine", f"p50 {engine['p50']:.2f} ms   (within the tick {decoder['p50']:.2f})")
    ratio, inside = card["overhead_ratio"], card["overhead_inside_tick"]
    table.add_row("tick / engine", f"{ratio:.3f}  (quartiles {low:.3f} to {high:.3f}; within the tick {inside:.3f})")
    table.add_row("budget", _verdict(card))
    for name, rival in card["beside"].items():
        table.add_row(name, f"p50 {rival['p50']:.2f} ms   ({rival['over_tick']:.2f} x the tick)")
    table.add_row("throughput", f"{card['finished_per_s']:.2f} generations/s, {card['audio_s_per_s']:.1f} s of audio/s")
    table.add_row("allocations", f"{card['allocations_per_tick']:g} per tick")
    table.add_row("shared vs alone", f"{card['shared_vs_alone']:.1e} largest difference")
    table.add_row("phases", "  ".join(f"{name} {value:.3f}" for name, value in card["phases_ms"].items()) + " ms")
    table.add_row("from", f"commit {card['commit'] or 'unknown'}, engine {card['engine_sha256'][:12]}")
    console.print(table)
    if card["is_noisy"]:
        console.print("The machine was busy: the quartiles lie far apart. Run it again on a quiet one.", style="yellow")
    for count, size_bytes, site in sites[:5]:
        console.print(f"allocated {count} times, {size_bytes} bytes in all:", *site, sep="\n  ", style="yellow")


def _verdict(card: dict[str, Any]) -> str:
    if card["budget"] is None:
        return "none for this variant"
    return f"{card['budget']:.2f}: " + ("[green]kept[/]" if card["within_budget"] else "[red]missed[/]")
