"""ONNX Runtime's CUDA provider: what it is told, what its errors mean, and its executes in stream order, simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import parity
from helpers.factories import tiny_deployment
from simulator.fixture import Machine, simulated
from simulator.onnxruntime_gpu import Provider, simulated_provider

from engine_build.build.builder import build_deployment
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.denoise.launch_cache import LaunchCounts
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.engine import Engine
from runtime.engines.loading import open_engine, open_engines
from runtime.engines.onnxruntime_cuda import CUDA_PROVIDER, nodes_on_host, provider_options, translate_error
from runtime.errors import (
    CaptureError,
    EngineDeadError,
    EngineError,
    EngineMismatchError,
    OutOfMemoryError,
)
from runtime.requests.request import Condition, GenerationRequest, StepParameters
from runtime.tick.events import Event, Failed, Finished
from runtime.tick.loop import TickLoop
from runtime.tick.record import TickRecord

SCENARIOS, INPUTS, EXPECTED = parity.load()
ILLEGAL = "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=h ; expr=cudaMemcpyAsync("
ARENA = (
    "Non-zero status code returned while running MatMul node. Name:'node' Status Message: "
    "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 4294967296"
)
LIMIT = "bfc_arena.cc:358 Available memory of 1048576 is smaller than requested bytes of 4194304"
CAPTURE = "CUDA failure 900: operation not permitted when stream is capturing ; GPU=0 ; expr=cudaFreeHost(p)"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ILLEGAL, EngineDeadError),
        ("CUDA failure 719: unspecified launch failure ; GPU=0", EngineDeadError),
        ("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);", OutOfMemoryError),
        (ARENA, OutOfMemoryError),
        (LIMIT, OutOfMemoryError),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", OutOfMemoryError),
        (CAPTURE, CaptureError),
        ("CUDA failure 1: invalid argument ; GPU=0", EngineError),
        ("Got invalid dimensions for input: x", EngineError),
    ],
)
def test_an_error_says_whether_anything_is_left(text: str, kind: type[EngineError]) -> None:
    error = translate_error("decoder", RuntimeError(text))
    assert type(error) is kind
    assert "decoder" in error.what
    assert text in error.what
    assert bool(error.fix) == (kind in (EngineDeadError, OutOfMemoryError))


def test_options_of_a_session_in_the_tick() -> None:
    options = provider_options(0x7F00_1234, tf32=False)
    assert options["user_compute_stream"] == str(0x7F00_1234)
    assert options["use_tf32"] == "0"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert options["do_copy_in_default_stream"] == "1"
    assert all(type(value) is str for value in options.values())
    assert "user_compute_stream" not in provider_options(None, tf32=True)
    assert provider_options(None, tf32=True)["use_tf32"] == "1"


@dataclass
class Node:
    name: str
    op_type: str


@dataclass
class Part:
    ep_name: str
    nodes: list[Node]

    def get_nodes(self) -> list[Node]:
        return self.nodes


def test_only_sizes_may_be_computed_on_the_host() -> None:
    gpu = Part(CUDA_PROVIDER, [Node("a", "MatMul"), Node("b", "Det")])
    host = Part("CPUExecutionProvider", [Node("c", "Shape"), Node("d", "Concat"), Node("e", "Det")])
    assert nodes_on_host([gpu, host]) == ["e (Det)"]


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


@pytest.fixture
def provider(machine: Machine) -> Iterator[Provider]:
    with simulated_provider(machine) as provider:
        yield provider


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Engines of the targets cpu and cuda."""
    few = '[build]\nstep_variants = ["plain", "guidance"]\n'
    found = load_deployment(tiny_deployment(tmp_path_factory.mktemp("cuda"), more=few))
    build_deployment(found)
    with simulated() as machine, simulated_provider(machine):
        build_deployment(found, target="cuda")
    return found


@pytest.fixture
def device(machine: Machine) -> Iterator[Any]:
    device = open_device("cuda")
    yield device
    device.close()


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


def test_a_launch_goes_on_the_stream_and_nobody_waits(
    deployment: Deployment, machine: Machine, provider: Provider, device: Any
) -> None:
    engine = opened(deployment, "decoder", device)
    (session,) = provider.sessions
    assert session.stream == device.main.handle
    assert session.provider_options == provider_options(device.main.handle, tf32=False)
    assert not session.fallback
    assert not session.options.enable_mem_pattern
    bound = Bound(engine, device)
    before = machine.counters["synchronizes"] + machine.counters["host_waits"]
    for seed in range(3):
        bound.upload(seed)
        bound.execution.launch(bound.stream)
    assert machine.counters["synchronizes"] + machine.counters["host_waits"] == before
    np.testing.assert_allclose(bound.result(), expected(deployment, 2), atol=1e-6)


def test_host_arrays_run_on_a_stream_of_their_own(deployment: Deployment, provider: Provider, device: Any) -> None:
    engine = opened(deployment, "decoder", device, in_tick=False)
    (session,) = provider.sessions
    assert session.stream != device.main.handle
    np.testing.assert_allclose(engine.run(decoder_feeds(1))["velocity"], expected(deployment, 1), atol=1e-6)
    assert len(provider.sessions) == 1
    Bound(engine, device)
    assert len(provider.sessions) == 2


def test_another_stream_is_refused(deployment: Deployment, provider: Provider, device: Any) -> None:
    bound = Bound(opened(deployment, "decoder", device), device)
    with pytest.raises(EngineError, match="another stream"):
        bound.execution.launch(device.stream())


