"""TensorRT's logger, loaded plans, their memory and settings, on the simulated TensorRT."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine_behaviour import CLOSE, Bench, benched, expected, feeds_of, written
from simulator.plans import MANY_ROWS, ROWS, cache_graph, write_engine

from runtime.base.errors import EngineError, OutOfMemoryError, ShapeError
from runtime.engines.manifest import manifest_path, read_manifest


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benched(tmp_path) as bench:
        yield bench


@contextmanager
def loaded(bench: Bench, name: str = "decoder") -> Iterator[Any]:
    # Imported here: the simulator replaces the module.
    from runtime.engines.tensorrt.library import LoadedEngine

    plan = LoadedEngine(read_manifest(manifest_path(bench.folder, name)), bench.folder, "build it")
    yield plan
    plan.close()
    plan.close()


def test_the_logger_keeps_the_latest_errors_of_each_thread(bench: Bench) -> None:
    from runtime.engines.tensorrt.library import RecentMessagesLogger

    logger = RecentMessagesLogger()
    for index in range(20):
        logger.log(logger.ERROR, f"error {index}")
    logger.log(logger.INFO, "information")
    taken: list[str] = []
    thread = threading.Thread(target=lambda: taken.append(logger.take()))
    thread.start()
    thread.join()
    assert taken == [""]
    assert logger.take() == "; ".join(f"error {index}" for index in range(4, 20))
    assert logger.take() == ""


def test_what_the_library_s_own_threads_log_belongs_to_the_call_that_fails(bench: Bench) -> None:
    """Python has not started them: they take nothing themselves."""
    written(bench.folder)
    bench.gpu.faults |= {"library_threads": True, "context_none_at": [1]}
    with loaded(bench) as plan:
        with pytest.raises(OutOfMemoryError, match="out of memory"):
            plan.new_context(0, bench.device.zeros((1,), "uint8"))
        bench.gpu.faults["deserialize_none"] = True
        with pytest.raises(EngineError, match="stdVersionRead"), loaded(bench):
            pass


def test_settings_are_of_the_first_range_that_contains_the_shapes(bench: Bench) -> None:
    written(bench.folder, ROWS, MANY_ROWS)
    with loaded(bench) as plan:
        assert [shape_range.largest["x"][0] for shape_range in plan.ranges] == [4, 8]
        tensors = bench.tensors(6)
        settings = plan.settings(tensors)
        assert settings.range_index == 1
        assert settings.shapes == {"x": (6, 4, 64), "t": (6,)}, "bias has no free dimension"
        assert settings.addresses == {name: tensor.address for name, tensor in tensors.items()}
        with pytest.raises(ShapeError, match="build it"):
            plan.settings(bench.tensors(9))


def test_a_cache_that_is_updated_in_place_must_be_bound_to_one_memory(bench: Bench) -> None:
    write_engine(bench.folder, "cache", cache_graph(), [{"rows": (1, 2, 2)}])
    with loaded(bench, "cache") as plan:
        assert plan.aliases == {"present": "past"}
        shapes = {"past": (2, 2, 8, 64), "new": (2, 2, 1, 64), "present": (2, 2, 8, 64), "sum": ()}
        tensors = {name: bench.device.zeros(shape, "float32") for name, shape in shapes.items()}
        tensors["write"] = bench.device.zeros((2,), "int64")
        with pytest.raises(EngineError, match="present is not bound to the memory of past"):
            plan.settings(tensors)
        assert plan.settings({**tensors, "present": tensors["past"]}).range_index == 0


def test_output_shapes_need_input_shapes(bench: Bench) -> None:
    written(bench.folder)
    with loaded(bench) as plan:
        context = plan.new_context(0, bench.device.zeros((max(plan.activation_bytes, 1),), "uint8"))
        with pytest.raises(EngineError, match=r"shapes of .* are not set"):
            context.output_shape("y")
        context.prepare(plan.shape_settings({"x": (3, 5, 64), "t": (3,), "bias": (64,)}), bench.stream)
        assert context.output_shape("y") == (3, 5, 64)
        context.close()


def test_executes_on_host_arrays_take_memory_of_their_range_once(bench: Bench) -> None:
    """So reads a reload its new engines: one row, beside the memory of the ticks."""
    from runtime.engines.tensorrt.host_execution import HostExecution

    written(bench.folder, ROWS, {**MANY_ROWS, "frames": (1, 8, 4096)})
    with loaded(bench) as plan:
        host = HostExecution(plan, bench.device)
        before = bench.device.free_bytes
        assert plan.range_bytes(0) * 100 < plan.range_bytes(1) == plan.activation_bytes
        host.run(feeds_of(1, 4))
        assert before - bench.device.free_bytes < plan.range_bytes(1)
        for _ in range(2):
            for rows in (8, 2, 7, 4):
                allocations = bench.device.allocations
                feeds = feeds_of(rows, 4)
                np.testing.assert_allclose(host.run(feeds)["y"], expected(feeds), **CLOSE)
        assert bench.device.allocations == allocations
        with pytest.raises(ShapeError):
            host.run(feeds_of(9, 4))
        host.close()
        host.close()


def test_activation_memory_is_a_stream_s_own_and_outlives_a_failed_allocation(bench: Bench) -> None:
    """Engines of streams that run beside each other share none."""
    from runtime.engines.tensorrt.engine import reserve_activation

    device = bench.device
    assert device.beside is device.beside
    handles = device.main.handle, device.beside.handle
    ticks, planner = (reserve_activation(device, 64, handle) for handle in handles)
    assert handles[0] != handles[1]
    assert ticks.address != planner.address
    assert reserve_activation(device, 32, handles[1]) is planner
    with pytest.raises(OutOfMemoryError):
        reserve_activation(device, 1 << 48, handles[1])
    assert reserve_activation(device, 64, handles[1]) is planner
