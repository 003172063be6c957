"""The bare engine: rows in as few executes as fit, captured where the runtime captures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from types import SimpleNamespace

import pytest
from conftest import Built, resized
from helpers.backends import CPU, SIMULATED, Backend

from profiling.bench import baseline as module
from profiling.bench.baseline import DecoderBaseline
from profiling.bench.session import BenchSession, open_session
from profiling.bench.workload import Workload, with_runtime

LOAD = Workload(depth=2, frames=32, steps=4)


@pytest.fixture(params=[CPU, *SIMULATED[:1]], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted


@pytest.fixture
def session(built: Built, backend: Backend, machine: object) -> Iterator[BenchSession]:
    with open_session(resized(built(max_rows=16, backend=backend), 4, 8)) as found:
        yield found


def baseline(session: BenchSession, rows: int, *, capture: bool = True) -> DecoderBaseline:
    deployment = with_runtime(session.deployment, capture=capture)
    return DecoderBaseline(session.engines, session.bundle, deployment, session.device, LOAD, rows)


@pytest.mark.parametrize(("rows", "executes"), [(1, 1), (8, 1), (17, 3)])
def test_rows_beyond_the_shape_range_take_more_executes(session: BenchSession, rows: int, executes: int) -> None:
    with closing(baseline(session, rows)) as found:
        assert len(found._executions) == executes
        assert found.time_ms(2) > 0.0


def test_it_is_captured_where_the_runtime_captures(session: BenchSession, backend: Backend) -> None:
    with closing(baseline(session, 2)) as captured, closing(baseline(session, 2, capture=False)) as plain:
        assert (captured._replay is not None) == (backend.target != "cpu")
        assert plain._replay is None
        assert min(captured.time_ms(), plain.time_ms()) > 0.0


def test_a_time_is_the_mean_of_executes_that_are_waited_for_once(
    session: BenchSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clock that is read twice, 6 ms apart."""
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=count(5.0, 0.006).__next__))
    launched: list[str] = []
    with closing(baseline(session, 2)) as found:
        launch = found._launch
        monkeypatch.setattr(found, "_launch", lambda: (launched.append("launch"), launch()))
        assert found.time_ms(3) == pytest.approx(2.0)
    assert launched == ["launch"] * 3


def test_no_execute_has_more_rows_than_the_engine_takes(session: BenchSession, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    bind = module._bind_decoder
    monkeypatch.setattr(module, "_bind_decoder", lambda *arguments: (rows.append(arguments[-1]), bind(*arguments))[1])
    with closing(baseline(session, 17)) as found:
        found.time_ms()
    assert rows == [8, 8, 1]
