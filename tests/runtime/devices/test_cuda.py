"""The CUDA device on the simulated runtime: what holds for every GPU, and what only a simulator shows."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from device_behaviour import *  # noqa: F403  (the tests that every GPU passes)
from device_behaviour import clear_half, fetched, filled
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT
from simulator.fixture import SITE, Machine, provoked, simulated

from runtime.devices.device import Tensor
from runtime.devices.machine import open_device
from runtime.errors import CaptureError, EngineDeadError, EngineError, OutOfMemoryError

if TYPE_CHECKING:
    from runtime.devices.cuda import CudaDevice

# Every call, with arguments as the device passes them, on the real bindings: without a driver each must refuse, and
# none may find fault with the arguments.
REAL_CALLS = """
from runtime import cudart
from runtime.errors import EngineError
calls = {
    "open_first": (), "free_bytes": (), "take_device": (8,), "take_pinned": (8,), "free_device": (8,), "new_stream": (),
    "free_pinned": (8,), "zero": (8, 8, 8), "copy_to_device": (8, 8, 8, 8), "copy_to_host": (8, 8, 8, 8),
    "close_stream": (8,), "new_event": (), "close_event": (8,), "record": (8, 8), "make_wait": (8, 8), "is_done": (8,),
    "wait": (8,), "elapsed_ms": (8, 8), "capture": (8, print), "launch_graph": (8, 8), "close_graph": (8,), "probe": (),
}
for name, arguments in calls.items():
    try:
        getattr(cudart, name)(*arguments)
        print(name, "worked")
    except EngineError as error:
        print(name, "refused:", error.what)
