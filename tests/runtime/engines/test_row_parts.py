"""Executes in parts: which rows each part has, that parts run at once, and that a decoder's rows stay what they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import Built

from runtime.devices.device import HostDevice, Stream, Tensor
from runtime.engines.loading import open_engine
from runtime.engines.manifest import TensorInfo
from runtime.engines.row_parts import PartsExecution, row_parts
from runtime.errors import EngineError

INPUTS = {
    "x": TensorInfo(name="x", dtype="float32", shape=("rows", "frames", 2)),
    "time": TensorInfo(name="time", dtype="float32", shape=("rows",)),
    "factors": TensorInfo(name="factors", dtype="float32", shape=("rank", 4)),
}
OUTPUTS = {"y": TensorInfo(name="y", dtype="float32", shape=("rows", "frames", 2))}


def tensors(rows: int) -> dict[str, Tensor]:
    device = HostDevice()
    shapes = {"x": (rows, 3, 2), "time": (rows,), "factors": (rows, 4), "y": (rows, 3, 2)}
    return {name: device.zeros(shape, "float32") for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("rows", "number", "sizes"), [(4, 2, [2, 2]), (5, 2, [2, 3]), (8, 3, [2, 3, 3]), (6, 3, [2] * 3)]
)
def test_parts_are_the_rows_in_order_over_the_same_memory(rows: int, number: int, sizes: list[int]) -> None:
    whole = tensors(rows)
    parts = row_parts(INPUTS, OUTPUTS, whole, number)
    assert [part["y"].shape for part in parts] == [(size, 3, 2) for size in sizes]
    assert [part["time"].shape for part in parts] == [(size,) for size in sizes]
    assert all(part["factors"] is whole["factors"] for part in parts), "has as many lines, but they are no rows"
    for index, part in enumerate(parts):
        assert part["x"].host is not None
        part["x"].host[...] = index
    assert whole["x"].host is not None
    np.testing.assert_array_equal(whole["x"].host[:, 0, 0], np.repeat(range(number), sizes))


@pytest.mark.parametrize(("rows", "number"), [(3, 2), (1, 2), (16, 1), (7, 4)])
def test_few_rows_and_one_core_have_one_part(rows: int, number: int) -> None:
    whole = tensors(rows)
    assert row_parts(INPUTS, OUTPUTS, whole, number) == [whole]


@pytest.mark.parametrize("shape", [("y.0", "frames", 2), (16, "frames", 2)])
def test_graphs_that_do_not_name_their_rows_have_one_part(shape: tuple[str | int, ...]) -> None:
    whole = tensors(16)
    assert row_parts(INPUTS, {"y": TensorInfo(name="y", dtype="float32", shape=shape)}, whole, 2) == [whole]
    unnamed = {**INPUTS, "time": TensorInfo(name="time", dtype="float32", shape=("time.0",))}
    assert row_parts(unnamed, OUTPUTS, whole, 2) == [whole]


class Meeting:
    """An execution that ends when all parts run, or fails."""

    def __init__(self, barrier: threading.Barrier, fails: bool = False) -> None:
        self._barrier, self._fails, self.is_done = barrier, fails, False

    def launch(self, stream: Stream) -> None:
        self._barrier.wait(timeout=60)
        self.is_done = True
        if self._fails:
            raise EngineError("a part fails")

    warm_up = launch

    def release(self) -> None:
        """Nothing to release."""


def test_parts_run_at_once() -> None:
    barrier = threading.Barrier(3)
    parts = [Meeting(barrier) for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        PartsExecution(parts, pool).launch(HostDevice().main)
        PartsExecution(parts, pool).warm_up(HostDevice().main)
    assert all(part.is_done for part in parts)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_when_all_parts_are_done(failing: int) -> None:
    barrier = threading.Barrier(2)
    parts = [Meeting(barrier, fails=index == failing) for index in range(2)]
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineError, match="a part fails"):
        PartsExecution(parts, pool).launch(HostDevice().main)
    assert all(part.is_done for part in parts)


def test_a_decoder_in_parts_gives_each_row_its_own_velocity(built: Built) -> None:
    """The rows of a part are bit-identical to these rows alone; all are equal to one execute up to rounding."""
    device, random = HostDevice(), np.random.default_rng(0)
    engine = open_engine(built().engine_folder(), "decoder", device, threads=2, in_tick=True)
    sizes = {"rows": 6, "frames": 16, "tokens": 5}
    bound = {
        name: device.zeros(tuple(sizes.get(str(size), size) for size in info.shape), info.dtype)  # type: ignore[arg-type]
        for name, info in {**engine.inputs, **engine.outputs}.items()
    }
    for name in engine.inputs:
        bound[name].host[...] = random.uniform(0.1, 1, bound[name].shape)  # type: ignore[index]
    sessions = dict(engine._sessions)  # type: ignore[attr-defined]
    execution = engine.bind(bound)
    assert isinstance(execution, PartsExecution)
    execution.launch(device.main)
    assert engine._sessions == sessions, "opened in a tick"  # type: ignore[attr-defined]
    feeds = {name: bound[name].host for name in engine.inputs}
    found = bound["velocity"].host
    assert found is not None
    np.testing.assert_allclose(found, engine.run(feeds)["velocity"], atol=1e-5)  # type: ignore[arg-type]
    one = open_engine(built().engine_folder(), "decoder", device, threads=1)
    for part in (slice(0, 3), slice(3, 6)):
        np.testing.assert_array_equal(found[part], one.run({n: v[part] for n, v in feeds.items()})["velocity"])  # type: ignore[index]
    engine.close()
