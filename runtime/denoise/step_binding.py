"""The step graph of a bucket, over all its slots at once: which rows are whose, what it is bound to, and its flags."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.denoise.row_buffers import Buffer
from runtime.denoise.slot_fields import FIELDS
from runtime.denoise.slot_state import SlotState
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import Engine, Execution
from runtime.requests.request import MAX_CONDITIONS, Condition
from runtime.scheduling.batch import BucketBatch, SlotStep

RowsOf = Callable[[SlotStep], tuple[int, ...]]


STATE_OF_FEATURE = {"guidance": "momentum_state", "rcfg": "cached_negative_velocity"}


TABLES = ("positive_rows", "negative_rows", "positive_weights", "negative_weights")


class StepBinding:
    """Binds the step graph to a bucket's state. Written by the tick thread alone.

    `flags_kept`: for how many ticks `finite` stays as it is.
    """

    def __init__(self, device: Device, stream: Stream, state: SlotState, flags_kept: int) -> None:
        self._device, self._stream, self._state = device, stream, state
        self._tables: dict[str, Buffer] = {}
        self._written: object = None
        self._finite = self._make_finite(device)
        self._flags = cycle([device.staging(self._finite.shape, np.bool_) for _ in range(flags_kept)])

    def write(self, batch: BucketBatch, *, blends: bool) -> None:
        """Which rows are whose, and, where the graph blends, conditions' weights; written when the layout changed."""
        if batch.rows is self._written:
            return
        self._written = batch.rows
        positives, negatives = widths(batch)
        self._write_rows("positive_rows", batch, positives, _positives)
        self._write_rows("negative_rows", batch, negatives, _negatives)
        if blends:
            self._write_weights("positive_weights", batch, positives, _positives)
            self._write_weights("negative_weights", batch, negatives, _negatives)

    def forget(self) -> None:
        """Write the tables again at the next tick."""
        self._written = None

    def bind(self, engine: Engine, batch: BucketBatch, latents: Tensor, velocity: Tensor) -> Execution:
        """The step of every slot up to the last live one; `latents` `[S, T, C]`, `velocity` `[R, T, C]`."""
        return engine.bind(self._tensors(engine, batch, latents, velocity))

    def finite(self, slot_count: int) -> NDArray[np.bool_]:
        """Per slot, whether the last tick left only finite latents; valid when that tick is done."""
        flags = next(self._flags)[:slot_count]
        self._device.download(flags, self._finite.view(slot_count), self._stream)
        return flags

    def _make_finite(self, device: Device) -> Tensor:
        return device.zeros((self._state.slot_count,), np.bool_)

    def _tensors(self, engine: Engine, batch: BucketBatch, latents: Tensor, velocity: Tensor) -> dict[str, Tensor]:
        names = {*engine.inputs, *engine.outputs}
        tensors = {name: self._state.tensor(name, batch.slot_count) for name in names & FIELDS.keys()}
        for name, line in lines(batch).items():
            if name in names:
                tensors[name] = self._table(name).view(batch.slot_count, *line)
        tensors |= {"latents": latents, "velocity": velocity, "finite": self._finite.view(batch.slot_count)}
        for name in ("latents", *STATE_OF_FEATURE.values()):
            if f"next_{name}" in names:
                double = self._state.double_buffer(name)
                tensors[f"next_{name}"] = double.other.view(*latents.shape)
                if name != "latents":
                    tensors[name] = double.current.view(*latents.shape)
        return tensors

    def _write_rows(self, name: str, batch: BucketBatch, width: int, rows_of: RowsOf) -> None:
        table = self._table(name).array(batch.slot_count, width)
        table[...] = 0
        for step in batch.slots:
            rows = rows_of(step)
            table[step.slot_index] = rows[0]
            table[step.slot_index, : len(rows)] = rows
        self._flush(name, table)

    def _write_weights(self, name: str, batch: BucketBatch, width: int, rows_of: RowsOf) -> None:
        """Weights `[slot_count, width, T]`; a condition that is alone has weight 1 whatever its curve says."""
        table = self._table(name).array(batch.slot_count, width, batch.frames)
        table[...] = 0
        for step in batch.slots:
            rows = rows_of(step)
            for place, row in enumerate(rows):
                condition: Condition = batch.rows[row].condition
                table[step.slot_index, place] = condition.weight if len(rows) > 1 else 1.0
        self._flush(name, table)

    def _flush(self, name: str, table: NDArray[Any]) -> None:
        self._table(name).flush(table.size, self._stream)

    def _table(self, name: str) -> Buffer:
        if name not in self._tables:
            self._tables[name] = Buffer(self._device, self._state.slot_count * prod(self.most(name)), dtype_of(name))
        return self._tables[name]

    def most(self, name: str) -> tuple[int, ...]:
        """The longest line that a table may have."""
        return (MAX_CONDITIONS, self._state.frames) if name.endswith("weights") else (MAX_CONDITIONS,)


def dtype_of(table: str) -> type[np.generic]:
    """What a table holds: numbers of rows, or weights."""
    return np.float32 if table.endswith("weights") else np.int64


def lines(batch: BucketBatch) -> dict[str, tuple[int, ...]]:
    """Shape of a slot's line in each of TABLES."""
    positives, negatives = widths(batch)
    shapes = ((positives,), (negatives,), (positives, batch.frames), (negatives, batch.frames))
    return dict(zip(TABLES, shapes, strict=True))


def widths(batch: BucketBatch) -> tuple[int, int]:
    """K and N: the most positive and negative rows that a slot has; at least 1."""
    positives = max(len(step.positives) for step in batch.slots)
    return positives, max(1, *(len(step.negatives) for step in batch.slots))


def writes(variant: frozenset[str]) -> tuple[str, ...]:
    """The double-buffered arrays that a step with these features writes."""
    return ("latents", *(name for feature, name in STATE_OF_FEATURE.items() if feature in variant))


def _positives(step: SlotStep) -> tuple[int, ...]:
    return step.positives


def _negatives(step: SlotStep) -> tuple[int, ...]:
    """The negative rows; a slot without any has its positive row there, so that nothing is added."""
    return step.negatives or step.positives[:1]