"""


@pytest.fixture(params=["late", "at once"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with simulated(late=request.param == "late", memory_bytes=1 << 30) as machine:
        yield machine


@pytest.fixture
def late() -> Iterator[Machine]:
    with simulated(late=True) as machine:
        yield machine


@pytest.fixture
def device(machine: Machine) -> Iterator[CudaDevice]:
    yield from opened(machine)


@pytest.fixture
def late_device(late: Machine) -> Iterator[CudaDevice]:
    yield from opened(late)


def opened(machine: Machine) -> Iterator[CudaDevice]:
    """A device with a small ring; closed, it has left nothing that nobody reads."""
    from runtime.devices.cuda import CudaDevice

    device = CudaDevice(ring_bytes=1 << 20, chunk_bytes=4 << 20)
    yield device
    device.close()
    if not machine.sticky:
        assert set(machine.alive()) <= {"pinned"}


# What is there


def test_a_gpu_is_described(late: Machine) -> None:
    from runtime.devices.cuda import probe

    gpu = probe()
    assert (gpu.name, gpu.compute_capability, gpu.sm_count) == ("Simulated GPU", "9.0", 132)
    assert (gpu.memory_bytes, gpu.driver_version, gpu.cuda_version) == (2 << 30, "13.0", "13.5")
    assert len(gpu.uuid) == 32
    assert late.alive() == {}, "looking takes nothing"


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"no_driver": True}, "no NVIDIA driver", "nvidia-smi"),
        (
            {"driver": 12020},
            "knows CUDA 12.2 at most, and cuda-python here is made for 13.5",
            "a driver that knows CUDA 13",
        ),
        ({"devices": 0}, "no GPU is visible", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_is_missing_is_said(options: dict[str, Any], what: str, fix: str) -> None:
    with simulated(**options):
        from runtime.devices.cuda import probe

        for opens in (probe, lambda: open_device("cuda"), lambda: open_device("tensorrt")):
            with pytest.raises(EngineError, match=what) as caught:
                opens()
            assert fix in caught.value.fix
            assert "--target cpu" in caught.value.fix


def test_without_the_package_the_module_opens_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated():
        for name in ("cuda", "cuda.bindings", "cuda.bindings.runtime"):
            monkeypatch.setitem(sys.modules, name, None)
        from runtime.devices.cuda import probe

        with pytest.raises(EngineError, match="cuda-python is not installed") as caught:
            probe()
        assert "pip install 'tickrt[tensorrt]'" in caught.value.fix
        monkeypatch.undo()


def test_another_error_while_looking(late: Machine) -> None:
    late.sticky = 46
    from runtime.devices.cuda import probe

    with pytest.raises(EngineError, match="counting the GPUs: cudaErrorDevicesUnavailable"):
        probe()


def test_the_real_bindings_take_our_arguments() -> None:
    """Needs the real package (`make test` installs it for the contract net) and a machine without a driver."""
    installed = Path(sys.prefix) / "contract" / "cuda"
    if not (installed / "cuda" / "bindings").is_dir():
        pytest.skip(f"no cuda.bindings in {installed}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(installed), str(ROOT)))}
    command = [sys.executable, "-c", REAL_CALLS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if "no NVIDIA driver" not in lines[-1]:
        pytest.skip(f"there is a driver: {lines[-1]}")
    assert len(lines) == 22
    assert all("refused:" in line for line in lines)
    assert sum("cudaErrorInsufficientDriver" in line for line in lines) == 21


# Order


def test_nothing_is_there_before_its_event(late_device: CudaDevice, late: Machine) -> None:
    tensor, target = filled(late_device, np.ones(100, np.float32)), late_device.staging((100,), np.float32)
    late_device.download(target, tensor, late_device.main)
    event = late_device.main.record()
    assert np.isnan(target).all()
    assert not event.is_done
    assert late.last_error == 0, "not ready is no error to be left behind"
    event.wait()
    assert (target == 1).all()
    assert event.is_done


def test_two_streams_without_a_wait_are_noticed(device: CudaDevice, machine: Machine) -> None:
    tensor, target = filled(device, np.ones(100, np.float32)), device.staging((100,), np.float32)
    copies = device.stream()
    with provoked(machine, "unordered access"):
        device.download(target, tensor, copies)


def test_old_memory_is_zeroed_after_who_still_reads_it(device: CudaDevice) -> None:
    tensor, target = filled(device, np.ones(100, np.float32)), device.staging((100,), np.float32)
    copies = device.stream()
    copies.wait(device.main.record())
    device.download(target, tensor, copies)
    address = tensor.address
    del tensor
    again = device.zeros((100,), np.float32)
    assert again.address == address
    clear_half(device, again)
    copies.record().wait()
    assert (target == 1).all()


@pytest.mark.parametrize("without", ["make_wait", "record"])
def test_new_memory_needs_its_order(
    device: CudaDevice, machine: Machine, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """The proof that the test above can fail: without waits, or with events that stand for nothing."""
    tensor, target = filled(device, np.ones(100, np.float32)), device.staging((100,), np.float32)
    copies = device.stream()
    copies.wait(device.main.record())
    device.download(target, tensor, copies)
    del tensor
    from runtime.devices import cuda_calls as cudart

    monkeypatch.setattr(cudart, without, lambda *_: None)
    with provoked(machine, "unordered access", "memset"):
        device.zeros((100,), np.float32)


def test_staging_memory_comes_back_after_its_copy(late_device: CudaDevice) -> None:
    tensor = filled(late_device, np.ones(100, np.float32))
    target = late_device.staging((100,), np.float32)
    late_device.download(target, tensor, late_device.main)
    address = target.ctypes.data
    del target
    other = late_device.staging((100,), np.float32)
    assert other.ctypes.data != address, "a copy into it is still pending"
    late_device.main.record().wait()
    assert not other.any()
    late_device.zeros((1,), np.float32)
    late_device.main.record().wait()
    for event in (late_device.stream().record(), late_device.main.record()):
        event.wait()
    places = {late_device.staging((100,), np.float32).ctypes.data for _ in range(4)}
    assert address in places


def test_a_graph_whose_tensor_is_gone_is_noticed(device: CudaDevice, machine: Machine) -> None:
    tensor = filled(device, np.ones(100, np.float32))
    address, size, stream = tensor.address, tensor.size_bytes, device.main.handle
    from runtime.devices import cuda_calls as cudart

    replay = device.capture(device.main, lambda: cudart.zero(address, size, stream))
    replay.launch(device.main)
    device.main.record().wait()
    del tensor
    with provoked(machine, "given back"):
        replay.launch(device.main)
    device.main.record().wait()
    replay.close()


def test_a_full_ring_waits_and_a_roomy_one_does_not(late: Machine) -> None:
    from runtime.devices.cuda import CudaDevice

    values = np.zeros(100_000, np.uint8)
    for ring_bytes, waits in ((8 << 20, False), (1 << 20, True)):
        device = CudaDevice(ring_bytes=ring_bytes)
        tensor = device.zeros(values.shape, values.dtype)
        before = late.counters["host_waits"]
        for _ in range(20):
            device.upload(tensor, values, device.main)
        assert (late.counters["host_waits"] > before) == waits
        device.main.record().wait()
        device.close()


def test_a_steady_state_makes_nothing_and_synchronizes_never(late_device: CudaDevice, late: Machine) -> None:
    device, copies = late_device, late_device.stream()
    tensor, target = filled(device, np.ones(1000, np.float32)), device.staging((1000,), np.float32)
    values = np.zeros(1000, np.float32)
    replay = device.capture(device.main, lambda: clear_half(device, tensor))
    made = ("allocations", "events", "instantiations", "synchronizes", "pageable_copies")

    def tick() -> Any:
        device.upload(tensor, values, device.main)
        replay.launch(device.main)
        copies.wait(device.main.record())
        device.download(target, tensor, copies)
        done = copies.record()
        device.main.wait(done)
        return done

    in_flight = [tick(), tick()]
    for _ in range(3):
        in_flight.append(tick())
        in_flight.pop(0).wait()
    before, allocations = {name: late.counters[name] for name in made}, device.allocations
    for _ in range(50):
        in_flight.append(tick())
        in_flight.pop(0).wait()
    assert {name: late.counters[name] for name in made} == before
    assert device.allocations == allocations
    for event in in_flight:
        event.wait()
    replay.close()


class Twin:
    """A device beside plain arrays that everything is done to as well; copies out are compared when they are done."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.copies = device, device.stream()
        self.pairs: list[tuple[Tensor, np.ndarray[Any, Any]]] = []
        self.pending: list[tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def make(self, size: int) -> None:
        shape = (1 + size * 37,)
        self.pairs.append((self.device.zeros(shape, np.float32), np.zeros(shape, np.float32)))

    def drop(self, place: int) -> None:
        self.pairs.pop(place)

    def upload(self, place: int) -> None:
        tensor, array = self.pairs[place]
        values = np.random.default_rng(len(self.pending) + place).random(array.shape, np.float32)
        array[:] = values
        self.device.upload(tensor, values, self.device.main)
        values[:] = np.nan

    def clear(self, place: int) -> None:
        tensor, array = self.pairs[place]
        clear_half(self.device, tensor)
        array.view(np.uint8)[: tensor.size_bytes // 2] = 0

    def replay(self, place: int) -> None:
        tensor, array = self.pairs[place]
        graph = self.device.capture(self.device.main, lambda: clear_half(self.device, tensor))
        graph.launch(self.device.main)
        array.view(np.uint8)[: tensor.size_bytes // 2] = 0
        self.device.main.record().wait()
        graph.close()

    def read(self, place: int) -> None:
        tensor, array = self.pairs[place]
        target = self.device.staging(tensor.shape, tensor.dtype)
        self.copies.wait(self.device.main.record())
        self.device.download(target, tensor, self.copies)
        event = self.copies.record()
        self.device.main.wait(event)
        self.pending.append((event, target, array.copy()))

    def settle(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            event, target, expected = self.pending.pop(0)
            event.wait()
            assert np.array_equal(target, expected)


@settings(deadline=None, max_examples=40)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1000)), max_size=40))
def test_whatever_is_done_gives_what_it_gives_on_the_host(late: bool, steps: list[tuple[int, int]]) -> None:
    with simulated(late=late, memory_bytes=64 << 20):
        from runtime.devices.cuda import CudaDevice

        device = CudaDevice(ring_bytes=64 << 10, chunk_bytes=1 << 20)
        twin = Twin(device)
        acts = (twin.upload, twin.clear, twin.replay, twin.read, twin.read, twin.drop)
        for act, number in steps:
            if act >= len(acts) or not twin.pairs:
                twin.make(number)
            else:
                acts[act](number % len(twin.pairs))
            if number % 5 == 0:
                twin.settle(1)
        twin.settle(len(twin.pending))
        device.close()


