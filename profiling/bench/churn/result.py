"""What a run under churn measured, as a JSON object and as a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from rich.console import Console

from profiling.bench.result import against_budget, rounded
from profiling.bench.statistics import percentiles
from runtime.commands.tables import print_table
from runtime.config.deployment import PLAN_TARGETS, Deployment
from runtime.tick.loop.record import TickRecord

# The largest share of ticks that do not replay a graph, where ticks can be captured.
MAX_NOT_REPLAYED = 0.05
# A tick is slow that takes so many times the median of ticks with the same lengths and rows.
SLOW = 2.0
WAYS = ("replayed", "captured", "plain")
Way = Literal["replayed", "captured", "plain"]


def way_of(record: TickRecord) -> Way:
    """How a tick was launched: replayed where every length's graph was there, plain where one was without a graph."""
    if record.captured:
        return "captured"
    return "replayed" if record.replayed == len(record.frames) else "plain"


def slow_share(records: Sequence[TickRecord]) -> float:
    """The share of ticks that take SLOW times as long as ticks of their kind."""
    kinds: dict[tuple[tuple[int, ...], int], list[float]] = defaultdict(list)
    for record in records:
        kinds[record.frames, record.rows].append(record.tick_ms)
    return sum(sum(ms > SLOW * np.median(times) for ms in times) for times in kinds.values()) / len(records)


def churn_point(deployment: Deployment, records: Sequence[TickRecord], waits_ms: Sequence[float]) -> dict[str, Any]:
    """One load: shares of ticks by how they were launched, their times, and how long generations waited for a slot."""
    ways: Counter[str] = Counter(way_of(record) for record in records)
    shares = rounded({way: ways[way] / len(records) for way in WAYS})
    can_capture = deployment.target in PLAN_TARGETS and deployment.runtime.capture
    budget = {"not_replayed": MAX_NOT_REPLAYED} if can_capture else {}
    not_replayed = rounded({"not_replayed": 1.0 - ways["replayed"] / len(records)})
    return {
        **shares,
        **not_replayed,
        **against_budget(budget, not_replayed),
        "bound": sum(record.bound for record in records),
        "evicted": sum(record.evicted for record in records),
        "slots": round(float(np.mean([record.slots for record in records])), 2),
        "tick_ms": rounded(percentiles([record.tick_ms for record in records])),
        "slow_ticks": round(slow_share(records), 4),
        "queue_wait_ms": rounded(percentiles(waits_ms or [0.0])),
        "generations": len(waits_ms),
        "allocations_per_tick": round(sum(record.allocations for record in records) / len(records), 4),
    }


def print_churn(console: Console, result: Mapping[str, Any]) -> None:
    """The loads as a table."""
    frames, tokens = "/".join(map(str, result["frames"])), "..".join(map(str, result["tokens"]))
    what = f"depth {result['depth']}, {result['steps']} steps, {result['variant']}, {frames} frames, {tokens} tokens"
    columns = ("load", *WAYS, "tick p50", "p99", "slow", "wait p99", "budget")
    print_table(console, f"{result['bundle']} on {result['target']} under churn, ms\n{what}", columns, _rows(result))


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            f"{point['load']:g}",
            *(f"{point[way]:.1%}" for way in WAYS),
            *(f"{point['tick_ms'][name]:.2f}" for name in ("p50", "p99")),
            f"{point['slow_ticks']:.1%}",
            f"{point['queue_wait_ms']['p99']:.1f}",
            "" if not point["budget"] else "kept" if point["within_budget"] else "missed",
        ]
        for point in result["points"]
    ]
