"""The decoder's batch: buffers for its rows, and the tables that say which row belongs to which slot.

Conditions and contexts are written when a row changes hands, never per tick. What an execute takes lies together and
begins at an aligned address.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.bundle import Bundle
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import Engine
from runtime.scheduling.batch import BucketBatch, Row

# Where an execute's part of a tensor may begin, in elements of 4 bytes: GPUs want addresses that are multiples of 256.
ALIGNED = 64


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
    """Everything with a row dimension, for buckets of T frames and up to `capacity` rows of up to `tokens` tokens."""

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
        self._device, self._stream = device, stream
        self._roles = bundle.decoder.inputs
        self.frames, self.capacity, self.tokens = frames, capacity, tokens
        self.channels = bundle.latents.channels
        self.context_channels = bundle.context_channels
        inputs = decoder.inputs
        width = inputs[self._roles.condition].shape[2]
        assert isinstance(width, int)
        self.width = width
        line = frames * self.channels
        self.hidden_states = device.zeros((capacity * line,), np.float32)
        self.velocity = device.zeros((capacity * line,), np.float32)
        self.row_slots = Buffer(device, capacity, np.int64)
        self.time = Buffer(device, capacity * ALIGNED, inputs[self._roles.time].dtype)
        self._condition_stride = _round_up(tokens * width)
        self.condition = device.zeros((capacity * self._condition_stride,), inputs[self._roles.condition].dtype)
        self._padding = np.zeros((tokens, width), self.condition.dtype)
        self.mask = None
        self._mask_stride = _round_up(tokens)
        if self._roles.condition_mask is not None:
            self.mask = Buffer(device, capacity * self._mask_stride, inputs[self._roles.condition_mask].dtype)
        self.context = None
        self._context_stride = _round_up(frames * self.context_channels)
        if self._roles.context is not None:
            self.context = device.zeros((capacity * self._context_stride,), inputs[self._roles.context].dtype)
        self._rows: tuple[Row, ...] = ()
        self._executes: tuple[tuple[int, int, int], ...] = ()

    def lay_out(self, batch: BucketBatch) -> None:
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
        self.row_slots.array(len(batch.rows))[:] = [row.slot_index for row in batch.rows]
        self.row_slots.flush(len(batch.rows), self._stream)
        self._rows, self._executes = batch.rows, batch.executes

    def set_times(self, batch: BucketBatch) -> None:
        """Write each row's flow time."""
        times = self.time.host
        for step in batch.slots:
            for row in (*step.positives, *step.negatives):
                begin = batch.begin_of(row)
                times[begin * ALIGNED + row - begin] = step.time
        for begin, end, _ in batch.executes:
            self.time.flush(end - begin, self._stream, start=begin * ALIGNED)

    def decoder_tensors(self, begin: int, end: int, tokens: int, hidden_states: Tensor) -> dict[str, Tensor]:
        """Tensor name -> memory of one execute over rows `begin` to `end`."""
        rows, frames, channels = end - begin, self.frames, self.channels
        tensors = {
            self._roles.latents: hidden_states.view(rows, frames, channels, start=begin * frames * channels),
            self._roles.time: self.time.view(rows, start=begin * ALIGNED),
            self._roles.condition: self.condition.view(rows, tokens, self.width, start=begin * self._condition_stride),
        }
        if self.mask is not None and self._roles.condition_mask is not None:
            tensors[self._roles.condition_mask] = self.mask.view(rows, tokens, start=begin * self._mask_stride)
        if self.context is not None and self._roles.context is not None:
            shape = (rows, frames, self.context_channels)
            tensors[self._roles.context] = self.context.view(*shape, start=begin * self._context_stride)
        return tensors

    def _write_row(self, index: int, row: Row, begin: int, tokens: int) -> None:
        """One row's condition, padded to the execute's tokens, with its mask and context."""
        values, place = row.condition.tokens, index - begin
        start = begin * self._condition_stride + place * tokens * self.width
        self._upload(self.condition.view(*values.shape, start=start), values)
        if missing := tokens - len(values):
            end = start + values.size
            self._upload(self.condition.view(missing, self.width, start=end), self._padding[:missing])
        if self.mask is not None:
            start = begin * self._mask_stride + place * tokens
            keep = self.mask.array(tokens, start=start)
            keep[: len(values)] = 1
            keep[len(values) :] = 0
            self.mask.flush(tokens, self._stream, start=start)
        if self.context is not None and row.request.context is not None:
            start = begin * self._context_stride + place * self.frames * self.context_channels
            self._upload(self.context.view(self.frames, self.context_channels, start=start), row.request.context)

    def _upload(self, target: Tensor, values: NDArray[Any]) -> None:
        self._device.upload(target, values, self._stream)


def row_multiple(frames: int, channels: int) -> int:
    """At which rows an execute may begin, so that its latents `[R, T, C]` float32 begin at an aligned address."""
    return ALIGNED // gcd(ALIGNED, frames * channels)


def _round_up(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def _same(row: Row, other: Row) -> bool:
    return row.condition is other.condition and row.request is other.request and row.slot_index == other.slot_index
