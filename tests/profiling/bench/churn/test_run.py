"""Churn through the production loop, on the simulated GPU: ticks replay, and generations have the latents they have
alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Built
from helpers.backends import SIMULATED, SIMULATED_RTX, Backend
from simulator.fixture import Machine

from profiling.bench.churn.arrivals import ChurnLoad
from profiling.bench.churn.run import ChurnStream, measure_churn, open_stream
from profiling.bench.session import BenchSession, open_session
from profiling.bench.workload import Workload
from runtime.base.errors import EngineError

LOAD = ChurnLoad((0.6, 0.9), Workload(3, 32, 3), (16, 32), (4, 12))


@pytest.fixture(params=[SIMULATED[0], SIMULATED_RTX], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


@pytest.fixture
def session(built: Built, backend: Backend, machine: Machine) -> Iterator[BenchSession]:
    with open_session(built(max_rows=16, backend=backend)) as opened:
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


def test_without_the_common_ticks_the_same_generations_replay_less(session: BenchSession) -> None:
    """What the test above would see."""
    stream = ChurnStream(session, LOAD)
    records = stream.run(0.9, 24)
    stream.loop.close()
    assert len(records) == 24
    assert records[0].tick >= 2 * LOAD.workload.steps, "what has not settled is not counted"
    assert 3 < len(stream.waits_ms) < next(stream._numbers), "nor the waits of generations that started before"
    assert sum(record.replayed == len(record.frames) for record in records) < 0.8 * 24


def test_a_generation_that_others_changed_is_an_error(session: BenchSession) -> None:
    with open_stream(session, LOAD) as stream:
        stream.run(0.9, 8)
        request, latents = stream.results[0]
        stream.results[0] = (request, latents + np.float32(0.01))
        with pytest.raises(EngineError, match="under churn differs"):
            stream.verify()
