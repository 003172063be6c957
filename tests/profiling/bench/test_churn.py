"""Churn through the production loop, on the simulated GPU: ticks replay, and generations have the latents they have
alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.backends import SIMULATED, SIMULATED_RTX, Backend
from rich.console import Console
from simulator.fixture import Machine

from profiling.bench.churn import (
    ChurnLoad,
    churn_load,
    churn_point,
    measure_churn,
    open_stream,
    parse_loads,
    print_churn,
    slow_share,
    way_of,
)
from profiling.bench.session import BenchSession, open_bench
from profiling.bench.workload import Workload
from runtime.base.errors import ConfigError, EngineError
from runtime.config.deployment import Deployment, ShapeRange
from runtime.tick.loop.record import TickRecord

LOAD = ChurnLoad((0.6, 0.9), Workload(3, 32, 3), (16, 32), (4, 12))


@pytest.fixture(params=[SIMULATED[0], SIMULATED_RTX], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


@pytest.fixture
def session(built: Built, backend: Backend, machine: Machine) -> Iterator[BenchSession]:
    with open_bench(built(max_rows=16, backend=backend)) as opened:
        yield opened


def test_ticks_replay_and_every_load_has_its_point(session: BenchSession) -> None:
    result = measure_churn(session, LOAD, ticks=24)
    assert (result["kind"], result["over"], result["values"]) == ("churn", "load", [0.6, 0.9])
    light, heavy = result["points"]
    for point in (light, heavy):
        assert point["within_budget"]
        assert point["replayed"] >= 0.95
        assert point["replayed"] + point["captured"] + point["plain"] == pytest.approx(1.0, abs=1e-3)
        assert point["generations"] > 3
    assert light["slots"] < heavy["slots"] <= 3
    assert 0.0 <= result["churn_vs_alone"] <= 1e-4


def test_what_has_not_settled_is_not_counted_and_a_generation_that_others_changed_is_an_error(
    session: BenchSession,
) -> None:
    with open_stream(session, LOAD) as stream:
        records = stream.run(0.9, 24)
        assert (len(records), records[0].tick >= 2 * LOAD.workload.steps) == (24, True)
        assert 3 < len(stream.waits_ms) < stream.made, "nor the waits of generations that started before"
        request, latents = stream.results[0]
        stream.results[0] = (request, latents + np.float32(0.01))
        with pytest.raises(EngineError, match="under churn differs"):
            stream.verify()


ARRIVALS = ChurnLoad((0.6,), Workload(8, 64, 8), (16, 32, 64), (60, 160))


def test_loads_are_different_shares() -> None:
    assert parse_loads("0.3, 0.6,0.9") == (0.3, 0.6, 0.9)
    for text in ("", "x", "0", "1.5", "0.3,0.3", "0.3,,0.6"):
        with pytest.raises(ConfigError, match="shares of all slots"):
            parse_loads(text)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_generations_arrive_as_a_poisson_process_of_that_load(load: float) -> None:
    found = list(takewhile(lambda arrival: arrival[0] < 4000, ARRIVALS.arrivals(load)))
    expected = load * 4000  # depth 8 and 8 steps: one generation per tick is a load of 1
    assert len(found) == pytest.approx(expected, abs=4 * expected**0.5)
    gaps = np.diff([at_tick for at_tick, _ in found])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of an exponential distribution
    lengths = [workload.frames for _, workload in found]
    assert [lengths.count(frames) / len(found) for frames in ARRIVALS.lengths] == pytest.approx([1 / 3] * 3, abs=0.05)
    tokens = [workload.tokens for _, workload in found]
    assert (min(tokens), max(tokens)) == (60, 160)


def test_equal_seeds_are_equal_arrivals_and_the_first_one_comes_as_soon_as_any_other() -> None:
    one, two, other = (ARRIVALS.arrivals(0.6, seed) for seed in (1, 1, 2))
    assert [next(one) for _ in range(9)] == [next(two) for _ in range(9)]
    assert next(one) != next(other)
    first = [next(ARRIVALS.arrivals(0.5, seed))[0] for seed in range(200)]
    assert min(first) < 0.1
    assert np.mean(first) == pytest.approx(2.0, rel=0.25)  # at a load of 0.5, one in two ticks


def with_tokens(deployment: Deployment, most: int) -> Deployment:
    shapes = [one.model_copy(update={"tokens": ShapeRange(min=1, opt=1, max=most)}) for one in deployment.shapes]
    return deployment.model_copy(update={"shapes": tuple(shapes)})


def test_lengths_are_those_of_generations_and_tokens_fit_the_engines(built: Built) -> None:
    found = churn_load(with_tokens(built(), 300), "0.5", ARRIVALS.workload)
    assert (found.lengths, found.tokens) == ((16, 24, 32), (60, 160))
    assert churn_load(with_tokens(built(), 80), "0.5", ARRIVALS.workload).tokens == (30, 80)
    assert churn_load(with_tokens(built(), 1), "0.5", ARRIVALS.workload).tokens == (1, 1)
    assert churn_load(built(), "0.5", ARRIVALS.workload, frames=20).lengths == (20,)


def record(tick_ms: float = 1.0, rows: int = 2, frames: tuple[int, ...] = (16,), **counts: int) -> TickRecord:
    made = TickRecord(tick=0, slots=2, rows=rows, frames=frames, executes=1, variants=("plain",), queue_depth=0)
    made.tick_ms = tick_ms
    for name, count in counts.items():
        setattr(made, name, count)
    return made


def test_a_tick_is_replayed_where_all_its_graphs_were_there_and_slow_against_those_of_its_kind() -> None:
    found = [(1, 0, (16,)), (2, 1, (16, 32)), (1, 0, (16, 32)), (0, 0, (16,))]
    ways = [way_of(record(replayed=replayed, captured=made, frames=frames)) for replayed, made, frames in found]
    assert ways == ["replayed", "captured", "plain", "plain"]
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
