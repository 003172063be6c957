"""The decoder's batch: buffers for its rows, and the tables that say which row belongs to which slot.

Conditions and contexts are written when a row changes, not per tick; a row that moves is copied on the device. What an
execute takes lies together and begins at an aligned address. The place of a context does not depend on tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import gcd, prod
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.deployment import ADAPTER_RANK_MULTIPLE
from runtime.devices.device import Device, Stream, Tensor
from runtime.devices.memory import PackedVectors, host_view
from runtime.engines.adapters import FACTORS_A, FACTORS_B, ROW_WEIGHTS, Adapter, AdapterUse, Floats
from runtime.engines.engine import Engine, condition_shape, condition_width
from runtime.requests.request import Condition
from runtime.requests.ring import window_frames
from runtime.tick.denoise.row_layout import RowLayout, Turn
from runtime.tick.runner import TickContext


class AdapterFactors:
    """A `[Q, I]` and B `[Q, O]` float32, the factors of adapters below each other. One thread.

    Allocated once for `max_rank`; uploaded when an adapter enters, not per tick. One that is used no longer stays until
    another one needs its place. `version` counts changes of places.
    """

    def __init__(self, device: Device, stream: Stream, decoder: Engine, max_rank: int) -> None:
        self._device, self._stream, self._max_rank = device, stream, max_rank
        self._tensors = {
            # [max Q, I] or [max Q, O]
            name: device.zeros((max_rank, *map(int, decoder.inputs[name].shape[1:])), decoder.inputs[name].dtype)
            for name in (FACTORS_A, FACTORS_B)
        }
        self._places: dict[Adapter, int] = {}
        self._end = self.version = 0

    @property
    def rank(self) -> int:
        """Q: the rows in use, as a multiple of ADAPTER_RANK_MULTIPLE."""
        return -(-self._end // ADAPTER_RANK_MULTIPLE) * ADAPTER_RANK_MULTIPLE

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Input of the decoder -> its first Q rows."""
        # [Q, I] and [Q, O]
        return {name: tensor.view(self.rank, *tensor.shape[1:]) for name, tensor in self._tensors.items()}

    def hold(self, adapters: Collection[Adapter]) -> None:
        """Have these adapters on the device. Their ranks are at most `max_rank` in sum."""
        missing = [adapter for adapter in adapters if adapter not in self._places]
        if not missing:
            return
        if self._end + sum(adapter.rank for adapter in missing) > self._max_rank:
            self._places, self._end, missing = {}, 0, list(adapters)
        for adapter in missing:
            for name, factor in ((FACTORS_A, adapter.a), (FACTORS_B, adapter.b)):
                self._upload(name, factor)
            self._places[adapter] = self._end
            self._end += adapter.rank
        self.version += 1

    def write_weights(self, uses: Iterable[AdapterUse], out: Floats) -> None:
        """A row's weights `[Q]`: each adapter's strength in its places, 0 elsewhere."""
        out[:] = 0.0  # [Q]
        for adapter, strength in uses:
            begin = self._places[adapter]
            out[begin : begin + adapter.rank] = strength  # [rank of the adapter]

    def _upload(self, name: str, factor: Floats) -> None:
        tensor, width = self._tensors[name], factor.shape[1]
        # [rank of the adapter, I or O]
        self._device.upload(tensor.view(*factor.shape, start=self._end * width), factor, self._stream)


