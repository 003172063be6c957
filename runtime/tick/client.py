"""The thread-safe client of the tick loop, and its commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.denoise.prepared import PreparedGeneration, prepare, resolve
from runtime.engines.adapters import Adapter
from runtime.engines.engine import EngineSet, condition_width
from runtime.errors import DrainingError, EngineDeadError, EngineError, RequestError, TickError
from runtime.language.sequence import SequenceRequest, SequenceState, SequenceWork
from runtime.requests.request import GenerationRequest, StepParameters, merge_patch
from runtime.requests.validation import check_request
from runtime.tick.checkpoint import SlotSnapshot
from runtime.tick.events import Failed
from runtime.tick.registry import Listener, Registry, Request


@dataclass(frozen=True, slots=True)
class Submit:
    """A new generation, prepared; it resumes at `step`."""

    request: GenerationRequest | SequenceRequest
    work: PreparedGeneration | SequenceWork
    step: int = 0


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
class Stop:
    """Leave run(); generations in flight end as drained."""


Message = Submit | Update | Cancel | Snapshot | Swap | Rehearse | Stop


class LoopInbox:
    """Messages to the tick thread, in the order in which they were put. Any thread puts, the tick thread takes."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message) -> None:
        """Append a message; never blocks."""
        self._queue.put(message)

    def wait(self) -> Message:
        """The next message; blocks until there is one."""
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


