"""All slots of one length T: their state, the rows of their batch, and the bound launches of each shape."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from runtime.devices.device import Tensor
from runtime.devices.memory import PackedVectors
from runtime.engines.engine import Engine, EngineSet, Execution, smallest_superset
from runtime.engines.launch_cache import Launch, LaunchCache
from runtime.requests.request import MAX_CONDITIONS
from runtime.tick.denoise.prepared import PreparedGeneration
from runtime.tick.denoise.ring_rows import RingRows
from runtime.tick.denoise.row_buffers import ALIGNED, AdapterFactors, RowBuffers, row_multiple
from runtime.tick.denoise.row_layout import LaunchKey, LayoutRules, LiveSlot, RowLayout
from runtime.tick.denoise.slot_fields import FIELDS, written_states
from runtime.tick.denoise.slot_state import SlotState, vectors_bytes
from runtime.tick.denoise.step_binding import StepBinding, StepNoise
from runtime.tick.runner import TickContext
from runtime.tick.scheduling.slot import Slot


@dataclass(frozen=True)
class DenoiseParts:
    """The classes that denoising is made of. Profiling gives slower ones, to measure what each technique is worth."""

    launches: type[LaunchCache] = LaunchCache
    state: type[SlotState] = SlotState
    rows: type[RowBuffers] = RowBuffers
    step: type[StepBinding] = StepBinding


FASTEST = DenoiseParts()


class LengthBucket:
    """Owns what slots of one length need on the device. One thread."""

    def __init__(
        self,
        context: TickContext,
        frames: int,
        launches: LaunchCache,
        worker: ThreadPoolExecutor,
        factors: AdapterFactors | None,
        parts: DenoiseParts,
    ) -> None:
        device, bundle, runtime = context.device, context.bundle, context.runtime
        self._context, self.frames, self._parts = context, frames, parts
        self._launches, self._worker, self._factors = launches, worker, factors
        self._generation = 0
        self._slot_count, self._channels, self._rule = runtime.depth, bundle.latents.channels, bundle.guidance.rule
        row_numbers = bundle.decoder.inputs.row_numbers
        most_numbers = 2 * MAX_CONDITIONS * self._slot_count * len(row_numbers)
        self._vectors = PackedVectors(device, vectors_bytes(self._slot_count, most_numbers))
        self.state = parts.state(
            device, context.stream, self._vectors, slot_count=self._slot_count, frames=frames, channels=self._channels
        )
        dtype = context.engines.decoder.inputs[row_numbers[0]].dtype
        # [most R] of each kind, each at an aligned address
        self._numbers = self._vectors.take(most_numbers * ALIGNED * 4 // np.dtype(dtype).itemsize, dtype)
        self._rows = self._row_buffers(2 * self._slot_count)
        self._rings: RingRows | None = None
        self._steps = parts.step(device, context.stream, self.state, runtime.ticks_in_flight + 1)
        folds_tokens = bundle.decoder.inputs.condition_mask is not None
        self._rules = LayoutRules(context.deployment, folds_tokens, row_multiple(frames, self._channels))
        self._variants: dict[tuple[str, frozenset[str]], frozenset[str]] = {}
        self._masked: Tensor | None = None
        self._live: dict[int, LiveSlot] = {}
        self._layout: RowLayout | None = None
        self._previous: RowLayout | None = None
        self._ticks_left = 0
        self._bound: dict[tuple[int, ...], Launch] = {}
        self._first_negatives: list[LiveSlot] = []
        self._alternating: list[LiveSlot] = []
        self._multistep: list[LiveSlot] = []
        self._written_adapters: tuple[object, int] | None = None

    def __len__(self) -> int:
        return len(self._live)

    def admit(self, slot: Slot) -> None:
        """Copy what was prepared for a slot into its rows."""
        work: PreparedGeneration = slot.work
        live = self._live[slot.index] = LiveSlot(slot, work, work.has_cached_negative, work.previous)
        self.state.admit(slot.index, work, slot.step)
        if live.pauses_guidance:
            self.state.write(slot.index, live.guidance_fields)
        self._layout = None

    def update(self, slot: Slot) -> None:
        """Write a slot's new step parameters."""
        live = self._live[slot.index]
        before = _layout_facts(live)
        live.work = slot.work
        live.refresh()
        self.state.update(slot.index, slot.work)
        if live.pauses_guidance:
            self.state.write(slot.index, live.guidance_fields)
        if _layout_facts(live) != before:
            self._layout = None

    def vacate(self, slot: Slot) -> None:
        """Empty a slot: nothing moves there until it is taken again."""
        del self._live[slot.index]
        self.state.vacate(slot.index)
        self._layout = None

    def layout(self) -> RowLayout:
        """The rows of the next tick: the same object as long as no slot joins, leaves or changes its rows."""
        if self._layout is None or self._ticks_left == 0:
            live = [self._live[index] for index in sorted(self._live)]
            for item in live:
                if item.slot.step >= item.rows_until:
                    self._refresh(item)
            self._layout = self._previous = self._rules.lay_out(self.frames, live, self._previous)
            self._ticks_left = self._layout.num_ticks
            self._bound.clear()
            pairs = zip(live, self._layout.negatives, strict=True)
            self._first_negatives = [item for item, rows in pairs if rows]
            self._alternating = [item for item in live if item.work.request.guidance_mode == "alternate"]
            self._multistep = [item for item in live if item.work.extrapolation]
        return self._layout

    def _refresh(self, live: LiveSlot) -> None:
        """Compute a slot's rows for the next step, which may be the first or the last of its guidance interval."""
        was_paused = live.pauses_guidance
        live.refresh()
        if live.pauses_guidance != was_paused:
            self.state.write(live.slot.index, live.guidance_fields)

    def prepare(self, layout: RowLayout) -> Launch:
        """Upload what changed since the last tick; returns what is to be run. Raises EngineError, ShapeError."""
        if layout is not self._rows.layout:
            self._write_layout(layout)
        if layout.features & {"sde", "ode_noise"}:
            for live in self._drawing():
                self._noise.write(live)
        self._rows.set_numbers(self.state.set_times())
        if self._rings is not None and layout.has_rings:
            turns = {index: turn for index, item in self._live.items() if (turn := item.turn) is not None}
            self._rings.write(layout, turns)
            self._rows.number_frames(layout, turns)
        for live in self._multistep:
            self.state.extrapolate(live.slot.index, live.extrapolation)
        self.state.flush()
        self._vectors.flush(self._context.stream)
        if layout.adapters:
            self._write_adapters(layout)
        launch = self._launch(layout)
        self.state.before_launch(launch.writes)
        self._launches.before_run(launch)
        return launch

    def launched(self, layout: RowLayout, launch: Launch) -> memoryview:
        """The launch is on the stream. Returns where its finite flags `[S]` arrive, valid once the tick is done."""
        self.state.after_launch(launch.writes)
        for live in self._multistep:
            # A step that adds noise moves the latents away from where its velocity was taken.
            live.previous = None if live.work.values.draws_noise else live.velocity_parts
        if layout.features & {"sde", "ode_noise"}:
            for live in self._drawing():
                self._noise.draw_next(live)
        return self._steps.finite(layout.slot_count)

    def advance(self) -> None:
        """Every live slot has taken its step."""
        self.state.advance()
        self._ticks_left -= 1
        for live in self._alternating:
            live.has_cached_negative = bool(live.negatives)
        if self._first_negatives:
            for live in self._first_negatives:
                live.has_cached_negative = True
                if live.work.request.guidance_mode == "initialize":
                    self._refresh(live)
                    self._layout = None
            self._first_negatives = []

    def live(self, slot: Slot) -> LiveSlot:
        """What is known of a slot between two ticks."""
        return self._live[slot.index]

    def use(self, engines: EngineSet) -> None:
        """Take other engines of the same tensors. What was bound to the old ones is closed."""
        self.forget_launches()
        self._context = replace(self._context, engines=engines)
        self._variants.clear()
        self._layout = None
        self._generation += 1

    def forget_launches(self) -> None:
        """Close everything that is bound to this bucket's memory."""
        self._bound.clear()
        self._launches.drop(lambda key: key.frames == self.frames)

    def _write_layout(self, layout: RowLayout) -> None:
        if len(layout.rows) > self._rows.capacity:
            self.forget_launches()  # seldom: there is room for one more row of every slot
            self._rows = self._row_buffers(-(-len(layout.rows) // self._slot_count) * self._slot_count)
            self._rings = None
        self._rows.lay_out(layout)
        if layout.has_rings and self._rings is None:
            self._rings = RingRows(self._context.device, self._context.stream, self._rows)
        step = self._variant("step", layout.features)
        self._steps.write(layout, blends="blend" in step)
        if "rcfg" in step:  # also where the slots with one pause their guidance
            fields = {"use_cached_negative": layout.uses_cached_negative, "keeps_difference": layout.keeps_difference}
            for name, values in fields.items():
                for slot, value in zip(layout.slots, values, strict=True):
                    self.state.field(name).write(slot.index, value)

    @cached_property
    def _noise(self) -> StepNoise:
        return StepNoise(self._worker, self.state.field("step_noise"))

    def _drawing(self) -> list[LiveSlot]:
        return [live for live in self._live.values() if live.work.values.draws_noise]

    def _launch(self, layout: RowLayout) -> Launch:
        bound = (self._adapter_rank(layout), *self.state.sides)
        launch = self._bound.get(bound)
        if launch is None or launch.is_retired:
            key = self._key(layout)
            launch = self._bound[bound] = self._launches.get(key, lambda: self._bind(key, layout))
        else:
            self._launches.touch(launch)
        return launch

    def _key(self, layout: RowLayout) -> LaunchKey:
        step = self._variant("step", layout.features)
        return LaunchKey(
            frames=self.frames,
            slot_count=layout.slot_count,
            executes=layout.executes,
            widths=layout.widths,
            step=step,
            rows=None if layout.is_identity else self._variant("rows", layout.row_features),
            adapter_rank=self._adapter_rank(layout),
            has_rings=layout.has_rings,
            sides=tuple(self.state.double_buffer(name).side for name in written_states(step, self._rule)),
            generation=self._generation,
        )

    def _bind(self, key: LaunchKey, layout: RowLayout) -> Launch:
        shape = (layout.slot_count, self.frames, self._channels)
        latents = self.state.double_buffer("latents").current.view(*shape)  # [S, T, C]
        rows, hidden_states = None, latents
        if key.rows is not None:
            rows, hidden_states, latents = self._bind_rows(self._context.engines.rows[key.rows], layout, latents)
        velocity = self._rows.velocity.view(len(layout.rows), self.frames, self._channels)  # [R, T, C]
        launch = Launch(
            key=key,
            rows=rows,
            decoders=tuple(
                execution
                for execute in layout.executes
                for execution in self._bind_decoder(layout, *execute, hidden_states)
            ),
            step=self._steps.bind(self._context.engines.steps[key.step], layout, latents, velocity),
            writes=written_states(key.step, self._rule),
        )
        self.state.flush()  # binding may have made fields, with their neutral rows
        return launch

    def _bind_rows(self, engine: Engine, layout: RowLayout, latents: Tensor) -> tuple[Execution, Tensor, Tensor]:
        """The rows engine, the decoder's input, and the latents that the step starts from (masked where a mask is)."""
        hidden_states = self._rows.hidden_states.view(len(layout.rows), self.frames, self._channels)  # [R, T, C]
        tensors = {name: self.state.tensor(name, layout.slot_count) for name in engine.inputs if name in FIELDS}
        tensors["row_slots"] = self._rows.row_slots.view(len(layout.rows))  # [R]
        tensors |= {"latents": latents, "hidden_states": hidden_states}
        if "masked_latents" in engine.outputs:
            if self._masked is None:
                # [depth, T, C]
                self._masked = self._context.device.zeros((self._slot_count, self.frames, self._channels), np.float32)
            latents = tensors["masked_latents"] = self._masked.view(*latents.shape)  # [S, T, C]
        return engine.bind(tensors), hidden_states, latents

    def _bind_decoder(
        self, layout: RowLayout, begin: int, end: int, tokens: int, hidden_states: Tensor
    ) -> Sequence[Execution]:
        """The decoder over some rows, between what turns loops where there are some."""
        tensors = self._rows.decoder_tensors(begin, end, tokens, hidden_states)
        start = begin * self.frames * self._channels
        # [R of the execute, T, C]
        velocity = self._rows.velocity.view(end - begin, self.frames, self._channels, start=start)
        engines, spec = self._context.engines, self._context.bundle.decoder
        tensors[spec.outputs.velocity] = velocity
        before, behind = list[Execution](), list[Execution]()
        if self._rings is not None and layout.has_rings:
            before, last = self._rings.bind(engines.rows, spec, begin, end, tensors)
            behind.append(last)
        decoder = engines.decoder
        if layout.adapters:
            assert self._factors is not None
            assert engines.adapted is not None
            decoder, tensors = engines.adapted, tensors | self._rows.adapter_tensors(begin, end, self._factors)
        return *before, decoder.bind(tensors), *behind

    def _adapter_rank(self, layout: RowLayout) -> int:
        """Q; 0 where no row has an adapter: then the plain decoder runs."""
        return self._factors.rank if self._factors is not None and layout.adapters else 0

    def _write_adapters(self, layout: RowLayout) -> None:
        """Upload the rows' weights where rows, strengths or the adapters' places have changed."""
        assert self._factors is not None
        written = (layout, self._factors.version)
        if written != self._written_adapters:
            uses = {index: live.work.values.adapters for index, live in self._live.items()}
            self._rows.set_adapters(layout, self._factors, uses)
            self._written_adapters = written

    def _variant(self, kind: str, features: frozenset[str]) -> frozenset[str]:
        key = (kind, features)
        if key not in self._variants:
            engines = self._context.engines
            self._variants[key] = smallest_superset(engines.steps if kind == "step" else engines.rows, features)
        return self._variants[key]

    def _row_buffers(self, capacity: int) -> RowBuffers:
        return self._parts.rows(self._context, self._vectors, self._numbers, frames=self.frames, capacity=capacity)


def _layout_facts(live: LiveSlot) -> tuple[object, ...]:
    """What the layout depends on besides a slot's conditions."""
    values = live.work.values
    return live.features, values.row_features, values.adapters, live.rows_until