# Where an execute's part of a tensor may begin, in elements of 4 bytes: GPUs want addresses that are multiples of 256.
ALIGNED = 64
# What a row is written from; by place, what lies there.
Values = tuple[Any, ...]
Held = dict[int, Values]


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
    """Everything with a row dimension, for T frames and up to `capacity` rows.

    `numbers` has room for the time of every row, and where a jump ends and its guidance, if the decoder takes them:
    those of an execute next to each other, each kind at an aligned address.
    """

    def __init__(
        self,
        context: TickContext,
        vectors: PackedVectors,
        numbers: tuple[Tensor, NDArray[Any]],
        *,
        frames: int,
        capacity: int,
    ) -> None:
        device, bundle, decoder = context.device, context.bundle, context.engines.decoder
        tokens, adapter_rank = context.deployment.max_tokens, context.runtime.adapter_rank
        self._device, self._stream, self._vectors = device, context.stream, vectors
        self._numbers, host_numbers = numbers
        self._host_numbers = host_view(host_numbers) if host_numbers.dtype == np.float32 else host_numbers
        self._number_places: list[tuple[int, int, int]] = []
        self._first_number_bytes = vectors.used_bytes - self._numbers.size_bytes
        self._roles = bundle.decoder.inputs
        self._num_kinds = len(self._roles.row_numbers)
        self.frames, self.capacity, self.tokens = frames, capacity, tokens
        self.channels = bundle.latents.channels
        self.context_channels = bundle.context_channels
        inputs = decoder.inputs
        self.width = condition_width(decoder, self._roles)
        self._has_tokens = len(condition_shape(decoder, self._roles)) == 3
        size = frames * self.channels
        self.hidden_states = device.zeros((capacity * size,), np.float32)  # [capacity, T, C], flat
        self.velocity = device.zeros((capacity * size,), np.float32)  # [capacity, T, C], flat
        self.row_slots = Buffer(device, capacity, np.int64)  # [capacity]
        self.condition = None
        self._condition_stride = round_up(tokens * self.width)
        if self._roles.condition is not None:
            # [capacity, most L, D], flat
            self.condition = device.zeros((capacity * self._condition_stride,), inputs[self._roles.condition].dtype)
            self._padding = np.zeros((tokens, self.width), self.condition.dtype)  # [most L, D]
        self.mask = None
        self._mask_stride = round_up(tokens)
        if self._roles.condition_mask is not None:
            # [capacity, most L], flat
            self.mask = Buffer(device, capacity * self._mask_stride, inputs[self._roles.condition_mask].dtype)
        self.context = None
        self._context_stride = round_up(frames * self.context_channels)
        if self._roles.context is not None:
            # [capacity, T, X], flat
            self.context = device.zeros((capacity * self._context_stride,), inputs[self._roles.context].dtype)
        self._frames_stride = round_up(frames)
        self._frame_numbers = None
        if (name := self._roles.frame_numbers) is not None:
            # [capacity, T], flat
            self._frame_numbers = Buffer(device, capacity * self._frames_stride, inputs[name].dtype)
        self._weights_stride = round_up(adapter_rank)
        # [capacity, most Q], flat
        self._weights = Buffer(device, capacity * self._weights_stride, np.float32) if adapter_rank else None
        self.layout: RowLayout | None = None
        # Of each execute.
        self._conditions: dict[tuple[int, int], Held] = {}
        self._contexts: dict[int, Held] = {}

    def lay_out(self, layout: RowLayout) -> None:
        """Write the conditions and contexts of rows that changed, and which slot each row reads."""
        self._forget_moved(layout)
        for begin, end, tokens in layout.executes:
            for place, row in enumerate(layout.rows[begin:end]):
                self._set_condition(place, row.condition, begin, tokens)
                if self.context is not None and row.request.context is not None:
                    self._set_context(place, row.request.context, begin)
        self.row_slots.array(len(layout.rows))[:] = [row.slot_index for row in layout.rows]  # [R]
        self.row_slots.flush(len(layout.rows), self._stream)
        self._number_places = [
            (self._first_number(begin, end, kind) + place, layout.rows[begin + place].slot_index, kind)
            for begin, end, _ in layout.executes
            for kind in range(self._num_kinds)
            for place in range(end - begin)
        ]
        num_numbers = self._number_places[-1][0] + 1
        self._vectors.limit_bytes = self._first_number_bytes + num_numbers * self._numbers.dtype.itemsize
        self.number_frames(layout, {})
        self.layout = layout

    def number_frames(self, layout: RowLayout, turns: Mapping[int, Turn]) -> None:
        """Write and upload the number of each row's frames, if the decoder takes them; turns: see RingRows.write."""
        if (numbers := self._frame_numbers) is None:
            return
        for begin, end, _ in layout.executes:
            start = begin * self._frames_stride
            rows = numbers.array(end - begin, self.frames, start=start)  # [R of the execute, T]
            for row, out in zip(layout.rows[begin:end], rows, strict=True):
                out[:] = window_frames(self.frames, *turns.get(row.slot_index, (self.frames, 0)))  # [T]
            numbers.flush(rows.size, self._stream, start=start)

    def set_numbers(self, of_slots: Sequence[tuple[float, ...]]) -> None:
        """Write what each row tells the decoder, from the slots' own. The vectors' owner uploads them."""
        for place, slot_index, kind in self._number_places:
            self._host_numbers[place] = of_slots[slot_index][kind]  # one of [R]

    def _first_number(self, begin: int, end: int, kind: int) -> int:
        """Where the numbers of a kind of an execute begin: the kinds of an execute lie one after the other."""
        return begin * ALIGNED * self._num_kinds + kind * round_up(end - begin)

    def set_adapters(
        self, layout: RowLayout, factors: AdapterFactors, uses: Mapping[int, tuple[AdapterUse, ...]]
    ) -> None:
        """Write and upload each row's weights of adapters; uses: slot index -> the adapters of its rows."""
        assert self._weights is not None
        for begin, end, _ in layout.executes:
            start = begin * self._weights_stride
            weights = self._weights.array(end - begin, factors.rank, start=start)  # [R of the execute, Q]
            for row, out in zip(layout.rows[begin:end], weights, strict=True):
                factors.write_weights(uses.get(row.slot_index, ()), out)
            self._weights.flush(weights.size, self._stream, start=start)

    def adapter_tensors(self, begin: int, end: int, factors: AdapterFactors) -> dict[str, Tensor]:
        """What the decoder for adapters takes besides `decoder_tensors`."""
        assert self._weights is not None
        # [R of the execute, Q]
        weights = self._weights.view(end - begin, factors.rank, start=begin * self._weights_stride)
        return {**factors.tensors, ROW_WEIGHTS: weights}

    def decoder_tensors(self, begin: int, end: int, tokens: int, hidden_states: Tensor) -> dict[str, Tensor]:
        """Tensor name -> memory of one execute over rows `begin` to `end`."""
        rows, frames, channels = end - begin, self.frames, self.channels
        tensors = {
            # [R, T, C]
            self._roles.latents: hidden_states.view(rows, frames, channels, start=begin * frames * channels),
        }
        for kind, name in enumerate(self._roles.row_numbers):
            tensors[name] = self._numbers.view(rows, start=self._first_number(begin, end, kind))  # [R]
        if self.condition is not None and self._roles.condition is not None:
            shape = (rows, tokens, self.width) if self._has_tokens else (rows, self.width)
            # [R, L, D] or [R, D]
            tensors[self._roles.condition] = self.condition.view(*shape, start=begin * self._condition_stride)
        if self.mask is not None and self._roles.condition_mask is not None:
            # [R, L]
            tensors[self._roles.condition_mask] = self.mask.view(rows, tokens, start=begin * self._mask_stride)
        if self.context is not None and self._roles.context is not None:
            shape = (rows, frames, self.context_channels)
            tensors[self._roles.context] = self.context.view(*shape, start=begin * self._context_stride)  # [R, T, X]
        if self._frame_numbers is not None and self._roles.frame_numbers is not None:
            # [R, T]
            numbers = self._frame_numbers.view(rows, frames, start=begin * self._frames_stride)
            tensors[self._roles.frame_numbers] = numbers
        return tensors

    def _forget_moved(self, layout: RowLayout) -> None:
        """Where executes begin elsewhere or have another L, what was written lies between other rows."""
        splits = [(execute.begin, execute.tokens) for execute in layout.executes]
        if splits != list(self._conditions):
            self._conditions = {split: {} for split in splits}
        begins = [execute.begin for execute in layout.executes]
        if begins != list(self._contexts):
            self._contexts = {begin: {} for begin in begins}

    def _set_condition(self, place: int, condition: Condition, begin: int, tokens: int) -> None:
        """Have a condition, padded to the execute's tokens, and its mask at a place of an execute."""
        held, values = self._conditions[begin, tokens], (condition.tokens, condition.counts)
        if _are_same(held.get(place), values):
            return
        source, held[place] = self._source(held, values), values
        start, mask_start = begin * self._condition_stride, begin * self._mask_stride
        if source is None:
            self._write_condition(condition, tokens, start + place * tokens * self.width, mask_start + place * tokens)
            return
        if self.condition is not None:
            self._copy(self.condition, start, tokens * self.width, source, place)
        if self.mask is not None:
            self._copy(self.mask.tensor, mask_start, tokens, source, place)

    def _write_condition(self, condition: Condition, tokens: int, start: int, mask_start: int) -> None:
        """Upload one row's condition, padding and mask."""
        values = condition.tokens
        if self.condition is not None:
            self._upload(self.condition.view(*values.shape, start=start), values)  # [L of the row, D]
            if missing := tokens - len(values):
                end = start + values.size
                # [missing, D]
                self._upload(self.condition.view(missing, self.width, start=end), self._padding[:missing])
        if self.mask is not None:
            keep = self.mask.array(tokens, start=mask_start)  # [L]
            keep[: len(values)] = condition.counts
            keep[len(values) :] = 0
            self.mask.flush(tokens, self._stream, start=mask_start)

    def _set_context(self, place: int, values: NDArray[Any], begin: int) -> None:
        """Have a context at a place of an execute."""
        held = self._contexts[begin]
        if _are_same(held.get(place), (values,)):
            return
        assert self.context is not None
        source, held[place] = self._source(held, (values,)), (values,)
        start, size = begin * self._context_stride, self.frames * self.context_channels
        if source is None:
            self._upload(self.context.view(*values.shape, start=start + place * size), values)  # [T, X]
        else:
            self._copy(self.context, start, size, source, place)

    def _source(self, held: Held, values: Values) -> int | None:
        """Where a row lies already, also behind the rows of the tick before: one that moves needs no upload."""
        return next((place for place, found in held.items() if _are_same(found, values)), None)

    def _copy(self, tensor: Tensor, start: int, size: int, source: int, place: int) -> None:
        """Copy a row of `size` elements from place to place."""
        row = tensor.view(size, start=start + source * size)  # [L * D], [L] or [T * X]
        self._device.copy(tensor.view(size, start=start + place * size), row, self._stream)

    def _upload(self, target: Tensor, values: NDArray[Any]) -> None:
        self._device.upload(target, values, self._stream)


def _are_same(one: Values | None, other: Values) -> bool:
    return one is not None and all(map(is_, one, other))


def row_multiple(frames: int, channels: int) -> int:
    """At which rows an execute may begin, so that its latents `[R, T, C]` float32 begin at an aligned address."""
    return ALIGNED // gcd(ALIGNED, frames * channels)


def round_up(count: int) -> int:
    """The next multiple of ALIGNED elements."""
    return -(-count // ALIGNED) * ALIGNED