class LoopClient:
    """The side of a tick loop that any thread may use.

    At most `depth + queue` generations, and any number of urgent ones, are in the loop at a time; one more is refused.
    Noise, schedules, first latents and step parameters are computed here, in the caller's thread.
    """

    def __init__(self, engines: EngineSet, bundle: Bundle, deployment: Deployment) -> None:
        self.bundle, self.deployment = bundle, deployment
        self.engines = engines
        self._inbox, runtime = LoopInbox(), deployment.runtime
        self._registry = Registry(runtime.depth, runtime.queue, runtime.adapter_rank, runtime.planner_sequences)
        self._draining = threading.Event()
        self._ended = threading.Event()
        self._fatal: TickError | None = None
        # Held while a session's parameters are resolved and put into the inbox, so that the newest arrive last.
        self._resolving = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the loop: what has had its terminal event is not."""
        return len(self._registry) == 0

    def submit(self, request: GenerationRequest, listener: Listener, *, wait: bool = False) -> str:
        """Ask for a generation; exactly one terminal event follows. Returns the request's id.

        Of one session's generations that wait for a slot, only the newest is kept: the others end as Cancelled. wait:
        block until a place is free, instead of raising QueueFullError. Raises RequestError, ShapeError, QueueFullError,
        DrainingError, EngineDeadError.
        """
        return self._enter(request, listener, None, wait=wait)

    def submit_sequence(
        self,
        request: SequenceRequest,
        listener: Listener,
        state: SequenceState | None = None,
        *,
        wait: bool = False,
        timeout_s: float | None = None,
        has_left: Callable[[], bool] = lambda: False,
    ) -> str:
        """Ask the planner for a sequence; exactly one terminal event follows. `state`: continue there (see snapshot).

        wait: for a place, for at most `timeout_s`, and until `has_left` is true where `wake` is called then. Raises
        RequestError, also where the bundle has no planner, CheckpointError where the state does not fit, and as submit
        does.
        """
        if self.bundle.planner is None:
            raise RequestError(f"the bundle {self.bundle.name!r} has no planner", fix="use one with [planner]")
        request.check(self.bundle.planner)
        if state is not None:
            assert self.engines.planner is not None
            state.check(request, self.engines.planner, self.bundle.planner)
        with self._place(request, listener, wait=wait, timeout_s=timeout_s, has_left=has_left):
            self._inbox.put(Submit(request, SequenceWork(request, state)))
        return request.id

    def wake(self) -> None:
        """Let callers that wait for a place check again whether they still should."""
        self._registry.wake()

    def resume(self, snapshot: SlotSnapshot, listener: Listener) -> str:
        """Continue a generation at the step of its snapshot. Raises as submit does, and CheckpointError."""
        snapshot.check(self.bundle)
        return self._enter(snapshot.request, listener, snapshot)

    def update(self, session: str, patch: Mapping[str, Any]) -> int:
        """Change step parameters (fields of StepParameters) of a session's generations, from the next tick on.

        A merge-patch: what is not named stays; None goes back to the request's own value. Curves are resampled to each
        generation's T. Holds until the session's last generation leaves. Returns how many generations it reaches.
        Raises RequestError, QueueFullError; nothing has changed then.
        """
        with self._resolving:
            overrides = merge_patch(self._registry.overrides(session), patch)
            entries = self._registry.members(session)
            works = {each.request.id: self._resolved(each.work, overrides) for each in entries if each.work is not None}
            self._registry.override(session, overrides, self._adapters(overrides.get("adapters")))
            for request_id, work in works.items():
                self._registry.set_work(request_id, work)
            if works:
                self._inbox.put(Update(works))
        return len(works)

    def cancel(self, request_id: str) -> None:
        """End a generation before the next commit; unknown ids are ignored."""
        self._inbox.put(Cancel(request_id))

    def snapshot(self, request_id: str) -> Future[Any]:
        """A copy of what is in flight, which runs on: a SlotSnapshot of a generation; of a sequence its SequenceState,
        None while its prompts are read. The future raises RequestError where the id is unknown."""
        reply: Future[Any] = Future()
        self._inbox.put(Snapshot(request_id, reply))
        return reply

    def swap(self, engines: EngineSet) -> Future[None]:
        """Run on other engines of the same tensors from the next tick on, and close the old ones.

        Generations in flight continue. The future raises EngineError where the engines do not fit or the loop has
        ended; they are not taken then.
        """
        return self._ask(Swap(engines, Future()))

    def rehearse(self) -> Future[None]:
        """Execute the shapes of the planner's common ticks, so that their kernels are there before the first sequence.

        Does nothing without a planner, and where sequences are in flight. The future raises EngineError.
        """
        return self._ask(Rehearse(Future()))

    def drain(self, timeout_s: float) -> bool:
        """Take no new work and let what is in the loop finish; False when the time ran out first."""
        self._draining.set()
        deadline_s = time.monotonic() + timeout_s
        while len(self._registry) and time.monotonic() < deadline_s and not self._ended.is_set():
            self._ended.wait(0.01)
        return len(self._registry) == 0

    def _ask(self, message: Swap | Rehearse) -> Future[None]:
        if self._ended.is_set():
            message.reply.set_exception(EngineError("the tick loop has ended"))
        else:
            self._inbox.put(message)
        return message.reply

    def _enter(
        self, request: GenerationRequest, listener: Listener, snapshot: SlotSnapshot | None, *, wait: bool = False
    ) -> str:
        width = condition_width(self.engines.decoder, self.bundle.decoder.inputs)
        check_request(request, self.bundle, self.deployment, width)
        adapters = self._adapters(request.parameters.adapters)
        adapters |= self._adapters(self._registry.overrides(request.session).get("adapters"))
        with self._place(request, listener, adapters=adapters, wait=wait):
            work = self._prepare(request, snapshot)
            with self._resolving:
                if overrides := self._registry.overrides(request.session):
                    work = self._resolved(work, overrides)
                self._registry.set_work(request.id, work)
                self._inbox.put(Submit(request, work, 0 if snapshot is None else snapshot.step))
        return request.id

    @contextmanager
    def _place(self, request: Request, listener: Listener, **how: Any) -> Iterator[None]:
        """A place for what the block submits, freed where that fails. how: as the registry's `enter` takes it."""
        self._check_open()
        self._registry.enter(request, listener, **how)
        try:
            self._check_open()  # The loop may have begun to drain in the meantime.
            yield
        except BaseException:
            self._registry.withdraw(request.id)
            raise
        if self._ended.is_set():
            self._end_leftovers()

    def _adapters(self, strengths: Mapping[str, float] | None) -> frozenset[Adapter]:
        return frozenset([use.adapter for use in self.engines.adapters.uses(strengths or {})])

    def _check_open(self) -> None:
        if self._fatal is not None:
            raise EngineDeadError(f"the tick loop has stopped: {self._fatal}")
        if self._draining.is_set() or self._ended.is_set():
            raise DrainingError("the server is shutting down and takes no new work")

    def _prepare(self, request: GenerationRequest, snapshot: SlotSnapshot | None) -> PreparedGeneration:
        values = resolve(request, StepParameters(), self.engines.adapters)
        channels = self.bundle.latents.channels
        if snapshot is None:
            return prepare(request, values, channels)
        return prepare(
            request,
            values,
            channels,
            step=snapshot.step,
            has_cached_negative=snapshot.has_cached_negative,
            states=snapshot.arrays,
        )

    def _resolved(self, work: PreparedGeneration, overrides: Mapping[str, Any]) -> PreparedGeneration:
        """The same generation with its session's step parameters over its own. Raises RequestError."""
        values = resolve(work.request, StepParameters(**overrides), self.engines.adapters)
        return replace(work, values=values)

    def _end_leftovers(self, unanswered: Sequence[Message] = ()) -> None:
        """End generations and messages that the loop, which has stopped, cannot serve any more."""
        error = self._fatal or DrainingError("the server shut down before the generation was finished")
        self._registry.close(error)
        for message in (*unanswered, *self._inbox.drain()):
            if isinstance(message, Snapshot):
                message.reply.set_exception(DrainingError("the loop has stopped"))
            elif isinstance(message, Swap | Rehearse):
                message.reply.set_exception(EngineError("the tick loop has ended"))
        for request_id in self._registry.ids():
            self._registry.leave(Failed(request_id, error), "engine_error" if self._fatal else "drained")
