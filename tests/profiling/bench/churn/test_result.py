"""The result of a run under churn: shares by how ticks were launched, slow ticks, the budget, the table."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Built
from rich.console import Console

from profiling.bench.churn.result import churn_point, print_churn, slow_share, way_of
from runtime.config.deployment import Deployment
from runtime.tick.loop.record import TickRecord


def record(tick_ms: float = 1.0, rows: int = 2, frames: tuple[int, ...] = (16,), **counts: int) -> TickRecord:
    made = TickRecord(tick=0, slots=2, rows=rows, frames=frames, executes=1, variants=("plain",), queue_depth=0)
    made.tick_ms = tick_ms
    for name, count in counts.items():
        setattr(made, name, count)
    return made


def test_a_tick_is_replayed_where_the_graphs_of_all_its_lengths_were_there() -> None:
    assert way_of(record(replayed=1)) == "replayed"
    assert way_of(record(replayed=2, captured=1, frames=(16, 32))) == "captured"
    assert way_of(record(replayed=1, frames=(16, 32))) == "plain"
    assert way_of(record()) == "plain"


def test_a_tick_is_slow_against_ticks_of_its_kind() -> None:
    ticks = [*[record(1.0)] * 5, record(2.5), *[record(5.0, rows=8)] * 3, record(5.0, frames=(32,))]
    assert slow_share(ticks) == 1 / 10


@pytest.fixture
def on_tensorrt(built: Built) -> Deployment:
    return built().model_copy(update={"target": "tensorrt"})


def test_a_point_has_shares_times_and_its_budget(on_tensorrt: Deployment, built: Built) -> None:
    ticks = [
        *[record(float(ms), replayed=1) for ms in range(1, 96)],
        *[record(5.0)] * 3,
        *[record(9.0, captured=1)] * 2,
    ]
    point = churn_point(on_tensorrt, ticks, [1.0, 3.0])
    assert (point["replayed"], point["plain"], point["captured"], point["not_replayed"]) == (0.95, 0.03, 0.02, 0.05)
    assert point["within_budget"]
    assert point["queue_wait_ms"]["p50"] == 2.0
    assert (point["generations"], point["slots"]) == (2, 2.0)
    counted = churn_point(on_tensorrt, [record(bound=2, evicted=1, allocations=3), record(bound=3, allocations=2)], [])
    assert (counted["bound"], counted["evicted"], counted["allocations_per_tick"]) == (5, 1, 2.5)
    worse = churn_point(on_tensorrt, [*ticks, record()], [])
    assert not worse["within_budget"]
    assert churn_point(built(), [record()], [])["budget"] == {}


def test_the_table_fits_a_terminal_and_says_which_budget_is_missed(on_tensorrt: Deployment) -> None:
    ticks = [record(123.456, replayed=1)] * 19 + [record()]
    points = [
        {"load": load, **churn_point(on_tensorrt, ticks[first:], [99.9])} for load, first in ((0.3, 0), (0.9, 18))
    ]
    result: dict[str, Any] = {
        "bundle": "tiny", "target": "tensorrt", "depth": 8, "steps": 8, "variant": "plain", "frames": [16, 32],
        "tokens": [60, 160], "points": points,
    }  # fmt: skip
    console = Console(record=True, width=80)
    print_churn(console, result)
    text = console.export_text()
    assert "…" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["0.3", "95.0%", "0.0%", "5.0%", "123.46", "123.46", "0.0%", "99.9", "kept"] in lines
    assert ["0.9", "50.0%", "0.0%", "50.0%"] in [line[:4] for line in lines]
    assert text.rstrip().endswith("missed")
