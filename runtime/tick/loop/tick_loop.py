"""The tick loop as every thread may use it: work goes in, ticks run in a thread of their own, events come out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from runtime.base.errors import DrainingError, EngineDeadError, EngineError, RequestError
from runtime.base.threads import Process, ServingThread
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device
from runtime.engines.adapters import Adapter
from runtime.engines.engine import EngineSet, condition_width
from runtime.engines.launch_cache import LaunchCounts
from runtime.requests.jumps import JumpRule
from runtime.requests.request import GenerationRequest, StepParameters, merge_patch
from runtime.requests.validation import check_request
from runtime.tick.denoise.bucket import FASTEST, DenoiseParts
from runtime.tick.denoise.prepared import PreparedGeneration, prepare, resolve
from runtime.tick.language.sequence import SequenceRequest, SequenceState, SequenceWork
from runtime.tick.loop.record import LoopStats, TickRecord
from runtime.tick.loop.registry import Listener, Registry, Request
from runtime.tick.loop.shared import (
    BoundCaptures,
    Cancel,
    LoopState,
    Rehearse,
    Snapshot,
    Stop,
    Submit,
    Swap,
    Update,
    do_nothing,
)
from runtime.tick.loop.tick_thread import TickThread
from runtime.tick.runner import TickContext


class TickLoop:
    """Takes work from any thread, and tells its listeners, on the tick thread, what becomes of it.

    At most `depth + queue` generations, and any number of urgent ones, are in the loop at a time; one more is refused.
    Noise, schedules, first latents and step parameters are computed here, in the caller's thread. before_tick: may let
    the next tick wait for a short time, for the codec. parts: of which it denoises.
    """

    def __init__(
        self,
        engines: EngineSet,
        bundle: Bundle,
        deployment: Deployment,
        device: Device,
        parts: DenoiseParts = FASTEST,
        before_tick: Callable[[bool | None], None] = do_nothing,
    ) -> None:
        self.bundle, self.deployment, self.device = bundle, deployment, device
        self._rule = JumpRule.of(bundle)
        runtime = deployment.runtime
        self.registry = Registry(runtime.depth, runtime.queue, runtime.adapter_rank, runtime.planner_sequences)
        self._shared = LoopState(engines, self.registry, before_tick)
        self.observers = self._shared.observers
        context = TickContext(device, device.main, engines, bundle, deployment)
        self._ticks = TickThread(context, self._shared, parts)
        # From its start on only this thread touches what `_ticks` owns.
        self.thread = ServingThread("tick", self._ticks.run, self._ticks.heartbeat)
        self._process = Process()
        self._is_closed = False
        # Held while a session's parameters are resolved and put into the inbox, so that the newest arrive last: another
        # thread waits for as long as one session's parameters are resolved.
        self._resolving = threading.Lock()

    @property
    def engines(self) -> EngineSet:
        """The engines in use."""
        return self._shared.engines

    def stats(self) -> LoopStats:
        """Counts as of now."""
        shared, ticks, scheduler = self._shared, self._ticks, self._ticks.scheduler
        return LoopStats(
            slots_active=scheduler.num_shared,
            slots_capacity=scheduler.depth,
            queue_depth=max(0, len(self.registry) - len(scheduler.slots)),
            ticks=scheduler.tick,
            outcomes=dict(self.registry.outcomes),
            is_alive=shared.fatal is None and not shared.ended.is_set(),
            is_idle=ticks.heartbeat.is_resting,
            is_draining=shared.draining.is_set(),
        )

    @property
    def launch_counts(self) -> LaunchCounts:
        """What happened to launches so far, of all runners, and what captured graphs took."""
        return self._ticks.launch_counts()

    def start(self) -> None:
        """Run ticks in a thread of their own. Again does nothing."""
        if self.thread.ident is None:
            self.thread.start()

    def tick(self) -> TickRecord | None:
        """Run one tick in this thread, where `start` was not called. None where nothing is live."""
        return self._ticks.tick()

    def close(self) -> None:
        """Stop the loop; generations that are still in it end as drained. Engines are closed. Again does nothing.

        Waits until the tick thread has ended: for the ticks in flight.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._shared.draining.set()
        self._shared.inbox.put(Stop())
        if self.thread.ident is not None:
            self.thread.join()
        else:
            self._ticks.end()
        self._ticks.close()
        self.engines.close()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the loop: what has had its terminal event is not."""
        return len(self.registry) == 0

    def submit(
        self,
        request: GenerationRequest,
        listener: Listener,
        *,
        wait: bool = False,
        has_left: Callable[[], bool] = lambda: False,
    ) -> str:
        """Ask for a generation; exactly one terminal event follows. Returns the request's id.

        Of one session's generations that wait for a slot, only the newest is kept: the others end as Cancelled. wait:
        block until a place is free, instead of raising QueueFullError, and until `has_left` is true where `wake` is
        called then. Raises RequestError, ShapeError, QueueFullError, DrainingError, EngineDeadError.
        """
        width = condition_width(self.engines.decoder, self.bundle.decoder.inputs)
        check_request(request, self.bundle, self.deployment, width)
        adapters = self._adapters(request.parameters.adapters)
        adapters |= self._adapters(self.registry.overrides(request.session).get("adapters"))
        with self._place(request, listener, adapters=adapters, wait=wait, has_left=has_left):
            values = resolve(request, StepParameters(), self.engines.adapters, self._rule)
            work = prepare(request, values, self.bundle.latents.channels)
            with self._resolving:
                if overrides := self.registry.overrides(request.session):
                    work = self._resolved(work, overrides)
                self.registry.set_work(request.id, work)
                self._shared.inbox.put(Submit(request, work))
        return request.id

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

        wait: for a place, for at most `timeout_s`, and until `has_left` is true, as submit has it. Raises RequestError,
        also where the bundle has no planner, CheckpointError where the state does not fit, and as submit does.
        """
        if self.bundle.planner is None:
            raise RequestError(f"the bundle {self.bundle.name!r} has no planner", fix="use one with [planner]")
        request.check(self.bundle.planner)
        if state is not None:
            assert self.engines.planner is not None
            state.check(request, self.engines.planner, self.bundle.planner)
        with self._place(request, listener, wait=wait, timeout_s=timeout_s, has_left=has_left):
            self._shared.inbox.put(Submit(request, SequenceWork(request, state)))
        return request.id

    def wake(self) -> None:
        """Let callers that wait for a place check again whether they still should."""
        self.registry.wake()

    def update(self, session: str, patch: Mapping[str, Any]) -> int:
        """Change step parameters (fields of StepParameters) of a session's generations, from the next tick on.

        A merge-patch: what is not named stays; None goes back to the request's own value. Curves are resampled to each
        generation's T. Holds until the session's last generation leaves. Returns how many generations it reaches.
        Raises RequestError, QueueFullError; nothing has changed then.
        """
        with self._resolving:
            overrides = merge_patch(self.registry.overrides(session), patch)
            entries = self.registry.members(session)
            works = {each.request.id: self._resolved(each.work, overrides) for each in entries if each.work is not None}
            self.registry.override(session, overrides, self._adapters(overrides.get("adapters")))
            for request_id, work in works.items():
                self.registry.set_work(request_id, work)
            if works:
                self._shared.inbox.put(Update(works))
        return len(works)

    def cancel(self, request_id: str) -> None:
        """End a generation before the next commit; unknown ids are ignored."""
        self._shared.inbox.put(Cancel(request_id))

    def snapshot(self, request_id: str) -> Future[Any]:
        """A copy of what is in flight, which runs on: of a generation its states by name, each `[T, C]`, also while it
        is frozen; of a sequence its SequenceState, None while its prompts are read.

        The future raises RequestError where the id is unknown.
        """
        reply: Future[Any] = Future()
        self._shared.inbox.put(Snapshot(request_id, reply))
        return reply

    def swap(self, engines: EngineSet) -> Future[None]:
        """Run on other engines of the same tensors from the next tick on, and close the old ones behind it.

        Generations in flight continue. The future raises EngineError where the engines do not fit or the loop has
        ended; they are not taken then.
        """
        return self._ask(Swap(engines, Future()))

    def rehearse(self) -> Future[None]:
        """Execute the shapes of the planner's common ticks, so that their kernels are there before the first sequence.

        Does nothing without a planner, and where sequences are in flight. The future raises EngineError.
        """
        return self._ask(Rehearse(Future()))

    def bound_captures(self) -> Future[None]:
        """After the common ticks: from now on capture only what comes back as often as pays for its graph.

        What that costs and saves was measured while they were captured; what a graph needs is made beside the ticks.
        """
        return self._ask(BoundCaptures(Future()))

    def drain(self, timeout_s: float) -> bool:
        """Take no new work and let what is in the loop finish; False when the time ran out first."""
        self._shared.draining.set()
        deadline_s = time.monotonic() + timeout_s
        while len(self.registry) and time.monotonic() < deadline_s and not self._shared.ended.is_set():
            # Until the loop has ended; the count of generations is looked at 100 times a second.
            self._shared.ended.wait(0.01)
        return len(self.registry) == 0

    def _ask(self, message: Swap | Rehearse | BoundCaptures) -> Future[None]:
        self._process.check()
        if self._shared.ended.is_set():
            message.reply.set_exception(EngineError("the tick loop has ended"))
        else:
            self._shared.inbox.put(message)
        return message.reply

    @contextmanager
    def _place(self, request: Request, listener: Listener, **how: Any) -> Iterator[None]:
        """A place for what the block submits, freed where that fails. how: as the registry's `enter` takes it."""
        self._check_open()
        self.registry.enter(request, listener, **how)
        try:
            self._check_open()  # The loop may have begun to drain in the meantime.
            yield
        except BaseException:
            self.registry.withdraw(request.id)
            raise
        if self._shared.ended.is_set():
            self._shared.end_leftovers()

    def _adapters(self, strengths: Mapping[str, float] | None) -> frozenset[Adapter]:
        return frozenset([use.adapter for use in self.engines.adapters.uses(strengths or {})])

    def _check_open(self) -> None:
        self._process.check()
        if self._shared.fatal is not None:
            raise EngineDeadError(f"the tick loop has stopped: {self._shared.fatal}")
        if self._shared.draining.is_set() or self._shared.ended.is_set():
            raise DrainingError("the server is shutting down and takes no new work")

    def _resolved(self, work: PreparedGeneration, overrides: Mapping[str, Any]) -> PreparedGeneration:
        """The same generation with its session's step parameters over its own. Raises RequestError."""
        values = resolve(work.request, StepParameters(**overrides), self.engines.adapters, self._rule)
        return replace(work, values=values)
