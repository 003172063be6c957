"""Executes in parts: which rows each part has, that parts run at once, and that a decoder's rows stay what they are."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import Built
from helpers.failing_graph import fail_at

from runtime.base.errors import EngineDeadError, EngineError
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice, Stream, Tensor
from runtime.engines.engine import Engine, decoder_shapes
from runtime.engines.loading import open_engine
from runtime.engines.manifest import TensorInfo, manifest_path, read_manifest
from runtime.engines.onnxruntime import OnnxRuntimeEngine, PartsExecution, row_parts

INFOS = {
    name: TensorInfo(name=name, dtype="float32", shape=shape)
    for name, shape in {
        "x": ("batch", "frames", 2),
        "time": ("n",),
        "adapter_a": ("batch", 4),
        "y": ("y.0", "frames", 2),
    }.items()
}


def tensors(rows: int) -> dict[str, Tensor]:
    device = HostDevice()
    shapes = {"x": (rows, 3, 2), "time": (rows,), "adapter_a": (rows, 4), "y": (rows, 3, 2)}
    return {name: device.zeros(shape, "float32") for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("rows", "number", "sizes"), [(4, 2, [2, 2]), (5, 2, [2, 3]), (8, 3, [2, 3, 3]), (6, 3, [2] * 3)]
)
def test_parts_are_the_rows_in_order_over_the_same_memory(rows: int, number: int, sizes: list[int]) -> None:
    whole = tensors(rows)
    parts = row_parts(INFOS, whole, number)
    assert [part["y"].shape for part in parts] == [(size, 3, 2) for size in sizes]
    assert [part["time"].shape for part in parts] == [(size,) for size in sizes]
    assert all(part["adapter_a"] is whole["adapter_a"] for part in parts), "has as many lines, but they are no rows"
    for index, part in enumerate(parts):
        assert part["x"].host is not None
        part["x"].host[...] = index
    assert whole["x"].host is not None
    np.testing.assert_array_equal(whole["x"].host[:, 0, 0], np.repeat(range(number), sizes))


@pytest.mark.parametrize(("rows", "number"), [(3, 2), (1, 2), (16, 1), (7, 4)])
def test_few_rows_and_one_core_have_one_part(rows: int, number: int) -> None:
    whole = tensors(rows)
    assert row_parts(INFOS, whole, number) == [whole]


@pytest.mark.parametrize("name", ["x", "time", "y"])
def test_a_graph_with_fixed_rows_has_one_part(name: str) -> None:
    whole, shape = tensors(16), INFOS[name].shape
    fixed = {**INFOS, name: TensorInfo(name=name, dtype="float32", shape=(16, *shape[1:]))}
    assert row_parts(fixed, whole, 2) == [whole]


class Meeting:
    """An execution that ends when all `barrier` parties run, or fails."""

    def __init__(self, barrier: threading.Barrier, error: EngineError | None = None) -> None:
        self._barrier, self._error, self.num_done = barrier, error, 0

    def prepare(self, stream: Stream) -> bool:
        return True

    def launch(self, stream: Stream) -> None:
        self._barrier.wait(timeout=60)
        self.num_done += 1
        if self._error is not None:
            raise self._error

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    warm_up = launch

    def release(self) -> None:
        """Nothing to release."""


def test_parts_run_at_once() -> None:
    barrier, refused = threading.Barrier(3), list[EngineError]()
    parts, whole = [Meeting(barrier) for _ in range(3)], Meeting(threading.Barrier(1))
    with ThreadPoolExecutor(2) as pool:
        execution = PartsExecution(parts, pool, whole, refused.append)
        assert execution.prepare(HostDevice().main)
        execution.launch(HostDevice().main)
        execution.warm_up(HostDevice().main)
    assert [part.num_done for part in parts] == [2, 2, 2]
    assert (whole.num_done, refused) == (0, [])


@pytest.mark.parametrize("failing", [0, 1])
def test_where_parts_fail_and_the_whole_does_not_it_runs_from_then_on(failing: int) -> None:
    barrier, error, refused = threading.Barrier(2), EngineError("a part fails"), list[EngineError]()
    parts = [Meeting(barrier, error if index == failing else None) for index in range(2)]
    whole = Meeting(threading.Barrier(1))
    with ThreadPoolExecutor(1) as pool:
        execution = PartsExecution(parts, pool, whole, refused.append)
        for _ in range(3):
            execution.launch(HostDevice().main)
    assert [part.num_done for part in parts] == [1, 1]
    assert (whole.num_done, refused) == (3, [error])


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_the_whole_too_is_raised_and_parts_are_tried_again(failing: int) -> None:
    barrier, refused = threading.Barrier(2), list[EngineError]()
    parts = [Meeting(barrier, EngineError("a part fails") if index == failing else None) for index in range(2)]
    whole = Meeting(threading.Barrier(1), EngineError("the whole fails"))
    with ThreadPoolExecutor(1) as pool:
        execution = PartsExecution(parts, pool, whole, refused.append)
        for _ in range(2):
            with pytest.raises(EngineError, match="the whole fails"):
                execution.launch(HostDevice().main)
    assert [part.num_done for part in parts] == [2, 2]
    assert refused == []


def test_a_lost_device_ends_the_execute() -> None:
    barrier = threading.Barrier(2)
    parts = [Meeting(barrier), Meeting(barrier, EngineDeadError("lost"))]
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineDeadError):
        PartsExecution(parts, pool, Meeting(threading.Barrier(1)), list[EngineError]().append).launch(HostDevice().main)


NAMES = {
    "usual": ("rows", "frames", "tokens"),
    "none": ("", "", ""),
    "one for all": ("n", "n", "n"),
    "another in every tensor": ("{}_rows", "frames", "{}_tokens"),
    "those of others": ("adapter_rank", "rows", "slots"),
}


def bound_decoder(engine: Engine, built: Built, rows: int, frames: int = 16) -> dict[str, Tensor]:
    """Tensors of random values for every input and output."""
    device, random, roles = HostDevice(), np.random.default_rng(0), load_bundle(built().bundle).decoder
    shapes = decoder_shapes(engine, roles.inputs, rows=rows, frames=frames, tokens=5)
    tensors = {name: device.zeros(shape, "float32") for name, shape in shapes.items()}
    for tensor in tensors.values():
        tensor.host[...] = random.uniform(0.1, 1, tensor.shape)  # type: ignore[index]
    return tensors | {"velocity": device.zeros(shapes[roles.inputs.latents], "float32")}


@pytest.mark.parametrize("names", NAMES)
def test_a_decoder_in_parts_gives_each_row_its_own_velocity(names: str, built: Built) -> None:
    """The rows of a part are bit-identical to these rows alone; all are equal to one execute up to rounding."""
    device, folder = HostDevice(), built(axes=NAMES[names]).engine_folder()
    engine = open_engine(folder, "decoder", device, threads=2, in_tick=True)
    bound = bound_decoder(engine, built, 6)
    sessions = dict(engine._sessions)  # type: ignore[attr-defined]
    execution = engine.bind(bound)
    assert isinstance(execution, PartsExecution)
    execution.launch(device.main)
    assert engine._sessions == sessions, "opened in a tick"  # type: ignore[attr-defined]
    assert execution._parts
    feeds = {name: bound[name].host for name in engine.inputs}
    found = bound["velocity"].host
    assert found is not None
    np.testing.assert_allclose(found, engine.run(feeds)["velocity"], atol=1e-5)  # type: ignore[arg-type]
    one = open_engine(folder, "decoder", device, threads=1)
    for part in (slice(0, 3), slice(3, 6)):
        np.testing.assert_array_equal(found[part], one.run({n: v[part] for n, v in feeds.items()})["velocity"])  # type: ignore[index]
    engine.close()


def test_a_graph_that_takes_no_part_of_its_rows_runs_all_in_one_execute(
    built: Built, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A part has three rows, for which it fails. It is told once, and later executes have no parts."""
    device, folder = HostDevice(), built().engine_folder()
    manifest = read_manifest(manifest_path(folder, "decoder"))
    shutil.copy(folder / manifest.engine_file, tmp_path)
    fail_at(tmp_path / manifest.engine_file, "hidden_states", 0, 3)
    engine = OnnxRuntimeEngine(manifest, tmp_path, device=device, threads=2, in_tick=True)
    expected = open_engine(folder, "decoder", device, threads=1)
    for frames in (16, 32):
        bound = bound_decoder(engine, built, 6, frames)
        execution = engine.bind(bound)
        assert isinstance(execution, PartsExecution) == (frames == 16)
        for _ in range(2):
            execution.launch(device.main)
        wanted = expected.run({name: bound[name].host for name in engine.inputs})["velocity"]  # type: ignore[misc]
        np.testing.assert_allclose(bound["velocity"].host, wanted, atol=1e-5)  # type: ignore[arg-type]
    assert caplog.text.count("runs all of them in one execute") == 1
    bound = bound_decoder(engine, built, 3)
    with pytest.raises(EngineError, match="decoder with hidden_states 3x16x8 failed to execute"):
        engine.bind(bound).launch(device.main)
    engine.close()
