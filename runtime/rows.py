"""The decoder's batch: buffers for its rows, and the tables that say which row belongs to which slot.

Conditions and contexts are written when a row changes hands, never per tick.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from runtime.batch import LaneBatch, Row
from runtime.device import Device, Stream, Tensor
from runtime.engine import Engine
from runtime.spec import Bundle


class Buffer:
    """Flat device memory with a host side, shaped per batch."""

    def __init__(self, device: Device, size: int, dtype: Any) -> None:
        self._device = device
        self.tensor = device.zeros((size,), dtype)
        self.host = device.mirror(self.tensor)

    def view(self, *shape: int, start: int = 0) -> Tensor:
        """The device side."""
        return self.tensor.view(*shape, start=start)

    def array(self, *shape: int, start: int = 0) -> Any:
        """The host side."""
        return self.host[start : start + prod(shape)].reshape(shape)

    def flush(self, count: int, stream: Stream, *, start: int = 0) -> None:
        """Upload `count` elements from `start`."""
        self._device.upload(self.tensor.view(count, start=start), self.host[start : start + count], stream)


class RowBuffers:
    """Everything with a row dimension, for lanes of T frames and up to `capacity` rows of up to `tokens` tokens."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        decoder: Engine,
        bundle: Bundle,
        *,
        frames: int,
        capacity: int,
        tokens: int,
    ) -> None:
        self._stream = stream
        self._roles = bundle.decoder.inputs
        self.frames, self.capacity, self.tokens = frames, capacity, tokens
        self.channels = bundle.latents.channels
        self.context_channels = bundle.context_channels
        inputs = decoder.inputs
        width = inputs[self._roles.condition].shape[2]
        assert isinstance(width, int)
        self.width = width
        line = frames * self.channels
        self.hidden_states = Buffer(device, capacity * line, np.float32)
        self.velocity = Buffer(device, capacity * line, np.float32)
        self.time = Buffer(device, capacity, inputs[self._roles.time].dtype)
        self.condition = Buffer(device, capacity * tokens * self.width, inputs[self._roles.condition].dtype)
        self.row_slots = Buffer(device, capacity, np.int64)
        self.mask = None
        if self._roles.condition_mask is not None:
            self.mask = Buffer(device, capacity * tokens, inputs[self._roles.condition_mask].dtype)
        self.context = None
        if self._roles.context is not None:
            self.context = Buffer(device, capacity * frames * self.context_channels, inputs[self._roles.context].dtype)
        self._rows: tuple[Row, ...] = ()
        self._executes: tuple[tuple[int, int, int], ...] = ()

    def lay_out(self, batch: LaneBatch) -> None:
        """Write the conditions of rows that changed hands, and which slot each row reads."""
        if batch.rows is self._rows and batch.executes is self._executes:
            return
        moved = batch.executes != self._executes
        changed = [
            index
            for index, row in enumerate(batch.rows)
            if moved or index >= len(self._rows) or not _same(row, self._rows[index])
        ]
        if not changed and len(batch.rows) == len(self._rows):
            self._rows, self._executes = batch.rows, batch.executes
            return
        for begin, end, tokens in batch.executes:
            for index in range(begin, end):
                if index in changed:
                    self._write_row(index, batch.rows[index], begin, tokens)
        self.row_slots.array(len(batch.rows))[:] = [row.seat for row in batch.rows]
        self.row_slots.flush(len(batch.rows), self._stream)
        self._rows, self._executes = batch.rows, batch.executes

    def set_times(self, batch: LaneBatch) -> None:
        """Write each row's flow time."""
        times = self.time.array(len(batch.rows))
        for step in batch.slots:
            for row in (*step.positives, *step.negatives):
                times[row] = step.time
        self.time.flush(len(batch.rows), self._stream)

    def decoder_tensors(self, begin: int, end: int, tokens: int, hidden_states: Tensor) -> dict[str, Tensor]:
        """Tensor name -> memory of one execute over rows `begin` to `end`."""
        rows, frames, channels = end - begin, self.frames, self.channels
        line = frames * channels
        tensors = {
            self._roles.latents: hidden_states.view(rows, frames, channels, start=begin * line),
            self._roles.time: self.time.view(rows, start=begin),
            self._roles.condition: self.condition.view(
                rows, tokens, self.width, start=begin * self.tokens * self.width
            ),
        }
        if self.mask is not None and self._roles.condition_mask is not None:
            tensors[self._roles.condition_mask] = self.mask.view(rows, tokens, start=begin * self.tokens)
        if self.context is not None and self._roles.context is not None:
            shape = (rows, frames, self.context_channels)
            tensors[self._roles.context] = self.context.view(*shape, start=begin * frames * self.context_channels)
        return tensors

    def _write_row(self, index: int, row: Row, begin: int, tokens: int) -> None:
        """One row's condition, padded to the execute's tokens, with its mask and context."""
        values = row.condition.tokens
        start = begin * self.tokens * self.width + (index - begin) * tokens * self.width
        padded = self.condition.array(tokens, self.width, start=start)
        padded[: len(values)] = values
        padded[len(values) :] = 0
        self.condition.flush(tokens * self.width, self._stream, start=start)
        if self.mask is not None:
            start = begin * self.tokens + (index - begin) * tokens
            keep = self.mask.array(tokens, start=start)
            keep[: len(values)] = 1
            keep[len(values) :] = 0
            self.mask.flush(tokens, self._stream, start=start)
        if self.context is not None:
            size = self.frames * self.context_channels
            self.context.array(self.frames, self.context_channels, start=index * size)[...] = row.request.context
            self.context.flush(size, self._stream, start=index * size)


def _same(row: Row, other: Row) -> bool:
    return row.condition is other.condition and row.request is other.request and row.seat == other.seat
