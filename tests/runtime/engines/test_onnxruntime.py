"""Engines on ONNX Runtime: bound executions on the CPU and on the simulated GPU, node times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Built
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument
from simulator.fixture import Machine
from simulator.onnxruntime_gpu import Provider, simulated_provider

from runtime.base.errors import CaptureError, EngineError, EngineMismatchError, OutOfMemoryError, ShapeError
from runtime.config.deployment import Deployment
from runtime.devices.device import Device, HostDevice, Level
from runtime.devices.machine import open_device
from runtime.engines import onnxruntime
from runtime.engines.engine import Engine
from runtime.engines.loading import open_engine
from runtime.engines.manifest import THREAD_TIMES, THREADS, manifest_path, read_manifest
from runtime.engines.onnxruntime import OnnxRuntimeEngine
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
