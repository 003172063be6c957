"""The CUDA device on the simulated runtime: the tests for every GPU, and those that need a simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.device_behaviour import *  # noqa: F403  (tests that every CUDA device passes)
from helpers.device_behaviour import clear_half, fetched, filled
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.fixture import Machine, simulated

from runtime.base.errors import CaptureError, EngineDeadError, EngineError, OutOfMemoryError
from runtime.devices.device import Level, Tensor
from runtime.devices.machine import open_device

if TYPE_CHECKING:
    from runtime.devices.cuda import CudaDevice


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
    """A device with a small ring; after close only pinned memory that is still referenced may be left."""
    from runtime.devices.cuda import CudaDevice

    device = CudaDevice(ring_bytes=1 << 20, chunk_bytes=4 << 20)
    yield device
    device.close()
    if not machine.sticky:
        assert set(machine.alive()) <= {"pinned"}


# Order


def test_a_download_is_complete_only_after_its_event(late_device: CudaDevice, late: Machine) -> None:
    tensor, target = filled(late_device, np.ones(100, np.float32)), late_device.staging((100,), np.float32)
    late_device.download(target, tensor, late_device.main)
    event = late_device.main.record()
    assert np.isnan(target).all()
    assert not event.is_done
    assert late.last_error == 0, 'CUDA\'s last error is cleared after "not ready"'
    event.wait()
    assert (target == 1).all()
    assert event.is_done


@pytest.mark.parametrize(
    ("greatest", "expected"), [(-5, (-5, -1, 0)), (-2, (-2, -1, 0)), (-1, (-1, 0, 0)), (0, (0, 0, 0))]
)
def test_live_audio_goes_before_ticks_and_ticks_before_the_background(greatest: int, expected: tuple[int, ...]) -> None:
    """As far as the device has levels: with two of them live audio has the greater one alone."""
    with simulated(greatest_priority=greatest) as machine:
        for device in opened(machine):
            streams = {level: device.stream(level) for level in Level}
            assert tuple(machine.stream(stream.handle).priority for stream in streams.values()) == expected
            assert machine.stream(device.main.handle).priority == expected[Level.TICK]
            urgent = streams[Level.LIVE].handle
            del streams
            assert device.stream(Level.BACKGROUND).handle != urgent, "a stream that was returned keeps its level"


def test_the_zeros_that_all_streams_wait_for_are_not_behind_ticks(late_device: CudaDevice, late: Machine) -> None:
    order = list[str]()
    tick, live = late_device.main, late_device.stream(Level.LIVE)
    for _ in range(3):
        late.enqueue(tick.handle, lambda: order.append("tick"), what="a tick")
    target = late_device.staging((100,), np.float32)
    late_device.download(target, late_device.zeros((100,), np.float32), live)
    late.enqueue(late_device.stream(Level.BACKGROUND).handle, lambda: order.append("file"), what="a file")
    late.enqueue(tick.handle, lambda: order.append("later tick"), what="a tick")
    live.record().wait()
    assert order == ["tick"] * 3, "zeros wait for what was launched before them, and for nothing else"
    assert not target.any()


def test_the_simulator_runs_the_work_of_higher_priority_first(late_device: CudaDevice, late: Machine) -> None:
    order, streams = list[str](), {level: late_device.stream(level) for level in Level}
    for level in (Level.BACKGROUND, Level.TICK, Level.LIVE, Level.TICK):
        late.enqueue(streams[level].handle, lambda level=level: order.append(level.name), what=level.name)
    blocked = late_device.stream(Level.LIVE)
    blocked.wait(streams[Level.BACKGROUND].record())
    late.enqueue(blocked.handle, lambda: order.append("after"), what="after")
    streams[Level.TICK].record().wait()
    assert order == ["LIVE", "TICK", "TICK"]
    blocked.record().wait()
    assert order[3:] == ["BACKGROUND", "after"]


def test_a_captured_graph_is_on_the_gpu_before_its_first_launch(device: CudaDevice, machine: Machine) -> None:
    tensor = filled(device, np.ones(100, np.float32))
    replay = device.capture(device.main, lambda: clear_half(device, tensor))
    assert (machine.counters["graph_uploads"], machine.counters["graph_launches"]) == (1, 0)
    replay.close()


def test_reused_memory_is_zeroed_after_pending_reads(device: CudaDevice) -> None:
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


def test_memory_that_was_outgrown_is_given_back_where_more_does_not_fit() -> None:
    """A tensor that grows by copies leaves pieces that are too small for what it becomes."""
    with simulated(memory_bytes=64 << 20) as machine:
        for device in opened(machine):
            tensor = device.zeros((1,), np.uint8)
            for size_mib in (8, 16, 24, 40):
                del tensor
                tensor = device.zeros((size_mib << 20,), np.uint8)
            assert fetched(device, tensor.view(64)).sum() == 0
            with pytest.raises(OutOfMemoryError):
                device.zeros((40 << 20,), np.uint8)
            assert fetched(device, tensor.view(64)).sum() == 0, "what has an owner stays"


def test_staging_memory_is_reused_only_after_its_copy(late_device: CudaDevice) -> None:
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


def test_a_full_ring_waits_and_a_large_one_does_not(late: Machine) -> None:
    from runtime.devices.cuda import CudaDevice

    values = np.zeros(100_000, np.uint8)
    for ring_bytes, reserved, waits in ((8 << 20, 0, False), (1 << 20, 0, True), (1 << 20, 8 << 20, False)):
        device = CudaDevice(ring_bytes=ring_bytes)
        device.reserve_uploads(reserved)
        tensor = device.zeros(values.shape, values.dtype)
        before = late.counters["host_waits"]
        for _ in range(20):
            device.upload(tensor, values, device.main)
        assert (late.counters["host_waits"] > before) == waits
        device.main.record().wait()
        device.close()


def test_a_steady_state_allocates_nothing_and_never_synchronizes(late_device: CudaDevice, late: Machine) -> None:
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


class MirroredDevice:
    """Applies every operation to a device and to plain arrays; downloads are compared when they are done."""

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

    def compare(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            event, target, expected = self.pending.pop(0)
            event.wait()
            assert np.array_equal(target, expected)


@settings(deadline=None, max_examples=40)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1000)), max_size=40))
def test_random_sequences_of_operations_equal_plain_arrays(late: bool, steps: list[tuple[int, int]]) -> None:
    with simulated(late=late, memory_bytes=64 << 20):
        from runtime.devices.cuda import CudaDevice

        device = CudaDevice(ring_bytes=64 << 10, chunk_bytes=1 << 20)
        mirror = MirroredDevice(device)
        acts = (mirror.upload, mirror.clear, mirror.replay, mirror.read, mirror.read, mirror.drop)
        for act, number in steps:
            if act >= len(acts) or not mirror.pairs:
                mirror.make(number)
            else:
                acts[act](number % len(mirror.pairs))
            if number % 5 == 0:
                mirror.compare(1)
        mirror.compare(len(mirror.pending))
        device.close()


# Faults


@pytest.mark.parametrize(("fault", "what"), [("oom_at_instantiation", "executable"), ("oom_at_graph_upload", "graph")])
def test_a_graph_that_does_not_fit_into_memory(device: CudaDevice, machine: Machine, fault: str, what: str) -> None:
    tensor = filled(device, np.ones(100, np.float32))
    machine.faults = {fault: [1]}
    with pytest.raises(CaptureError, match=f"{what}: cudaErrorMemoryAllocation"):
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


def test_every_call_after_a_lost_context_raises_engine_dead(late: Machine) -> None:
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


def test_out_of_memory_at_the_first_allocation(late: Machine) -> None:
    late.faults = {"oom_at_allocation": [1, 2, 3]}
    device = open_device("cuda")
    with pytest.raises(OutOfMemoryError, match="taking"):
        device.zeros((10,), np.float32)
    assert fetched(device, filled(device, np.ones(10, np.float32))).all()  # type: ignore[arg-type]
    device.close()
