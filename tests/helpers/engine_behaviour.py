"""Tests that every TensorRT engine passes, real or simulated. Test modules import them and define the fixtures
`bench`, a device with TensorRT.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulator.fixture import simulated
from simulator.plans import CHANNELS, MANY_ROWS, ROWS, small_graph, write_engine

from runtime.base.errors import EngineError, ShapeError
from runtime.devices.device import Device, Stream, Tensor
from runtime.devices.machine import open_device
from runtime.engines.engine import run_once
from runtime.engines.loading import open_engine

BUILD = "tickrt-build x.toml --target tensorrt"
BIAS = np.linspace(-1, 1, CHANNELS, dtype=np.float32)
CLOSE = {"rtol": 1e-6, "atol": 1e-5}


class Bench:
    """A device, a stream, tensors of the small graph, and engines that are closed with the device."""

    def __init__(self, folder: Path, gpu: Any = None) -> None:
        """folder: of the engines. gpu: the machine, where it is simulated."""
        self.folder, self.gpu = folder, gpu
        self.device: Device = open_device("tensorrt")
        self.stream: Stream = self.device.stream()
        self._engines: list[Any] = []

    def open(self, name: str = "decoder", *, in_tick: bool = True, **how: Any) -> Any:
        """Open an engine of the folder."""
        self._engines.append(open_engine(self.folder, name, self.device, fix=BUILD, in_tick=in_tick, **how))
        return self._engines[-1]

    def build(self, *ranges: Any, in_tick: bool = True, **how: Any) -> Any:
        """Build an engine of the small graph and open it."""
        written(self.folder, *ranges, **how)
        return self.open(in_tick=in_tick)

    def capture(self, *executions: Any) -> Any:
        """A graph of one warm-up of each."""
        return self.device.capture(self.stream, lambda: [each.warm_up(self.stream) for each in executions])

    def check(self, tensors: dict[str, Tensor], feeds: dict[str, NDArray[Any]], scale: float = 2.0) -> None:
        """Whether an execute gave what the small graph makes of its feeds."""
        np.testing.assert_allclose(self.read(tensors["y"]), expected(feeds, scale), **CLOSE)

    def tensors(self, rows: int = 2, frames: int = 4, seed: int = 0) -> dict[str, Tensor]:
        feeds = feeds_of(rows, frames, seed)
        tensors = {name: self.device.zeros(values.shape, values.dtype) for name, values in feeds.items()}
        for name, values in feeds.items():
            self.device.upload(tensors[name], values, self.stream)
        outputs = {
            "y": self.device.zeros((rows, frames, CHANNELS), np.float32),
            "positive": self.device.zeros((rows,), np.bool_),
        }
        return {**tensors, **outputs}

    def read(self, tensor: Tensor) -> NDArray[Any]:
        array = self.device.staging(tensor.shape, tensor.dtype)
        self.device.download(array, tensor, self.stream)
        self.stream.record().wait()
        return array.copy()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
        self._engines.clear()
        self.device.close()


@contextmanager
def benched(folder: Path, **options: Any) -> Iterator[Bench]:
    """On a simulated machine with these options."""
    with simulated(**options) as machine:
        bench = Bench(folder, machine)
        yield bench
        bench.close()


def feeds_of(rows: int, frames: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, frames, CHANNELS)).astype(np.float32)
    return {"x": x, "t": 100.0 * np.arange(-1, rows - 1, dtype=np.float32), "bias": BIAS}


def expected(feeds: dict[str, NDArray[Any]], scale: float = 2.0) -> NDArray[np.float32]:
    result: NDArray[np.float32] = np.float32(scale) * feeds["x"] + feeds["t"][:, None, None] + feeds["bias"]
    return result


def written(folder: Path, *ranges: Any, name: str = "decoder", scale: float = 2.0, **how: Any) -> None:
    write_engine(folder, name, small_graph(scale), ranges or (ROWS,), **how)


def test_a_bound_execution_can_be_repeated_with_new_inputs(bench: Bench) -> None:
    engine = bench.build()
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    for seed in range(3):
        feeds = feeds_of(2, 4, seed)
        bench.device.upload(tensors["x"], feeds["x"], bench.stream)
        execution.launch(bench.stream)
        bench.check(tensors, feeds)
        np.testing.assert_array_equal(bench.read(tensors["positive"]), (expected(feeds) > 0).all((1, 2)))


def test_executions_of_two_shape_ranges_alternate(bench: Bench) -> None:
    engine = bench.build(ROWS, MANY_ROWS)
    few, many = bench.tensors(2), bench.tensors(7)
    executions = [engine.bind(few), engine.bind(many)]
    for _ in range(2):
        for execution in executions:
            execution.launch(bench.stream)
    bench.check(few, feeds_of(2, 4))
    bench.check(many, feeds_of(7, 4))


def test_engines_of_one_device_share_activation_memory(bench: Bench) -> None:
    written(bench.folder)
    written(bench.folder, MANY_ROWS, name="step", scale=3.0)
    before = bench.device.allocations
    engines = [bench.open(name) for name in ("step", "decoder")]
    assert bench.device.allocations == before + 1, "the first, larger engine's memory is used by both"
    step, decoder = bench.tensors(5), bench.tensors(4)
    executions = [engines[0].bind(step), engines[1].bind(decoder)]
    for execution in executions * 2:
        execution.launch(bench.stream)
    bench.check(step, feeds_of(5, 4), 3.0)
    bench.check(decoder, feeds_of(4, 4))


def test_a_captured_execution_equals_a_plain_one(bench: Bench) -> None:
    engine = bench.build(ROWS, MANY_ROWS)
    tensors = bench.tensors(6)
    execution = engine.bind(tensors)
    execution.launch(bench.stream)
    plain = bench.read(tensors["y"])
    execution.warm_up(bench.stream)
    replay = bench.capture(execution)
    for seed in (0, 1):
        feeds = feeds_of(6, 4, seed)
        bench.device.upload(tensors["x"], feeds["x"], bench.stream)
        replay.launch(bench.stream)
        bench.check(tensors, feeds)
        if seed == 0:
            np.testing.assert_array_equal(bench.read(tensors["y"]), plain)
    replay.close()
    execution.release()


def test_launches_of_other_shapes_do_not_change_a_captured_graph(bench: Bench) -> None:
    engine = bench.build()
    captured, other = bench.tensors(2), bench.tensors(3, 9, seed=5)
    execution = engine.bind(captured)
    execution.warm_up(bench.stream)
    replay = bench.capture(execution)
    for _ in range(2):
        engine.bind(other).launch(bench.stream)
        replay.launch(bench.stream)
    bench.check(captured, feeds_of(2, 4))
    bench.check(other, feeds_of(3, 9, 5))
    replay.close()
    execution.release()


@pytest.mark.parametrize("way", ["launch", "warm_up"])
def test_the_memory_of_a_dropped_execution_is_reused(way: str, bench: Bench) -> None:
    engine = bench.build()
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    settings = weakref.ref(execution._settings)
    getattr(execution, way)(bench.stream)
    bench.stream.record().wait()
    execution.release()
    del execution, tensors
    assert settings() is None
    again = bench.tensors(seed=1)
    engine.bind(again).launch(bench.stream)
    bench.check(again, feeds_of(2, 4, 1))


def test_a_warmed_up_execution_is_released_after_its_engine_is_closed(bench: Bench) -> None:
    """A replaced engine may be closed before its last captured graph."""
    engine = bench.build()
    execution = engine.bind(bench.tensors())
    execution.warm_up(bench.stream)
    bench.stream.record().wait()
    engine.close()
    execution.release()
    del engine, execution


def test_opening_a_larger_engine_does_not_move_the_memory_of_older_contexts(bench: Bench) -> None:
    written(bench.folder)
    written(bench.folder, MANY_ROWS, name="step")
    small = bench.open()
    tensors = bench.tensors(4)
    execution = small.bind(tensors)
    execution.warm_up(bench.stream)
    replay = bench.capture(execution)
    bench.open("step")
    replay.launch(bench.stream)
    bench.check(tensors, feeds_of(4, 4))
    replay.close()
    execution.release()


def test_two_contexts_of_one_engine_in_one_graph(bench: Bench) -> None:
    engine = bench.build()
    sides = [bench.tensors(2, seed=1), bench.tensors(3, seed=2)]
    executions = [engine.bind(side) for side in sides]
    for execution in executions:
        execution.warm_up(bench.stream)
    replay = bench.capture(*executions)
    replay.launch(bench.stream)
    for side, rows, seed in zip(sides, (2, 3), (1, 2), strict=True):
        bench.check(side, feeds_of(rows, 4, seed))
    replay.close()
    for execution in executions:
        execution.release()


def test_run_on_host_arrays_of_several_shapes(bench: Bench) -> None:
    engine = bench.build(ROWS, MANY_ROWS, in_tick=False)
    for rows, frames in ((2, 4), (7, 16), (1, 1), (4, 16)):
        feeds = feeds_of(rows, frames, rows)
        outputs = run_once(engine, feeds)
        np.testing.assert_allclose(outputs["y"], expected(feeds), **CLOSE)
        assert outputs["positive"].dtype == np.bool_


def test_run_between_launches_does_not_change_them(bench: Bench) -> None:
    engine = bench.build()
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    execution.launch(bench.stream)
    feeds = feeds_of(3, 7, 9)
    outputs = engine.run(feeds)
    execution.launch(bench.stream)
    np.testing.assert_allclose(outputs["y"], expected(feeds), **CLOSE)
    bench.check(tensors, feeds_of(2, 4))


def test_outputs_of_run_are_not_overwritten_by_the_next_run(bench: Bench) -> None:
    engine = bench.build(in_tick=False)
    first = engine.run(feeds_of(2, 4))
    kept = first["y"].copy()
    engine.run(feeds_of(2, 4, seed=1))
    np.testing.assert_array_equal(first["y"], kept)


def test_a_shape_outside_every_range_is_refused_with_the_allowed_sizes(bench: Bench) -> None:
    engine = bench.build(ROWS, MANY_ROWS, in_tick=False)
    with pytest.raises(ShapeError) as caught:
        engine.bind(bench.tensors(9, 4))
    assert caught.value.what == (
        "decoder: no shape range contains x (9, 4, 64); range 0 allows 1..4 in dimension 0 (rows) of x; "
        "range 1 allows 5..8 in dimension 0 (rows) of x"
    )
    assert caught.value.fix.endswith(BUILD)
    with pytest.raises(ShapeError, match=r"1\.\.16 in dimension 1 \(frames\) of x"):
        engine.run(feeds_of(2, 17))
    with pytest.raises(ShapeError, match="no tensor given for 't'"):
        engine.run({"x": feeds_of(2, 4)["x"]})


def test_a_tensor_that_is_not_aligned_is_refused_when_bound(bench: Bench) -> None:
    engine = bench.build(in_tick=False)
    tensors = bench.tensors(2)
    tensors["t"] = bench.device.zeros((3,), np.float32).view(2, start=1)
    with pytest.raises(EngineError, match=r"t lies at 0x[0-9a-f]+4, expected a multiple of 256"):
        engine.bind(tensors)
