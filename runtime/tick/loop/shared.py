"""What the tick thread shares with all others: messages to it, who is in the loop, and how the loop ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from runtime.base.errors import DrainingError, EngineDeadError, EngineError, TickError, failure_of
from runtime.engines.engine import EngineSet
from runtime.requests.request import GenerationRequest
from runtime.tick.denoise.prepared import PreparedGeneration
from runtime.tick.language.sequence import SequenceRequest, SequenceWork
from runtime.tick.loop.events import Failed
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.registry import Registry


@dataclass(frozen=True, slots=True)
class Submit:
    """A new generation, prepared."""

    request: GenerationRequest | SequenceRequest
    work: PreparedGeneration | SequenceWork


@dataclass(frozen=True, slots=True)
class Update:
    """New step parameters, by generation."""

    works: Mapping[str, PreparedGeneration]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a generation, waiting or in flight."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy a generation's state between two ticks."""

    request_id: str
    reply: Future[Any]


@dataclass(frozen=True, slots=True)
class Swap:
    """Run on other engines from the next tick on."""

    engines: EngineSet
    reply: Future[None]


@dataclass(frozen=True, slots=True)
class Rehearse:
    """Execute the shapes of the planner's common ticks."""

    reply: Future[None]


@dataclass(frozen=True, slots=True)
class BoundCaptures:
    """Capture only what pays for it from now on."""

    reply: Future[None]


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave run(); generations in flight end as drained."""


Message = Submit | Update | Cancel | Snapshot | Swap | Rehearse | BoundCaptures | Stop


class LoopInbox:
    """Messages to the tick thread, in the order in which they were put. Any thread puts, the tick thread takes."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message) -> None:
        """Append a message; never blocks."""
        self._queue.put(message)

    def wait(self) -> Message:
        """The next message. The tick thread waits here while nothing is live, until any thread puts one."""
        return self._queue.get()

    def drain(self) -> list[Message]:
        """Every message that is there now."""
        messages: list[Message] = []
        while not self._queue.empty():
            try:
                messages.append(self._queue.get_nowait())
            except Empty:
                break
        return messages


M = TypeVar("M", bound=Snapshot | Swap | Rehearse | BoundCaptures)


class Answers(Generic[M]):
    """Messages whose answer is given between two ticks, when slots' states and steps agree. The tick thread alone."""

    def __init__(self, answer: Callable[[M], Any]) -> None:
        self._answer = answer
        self.waiting: deque[M] = deque()

    def add(self, message: M) -> None:
        """Let it wait for its answer."""
        self.waiting.append(message)

    def give(self) -> None:
        """Answer all of them; an error is that of the answer alone, unless no tick can run any more."""
        while self.waiting:
            message = self.waiting.popleft()
            try:
                message.reply.set_result(self._answer(message))
            except BaseException as error:
                message.reply.set_exception(failure_of(error, "what was asked of the tick loop"))
                if isinstance(error, EngineDeadError):
                    raise


def do_nothing(is_urgent: bool | None) -> None:
    """No tick waits."""


@dataclass
class LoopState:
    """Of one loop. Any thread reads; `engines` and `fatal` are set by the tick thread alone.

    observers: receive each tick's record on the tick thread. before_tick: may let the next tick of a thread wait for a
    short time, for the codec; it is told what Scheduler.is_tick_urgent is. draining: no new work is taken. ended: no
    tick runs any more. fatal: why.
    """

    engines: EngineSet
    registry: Registry
    before_tick: Callable[[bool | None], None] = do_nothing
    observers: list[Callable[[TickRecord], None]] = field(default_factory=list)
    inbox: LoopInbox = field(default_factory=LoopInbox)
    draining: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    fatal: TickError | None = None

    def end_leftovers(self, unanswered: Sequence[Message] = ()) -> None:
        """End generations and messages that the loop, which has stopped, cannot serve any more."""
        error = self.fatal or DrainingError("the server shut down before the generation was finished")
        self.registry.close(error)
        for message in (*unanswered, *self.inbox.drain()):
            if isinstance(message, Snapshot):
                message.reply.set_exception(DrainingError("the loop has stopped"))
            elif isinstance(message, Swap | Rehearse | BoundCaptures):
                message.reply.set_exception(EngineError("the tick loop has ended"))
        for request_id in self.registry.ids():
            self.registry.leave(Failed(request_id, error), "engine_error" if self.fatal else "drained")
