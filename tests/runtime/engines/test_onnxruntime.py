"""Engines on ONNX Runtime, and executes in parts."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.failing_graph import fail_at
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument
from simulator.fixture import Machine
from simulator.onnxruntime_gpu import Provider, simulated_provider

from runtime.base.errors import (
    CaptureError,
    EngineDeadError,
    EngineError,
    EngineMismatchError,
    OutOfMemoryError,
    ShapeError,
)
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device, HostDevice, Level, Stream, Tensor
from runtime.devices.machine import open_device
from runtime.engines import onnxruntime
from runtime.engines.engine import Engine, decoder_shapes
from runtime.engines.loading import open_engine
from runtime.engines.manifest import THREAD_TIMES, THREADS, TensorInfo, manifest_path, read_manifest
from runtime.engines.onnxruntime import OnnxRuntimeEngine, PartsExecution, row_parts
from runtime.engines.onnxruntime_cuda import provider_options

OUT_OF_MEMORY = "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 4294967296"


def test_a_bound_execution_equals_a_plain_run_and_can_be_repeated(built: Built) -> None:
    device = HostDevice()
    engine = open_engine(built().engine_folder(), "rows.plain", device)
    latents, rows, out = (
        device.zeros((3, 4, 8), "float32"),
        device.zeros((2,), "int64"),
        device.zeros((2, 4, 8), "float32"),
    )
    execution = engine.bind({"latents": latents, "row_slots": rows, "hidden_states": out})
    assert latents.host is not None
    assert rows.host is not None
    assert out.host is not None
    for seed in range(3):
        latents.host[...] = np.random.default_rng(seed).standard_normal((3, 4, 8))
        rows.host[...] = [2, seed % 3]
        execution.launch(device.stream())
        np.testing.assert_array_equal(out.host, latents.host[rows.host])
        plain = engine.run({"latents": latents.host, "row_slots": rows.host})
        np.testing.assert_array_equal(plain["hidden_states"], out.host)


@pytest.mark.parametrize(("given", "of_the_build", "cores", "expected"), [(0, 2, 4, 2), (3, 2, 4, 3), (0, 2, 16, 0)])
def test_the_build_says_how_many_threads_on_machines_with_as_many_cores(
    given: int, of_the_build: int, cores: int, expected: int, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "num_cores", lambda: cores)
    folder = built().engine_folder()
    manifest = read_manifest(manifest_path(folder, "decoder"))
    manifest = manifest.model_copy(update={"facts": {THREADS: of_the_build, THREAD_TIMES: {"2": [1], "4": [2]}}})
    engine = OnnxRuntimeEngine(manifest, folder, device=HostDevice(), threads=given)
    assert engine._session(Level.BACKGROUND).get_session_options().intra_op_num_threads == expected
    engine.close()


def test_an_engine_of_many_bytes_has_no_parts(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of their sessions would have its weights."""
    folder, found = built().engine_folder(), []
    size = read_manifest(manifest_path(folder, "decoder")).size_bytes
    for largest in (size, size - 1):
        monkeypatch.setattr(onnxruntime, "LARGEST_PARTS_BYTES", largest)
        engine = open_engine(folder, "decoder", HostDevice(), threads=3)
        assert isinstance(engine, OnnxRuntimeEngine)
        found.append(engine._num_parts)
        engine.close()
    assert found == [3, 1]


def test_an_output_of_the_wrong_shape_is_refused_when_bound(built: Built) -> None:
    device = HostDevice()
    engine = open_engine(built().engine_folder(), "rows.plain", device)
    tensors = {
        "latents": device.zeros((3, 4, 8), "float32"),
        "row_slots": device.zeros((2,), "int64"),
        "hidden_states": device.zeros((3, 4, 8), "float32"),
    }
    with pytest.raises(ShapeError, match="hidden_states has shape"):
        engine.bind(tensors)


def test_a_profile_has_the_times_of_every_node(built: Built) -> None:
    engine = open_engine(built().engine_folder(), "decoder", HostDevice())
    nodes = engine.profile(decoder_feeds(), 3)
    assert {"MatMul"} <= {node.op_type for node in nodes}
    assert all(len(node.runs_ms) == 3 for node in nodes)
    engine.close()


def opened(deployment: Deployment, name: str, device: Device, *, in_tick: bool = True) -> Engine:
    return open_engine(deployment.engine_folder("cuda"), name, device, in_tick=in_tick)


