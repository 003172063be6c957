"""TensorRT's logger, the library object, and settings of execution contexts, on the simulated TensorRT."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.engine_behaviour import Bench, written
from simulator.fixture import Machine, simulated
from simulator.plans import MANY_ROWS, ROWS, cache_graph, write_engine

from runtime.base.errors import EngineError, OutOfMemoryError, ShapeError
from runtime.engines.manifest import manifest_path, read_manifest


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


def test_the_logger_keeps_the_latest_errors_of_each_thread() -> None:
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


def test_what_the_library_s_own_threads_log_belongs_to_the_call_that_fails(machine: Machine, tmp_path: Path) -> None:
    """Python has not started them: they take nothing themselves."""
    from runtime.engines.tensorrt.library import LoadedEngine

    written(tmp_path)
    machine.faults |= {"library_threads": True, "context_none_at": [1]}
    bench = Bench()
    plan = LoadedEngine(read_manifest(manifest_path(tmp_path, "decoder")), tmp_path, "")
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        plan.new_context(0, bench.device.zeros((1,), "uint8"))
    machine.faults["deserialize_none"] = True
    with pytest.raises(EngineError, match="stdVersionRead"):
        LoadedEngine(read_manifest(manifest_path(tmp_path, "decoder")), tmp_path, "")
    plan.close()
    bench.close()


def test_settings_are_of_the_first_range_that_contains_the_shapes(tmp_path: Path) -> None:
    from runtime.engines.tensorrt.library import LoadedEngine

    written(tmp_path, ROWS, MANY_ROWS)
    bench = Bench()
    plan = LoadedEngine(read_manifest(manifest_path(tmp_path, "decoder")), tmp_path, "build it")
    assert [shape_range.largest["x"][0] for shape_range in plan.ranges] == [4, 8]
    tensors = bench.tensors(6)
    settings = plan.settings(tensors)
    assert settings.range_index == 1
    assert settings.shapes == {"x": (6, 4, 64), "t": (6,)}, "bias has no free dimension"
    assert settings.addresses == {name: tensor.address for name, tensor in tensors.items()}
    with pytest.raises(ShapeError, match="build it"):
        plan.settings(bench.tensors(9))
    plan.close()
    plan.close()
    bench.close()


def test_a_cache_that_is_updated_in_place_must_be_bound_to_one_memory(tmp_path: Path) -> None:
    from runtime.engines.tensorrt.library import LoadedEngine

    write_engine(tmp_path, "cache", cache_graph(), [{"rows": (1, 2, 2)}])
    bench = Bench()
    plan = LoadedEngine(read_manifest(manifest_path(tmp_path, "cache")), tmp_path, "")
    assert plan.aliases == {"present": "past"}
    shapes = {"past": (2, 2, 8, 64), "new": (2, 2, 1, 64), "present": (2, 2, 8, 64), "sum": ()}
    tensors = {name: bench.device.zeros(shape, "float32") for name, shape in shapes.items()}
    tensors["write"] = bench.device.zeros((2,), "int64")
    with pytest.raises(EngineError, match="present is not bound to the memory of past"):
        plan.settings(tensors)
    assert plan.settings({**tensors, "present": tensors["past"]}).range_index == 0
    del tensors
    plan.close()
    bench.close()


def test_output_shapes_need_input_shapes(tmp_path: Path) -> None:
    from runtime.engines.tensorrt.library import LoadedEngine

    written(tmp_path)
    bench = Bench()
    plan = LoadedEngine(read_manifest(manifest_path(tmp_path, "decoder")), tmp_path, "")
    context = plan.new_context(0, bench.device.zeros((max(plan.activation_bytes, 1),), "uint8"))
    with pytest.raises(EngineError, match=r"shapes of .* are not set"):
        context.output_shape("y")
    context.prepare(plan.shape_settings({"x": (3, 5, 64), "t": (3,), "bias": (64,)}), bench.stream)
    assert context.output_shape("y") == (3, 5, 64)
    context.close()
    plan.close()
    bench.close()
