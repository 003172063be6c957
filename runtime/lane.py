"""A lane: all slots of one length T, their state, their rows, and the bound executions of each shape they have had."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from runtime.batch import LaneBatch, SlotStep
from runtime.config import Deployment
from runtime.device import Device, Event, Tensor
from runtime.engine import Engine, EngineSet, Execution, smallest_superset
from runtime.fields import FIELDS
from runtime.launches import Launch, LaunchCache, LaunchKey
from runtime.request import Condition
from runtime.rows import Buffer, RowBuffers
from runtime.spec import Bundle
from runtime.state import SlotState

MAX_CONDITIONS = 16
RowsOf = Callable[[SlotStep], tuple[int, ...]]
STATE_OF_FEATURE = {"guidance": "momentum_state", "rcfg": "kept_negative"}


class Lane:
    """Owns what slots of one length need on the device. Written by the tick thread alone."""

    def __init__(
        self,
        device: Device,
        launches: LaunchCache,
        engines: EngineSet,
        bundle: Bundle,
        deployment: Deployment,
        frames: int,
    ) -> None:
        self._device, self._stream, self._engines = device, launches.stream, engines
        self._bundle, self._deployment = bundle, deployment
        self._launches = launches
        self._generation = 0
        self.frames = frames
        self._seats = deployment.runtime.depth
        self._channels = bundle.latents.channels
        self.state = SlotState(device, self._stream, seats=self._seats, frames=frames, channels=self._channels)
        self._rows = self._row_buffers(2 * self._seats)
        self._tables: dict[str, Buffer] = {}
        self._table_rows: object = None
        self._variants: dict[tuple[str, frozenset[str]], frozenset[str]] = {}
        self._masked: Tensor | None = None
        self._finite = device.zeros((self._seats,), np.bool_)
        ticks = deployment.runtime.ticks_in_flight + 1
        self._flags = cycle([device.staging((self._seats,), np.bool_) for _ in range(ticks)])

    def prepare(self, batch: LaneBatch) -> None:
        """Write what this tick changes: rows that changed hands, tables, times."""
        if len(batch.rows) > self._rows.capacity:
            self.forget_launches()
            self._rows = self._row_buffers(len(batch.rows))
        self._rows.lay_out(batch)
        self._rows.set_times(batch)
        self._write_tables(batch)
        self.state.set_step(batch)
        self.state.flush()

    def launch(self, batch: LaneBatch) -> tuple[Event, Event]:
        """Execute the tick; afterwards the state's other sides are current. Raises EngineError, ShapeError."""
        key = self._key(batch)
        launch = self._launches.get(key, lambda: self._bind(batch, key.step))
        self.state.before_launch(launch.writes)
        events = self._launches.run(launch)
        for name in launch.writes:
            self.state.double(name).flip()
        return events

    def finite(self, seats: int) -> NDArray[np.bool_]:
        """Per seat, whether the last tick left only finite latents; valid when that tick is done, for as long as two
        ticks are in flight."""
        flags = next(self._flags)[:seats]
        self._device.download(flags, self._finite.view(seats), self._stream)
        return flags

    def use(self, engines: EngineSet) -> None:
        """Take other engines of the same tensors. What was bound to the old ones is let go of."""
        self.forget_launches()
        self._engines = engines
        self._variants.clear()
        self._table_rows = None
        self._generation += 1

    def forget_launches(self) -> None:
        """Let go of everything that is bound to this lane's memory."""
        self._launches.drop(lambda key: key.frames == self.frames)

    def _key(self, batch: LaneBatch) -> LaunchKey:
        variant = self._variant("step", batch.features)
        return LaunchKey(
            frames=self.frames,
            seats=batch.seats,
            executes=batch.executes,
            widths=self._widths(batch),
            step=variant,
            rows=None if _is_identity(batch) else self._variant("rows", batch.row_features),
            sides=tuple(self.state.double(name).side for name in _writes(variant)),
            generation=self._generation,
        )

    def _bind(self, batch: LaneBatch, variant: frozenset[str]) -> Launch:
        shape = (batch.seats, self.frames, self._channels)
        latents = self.state.double("latents").current.view(*shape)
        rows, hidden_states = None, latents
        if not _is_identity(batch):
            rows, hidden_states, latents = self._bind_rows(batch, latents)
        launch = Launch(
            rows=rows,
            decoder=tuple(self._bind_decoder(*execute, hidden_states) for execute in batch.executes),
            step=self._bind_step(batch, variant, latents),
            writes=_writes(variant),
        )
        self.state.flush()  # binding may have made fields, with their neutral lines
        return launch

    def _bind_rows(self, batch: LaneBatch, latents: Tensor) -> tuple[Execution, Tensor, Tensor]:
        """The rows engine, the decoder's input, and the latents that the step starts from (masked where a mask is)."""
        engine = self._engines.rows[self._variant("rows", batch.row_features)]
        shape = (batch.seats, self.frames, self._channels)
        hidden_states = self._rows.hidden_states.view(len(batch.rows), self.frames, self._channels)
        tensors = self._resolve(engine, batch)
        tensors |= {"latents": latents, "hidden_states": hidden_states}
        if "masked_latents" in engine.outputs:
            if self._masked is None:
                self._masked = self._device.zeros((self._seats, self.frames, self._channels), np.float32)
            latents = tensors["masked_latents"] = self._masked.view(*shape)
        return engine.bind(tensors), hidden_states, latents

    def _bind_decoder(self, begin: int, end: int, tokens: int, hidden_states: Tensor) -> Execution:
        tensors = self._rows.decoder_tensors(begin, end, tokens, hidden_states)
        start = begin * self.frames * self._channels
        velocity = self._rows.velocity.view(end - begin, self.frames, self._channels, start=start)
        tensors[self._bundle.decoder.outputs.velocity] = velocity
        return self._engines.decoder.bind(tensors)

    def _bind_step(self, batch: LaneBatch, variant: frozenset[str], latents: Tensor) -> Execution:
        engine = self._engines.steps[variant]
        shape = (batch.seats, self.frames, self._channels)
        tensors = self._resolve(engine, batch)
        tensors["latents"] = latents
        tensors["velocity"] = self._rows.velocity.view(len(batch.rows), self.frames, self._channels)
        tensors["finite"] = self._finite.view(batch.seats)
        for name in ("latents", *STATE_OF_FEATURE.values()):
            if f"next_{name}" in engine.outputs:
                double = self.state.double(name)
                tensors[f"next_{name}"] = double.other.view(*shape)
                if name != "latents":
                    tensors[name] = double.current.view(*shape)
        return engine.bind(tensors)

    def _resolve(self, engine: Engine, batch: LaneBatch) -> dict[str, Tensor]:
        """Inputs that are known by name: fields of the state, and the tables of this batch."""
        positives, negatives = self._widths(batch)
        tensors = {name: self.state.tensor(name, batch.seats) for name in engine.inputs if name in FIELDS}
        shapes: dict[str, tuple[int, ...]] = {
            "positive_rows": (batch.seats, positives),
            "negative_rows": (batch.seats, negatives),
            "positive_weights": (batch.seats, positives, self.frames),
            "negative_weights": (batch.seats, negatives, self.frames),
        }
        for name, shape in shapes.items():
            if name in engine.inputs:
                tensors[name] = self._table(name).view(*shape)
        if "row_slots" in engine.inputs:
            tensors["row_slots"] = self._rows.row_slots.view(len(batch.rows))
        return tensors

    def _write_tables(self, batch: LaneBatch) -> None:
        """Which rows are whose, and the weights of blended conditions; written when the layout changed."""
        if batch.rows is self._table_rows:
            return
        self._table_rows = batch.rows
        positives, negatives = self._widths(batch)
        self._write_rows("positive_rows", batch, positives, _positives)
        self._write_rows("negative_rows", batch, negatives, _negatives)
        if "blend" in self._variant("step", batch.features):
            self._write_weights("positive_weights", batch, positives, _positives)
            self._write_weights("negative_weights", batch, negatives, _negatives)

    def _write_rows(self, name: str, batch: LaneBatch, width: int, rows_of: RowsOf) -> None:
        table = self._table(name).array(batch.seats, width)
        table[...] = 0
        for step in batch.slots:
            rows = rows_of(step)
            table[step.seat] = rows[0]
            table[step.seat, : len(rows)] = rows
        self._table(name).flush(batch.seats * width, self._stream)

    def _write_weights(self, name: str, batch: LaneBatch, width: int, rows_of: RowsOf) -> None:
        """Weights `[seats, width, T]`; a condition that is alone has weight 1 whatever its curve says."""
        table = self._table(name).array(batch.seats, width, self.frames)
        table[...] = 0
        for step in batch.slots:
            rows = rows_of(step)
            for place, row in enumerate(rows):
                condition: Condition = batch.rows[row].condition
                table[step.seat, place] = condition.weight if len(rows) > 1 else 1.0
        self._table(name).flush(batch.seats * width * self.frames, self._stream)

    def _table(self, name: str) -> Buffer:
        if name not in self._tables:
            line = MAX_CONDITIONS * (self.frames if name.endswith("weights") else 1)
            dtype = np.float32 if name.endswith("weights") else np.int64
            self._tables[name] = Buffer(self._device, self._seats * line, dtype)
        return self._tables[name]

    def _widths(self, batch: LaneBatch) -> tuple[int, int]:
        """K and N: the most positive and negative rows that a slot has; at least 1."""
        positives = max(len(step.positives) for step in batch.slots)
        return positives, max(1, *(len(step.negatives) for step in batch.slots))

    def _variant(self, kind: str, features: frozenset[str]) -> frozenset[str]:
        key = (kind, features)
        if key not in self._variants:
            engines = self._engines.steps if kind == "step" else self._engines.rows
            self._variants[key] = smallest_superset(engines, features)
        return self._variants[key]

    def _row_buffers(self, capacity: int) -> RowBuffers:
        tokens = self._deployment.max_tokens
        return RowBuffers(
            self._device, self._stream, self._engines.decoder, self._bundle,
            frames=self.frames, capacity=capacity, tokens=tokens,
        )  # fmt: skip


def _is_identity(batch: LaneBatch) -> bool:
    """Whether row i simply is seat i: then the decoder reads the latents where they lie."""
    return (
        not batch.row_features
        and len(batch.rows) == batch.seats
        and all(row.seat == index for index, row in enumerate(batch.rows))
    )


def _writes(variant: frozenset[str]) -> tuple[str, ...]:
    """The double-buffered arrays that a step with these features writes."""
    return ("latents", *(name for feature, name in STATE_OF_FEATURE.items() if feature in variant))


def _positives(step: SlotStep) -> tuple[int, ...]:
    return step.positives


def _negatives(step: SlotStep) -> tuple[int, ...]:
    """The negative rows; a slot without any has its positive row there, so that nothing is added."""
    return step.negatives or step.positives[:1]
