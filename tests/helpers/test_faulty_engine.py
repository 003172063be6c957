"""Injected faults occur at the chosen execute, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine_behaviour import CLOSE, Bench, expected, feeds_of, opened, written
from helpers.faulty_engine import Faults, FaultyEngine
from simulator.fixture import simulated

from runtime.base.errors import EngineDeadError, EngineError


@pytest.mark.parametrize("way", ["launch", "warm_up"])
def test_a_row_of_device_memory_becomes_nan(way: str, tmp_path: Path) -> None:
    with simulated():
        bench = Bench()
        written(tmp_path)
        engine = FaultyEngine(opened(tmp_path, bench.device), Faults(nan_at={1: (0,)}), bench.device)
        tensors = bench.tensors()
        execution = engine.bind(tensors)
        start: Callable[[Any], None] = getattr(execution, way)
        for number in range(3):
            start(bench.stream)
            y = bench.read(tensors["y"])
            np.testing.assert_allclose(y[1], expected(feeds_of(2, 4))[1], **CLOSE)
            assert np.isnan(y[0]).all() == (number == 1)
        execution.release()
        engine.close()
        bench.close()


def test_failures_are_raised_instead_of_the_execute(tmp_path: Path) -> None:
    with simulated() as machine:
        bench = Bench()
        written(tmp_path)
        faults = Faults(fail_at=frozenset({0}), die_at=1)
        engine = FaultyEngine(opened(tmp_path, bench.device, in_tick=True), faults)
        execution = engine.bind(bench.tensors())
        before = machine.counters["launches"]
        with pytest.raises(EngineError, match="failed at execute 0"):
            execution.warm_up(bench.stream)
        with pytest.raises(EngineDeadError, match="died at execute 1"):
            execution.launch(bench.stream)
        assert machine.counters["launches"] == before
        execution.launch(bench.stream)
        assert machine.counters["launches"] == before + 1
        bench.stream.record().wait()
        execution.release()
        engine.close()
        bench.close()
