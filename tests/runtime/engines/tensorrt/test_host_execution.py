"""Executes on host arrays: memory that grows and is reused, one context per shape range."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.engine_behaviour import CLOSE, Bench, expected, feeds_of, written
from simulator.fixture import Machine, simulated
from simulator.plans import MANY_ROWS, ROWS

from runtime.base.errors import ShapeError
from runtime.engines.manifest import manifest_path, read_manifest


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


def test_repeated_executes_of_both_ranges_allocate_nothing(machine: Machine, tmp_path: Path) -> None:
    from runtime.engines.tensorrt.host_execution import HostExecution
    from runtime.engines.tensorrt.library import LoadedEngine

    written(tmp_path, ROWS, MANY_ROWS)
    bench = Bench()
    plan = LoadedEngine(read_manifest(manifest_path(tmp_path, "decoder")), tmp_path, "")
    host = HostExecution(plan, bench.device)
    rows = (8, 2, 7, 4)
    for _ in range(2):
        for count in rows:
            before = bench.device.allocations
            feeds = feeds_of(count, 4)
            np.testing.assert_allclose(host.run(feeds)["y"], expected(feeds), **CLOSE)
    assert bench.device.allocations == before
    with pytest.raises(ShapeError):
        host.run(feeds_of(9, 4))
    host.close()
    host.close()
    plan.close()
    del host
    bench.close()


def test_a_small_execute_takes_no_memory_of_a_larger_range(machine: Machine, tmp_path: Path) -> None:
    """So reads a reload its new engines: one row, beside the memory of the ticks."""
    from runtime.engines.tensorrt.host_execution import HostExecution
    from runtime.engines.tensorrt.library import LoadedEngine

    written(tmp_path, ROWS, {**MANY_ROWS, "frames": (1, 8, 4096)})
    bench = Bench()
    plan = LoadedEngine(read_manifest(manifest_path(tmp_path, "decoder")), tmp_path, "")
    host = HostExecution(plan, bench.device)
    assert plan.range_bytes(0) * 100 < plan.range_bytes(1) == plan.activation_bytes
    host.run(feeds_of(1, 4))
    assert host._memory is not None
    assert host._memory.size_bytes == plan.range_bytes(0)
    host.run(feeds_of(8, 4))
    assert host._memory.size_bytes == plan.range_bytes(1)
    feeds = feeds_of(2, 4)
    np.testing.assert_allclose(host.run(feeds)["y"], expected(feeds), **CLOSE)
    host.close()
    plan.close()
    del host
    bench.close()
