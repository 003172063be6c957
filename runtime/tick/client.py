"""The thread-safe client of the tick loop: commands, a bounded registry of generations, and their listeners."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.engines.engine import EngineSet
from runtime.errors import DrainingError, EngineDeadError, EngineError, QueueFullError, RequestError, TickError
from runtime.requests.curves import Array
from runtime.requests.request import GenerationRequest, StepParameters
from runtime.requests.timesteps import noise
from runtime.requests.validation import check_request
from runtime.tick.checkpoint import FrozenSlot
from runtime.tick.events import Event, Failed


class LoopClient:
    """The side of a tick loop that any thread may use.

    At most `depth + queue` generations are inside at a time; one more is refused at once.
    """

    def __init__(self, engines: EngineSet, bundle: Bundle, deployment: Deployment) -> None:
        self.bundle, self.deployment = bundle, deployment
        self.engines = engines
        self._inbox = Inbox()
        self._registry = Registry(deployment.runtime.depth, deployment.runtime.queue)
        self._draining = threading.Event()
        self._ended = threading.Event()
        self._fatal: TickError | None = None

    def submit(self, request: GenerationRequest, listener: Listener, *, wait: bool = False) -> str:
        """Ask for a generation; exactly one terminal event follows. Returns the request's id.

        wait: block until a place is free, instead of raising QueueFullError. Raises RequestError, ShapeError,
        QueueFullError, DrainingError, EngineDeadError.
        """
        check_request(request, self.bundle, self.deployment, self.engines.decoder)
        return self._enter(request, listener, wait=wait)

    def resume(self, frozen: FrozenSlot, listener: Listener) -> str:
        """Go on with a frozen generation at its step. Raises as submit does, and CheckpointError."""
        check_request(frozen.request, self.bundle, self.deployment, self.engines.decoder)
        frozen.check(self.bundle)
        return self._enter(frozen.request, listener, frozen)

    def update(self, session: str, parameters: StepParameters | None) -> None:
        """Replace a session's step parameters for all its generations, from the next tick on."""
        self._inbox.put(Update(session, parameters))

    def cancel(self, request_id: str) -> None:
        """End a generation before the next commit; unknown ids are ignored."""
        self._inbox.put(Cancel(request_id))

    def freeze(self, request_id: str) -> Future[FrozenSlot]:
        """A copy of a generation in flight, which runs on. Where the id is unknown, the future raises RequestError."""
        reply: Future[FrozenSlot] = Future()
        self._inbox.put(Freeze(request_id, reply))
        return reply

    def swap(self, engines: EngineSet) -> Future[None]:
        """Run on other engines of the same tensors from the next tick on, and close the old ones; nobody in flight
        notices. Where they do not fit, or the loop has ended, the future raises EngineError and they are not taken."""
        reply: Future[None] = Future()
        if self._ended.is_set():
            reply.set_exception(EngineError("the tick loop has ended"))
        else:
            self._inbox.put(Swap(engines, reply))
        return reply

    def drain(self, timeout_s: float) -> bool:
        """Take no new work and let what is inside finish; False when the time ran out first."""
        self._draining.set()
        deadline_s = time.monotonic() + timeout_s
        while len(self._registry) and time.monotonic() < deadline_s and not self._ended.is_set():
            self._ended.wait(0.01)
        return len(self._registry) == 0

    def _enter(
        self, request: GenerationRequest, listener: Listener, frozen: FrozenSlot | None = None, *, wait: bool = False
    ) -> str:
        """Noise is drawn here, in the caller's time: the tick thread has other things to do."""
        if self._fatal is not None:
            raise EngineDeadError(f"the tick loop has stopped: {self._fatal}")
        if self._draining.is_set() or self._ended.is_set():
            raise DrainingError("the server is shutting down and takes no new work")
        self._registry.enter(request.id, listener, wait=wait)
        given = request.noise
        drawn = noise(request.frames, self.bundle.latents.channels, request.seed) if given is None else given
        self._inbox.put(Submit(request, drawn, frozen))
        if self._ended.is_set():
            self._tell_leftovers()
        return request.id

    def _tell_leftovers(self) -> None:
        """Generations that nobody will run any more, and questions that nobody will answer."""
        for message in self._inbox.drain():
            if isinstance(message, Freeze):
                message.reply.set_exception(DrainingError("the loop has stopped"))
            elif isinstance(message, Swap):
                message.reply.set_exception(EngineError("the tick loop has ended"))
        error = self._fatal or DrainingError("the server shut down before the generation was finished")
        for request_id in self._registry.ids():
            self._registry.leave(Failed(request_id, error), "engine_error" if self._fatal else "drained")


Listener = Callable[[Event], None]


OUTCOMES = ("ok", "cancelled", "nonfinite", "engine_error", "drained")


class Registry:
    """Every generation that was let in leaves exactly once: `started` = inside + the sum of `outcomes`."""

    def __init__(self, slots: int, queue: int) -> None:
        self._slots, self._queue = slots, queue
        self._free = threading.Semaphore(slots + queue)
        self._listeners: dict[str, Listener] = {}
        self.outcomes = dict.fromkeys(OUTCOMES, 0)

    def __len__(self) -> int:
        return len(self._listeners)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._listeners

    def ids(self) -> list[str]:
        """Everybody who is inside."""
        return list(self._listeners)

    def enter(self, request_id: str, listener: Listener, *, wait: bool = False) -> None:
        """Take a place. Raises QueueFullError, RequestError where the id is inside already. Any thread."""
        if request_id in self._listeners:
            raise RequestError(f"a generation {request_id!r} is inside already", field="id")
        if not self._free.acquire(blocking=wait):
            raise QueueFullError(f"all {self._slots} slots and {self._queue} waiting places are taken")
        self._listeners[request_id] = listener

    def tell(self, event: Event) -> None:
        """Pass on an event, if the generation is inside."""
        listener = self._listeners.get(event.request_id)
        if listener is not None:
            listener(event)

    def leave(self, event: Event, outcome: str) -> None:
        """Pass on the terminal event and free the place; nothing happens where the generation has left already."""
        listener = self._listeners.pop(event.request_id, None)
        if listener is not None:
            self.outcomes[outcome] += 1
            self._free.release()
            listener(event)


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
