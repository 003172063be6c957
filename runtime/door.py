"""What other threads may ask of a tick loop: all of it goes through one inbox, and everybody inside is counted."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from runtime.admission import check_request
from runtime.batch import Failed
from runtime.checkpoint import FrozenSlot
from runtime.config import Deployment
from runtime.engine import EngineSet
from runtime.errors import DrainingError, EngineDeadError, EngineError, TickError
from runtime.inbox import Cancel, Freeze, Inbox, Submit, Swap, Update
from runtime.noise import noise
from runtime.registry import Listener, Registry
from runtime.request import GenerationRequest, StepParameters
from runtime.spec import Bundle


class Door:
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

    def submit(self, request: GenerationRequest, listener: Listener) -> str:
        """Ask for a generation; exactly one terminal event follows. Returns the request's id.

        Raises RequestError, ShapeError, QueueFullError, DrainingError, EngineDeadError.
        """
        check_request(request, self.bundle, self.deployment, self.engines.decoder)
        return self._enter(request, listener)

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

    def _enter(self, request: GenerationRequest, listener: Listener, frozen: FrozenSlot | None = None) -> str:
        """Noise is drawn here, in the caller's time: the tick thread has other things to do."""
        if self._fatal is not None:
            raise EngineDeadError(f"the tick loop has stopped: {self._fatal}")
        if self._draining.is_set() or self._ended.is_set():
            raise DrainingError("the server is shutting down and takes no new work")
        self._registry.enter(request.id, listener)
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
