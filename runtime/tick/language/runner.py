"""The planner's part of a tick: one execute for all sequences, and at most one chunk of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.planner import PlannerSpec
from runtime.devices.device import Event
from runtime.devices.memory import PackedVectors
from runtime.engines.engine import EngineSet, Execution, LanguageEngines
from runtime.engines.launch_cache import Call, Launch, LaunchCache, LaunchCounts
from runtime.tick.clock import PhaseClock
from runtime.tick.language.kv_cache import KvCache
from runtime.tick.language.prefill import DraftGraph, Prefill
from runtime.tick.language.sequence import LiveSequence, PromptChunk, SequenceState
from runtime.tick.language.step import DRAFT, LanguageKey, LanguageLaunch, LanguagePart, StepChoice
from runtime.tick.language.step_buffers import SequenceVectors, StepBuffers, vectors_bytes
from runtime.tick.runner import LaunchFailures, TickContext
from runtime.tick.scheduling.slot import Slot

# Up to this position the ticks of a sequence that is alone count as common.
COMMON_TOKENS = 512


class LanguageRunner:
    """Every sequence has a row of the cache, with guidance two. One thread.

    The host reads a tick's tokens when it lays out the next one. The tick begins with this part, so that then the
    device still has the rest of it to do. is_beside: the next tick has generations: tokens without a waiting caller are
    left to others. is_beside_urgent: some of them are of live sessions: it has one chunk or one chain then, which draws
    half of planner_steps tokens in all, or one of each sequence.

    On a GPU it has a stream of its own, on which sequences are decoded while the rest of a tick runs. A tick with
    generations leaves them out where their last chain still runs: no tick waits for it. A chain takes as long for many
    sequences as for one: beside urgent generations it draws half of planner_steps tokens of each.
    """

    def __init__(self, context: TickContext, engines: LanguageEngines, spec: PlannerSpec, clock: PhaseClock) -> None:
        device, stream = context.device, context.device.beside
        context = replace(context, stream=stream)
        runtime = context.runtime.model_copy(update={"planner_steps": context.deployment.planner_steps})
        self._bad = list[tuple[Slot, int]]()
        self._stream, self._engines, self._spec = stream, engines, spec
        self._runtime, self._clock, self._generation = runtime, clock, 0
        self.is_beside = self.is_beside_urgent = False
        count = runtime.planner_sequences
        self._cache = KvCache(device, stream, engines.planner, spec, 2 * count)
        has_draft = spec.draft is not None and runtime.speculation
        self._choice = choice = StepChoice(
            spec, runtime, self._cache.capacity, is_on_gpu=device.kind != "cpu", has_draft=has_draft
        )
        most, chains = spec.verify_tokens, choice.chains(count)
        sizes = [(width, length) for width in choice.widths for length in chains]
        sizes += [(most, 1), (most, 1), (1, most - 1)]
        self._vectors = PackedVectors(device, vectors_bytes(2 * count, sizes, spec.prefill_tokens))
        self._shared = SequenceVectors(self._vectors, spec, count)
        self._draft = None
        if spec.draft is not None and has_draft:
            self._draft = DraftGraph(context, engines, spec, spec.draft, self._vectors, self._shared)
        buffers = partial(StepBuffers, device, self._vectors, self._shared, spec, count)
        self._steps = {
            (width, 1, length): buffers(width=width, steps=length) for width in choice.widths for length in chains
        }
        self._steps[most, most, 1] = buffers(width=most, steps=1, draws=most)
        self._caches = (self._cache,) if self._draft is None else (self._cache, self._draft.cache)
        self._buffers = (*self._steps.values(), *(() if self._draft is None else self._draft.buffers))
        limit, captures = runtime.captured_graphs, context.can_capture
        self._launches = LaunchCache(device, stream, limit, captures=captures, beside=context.beside)
        size, vocabulary = spec.prefill_tokens, spec.vocabulary
        self._prefills = [
            Prefill(device, stream, self._vectors, graph, cache, size=size, vocabulary=vocabulary)
            for graph, cache in zip((spec, spec.draft), self._caches, strict=False)
            if graph is not None
        ]
        self._live: dict[int, LiveSequence] = {}
        self._pending: LanguageLaunch | None = None

    @property
    def launch_counts(self) -> LaunchCounts:
        """What happened to launches so far."""
        return self._launches.counts

    def admit(self, slot: Slot) -> None:
        """Give a sequence free rows, cleared or as they were when its state was read."""
        taken = {row for live in self._live.values() for row in live.rows}
        free = [row for row in range(2 * self._runtime.planner_sequences) if row not in taken]
        rows = tuple(free[: len(slot.work.request.prompts)])
        live = LiveSequence(slot, rows, self._spec.capacity, speculates=self._runtime.speculation)
        state: SequenceState | None = slot.work.state
        for cache, places in zip(self._caches, [] if state is None else state.caches, strict=False):
            for row, arrays in zip(rows, places, strict=True):
                cache.write(row, arrays)
        for cache in self._caches[0 if state is None else len(state.caches) :]:
            for row in rows:
                cache.clear(row)
        self._live[slot.index] = live
        self._shared.write(live)
        for buffers in self._buffers:
            buffers.forget(slot.index)

    def update(self, slot: Slot) -> None:
        """Does nothing: a sequence has no step parameters."""

    def vacate(self, slot: Slot) -> None:
        """Free a sequence's rows."""
        live = self._live.pop(slot.index)
        self._shared.rest(live)
        for buffers in self._buffers:
            buffers.rest(live)

    def plan(self) -> LanguagePart | None:
        """What the next tick executes; waits for the tokens of the tick before. None where no sequence is live, or the
        next tick would wait for them, and has others to execute."""
        if self.is_beside and self._pending is not None and not self._pending.done.is_done:
            return None
        self._collect_pending()
        if not self._live:
            return None
        going = self._going()
        joining = next((live for live in going if not live.is_ready), None)
        chunk = None if joining is None else joining.take_chunk(self._spec.prefill_tokens)
        is_full = self.is_beside_urgent and chunk is not None and not self._choice.is_on_gpu
        has_step = any(live.is_ready and (not self.is_beside or live.request.is_awaited()) for live in going)
        step = self._key(*self._choice.next(going, self.is_beside_urgent)) if has_step and not is_full else None
        return LanguagePart(
            slots=tuple([live.slot for live in self._live.values()]),
            chunk=chunk,
            step=step,
            num_rows=(chunk is not None) + (0 if step is None else step.rows),
            num_executes=(chunk is not None) + (0 if step is None else self._step_buffers(step).num_executes),
        )

    def launch(self, part: LanguagePart) -> LanguageLaunch:
        """Upload what changed and put the part on the stream. Raises EngineDeadError."""
        stream, failed, chunk, step = self._stream, LaunchFailures(), part.chunk, part.step
        self._clock.begin("upload")
        joining = [live.slot for live in self._live.values() if chunk is not None and chunk.row in live.rows]
        ready = [live.slot for live in self._going() if live.is_ready]
        prepared: list[tuple[Sequence[Slot], list[Call], Launch | None]] = []
        with failed.of(joining):
            if chunk is not None:
                prepared.append((joining, [call for one in self._prepare_chunk(chunk) for call in one.calls], None))
        with failed.of(ready):
            if step is not None:
                launch = self._prepare_step(step)
                prepared.append((ready, [*launch.calls, self._step_buffers(step).download], launch))
        with failed.of(part.slots):
            self._vectors.has_changed = True
            self._vectors.flush(stream)
        self._clock.begin("launch")
        begin = stream.record()
        for slots, calls, own in prepared:
            with failed.of(slots):
                started_s = perf_counter()
                for call in calls:
                    call(stream)
                if own is not None:
                    self._launches.note(own, perf_counter() - started_s)
        if failed:
            self._forget_launches()
        self._pending = LanguageLaunch(self.collect, part, failed, begin, stream.record(), self._bad)
        return self._pending

    def commit(self, part: LanguagePart) -> None:
        """Take the tokens where they are there already. A slot's steps are its tokens; its end is its last step."""
        if self._pending is not None and self._pending.done.is_done:
            self.collect(self._pending)
        for slot in part.slots:
            live = self._live.get(slot.index)
            if live is not None and live.slot is slot:
                slot.step = live.count - 1
                slot.steps = live.count if live.has_ended else live.request.max_tokens

    def collect(self, launched: LanguageLaunch) -> None:
        """Take the tokens of a launch that is done; again does nothing."""
        if launched is not self._pending:
            return
        self._pending = None
        step = launched.part.step
        if step is None:
            return
        for slot in launched.part.slots:
            live = self._live.get(slot.index)
            if live is not None and live.slot is slot and live.was_fed:
                if step.width == DRAFT and self._draft is not None:
                    self._draft.take(live)
                else:
                    self._steps[step.width, step.draws, step.steps].take(live, launched.bad)

    def read_out(self, slots: Sequence[Slot], ready: Event) -> tuple[list[NDArray[Any]], Event]:
        """The new tokens of finished sequences, int64; their rows are free."""
        results = [np.array(self._live[slot.index].tokens, np.int64) for slot in slots]  # [tokens] each
        for slot in slots:
            self.vacate(slot)
        return results, ready

    def snapshot(self, slot: Slot) -> SequenceState | None:
        """What the sequence is continued from, in any rows; None where it is not past its prompts. Waits."""
        self._collect_pending()
        live = self._live[slot.index]
        if not live.is_ready:
            return None
        return live.state([tuple(cache.read(row) for row in live.rows) for cache in self._caches])

    def rehearse(self) -> None:
        """Execute the shapes of common ticks, twice: kernels that a target compiles while it runs are begun so.

        Where nothing is live: rows of the caches are cleared when a sequence takes them. Waits. Raises EngineError.
        """
        if self._live:
            return
        self._vectors.has_changed = True
        self._vectors.flush(self._stream)
        for execution in self._common_executions():
            execution.launch(self._stream)
            execution.launch(self._stream)
        # Until all that was launched has run.
        self._stream.record().wait()

    def bound_captures(self) -> None:
        """Capture what pays for it from now on."""
        self._launches.bound_captures()

    def use(self, engines: EngineSet) -> None:
        """Run on other engines of the same tensors from the next tick on."""
        assert engines.planner is not None
        self._collect_pending()
        self._forget_launches()
        self._engines = engines.planner
        self._generation += 1

    def close(self) -> None:
        """Wait for what is pending and release everything. Raises EngineDeadError."""
        # Until all that was launched has run.
        self._stream.record().wait()
        self._launches.close()
        for prefill in self._prefills:
            prefill.close()

    def _going(self) -> list[LiveSequence]:
        return [live for live in self._live.values() if live.is_finite and not live.has_ended]

    def _key(self, width: int, draws: int, steps: int, length: int) -> LanguageKey:
        cache = self._caches[width == DRAFT]
        rows = 1 + max(row for live in self._live.values() for row in live.rows)
        return LanguageKey(width, draws, steps, rows, 1 + max(self._live), cache.span(length), self._generation)

    def _step_buffers(self, key: LanguageKey) -> StepBuffers | DraftGraph:
        if key.width != DRAFT:
            return self._steps[key.width, key.draws, key.steps]
        assert self._draft is not None
        return self._draft

    def _collect_pending(self) -> None:
        if self._pending is not None:
            # Until the device has run the sequences of the tick before; the rest of that tick runs meanwhile.
            self._pending.done.wait()
            self.collect(self._pending)

    def _prepare_chunk(self, chunk: PromptChunk) -> list[Launch]:
        """A chunk goes into the caches of both graphs."""
        graphs = (self._engines.planner, self._engines.draft)
        prepared = zip(self._prefills, graphs, strict=False)
        return [prefill.prepare(graph, chunk, self._generation) for prefill, graph in prepared if graph is not None]

    def _prepare_step(self, key: LanguageKey) -> Launch:
        buffers = self._step_buffers(key)
        for live in self._live.values():
            live.was_fed = False
        for live in self._going():
            live.was_fed = live.is_ready
            buffers.write(live, self._stream)
        launch = self._launches.get(key, lambda: self._bind(key))
        self._launches.before_run(launch)
        return launch

    def _bind(self, key: LanguageKey) -> Launch:
        _, _, _, rows, sequences, span, _ = key
        buffers, engines = self._step_buffers(key), self._engines
        if isinstance(buffers, DraftGraph):
            executions = buffers.bind(engines, rows, sequences, span)
        else:
            executions = buffers.bind(engines.planner, engines.sampler, self._cache, rows, sequences, span)
        return Launch(key, None, tuple(executions[:-1]), executions[-1])

    def _common_executions(self) -> Iterator[Execution]:
        """What ticks of one sequence execute, up to COMMON_TOKENS."""
        rows = 1 + (self._spec.sampler.guidance != 1.0)
        most, steps = self._spec.verify_tokens, self._runtime.planner_steps
        kinds = [(width, 1, steps) for width in self._choice.widths]
        if self._runtime.speculation:
            kinds.append((most, most, 1))
        if self._draft is not None:
            kinds.append((DRAFT, 1, most - 1))
        for width, draws, steps in kinds:
            for span in self._caches[width == DRAFT].spans(COMMON_TOKENS):
                yield from self._bind(LanguageKey(width, draws, steps, rows, 1, span, self._generation)).executions
        graphs = (self._engines.planner, self._engines.draft)
        for prefill, cache, graph in zip(self._prefills, self._caches, graphs, strict=False):
            if graph is not None:
                yield from (prefill.bind(graph, 0, span) for span in cache.spans(COMMON_TOKENS))

    def _forget_launches(self) -> None:
        self._launches.drop(lambda key: True)
        for prefill in self._prefills:
            prefill.forget_launches()
