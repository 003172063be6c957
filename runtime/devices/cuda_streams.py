"""Streams, events and captured graphs of a GPU. CUDA events and streams are reused, never destroyed in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from runtime.base.errors import EngineError
from runtime.devices import cuda_calls
from runtime.devices.device import Event, Stream

# Large enough that a loop has all its events after the first ticks.
EVENT_BATCH = 32


class CudaEvent:
    """A point in a stream's work. Its CUDA event returns to the pool with the last reference to this object."""

    __slots__ = ("_idle", "handle")

    def __init__(self, handle: int, idle: deque[int]) -> None:
        self.handle = handle
        self._idle = idle

    def __del__(self) -> None:
        # A stream that waits for the event keeps waiting for this recording, even when the event is recorded again.
        self._idle.append(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether the stream has passed it; never blocks. Raises EngineDeadError."""
        return cuda_calls.is_done(self.handle)

    def wait(self) -> None:
        """Block the host until the stream has passed it. Raises EngineDeadError."""
        cuda_calls.wait(self.handle)


class EventPool:
    """CUDA events, created in batches and reused."""

    def __init__(self) -> None:
        self._handles: list[int] = []
        self._idle: deque[int] = deque()

    def record(self, stream: int) -> CudaEvent:
        """An event after all work launched so far on the stream with this handle. Raises EngineError."""
        try:
            event = CudaEvent(self._idle.pop(), self._idle)
        except IndexError:
            created = [cuda_calls.new_event() for _ in range(EVENT_BATCH)]
            self._handles += created
            self._idle.extend(created[1:])
            event = CudaEvent(created[0], self._idle)
        cuda_calls.record(event.handle, stream)
        return event

    def close(self) -> None:
        """Destroy all CUDA events. Raises EngineError."""
        for handle in self._handles:
            cuda_calls.close_event(handle)


class CudaStream:
    """Work in order, independent of the legacy default stream. One thread at a time launches work on it.

    `idle`: where the handle goes with the last reference to this object.
    """

    def __init__(self, handle: int, idle: deque[int], record: Callable[[int], CudaEvent]) -> None:
        self.handle = handle
        self._idle, self._record = idle, record

    def __del__(self) -> None:
        # Pending work continues; the next user of the handle comes after it in stream order.
        self._idle.append(self.handle)

    def record(self) -> CudaEvent:
        """An event after all work launched so far. Raises EngineError."""
        return self._record(self.handle)

    def wait(self, event: Event) -> None:
        """Work launched from now on starts after the event. Raises EngineError."""
        assert isinstance(event, CudaEvent)
        cuda_calls.make_wait(self.handle, event.handle)

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events that are done. Raises EngineError."""
        assert isinstance(begin, CudaEvent)
        assert isinstance(end, CudaEvent)
        return cuda_calls.elapsed_ms(begin.handle, end.handle)


class CudaReplay:
    """A captured graph that can be launched."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on the stream. Raises EngineError."""
        if self._handle is None:
            raise EngineError("a captured graph is launched after it was closed")
        cuda_calls.launch_graph(self._handle, stream.handle)

    def close(self) -> None:
        """Release the graph, which must not be running. Raises EngineError."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            cuda_calls.close_graph(handle)


@dataclass(frozen=True, slots=True)
class AllStreamsEvent:
    """The point that every stream of a device had reached when this was recorded."""

    events: tuple[CudaEvent, ...]

    @property
    def is_done(self) -> bool:
        """Whether every stream has passed it; never blocks. Raises EngineDeadError."""
        return all(event.is_done for event in self.events)

    def wait(self) -> None:
        """Block the host until every stream has passed it. Raises EngineDeadError."""
        for event in self.events:
            event.wait()
