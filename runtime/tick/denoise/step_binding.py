"""The step graph of a bucket, over all its slots at once: which rows are whose, its flags, its noise, drawn ahead."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import Device, Stream, Tensor
from runtime.devices.memory import host_view
from runtime.engines.engine import Engine, Execution
from runtime.requests.request import MAX_CONDITIONS, Condition
from runtime.requests.timesteps import Purpose, fill_noise
from runtime.tick.denoise.row_buffers import Buffer
from runtime.tick.denoise.row_layout import LiveSlot, RowLayout
from runtime.tick.denoise.slot_fields import FIELDS, LAYOUT, STATES
from runtime.tick.denoise.slot_state import SlotField, SlotState

TABLES = ("positive_rows", "negative_rows", "positive_weights", "negative_weights")


class StepBinding:
    """Binds the step graph to a bucket's state. One thread.

    `flags_kept`: for how many ticks `finite` stays as it is.
    """

    def __init__(self, device: Device, stream: Stream, state: SlotState, flags_kept: int) -> None:
        self._device, self._stream, self._state = device, stream, state
        self._tables: dict[str, Buffer] = {}
        # Table of weights -> its width, and slot index -> the conditions whose weights lie there.
        self._weighted: dict[str, tuple[int, dict[int, tuple[Condition, ...]]]] = {}
        self._finite = self._make_finite(device)
        staging = [device.staging(self._finite.shape, np.bool_) for _ in range(flags_kept)]  # [depth] each
        self._flags = cycle([(flags, bytes_of(flags)) for flags in staging])
        self._host_finite = None if self._finite.host is None else bytes_of(self._finite.host)

    def write(self, layout: RowLayout, *, blends: bool) -> None:
        """Write which rows are whose, and, where the graph blends, conditions' weights."""
        positives, negatives = layout.widths
        # A slot without negatives has its positive row there, so that nothing is added.
        stand_ins = tuple(own or found[:1] for own, found in zip(layout.negatives, layout.positives, strict=True))
        for side, width, rows in (("positive", positives, layout.positives), ("negative", negatives, stand_ins)):
            self._write_rows(f"{side}_rows", layout, width, rows)
            if blends:
                self._write_weights(f"{side}_weights", layout, width, rows)

    def bind(self, engine: Engine, layout: RowLayout, latents: Tensor, velocity: Tensor) -> Execution:
        """The step of every slot up to the last live one; `latents` `[S, T, C]`, `velocity` `[R, T, C]`."""
        return engine.bind(self._tensors(engine, layout, latents, velocity))

    def finite(self, slot_count: int) -> memoryview:
        """Per slot, 1 if the last tick left only finite latents, else 0; valid when that tick is done."""
        flags, seen = next(self._flags)
        if self._host_finite is None:
            self._device.download(flags[:slot_count], self._finite.view(slot_count), self._stream)  # [S]
        else:
            seen[:] = self._host_finite  # [depth]
        return seen[:slot_count]

    def _make_finite(self, device: Device) -> Tensor:
        return device.zeros((self._state.slot_count,), np.bool_)  # [depth]

    def _tensors(self, engine: Engine, layout: RowLayout, latents: Tensor, velocity: Tensor) -> dict[str, Tensor]:
        names = {*engine.inputs, *engine.outputs}
        tensors = {name: self._state.tensor(name, layout.slot_count) for name in names & FIELDS.keys()}
        for name, shape in table_shapes(layout).items():
            if name in names:
                tensors[name] = self._table(name).view(layout.slot_count, *shape)  # [S, K] or [S, K, T]
        # [S, T, C], [R, T, C], [S]
        tensors |= {"latents": latents, "velocity": velocity, "finite": self._finite.view(layout.slot_count)}
        for name in STATES:
            if f"next_{name}" in names:
                buffer = self._state.double_buffer(name)
                tensors[f"next_{name}"] = buffer.other.view(*latents.shape)  # [S, T, C]
                tensors.setdefault(name, buffer.current.view(*latents.shape))  # [S, T, C]
        return tensors

    def _write_rows(self, name: str, layout: RowLayout, width: int, rows: tuple[tuple[int, ...], ...]) -> None:
        values = [(0,) * width] * layout.slot_count
        for slot, own in zip(layout.slots, rows, strict=True):
            values[slot.index] = own + own[:1] * (width - len(own))
        table = self._table(name).array(layout.slot_count, width)  # [S, K]
        table[...] = values
        self._flush(name, table, range(layout.slot_count))

    def _write_weights(self, name: str, layout: RowLayout, width: int, rows: tuple[tuple[int, ...], ...]) -> None:
        """Weights `[S, width, T]` of slots with other conditions than before; a slot's only one has weight 1, its curve
        is not read."""
        table = self._table(name).array(layout.slot_count, width, layout.frames)  # [S, K, T]
        if self._weighted.get(name, (0, {}))[0] != width:
            self._weighted[name] = (width, {})
        written = self._weighted[name][1]
        for slot, own in zip(layout.slots, rows, strict=True):
            conditions = tuple([layout.rows[row].condition for row in own])
            if written.get(slot.index) == conditions:
                continue
            written[slot.index] = conditions
            table[slot.index] = 0  # [K, T]
            for place, condition in enumerate(conditions):
                table[slot.index, place] = condition.weight if len(own) > 1 else 1.0  # [T]
            self._flush(name, table, range(slot.index, slot.index + 1))

    def _flush(self, name: str, table: NDArray[Any], indices: range) -> None:
        """Upload the rows of consecutive slots."""
        size = table[0].size
        self._table(name).flush(len(indices) * size, self._stream, start=indices.start * size)

    def _table(self, name: str) -> Buffer:
        if name not in self._tables:
            size = self._state.slot_count * prod(self.largest(name))
            self._tables[name] = Buffer(self._device, size, LAYOUT[name].dtype)
        return self._tables[name]

    def largest(self, name: str) -> tuple[int, ...]:
        """The largest row that a table may have."""
        return (MAX_CONDITIONS, self._state.frames) if name.endswith("weights") else (MAX_CONDITIONS,)


