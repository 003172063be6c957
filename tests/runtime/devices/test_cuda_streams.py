"""Reuse of CUDA events and stream handles, and launches of closed graphs, on the simulated runtime."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from simulator.fixture import Machine, simulated

from runtime.base.errors import EngineError


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated(late=True) as machine:
        yield machine


def test_an_event_is_reused_after_its_last_reference(machine: Machine) -> None:
    from runtime.devices import cuda_calls
    from runtime.devices.cuda import EVENT_BATCH, EventPool

    pool, stream = EventPool(), cuda_calls.new_stream(0)
    kept = [pool.record(stream) for _ in range(EVENT_BATCH)]
    assert len({event.handle for event in kept}) == EVENT_BATCH
    assert machine.counters["events"] == EVENT_BATCH
    handle = kept.pop().handle
    assert pool.record(stream).handle == handle
    assert machine.counters["events"] == EVENT_BATCH
    kept += [pool.record(stream), pool.record(stream)]
    assert machine.counters["events"] == 2 * EVENT_BATCH
    cuda_calls.close_stream(stream)
    del kept
    pool.close()
    assert machine.alive() == {}


def test_a_stream_handle_becomes_idle_with_its_last_reference(machine: Machine) -> None:
    from runtime.devices import cuda_calls
    from runtime.devices.cuda import CudaStream, EventPool

    pool, idle = EventPool(), deque[int]()
    stream = CudaStream(cuda_calls.new_stream(0), idle, pool.record)
    event, handle = stream.record(), stream.handle
    assert not event.is_done
    event.wait()
    assert event.is_done
    del stream
    assert list(idle) == [handle]
    cuda_calls.close_stream(handle)
    pool.close()


def test_all_streams_event_is_done_with_the_last_stream(machine: Machine) -> None:
    from runtime.devices import cuda_calls
    from runtime.devices.cuda import AllStreamsEvent, EventPool

    pool, streams = EventPool(), [cuda_calls.new_stream(0) for _ in range(2)]
    event = AllStreamsEvent(tuple(pool.record(stream) for stream in streams))
    event.events[0].wait()
    assert not event.is_done
    event.wait()
    assert event.is_done
    for stream in streams:
        cuda_calls.close_stream(stream)
    pool.close()


def test_a_closed_graph_cannot_be_launched(machine: Machine) -> None:
    from runtime.devices import cuda_calls
    from runtime.devices.cuda import CudaReplay, CudaStream, EventPool

    pool, idle = EventPool(), deque[int]()
    stream = CudaStream(cuda_calls.new_stream(0), idle, pool.record)
    replay = CudaReplay(cuda_calls.capture(stream.handle, lambda: None))
    replay.launch(stream)
    stream.record().wait()
    replay.close()
    replay.close()
    with pytest.raises(EngineError, match="after it was closed"):
        replay.launch(stream)
    cuda_calls.close_stream(stream.handle)
    pool.close()