def decoder_feeds(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {"hidden_states": (2, 16, 8), "encoder_hidden_states": (2, 5, 12), "context_latents": (2, 16, 16)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**feeds, "timestep": np.array([0.3, 0.9], np.float32), "condition_mask": np.ones((2, 5), np.float32)}


class Bound:
    """The tiny decoder, bound to device memory."""

    def __init__(self, engine: Engine, device: Any) -> None:
        self.device, self.stream = device, device.main
        self.tensors = {name: device.zeros(feed.shape, feed.dtype) for name, feed in decoder_feeds().items()}
        self.velocity = device.zeros((2, 16, 8), np.float32)
        self.found = device.staging((2, 16, 8), np.float32)
        self.execution = engine.bind({**self.tensors, "velocity": self.velocity})

    def upload(self, seed: int) -> None:
        for name, feed in decoder_feeds(seed).items():
            self.device.upload(self.tensors[name], feed, self.stream)

    def result(self) -> np.ndarray:
        self.device.download(self.found, self.velocity, self.stream)
        self.stream.record().wait()
        return self.found.copy()


def expected(deployment: Deployment, seed: int) -> np.ndarray:
    engine = open_engine(deployment.engine_folder("cpu"), "decoder", open_device("cpu"))
    return engine.run(decoder_feeds(seed))["velocity"]


def test_a_gpu_launch_runs_on_the_main_stream_without_waiting(
    deployment: Deployment, machine: Machine, provider: Provider, device: Any
) -> None:
    engine = opened(deployment, "decoder", device)
    (session,) = provider.sessions
    assert session.stream == device.main.handle
    assert session.provider_options == provider_options(device.main.handle, tf32=False)
    assert not session.options.enable_mem_pattern
    bound = Bound(engine, device)
    before = machine.counters["synchronizes"] + machine.counters["host_waits"]
    for seed in range(3):
        bound.upload(seed)
        bound.execution.launch(bound.stream)
    assert machine.counters["synchronizes"] + machine.counters["host_waits"] == before
    np.testing.assert_allclose(bound.result(), expected(deployment, 2), atol=1e-6)


def test_host_arrays_run_on_another_stream(deployment: Deployment, provider: Provider, device: Any) -> None:
    engine = opened(deployment, "decoder", device, in_tick=False)
    (session,) = provider.sessions
    assert session.stream != device.main.handle
    np.testing.assert_allclose(engine.run(decoder_feeds(1))["velocity"], expected(deployment, 1), atol=1e-6)
    assert len(provider.sessions) == 1
    Bound(engine, device)
    assert len(provider.sessions) == 2


def test_live_audio_on_a_gpu_has_a_session_that_goes_before_ticks(
    deployment: Deployment, machine: Machine, provider: Provider, device: Any
) -> None:
    engine = opened(deployment, "decoder", device, in_tick=False)
    found = [engine.run(decoder_feeds(1), level)["velocity"] for level in Level]
    for each in found:
        np.testing.assert_allclose(each, expected(deployment, 1), atol=1e-6)
    priorities = sorted(machine.stream(session.stream).priority for session in provider.sessions)
    assert priorities == [-5, 0], "what is not live shares one: each session has the weights once more"
    engine.close()


def test_a_launch_on_another_stream_is_refused(deployment: Deployment, provider: Provider, device: Any) -> None:
    bound = Bound(opened(deployment, "decoder", device), device)
    with pytest.raises(EngineError, match="another stream"):
        bound.execution.launch(device.stream())


def test_a_release_that_cannot_be_captured_is_refused_in_a_capture(
    deployment: Deployment, provider: Provider, device: Any
) -> None:
    bound = Bound(opened(deployment, "decoder", device), device)
    bound.upload(0)
    bound.execution.launch(bound.stream)
    bound.upload(1)
    bound.execution.warm_up(bound.stream)
    np.testing.assert_allclose(bound.result(), expected(deployment, 1), atol=1e-6)
    with pytest.raises(CaptureError, match="cannot be recorded"):
        device.capture(bound.stream, lambda: bound.execution.warm_up(bound.stream))
    bound.upload(2)
    bound.execution.launch(bound.stream)
    np.testing.assert_allclose(bound.result(), expected(deployment, 2), atol=1e-6)


def test_a_release_that_can_be_captured_is_replayed(deployment: Deployment, machine: Machine, device: Any) -> None:
    with simulated_provider(machine, recordable=True):
        bound = Bound(opened(deployment, "decoder", device), device)
        bound.upload(0)
        bound.execution.warm_up(bound.stream)
        np.testing.assert_allclose(bound.result(), expected(deployment, 0), atol=1e-6)
        replay = device.capture(bound.stream, lambda: bound.execution.warm_up(bound.stream))
        for seed in (1, 2):
            bound.upload(seed)
            replay.launch(bound.stream)
            np.testing.assert_allclose(bound.result(), expected(deployment, seed), atol=1e-6)
        replay.close()
        bound.execution.release()


def test_a_node_without_a_kernel_is_refused(deployment: Deployment, machine: Machine, device: Any) -> None:
    with (
        simulated_provider(machine, on_host=frozenset({"Tanh"})),
        pytest.raises(EngineError, match=r"2 nodes have no CUDA kernel .* \(Tanh\)"),
    ):
        opened(deployment, "decoder", device)


def test_a_provider_that_does_not_start_is_an_error(deployment: Deployment, machine: Machine, device: Any) -> None:
    with simulated_provider(machine, starts=False), pytest.raises(EngineError, match="does not start") as raised:
        opened(deployment, "decoder", device)
    assert "onnxruntime-gpu" in raised.value.fix


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (Fail(OUT_OF_MEMORY), OutOfMemoryError, "buffer of size"),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), OutOfMemoryError, "CUDA provider: CUDA failure 2"),
        (MemoryError("std::bad_alloc"), OutOfMemoryError, "bad_alloc"),
        (EPFail("[ONNXRuntimeError] : 11 : EP_FAIL : no"), EngineMismatchError, "does not load: .*EP_FAIL"),
        (InvalidArgument("No graph was found"), EngineMismatchError, "does not load: No graph"),
        (RuntimeError("CUDA_PATH is set but CUDA wasnt able to be loaded"), EngineError, "does not start: CUDA_PATH"),
    ],
)
def test_errors_while_loading(
    raised: Exception, kind: type[EngineError], says: str, deployment: Deployment, machine: Machine, device: Any
) -> None:
    with simulated_provider(machine, fails_with=raised), pytest.raises(kind, match=says) as caught:
        opened(deployment, "decoder", device)
    assert type(caught.value) is kind


def test_a_missing_provider_names_the_package_to_install(deployment: Deployment, device: Any) -> None:
    with pytest.raises(EngineError, match="without its CUDA provider") as raised:
        opened(deployment, "decoder", device)
    assert "tickrt[cuda]" in raised.value.fix


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