def bytes_of(flags: NDArray[np.bool_]) -> memoryview:
    """Flags as bytes 0 and 1, without a copy: cheaper to look at than an array, right after an execute."""
    view: memoryview = host_view(flags).cast("B")
    return view


def table_shapes(layout: RowLayout) -> dict[str, tuple[int, ...]]:
    """Shape of a slot's row in each of TABLES."""
    positives, negatives = layout.widths
    shapes = ((positives,), (negatives,), (positives, layout.frames), (negatives, layout.frames))
    return dict(zip(TABLES, shapes, strict=True))


@dataclass(slots=True)
class _Ahead:
    """One slot's noise `[T, C]` that is being drawn for a step."""

    owner: LiveSlot
    step: int
    filled: Future[None]


class StepNoise:
    """Fills the rows `[T, C]` of field step_noise: the worker draws that of step k + 1 while step k runs. One thread
    asks. What it draws lies on the host where uploads start from; it is written once."""

    def __init__(self, worker: ThreadPoolExecutor, field: SlotField) -> None:
        self._worker, self._field = worker, field
        self._ahead: dict[int, _Ahead] = {}

    def write(self, live: LiveSlot) -> None:
        """Have the noise of a slot's next step in its row; waits for the worker where it is still drawing."""
        slot = live.slot
        ahead = self._ahead.pop(slot.index, None)
        if ahead is not None:
            # The tick thread waits until the worker has drawn it, which it began a tick ago.
            ahead.filled.result()
        if ahead is not None and ahead.owner is live and ahead.step == slot.step:
            self._field.mark(slot.index)
        elif live.work.step_noise is not None and slot.step == 0:
            self._field.write(slot.index, live.work.step_noise)  # [T, C]
        else:
            # The first step behind a resume or a change: the tick thread waits for the worker.
            self._draw(live, slot.step).result()
            self._field.mark(slot.index)

    def draw_next(self, live: LiveSlot) -> None:
        """Begin to draw the noise of the step after the one that was launched."""
        step = live.slot.step + 1
        if step < live.slot.steps:
            self._ahead[live.slot.index] = _Ahead(live, step, self._draw(live, step))

    def _draw(self, live: LiveSlot, step: int) -> Future[None]:
        row = self._field.host[live.slot.index]  # [T, C]
        return self._worker.submit(fill_noise, row, live.work.request.seed, Purpose.STEP, step)
