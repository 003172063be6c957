"""The rules of the simulated device: each is broken once and kept once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

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


def fill(machine: Machine, stream: int, address: int, size: int, value: int = 7) -> bool:
    return machine.enqueue(
        stream,
        lambda: machine.memory(address, size, "fill").fill(value),
        writes=[(address, size)],
        what="fill",
    )


def look(machine: Machine, stream: int, address: int, size: int) -> bool:
    return machine.enqueue(stream, lambda: None, reads=[(address, size)], what="look")


def captured(machine: Machine, stream: int, address: int, size: int = 8) -> int:
    """An executable graph that fills some memory."""
    machine.begin_capture(stream, 1)
    assert fill(machine, stream, address, size)
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


def test_access_outside_of_an_allocation(machine: Machine) -> None:
    address = machine.allocate(100, "device")
    with provoked(machine, "outside its allocation"):
        machine.memory(address + 90, 11, "look")
    with provoked(machine, "not memory of this device"):
        machine.memory(1000, 1, "look")


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_use_after_free(machine: Machine, kind: str) -> None:
    address = machine.allocate(100, kind)
    machine.free(address)
    with provoked(machine, "stale address"):
        machine.memory(address, 1, "look")
    with provoked(machine, "freed twice"):
        machine.free(address)


def test_device_addresses_are_not_reused(machine: Machine) -> None:
    addresses = set()
    for _ in range(20):
        addresses.add(machine.allocate(1000, "device"))
        machine.free(max(addresses))
    assert len(addresses) == 20


def test_free_while_work_is_pending(late: Machine) -> None:
    address, stream = late.allocate(8, "device"), late.create_stream()
    fill(late, stream, address, 8)
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


def test_misaligned_addresses(machine: Machine) -> None:
    address = machine.allocate(1024, "device")
    machine.require_aligned(address, 256, "an input")
    with provoked(machine, "misaligned", "an input"):
        machine.require_aligned(address + 64, 256, "an input")


def test_use_of_arena_memory_that_is_not_handed_out(machine: Machine) -> None:
    address, stream = machine.allocate(1024, "device"), machine.create_stream()
    machine.lend(address, 256)
    machine.lend(address + 512, 256)
    assert fill(machine, stream, address + 512, 256)
    with provoked(machine, "piece of the memory was returned"):
        fill(machine, stream, address + 256, 8)
    with provoked(machine, "piece of the memory was returned"):
        fill(machine, stream, address, 300)
    machine.came_back.append((address + 512, 256))
    with provoked(machine, "piece of the memory was returned"):
        fill(machine, stream, address + 512, 8)
    machine.synchronize()


def test_out_of_memory() -> None:
    with simulated(memory_bytes=1000) as machine:
        address = machine.allocate(900, "device")
        with pytest.raises(RefusedError, match="cudaError 2"):
            machine.allocate(101, "device")
        machine.free(address)
        machine.allocate(1000, "device")


def test_the_nth_allocation_fails() -> None:
    with simulated(faults={"oom_at_allocation": [2]}) as machine:
        machine.allocate(8, "pinned")
        with pytest.raises(RefusedError, match="cudaError 2"):
            machine.allocate(8, "device")
        machine.allocate(8, "device")


# Streams and events


def test_late_work_runs_in_order_when_it_is_waited_for(late: Machine) -> None:
    address, stream, event = late.allocate(8, "device"), late.create_stream(), late.create_event(timed=True)
    fill(late, stream, address, 8, 1)
    fill(late, stream, address, 4, 2)
    late.record(event, stream)
    fill(late, stream, address, 8, 3)
    assert not late.is_done(event)
    assert late.memory(address, 1, "look")[0] == 0xFF
    late.run_until(event)
    assert list(late.memory(address, 8, "look")) == [2] * 4 + [1] * 4
    assert late.is_done(event)
    late.synchronize(stream)
    assert late.memory(address, 1, "look")[0] == 3


def test_an_event_completes_after_many_queries(late: Machine) -> None:
    stream, event = late.create_stream(), late.create_event(timed=True)
    late.record(event, stream)
    assert any(late.is_done(event) for _ in range(2000))


@pytest.mark.parametrize("pair", ["write, read", "write, write", "read, write"])
def test_unordered_accesses_of_two_streams(machine: Machine, pair: str) -> None:
    address, streams = machine.allocate(64, "device"), (machine.create_stream(), machine.create_stream())
    event = machine.create_event(timed=True)
    first, second = (fill if word == "write" else look for word in pair.split(", "))
    first(machine, streams[0], address, 32)
    assert second(machine, streams[1], address + 32, 32)
    with provoked(machine, "unordered access"):
        second(machine, streams[1], address + 31, 32)
    machine.record(event, streams[0])
    machine.stream_wait(streams[1], event)
    assert second(machine, streams[1], address + 31, 32)
    machine.synchronize()


def test_refused_work_records_no_access(machine: Machine) -> None:
    address, streams = machine.allocate(64, "device"), (machine.create_stream(), machine.create_stream())
    fill(machine, streams[0], address, 8)
    ranges = [(address + 32, 8), (address, 8)]
    with provoked(machine, "unordered access"):
        machine.enqueue(streams[1], lambda: None, writes=ranges, what="both")
    assert fill(machine, streams[0], address + 32, 8)


def test_two_streams_may_read_the_same_bytes(machine: Machine) -> None:
    address = machine.allocate(64, "device")
    assert all(look(machine, machine.create_stream(), address, 64) for _ in range(3))


def test_an_event_orders_only_earlier_work(machine: Machine) -> None:
    address, streams = machine.allocate(64, "device"), (machine.create_stream(), machine.create_stream())
    event = machine.create_event(timed=True)
    machine.record(event, streams[0])
    fill(machine, streams[0], address, 8)
    machine.stream_wait(streams[1], event)
    with provoked(machine, "unordered access"):
        look(machine, streams[1], address, 8)


def test_order_is_transitive(machine: Machine) -> None:
    address, streams = machine.allocate(64, "device"), [machine.create_stream() for _ in range(3)]
    fill(machine, streams[0], address, 8)
    for before, after in ((0, 1), (1, 2)):
        event = machine.create_event(timed=True)
        machine.record(event, streams[before])
        machine.stream_wait(streams[after], event)
    assert look(machine, streams[2], address, 8)


def test_a_host_wait_orders_streams(machine: Machine) -> None:
    address, streams = machine.allocate(64, "device"), (machine.create_stream(), machine.create_stream())
    event = machine.create_event(timed=True)
    fill(machine, streams[0], address, 8)
    machine.record(event, streams[0])
    machine.run_until(event)
    assert look(machine, streams[1], address, 8)
    assert machine.counters["host_waits"] == 1


def test_a_stream_wait_runs_the_work_before_the_event(late: Machine) -> None:
    address, streams = late.allocate(8, "device"), (late.create_stream(), late.create_stream())
    event = late.create_event(timed=True)
    fill(late, streams[0], address, 8)
    late.record(event, streams[0])
    late.stream_wait(streams[1], event)
    late.synchronize(streams[1])
    assert late.memory(address, 1, "look")[0] == 7


def test_use_of_a_destroyed_stream(machine: Machine) -> None:
    stream = machine.create_stream()
    machine.destroy_stream(stream)
    with provoked(machine, "is not a stream", "destroyed"):
        machine.enqueue(stream, lambda: None, what="nothing")
    with provoked(machine, "is not an event"):
        machine.record(12, 0)


# Captures


def test_captured_work_runs_at_the_launch(machine: Machine) -> None:
    address, stream = machine.allocate(8, "device"), machine.create_stream()
    graph = captured(machine, stream, address)
    machine.synchronize(stream)
    assert machine.memory(address, 1, "look")[0] == 0xFF
    machine.launch_graph(graph, stream)
    machine.synchronize(stream)
    assert machine.memory(address, 1, "look")[0] == 7
    machine.destroy_graph(graph, executable=True)


@pytest.mark.parametrize(
    "call",
    ["allocate", "free", "synchronize", "synchronize all", "query", "wait", "legacy stream"],
)
def test_a_forbidden_call_invalidates_a_capture(machine: Machine, call: str) -> None:
    stream, event, address = machine.create_stream(), machine.create_event(timed=True), machine.allocate(8, "device")
    machine.record(event, stream)
    machine.begin_capture(stream, 1)
    calls = {
        "allocate": lambda: machine.allocate(8, "pinned"),
        "free": lambda: machine.free(address),
        "synchronize": lambda: machine.synchronize(stream),
        "synchronize all": machine.synchronize,
        "query": lambda: machine.is_done(event),
        "wait": lambda: machine.run_until(event),
        "legacy stream": lambda: machine.record(event, 0),
    }
    with pytest.raises(RefusedError, match=r"cudaError 90[06]"):
        calls[call]()
    assert not fill(machine, stream, address, 8)
    assert machine.last_error == 901
    machine.last_error = 0
    with pytest.raises(RefusedError, match="cudaError 901"):
        machine.end_capture(stream)
    assert fill(machine, stream, address, 8)
    machine.synchronize()


def test_a_thread_local_capture_allows_calls_of_other_threads(machine: Machine) -> None:
    stream = machine.create_stream()
    machine.begin_capture(stream, 1)
    thread = threading.Thread(target=machine.allocate, args=(8, "device"))
    thread.start()
    thread.join()
    assert machine.alive()["device"] == 1
    machine.end_capture(stream)


def test_a_capture_ends_in_the_thread_that_began_it(machine: Machine) -> None:
    stream = machine.create_stream()
    thread = threading.Thread(target=machine.begin_capture, args=(stream, 1))
    thread.start()
    thread.join()
    with pytest.raises(RefusedError, match="cudaError 908"):
        machine.end_capture(stream)
    machine.streams[stream].capture = None


def test_a_capture_must_not_wait_for_an_event_outside(machine: Machine) -> None:
    stream, event = machine.create_stream(), machine.create_event(timed=True)
    machine.record(event, machine.create_stream())
    machine.begin_capture(stream, 1)
    with pytest.raises(RefusedError, match="cudaError 905"):
        machine.stream_wait(stream, event)
    with pytest.raises(RefusedError, match="cudaError 901"):
        machine.end_capture(stream)


def test_the_host_must_not_wait_for_a_captured_event(machine: Machine) -> None:
    stream, event = machine.create_stream(), machine.create_event(timed=True)
    machine.begin_capture(stream, 1)
    machine.record(event, stream)
    with pytest.raises(RefusedError, match="cudaError 907"):
        machine.run_until(event)
    with pytest.raises(RefusedError, match="cudaError 901"):
        machine.end_capture(stream)


def test_launch_of_a_graph_after_its_memory_was_freed(machine: Machine) -> None:
    address, stream = machine.allocate(8, "device"), machine.create_stream()
    graph = captured(machine, stream, address)
    machine.free(address)
    with provoked(machine, "it uses was freed"):
        machine.launch_graph(graph, stream)


def test_launch_of_a_graph_after_its_arena_memory_was_returned(machine: Machine) -> None:
    address, stream = machine.allocate(512, "device"), machine.create_stream()
    machine.lend(address, 256)
    graph = captured(machine, stream, address)
    machine.came_back.append((address, 256))
    with provoked(machine, "piece of the memory was returned"):
        machine.launch_graph(graph, stream)


def test_launch_of_a_graph_unordered_with_another_stream(machine: Machine) -> None:
    address, stream = machine.allocate(8, "device"), machine.create_stream()
    graph = captured(machine, stream, address)
    look(machine, machine.create_stream(), address, 8)
    with provoked(machine, "unordered access"):
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


def test_launch_of_a_graph_that_is_not_instantiated(machine: Machine) -> None:
    stream = machine.create_stream()
    machine.begin_capture(stream, 1)
    graph = machine.end_capture(stream)
    with provoked(machine, "is not an executable graph"):
        machine.launch_graph(graph, stream)


# Faults and the end


def test_an_asynchronous_error_is_sticky(late: Machine) -> None:
    late.faults = {"async_error_at": [1], "async_error": 719}
    address, stream, event = late.allocate(8, "device"), late.create_stream(), late.create_event(timed=True)
    assert fill(late, stream, address, 8)
    late.record(event, stream)
    for _ in range(2):
        with pytest.raises(RefusedError, match="cudaError 719"):
            late.run_until(event)
    assert not fill(late, stream, address, 8)


def test_finish_raises_a_broken_rule_that_was_caught() -> None:
    with pytest.raises(RuleBroken, match="not memory"), simulated() as machine, pytest.raises(RuleBroken):
        machine.memory(1, 1, "look")


def test_finish_fails_for_an_unchecked_error() -> None:
    with pytest.raises(AssertionError, match="never checked"), simulated() as machine:
        machine.last_error = 1


def test_a_launch_after_an_unchecked_error(machine: Machine) -> None:
    machine.last_error = 600
    with provoked(machine, "600", "never checked"):
        machine.enqueue(machine.create_stream(), lambda: None, what="nothing")
    machine.last_error = 0


def test_finish_fails_for_an_open_capture() -> None:
    with pytest.raises(AssertionError, match="still capturing"), simulated() as machine:
        machine.begin_capture(machine.create_stream(), 1)


def test_finish_fails_for_pending_work_of_a_destroyed_stream() -> None:
    with simulated(late=True) as machine:
        stream = machine.create_stream()
        machine.enqueue(stream, lambda: None, what="nothing")
        machine.destroy_stream(stream)
        with pytest.raises(AssertionError, match="destroyed before its work was done"):
            machine.finish()
        machine.synchronize()


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_LATE", "0")
    monkeypatch.setenv("SIMULATED_CC", "8.6")
    monkeypatch.setenv("SIMULATED_MEMORY_BYTES", "123")
    monkeypatch.setenv("SIMULATED_FAULTS", '{"deserialize_none": true}')
    with simulated(gpu_name="Other") as machine:
        assert (machine.late, machine.cc, machine.memory_bytes, machine.gpu_name) == (False, "8.6", 123, "Other")
        assert machine.faults == {"deserialize_none": True}


def test_the_simulator_restores_modules_and_path() -> None:
    before = (
        list(sys.path),
        {name for name in sys.modules if name.startswith(("cuda", "tensorrt", "runtime.devices.cuda"))},
    )
    with simulated():
        import runtime.devices.cuda

        assert runtime.devices.cuda.probe().name == "Simulated GPU"
        assert str(SITE) in sys.path
    assert before == (
        list(sys.path),
        {name for name in sys.modules if name.startswith(("cuda", "tensorrt", "runtime.devices.cuda"))},
    )
    assert str(SITE) not in os.environ.get("PYTHONPATH", "")
