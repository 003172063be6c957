"""The rules of the simulated device: each is broken once. That they are kept is what the tests of devices show."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from simulator.fixture import SITE, Machine, RefusedError, RuleBroken, child_environment, provoked, simulated

DEVICE_LINES = """
import ctypes, simulated_machine
address = simulated_machine.machine().allocate(64, "device")
print(ctypes.c_char.from_address(address).value)
"""


@pytest.fixture(params=["late", "at once"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with simulated(late=request.param == "late") as machine:
        yield machine


@pytest.fixture
def late() -> Iterator[Machine]:
    with simulated(late=True) as machine:
        yield machine


@pytest.fixture
def stream(machine: Machine) -> int:
    return machine.create_stream()


@pytest.fixture
def other(machine: Machine) -> int:
    return machine.create_stream()


@pytest.fixture
def address(machine: Machine) -> int:
    return machine.allocate(64, "device")


def fill(machine: Machine, stream: int, address: int, size: int = 8, value: int = 7) -> bool:
    return machine.enqueue(
        stream,
        lambda: machine.memory(address, size, "fill").fill(value),
        writes=[(address, size)],
        what="fill",
    )


def look(machine: Machine, stream: int, address: int, size: int = 8) -> bool:
    return machine.enqueue(stream, lambda: None, reads=[(address, size)], what="look")


def ordered(machine: Machine, before: int, after: int) -> None:
    """What comes on one stream waits for what is on another."""
    event = machine.create_event(timed=True)
    machine.record(event, before)
    machine.stream_wait(after, event)


def captured(machine: Machine, stream: int, address: int) -> int:
    """An executable graph that fills some memory."""
    machine.begin_capture(stream, 1)
    assert fill(machine, stream, address)
    graph = machine.end_capture(stream)
    executable = machine.instantiate(graph)
    machine.destroy_graph(graph, executable=False)
    return executable


# Memory


def test_new_memory_is_poisoned(machine: Machine) -> None:
    for kind in ("device", "pinned"):
        assert (machine.memory(machine.allocate(100, kind), 100, "look") == 0xFF).all()


def test_device_memory_cannot_be_read_by_the_host() -> None:
    command = [sys.executable, "-c", DEVICE_LINES]
    environment = child_environment(PYTHONFAULTHANDLER="")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode < 0, done.stdout
    assert done.stdout == ""


ACCESSES: dict[str, tuple[Callable[[Machine, int], Any], str]] = {
    "outside of an allocation": (lambda m, at: m.memory(at + 54, 11, "look"), "outside its allocation"),
    "of other memory": (lambda m, at: m.memory(1000, 1, "look"), "not memory of this device"),
    "misaligned": (lambda m, at: m.require_aligned(at + 32, 256, "an input"), "misaligned"),
    "on what is no stream": (lambda m, at: m.enqueue(12, lambda: None, what="nothing"), "is not a stream"),
    "of what is no event": (lambda m, at: m.record(12, 0), "is not an event"),
}


@pytest.mark.parametrize("kind", ACCESSES)
def test_a_wrong_access(machine: Machine, address: int, kind: str) -> None:
    access, says = ACCESSES[kind]
    with provoked(machine, says):
        access(machine, address)


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_use_after_free(machine: Machine, kind: str) -> None:
    address = machine.allocate(100, kind)
    machine.free(address)
    with provoked(machine, "stale address"):
        machine.memory(address, 1, "look")
    with provoked(machine, "freed twice"):
        machine.free(address)
    assert machine.allocate(100, "device") != address, "device addresses are not reused"


def test_free_while_work_is_pending(late: Machine) -> None:
    address, stream = late.allocate(8, "device"), late.create_stream()
    fill(late, stream, address)
    with provoked(late, "while pending work uses it"):
        late.free(address)
    late.synchronize(stream)
    late.free(address)


def test_a_write_beyond_an_allocation_is_detected(machine: Machine) -> None:
    address = machine.allocate(8, "pinned")
    view = machine.memory(address, 8, "look")
    assert view.base is not None
    view.base[view.ctypes.data - view.base.ctypes.data + 8] = 1
    with provoked(machine, "written outside"):
        machine.free(address)
    view.base[view.ctypes.data - view.base.ctypes.data + 8] = 0xA5


def test_use_of_arena_memory_that_is_not_handed_out(machine: Machine, stream: int) -> None:
    address = machine.allocate(1024, "device")
    machine.lend(address, 256)
    machine.lend(address + 512, 256)
    assert fill(machine, stream, address + 512, 256)
    for offset, size in ((256, 8), (0, 300)):
        with provoked(machine, "piece of the memory was returned"):
            fill(machine, stream, address + offset, size)
    machine.came_back.append((address + 512, 256))
    with provoked(machine, "piece of the memory was returned"):
        fill(machine, stream, address + 512)
    machine.synchronize()


# Streams and events


def test_an_event_completes_after_many_queries(late: Machine) -> None:
    stream, event = late.create_stream(), late.create_event(timed=True)
    late.record(event, stream)
    assert any(late.is_done(event) for _ in range(2000))


@pytest.mark.parametrize("pair", ["write, read", "write, write", "read, write"])
def test_unordered_accesses_of_two_streams(machine: Machine, address: int, stream: int, other: int, pair: str) -> None:
    first, second = (fill if word == "write" else look for word in pair.split(", "))
    first(machine, stream, address, 32)
    assert second(machine, other, address + 32, 32)
    with provoked(machine, "unordered access"):
        second(machine, other, address + 31, 32)
    ordered(machine, stream, other)
    assert second(machine, other, address + 31, 32)
    machine.synchronize()


def test_refused_work_records_no_access(machine: Machine, address: int, stream: int, other: int) -> None:
    fill(machine, stream, address)
    ranges = [(address + 32, 8), (address, 8)]
    with provoked(machine, "unordered access"):
        machine.enqueue(other, lambda: None, writes=ranges, what="both")
    assert fill(machine, stream, address + 32)


def test_an_event_orders_only_earlier_work(machine: Machine, address: int, stream: int, other: int) -> None:
    ordered(machine, stream, other)
    fill(machine, stream, address)
    with provoked(machine, "unordered access"):
        look(machine, other, address)


def test_order_is_transitive_and_two_streams_may_read(machine: Machine, address: int, stream: int, other: int) -> None:
    third = machine.create_stream()
    fill(machine, stream, address)
    for before, after in ((stream, other), (other, third)):
        ordered(machine, before, after)
    assert look(machine, third, address)
    assert look(machine, other, address)


def test_a_host_wait_orders_streams(machine: Machine, address: int, stream: int, other: int) -> None:
    event = machine.create_event(timed=True)
    fill(machine, stream, address)
    machine.record(event, stream)
    machine.run_until(event)
    assert look(machine, other, address)
    assert machine.counters["host_waits"] == 1


# Captures


@pytest.mark.parametrize(
    "call",
    ["allocate", "free", "synchronize", "synchronize all", "query", "wait", "legacy stream"],
)
def test_a_forbidden_call_invalidates_a_capture(machine: Machine, address: int, stream: int, call: str) -> None:
    event, freed = machine.create_event(timed=True), machine.allocate(8, "device")
    machine.record(event, stream)
    machine.begin_capture(stream, 1)
    calls = {
        "allocate": lambda: machine.allocate(8, "pinned"),
        "free": lambda: machine.free(freed),
        "synchronize": lambda: machine.synchronize(stream),
        "synchronize all": machine.synchronize,
        "query": lambda: machine.is_done(event),
        "wait": lambda: machine.run_until(event),
        "legacy stream": lambda: machine.record(event, 0),
    }
    with pytest.raises(RefusedError, match=r"cudaError 90[06]"):
        calls[call]()
    assert not fill(machine, stream, address)
    assert machine.last_error == 901
    machine.last_error = 0
    with pytest.raises(RefusedError, match="cudaError 901"):
        machine.end_capture(stream)
    assert fill(machine, stream, address)
    machine.synchronize()


def test_a_capture_ends_in_the_thread_that_began_it(machine: Machine, stream: int) -> None:
    thread = threading.Thread(target=machine.begin_capture, args=(stream, 1))
    thread.start()
    thread.join()
    with pytest.raises(RefusedError, match="cudaError 908"):
        machine.end_capture(stream)
    machine.streams[stream].capture = None


@pytest.mark.parametrize(("is_outside", "status"), [(True, 905), (False, 907)])
def test_waits_that_a_capture_does_not_allow(machine: Machine, stream: int, is_outside: bool, status: int) -> None:
    """Of the stream for an event outside of it, and of the host for one inside."""
    event = machine.create_event(timed=True)
    if is_outside:
        machine.record(event, machine.create_stream())
    machine.begin_capture(stream, 1)
    if not is_outside:
        machine.record(event, stream)
    with pytest.raises(RefusedError, match=f"cudaError {status}"):
        machine.stream_wait(stream, event) if is_outside else machine.run_until(event)
    with pytest.raises(RefusedError, match="cudaError 901"):
        machine.end_capture(stream)


def return_memory(machine: Machine, address: int) -> None:
    machine.came_back.append((address, 64))


LAUNCHES: dict[str, tuple[Callable[[Machine, int], Any], str]] = {
    "its memory was freed": (lambda m, at: m.free(at), "it uses was freed"),
    "its arena memory was returned": (return_memory, "piece of the memory was returned"),
    "another stream is not ordered": (lambda m, at: look(m, m.create_stream(), at), "unordered access"),
}


@pytest.mark.parametrize("kind", LAUNCHES)
def test_launch_of_a_graph_after(machine: Machine, address: int, stream: int, kind: str) -> None:
    change, says = LAUNCHES[kind]
    if change is return_memory:
        machine.lend(address, 64)
    graph = captured(machine, stream, address)
    change(machine, address)
    with provoked(machine, says):
        machine.launch_graph(graph, stream)


def test_destroying_a_running_graph(late: Machine) -> None:
    address, stream = late.allocate(8, "device"), late.create_stream()
    graph = captured(late, stream, address)
    late.launch_graph(graph, stream)
    with provoked(late, "while it is running"):
        late.destroy_graph(graph, executable=True)
    late.synchronize(stream)
    late.destroy_graph(graph, executable=True)
    with provoked(late, "was it destroyed"):
        late.launch_graph(graph, stream)


def test_launch_of_a_graph_that_is_not_instantiated(machine: Machine, stream: int) -> None:
    machine.begin_capture(stream, 1)
    graph = machine.end_capture(stream)
    with provoked(machine, "is not an executable graph"):
        machine.launch_graph(graph, stream)


# Faults and the end


def test_an_asynchronous_error_is_sticky(late: Machine) -> None:
    late.faults = {"async_error_at": [1], "async_error": 719}
    address, stream, event = late.allocate(8, "device"), late.create_stream(), late.create_event(timed=True)
    assert fill(late, stream, address)
    late.record(event, stream)
    for _ in range(2):
        with pytest.raises(RefusedError, match="cudaError 719"):
            late.run_until(event)
    assert not fill(late, stream, address)


def test_a_launch_after_an_unchecked_error(machine: Machine, stream: int) -> None:
    machine.last_error = 600
    with provoked(machine, "600", "never checked"):
        machine.enqueue(stream, lambda: None, what="nothing")
    machine.last_error = 0


def test_finish_raises_a_broken_rule_that_was_caught() -> None:
    with pytest.raises(RuleBroken, match="not memory"), simulated() as machine, pytest.raises(RuleBroken):
        machine.memory(1, 1, "look")


def leave_work(machine: Machine) -> None:
    stream = machine.create_stream()
    machine.enqueue(stream, lambda: None, what="nothing")
    machine.destroy_stream(stream)


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (lambda machine: setattr(machine, "last_error", 1), "never checked"),
        (lambda machine: machine.begin_capture(machine.create_stream(), 1), "still capturing"),
        (leave_work, "destroyed before its work was done"),
    ],
)
def test_finish_fails_for_what_is_left(leave: Callable[[Machine], Any], says: str) -> None:
    with pytest.raises(AssertionError, match=says), simulated(late=True) as machine:
        leave(machine)


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_LATE", "0")
    monkeypatch.setenv("SIMULATED_CC", "8.6")
    monkeypatch.setenv("SIMULATED_MEMORY_BYTES", "123")
    monkeypatch.setenv("SIMULATED_FAULTS", '{"deserialize_none": true}')
    with simulated(gpu_name="Other") as machine:
        assert (machine.late, machine.cc, machine.memory_bytes, machine.gpu_name) == (False, "8.6", 123, "Other")
        assert machine.faults == {"deserialize_none": True}


def replaced() -> tuple[list[str], set[str]]:
    return list(sys.path), {
        name for name in sys.modules if name.startswith(("cuda", "tensorrt", "runtime.devices.cuda"))
    }


def test_the_simulator_restores_modules_and_path() -> None:
    before = replaced()
    with simulated():
        import runtime.devices.cuda

        assert runtime.devices.cuda.probe().name == "Simulated GPU"
        assert str(SITE) in sys.path
    assert before == replaced()
    assert str(SITE) not in os.environ.get("PYTHONPATH", "")