# Faults


def test_garbage_is_not_collected_in_a_capture(device: CudaDevice, machine: Machine) -> None:
    from runtime.devices import cuda_calls as cudart

    class Owner:
        """As an engine's context: it frees device memory when it goes."""

        def __init__(self) -> None:
            self.address, self.itself = cudart.take_device(100), self

        def __del__(self) -> None:
            cudart.free_device(self.address)

    Owner()

    def work() -> None:
        _ = [[index] for index in range(100_000)]

    device.capture(device.main, work).close()
    assert gc.isenabled()
    gc.collect()


def test_a_graph_that_cannot_be_made_executable(device: CudaDevice, machine: Machine) -> None:
    tensor = filled(device, np.ones(100, np.float32))
    machine.faults = {"oom_at_instantiation": [1]}
    with pytest.raises(CaptureError, match="executable: cudaErrorMemoryAllocation"):
        device.capture(device.main, lambda: clear_half(device, tensor))
    assert "graphs" not in machine.alive()
    device.capture(device.main, lambda: clear_half(device, tensor)).close()


def test_a_failed_capture_leaves_no_graph(device: CudaDevice, machine: Machine) -> None:
    def work() -> None:
        raise EngineError("an enqueue gave False")

    with pytest.raises(CaptureError, match="an enqueue gave False"):
        device.capture(device.main, work)
    assert "graphs" not in machine.alive()
    assert machine.last_error == 0


