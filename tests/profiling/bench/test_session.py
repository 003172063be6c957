"""Bench sessions: engines are opened once, shared by loops, and closed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Built

from profiling import provenance
from profiling.bench.session import open_session
from profiling.bench.workload import Workload
from profiling.provenance import this_commit
from runtime.base.errors import ConfigError
from runtime.devices.device import HostDevice
from runtime.engines.engine import EngineSet

LOAD = Workload(depth=2, frames=32, steps=4)


def test_loops_share_the_engines_and_the_session_closes_them(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[EngineSet] = []
    close = EngineSet.close
    monkeypatch.setattr(EngineSet, "close", lambda engines: (closed.append(engines), close(engines))[1])
    with open_session(built()) as session:
        for _ in range(2):
            with session.stream(LOAD) as stream:
                assert stream.play()[0].shape == (32, session.bundle.latents.channels)
        assert closed == []
    assert len(closed) == 1


def test_a_stream_runs_by_the_deployment_that_it_is_given(built: Built) -> None:
    own = built()
    other = own.model_copy(update={"runtime": own.runtime.model_copy(update={"captured_graphs": 3})})
    with open_session(own) as session:
        with session.stream(LOAD, other) as stream:
            assert stream.loop.deployment.runtime.captured_graphs == 3
        with session.stream(LOAD) as stream:
            assert stream.loop.deployment.runtime.captured_graphs == own.runtime.captured_graphs != 3


def test_a_measurement_and_its_result_agree(built: Built) -> None:
    with open_session(built()) as session:
        result, measured = session.measure(LOAD, ticks=3)
    assert (result["kind"], result["depth"], result["ticks"], result["free_mib"]) == ("tick", 2, 3, 0)
    assert result["overhead_ms"] == pytest.approx(measured.overhead_ms.median, abs=1e-4)
    assert len(measured.allocations) == 2 * LOAD.steps


def test_a_result_names_the_commit_at_the_start_of_the_run(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["at the start", "later"])
    monkeypatch.setattr(provenance, "commit", lambda: next(commits))
    this_commit.cache_clear()
    try:
        with open_session(built()) as session:
            next(commits)
            assert session.measure(LOAD, ticks=1)[0]["commit"] == "at the start"
    finally:
        this_commit.cache_clear()


def test_competitors_are_timed_in_turn_with_the_ticks(built: Built) -> None:
    class Constant:
        def __init__(self) -> None:
            self.times_ms = iter([900.0])

        def time_ms(self, times: int = 1) -> float:
            return next(self.times_ms, 5.0)

    with open_session(built()) as session:
        result, measured = session.measure(LOAD, 3, lambda rows: {f"constant for {rows} rows": Constant()})
    assert measured.competitors_ms == {"constant for 2 rows": [5.0] * 4}, "the first time, which warms up, is left out"
    found = result["competitors"]["constant for 2 rows"]
    assert (found["p50"], found["over_tick"]) == (
        5.0,
        pytest.approx(np.median(5.0 / np.array(measured.ticks_ms)), abs=1e-4),
    )


def test_an_error_inside_closes_everything(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    for kind in (EngineSet, HostDevice):
        monkeypatch.setattr(kind, "close", noted(kind.close, kind.__name__, closed))
    with pytest.raises(ConfigError, match="in the test"), open_session(built()):
        raise ConfigError("an error in the test")
    assert closed == ["EngineSet", "HostDevice"]


def noted(close: Callable[[Any], None], name: str, closed: list[str]) -> Callable[[Any], None]:
    return lambda item: (closed.append(name), close(item))[1]
