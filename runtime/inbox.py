"""The one door to the tick thread: messages, handled in the order in which they were put."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from runtime.checkpoint import FrozenSlot
from runtime.engine import EngineSet
from runtime.request import Array, GenerationRequest, StepParameters


@dataclass(frozen=True, slots=True)
class Submit:
    """A new generation with its noise `[T, C]`; `frozen` where it goes on from a checkpoint."""

    request: GenerationRequest
    noise: Array
    frozen: FrozenSlot | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """New step parameters for a session; None takes them away."""

    session: str
    parameters: StepParameters | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a generation, waiting or in flight."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Copy a generation's state between two ticks."""

    request_id: str
    reply: Future[FrozenSlot]


@dataclass(frozen=True, slots=True)
class Swap:
    """Run on other engines from the next tick on."""

    engines: EngineSet
    reply: Future[None]


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave run(); generations in flight end as drained."""


Message = Submit | Update | Cancel | Freeze | Swap | Stop


class Inbox:
    """Any thread puts, the tick thread takes."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message) -> None:
        """Leave a message; never blocks."""
        self._queue.put(message)

    def wait(self) -> Message:
        """The next message; blocks until there is one."""
        return self._queue.get()

    def drain(self) -> Iterator[Message]:
        """Every message that is there now."""
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return