def test_a_dead_context_is_said_by_whatever_comes_next(late: Machine) -> None:
    from runtime.devices.cuda import CudaDevice

    device = CudaDevice()
    tensor, target = filled(device, np.ones(100, np.float32)), device.staging((100,), np.float32)
    event = device.main.record()
    event.wait()
    late.faults = {"async_error_at": [late.counters["works"] + 1]}
    clear_half(device, tensor)
    with pytest.raises(EngineDeadError, match="waiting for the GPU: cudaErrorIllegalAddress"):
        device.main.record().wait()
    attempts = [
        lambda: event.is_done,
        device.main.record,
        lambda: device.upload(tensor, np.zeros(100, np.float32), device.main),
        lambda: device.download(target, tensor, device.main),
        lambda: device.zeros((10,), np.float32),
        lambda: device.capture(device.main, lambda: None),
    ]
    for attempt in attempts:
        with pytest.raises(EngineDeadError, match="cudaErrorIllegalAddress"):
            attempt()
    device.close()


@pytest.mark.parametrize(
    "code", ["IllegalAddress", "LaunchFailure", "ECCUncorrectable", "HardwareStackError", "Unknown"]
)
def test_errors_after_which_nothing_works(late: Machine, code: str) -> None:
    assert raised_for(f"cudaError{code}") is EngineDeadError


@pytest.mark.parametrize("code", ["InvalidValue", "NotSupported", "StreamCaptureInvalidated", "InvalidResourceHandle"])
def test_errors_after_which_the_rest_works(late: Machine, code: str) -> None:
    assert raised_for(f"cudaError{code}") is EngineError


def test_no_memory_is_an_error_of_its_own(late: Machine) -> None:
    assert raised_for("cudaErrorMemoryAllocation") is OutOfMemoryError


def raised_for(code: str) -> type[EngineError]:
    """The class that a status becomes; its text must name it."""
    from cuda.bindings import runtime

    from runtime.devices import cuda_calls as cudart

    with pytest.raises(EngineError, match=f"doing something: {code}") as caught:
        cudart.check((runtime.cudaError_t[code],), "doing something")
    return caught.type


def test_every_sticky_error_exists(late: Machine) -> None:
    from cuda.bindings import runtime

    from runtime.devices.cuda_calls import STICKY

    assert set(runtime.cudaError_t.__members__) >= STICKY


def test_no_memory_at_the_start_is_said(late: Machine) -> None:
    late.faults = {"oom_at_allocation": [1, 2, 3]}
    device = open_device("cuda")
    with pytest.raises(OutOfMemoryError, match="taking"):
        device.zeros((10,), np.float32)
    assert fetched(device, filled(device, np.ones(10, np.float32))).all()  # type: ignore[arg-type]
    device.close()


def test_what_is_closed_is_gone(machine: Machine) -> None:
    device = open_device("cuda")
    tensor = filled(device, np.ones(100, np.float32))  # type: ignore[arg-type]
    device.stream()
    del tensor
    device.close()
    assert machine.alive() == {}
    assert str(SITE) in sys.path