def test_a_release_that_cannot_be_recorded_is_never_put_into_a_capture(
    deployment: Deployment, provider: Provider, device: Any
) -> None:
    bound = Bound(opened(deployment, "decoder", device), device)
    bound.upload(0)
    bound.execution.launch(bound.stream)
    bound.upload(1)
    bound.execution.warm_up(bound.stream)
    np.testing.assert_allclose(bound.result(), expected(deployment, 1), atol=1e-6)
    with pytest.raises(CaptureError, match="cannot be recorded"):
        device.capture(bound.stream, lambda: bound.execution.launch(bound.stream))
    bound.upload(2)
    bound.execution.launch(bound.stream)
    np.testing.assert_allclose(bound.result(), expected(deployment, 2), atol=1e-6)


def test_a_release_that_can_be_recorded_is(deployment: Deployment, machine: Machine, device: Any) -> None:
    with simulated_provider(machine, recordable=True):
        bound = Bound(opened(deployment, "decoder", device), device)
        bound.upload(0)
        bound.execution.warm_up(bound.stream)
        np.testing.assert_allclose(bound.result(), expected(deployment, 0), atol=1e-6)
        replay = device.capture(bound.stream, lambda: bound.execution.launch(bound.stream))
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


def test_a_provider_that_does_not_start_is_no_cpu(deployment: Deployment, machine: Machine, device: Any) -> None:
    with simulated_provider(machine, starts=False), pytest.raises(EngineError, match="does not start") as raised:
        opened(deployment, "decoder", device)
    assert "onnxruntime-gpu" in raised.value.fix


@pytest.mark.parametrize(("text", "kind"), [(ARENA, OutOfMemoryError), ("No graph was found", EngineMismatchError)])
def test_what_goes_wrong_at_load(
    deployment: Deployment, machine: Machine, device: Any, text: str, kind: type[EngineError]
) -> None:
    with simulated_provider(machine, fails_with=text), pytest.raises(kind):
        opened(deployment, "decoder", device)


def test_without_the_provider_it_says_what_to_install(deployment: Deployment, device: Any) -> None:
    with pytest.raises(EngineError, match="without its CUDA provider") as raised:
        opened(deployment, "decoder", device)
    assert "tickrt[cuda]" in raised.value.fix


def test_a_build_refuses_what_would_go_through_the_host(tmp_path: Path, machine: Machine) -> None:
    found = load_deployment(tiny_deployment(tmp_path))
    with simulated_provider(machine, on_host=frozenset({"Tanh"})), pytest.raises(Exception, match="no CUDA kernel"):
        build_deployment(found, target="cuda")


def played(
    deployment: Deployment, target: Target, observe: Callable[[TickRecord], object] = bool
) -> tuple[dict[str, np.ndarray], LaunchCounts]:
    """Latents of five requests, guided and not, of two lengths, that come and go; what happened to launches."""
    device = open_device(target)
    loop = TickLoop(open_engines(deployment, device, target=target), load_bundle(deployment.bundle), deployment, device)
    random = np.random.default_rng(5)
    events: list[Event] = []
    loop.observers.append(observe)
    for index in range(5):
        frames = (32, 32, 16, 32, 32)[index]
        positive, negative = (random.standard_normal((tokens, 12)).astype(np.float32) for tokens in (3 + index, 4))
        guided = {"negatives": (Condition(negative),), "parameters": StepParameters(guidance=3.0)} if index % 2 else {}
        context = random.standard_normal((frames, 16)).astype(np.float32)
        request = GenerationRequest(
            frames, (Condition(positive),), steps=6, seed=index, context=context, id=str(index), **guided
        )
        loop.submit(request, events.append)
    while loop.tick() is not None:
        pass
    counts = loop._buckets.launch_counts.copy()
    loop.close()
    device.close()
    failed = [event.error for event in events if isinstance(event, Failed)]
    assert failed == []
    return {event.request_id: event.latents for event in events if isinstance(event, Finished)}, counts


@pytest.mark.parametrize("recordable", [False, True])
def test_ticks_give_what_they_give_on_the_cpu(deployment: Deployment, machine: Machine, recordable: bool) -> None:
    expected_latents, _ = played(deployment, "cpu")
    with simulated_provider(machine, recordable=recordable):
        found, counts = played(deployment, "cuda")
    assert found.keys() == expected_latents.keys() == set("01234")
    for name, latents in expected_latents.items():
        np.testing.assert_allclose(found[name], latents, atol=2e-5)
    assert (counts.captured > 0) == (counts.replayed > 0) == recordable
    assert (counts.failed > 0) == (not recordable)


def test_the_two_ticks_in_flight_wait_only_for_an_older_one(
    deployment: Deployment, machine: Machine, provider: Provider
) -> None:
    seen: list[int] = []
    played(deployment, "cuda", lambda record: seen.append(machine.counters["synchronizes"]))
    assert len(seen) >= 6
    assert seen[-1] == seen[0] == 0


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The parity vectors' decoder, built for the target cuda."""
    depth = max(scenario["depth"] for scenario in SCENARIOS.values())
    found = load_deployment(parity.write_deployment(tmp_path_factory.mktemp("parity"), depth=depth))
    with simulated() as machine, simulated_provider(machine):
        build_deployment(found, target="cuda")
    return found


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_parity_scenarios(reference: Deployment, provider: Provider, device: Any, name: str) -> None:
    engines = open_engines(reference, device, target="cuda")
    loop = TickLoop(engines, load_bundle(reference.bundle), reference, device)
    run = parity.run_scenario(loop, SCENARIOS[name], INPUTS)
    loop.close()
    for _, request_id in SCENARIOS[name]["finishes"]:
        np.testing.assert_allclose(run.finals[request_id], EXPECTED[f"{name}/{request_id}/final"], atol=2e-4, rtol=0)
