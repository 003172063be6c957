"""Rows whose loops the decoder sees turned: its latents and contexts in another order, and its velocity back in theirs.

Rows that are no loops are in the same executes; their frames keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runtime.config.decoder import DecoderSpec
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import Engine, Execution
from runtime.requests.ring import velocity_frames, window_frames
from runtime.tick.denoise.row_buffers import Buffer, RowBuffers, round_up
from runtime.tick.denoise.row_layout import RowLayout, Turn
from runtime.tick.denoise.slot_fields import CONTEXT_RING, RING


class RingRows:
    """Beside RowBuffers, for as many rows. One thread."""

    def __init__(self, device: Device, stream: Stream, rows: RowBuffers) -> None:
        capacity, frames = rows.capacity, rows.frames
        self._stream, self._frames, self._stride = stream, frames, round_up(frames)
        self._latents = device.zeros((capacity * frames * rows.channels,), np.float32)  # [capacity, T, C], flat
        self._velocity = device.zeros((capacity * frames * rows.channels,), np.float32)  # [capacity, T, C], flat
        self._context, self._context_stride = None, round_up(frames * rows.context_channels)
        if rows.context is not None:
            self._context = device.zeros((capacity * self._context_stride,), rows.context.dtype)  # [capacity, T, X]
        # Which frames of an execute's rows the decoder sees, and where its velocity lies: [capacity, T] each, flat.
        self._seen, self._back = (Buffer(device, capacity * self._stride, np.int64) for _ in range(2))

    def write(self, layout: RowLayout, turns: Mapping[int, Turn]) -> None:
        """Write and upload the order of frames of each row; turns: by index, of the slots that are loops."""
        frames = self._frames
        for begin, end, _ in layout.executes:
            start, num_rows = begin * self._stride, end - begin
            seen, back = (order.array(num_rows, frames, start=start) for order in (self._seen, self._back))  # [R, T]
            for place, row in enumerate(layout.rows[begin:end]):
                turn = turns.get(row.slot_index, (frames, 0))
                np.add(window_frames(frames, *turn), place * frames, out=seen[place])
                np.add(velocity_frames(frames, *turn), place * frames, out=back[place])
            for order in (self._seen, self._back):
                order.flush(num_rows * frames, self._stream, start=start)

    def bind(
        self,
        turn: Mapping[frozenset[str], Engine],
        decoder: DecoderSpec,
        begin: int,
        end: int,
        tensors: dict[str, Tensor],
    ) -> tuple[list[Execution], Execution]:
        """Put what the decoder reads and writes of rows `begin` to `end` in place of `tensors`, by name.

        turn: the engines that turn frames. Returns what runs before the decoder, and what runs behind it.
        """
        shape = (end - begin, self._frames)
        seen, back = (order.view(*shape, start=begin * self._stride) for order in (self._seen, self._back))  # [R, T]
        latents, velocity, context = decoder.inputs.latents, decoder.outputs.velocity, decoder.inputs.context

        def turned(memory: Tensor, name: str, stride: int) -> dict[str, Tensor]:
            """`name` as it is for the others, and, in `tensors`, as the decoder has it: `[R, T, C or X]` each."""
            outside = tensors[name]
            tensors[name] = memory.view(*outside.shape, start=begin * stride)
            return {"outside": outside, "inside": tensors[name]}

        size = self._frames * tensors[latents].shape[-1]
        before = [_turn(turn[RING], **turned(self._latents, latents, size), order=seen)]
        if self._context is not None and context is not None:
            before.append(_turn(turn[CONTEXT_RING], **turned(self._context, context, self._context_stride), order=seen))
        found = turned(self._velocity, velocity, size)
        return before, _turn(turn[RING], outside=found["inside"], inside=found["outside"], order=back)


def _turn(engine: Engine, *, outside: Tensor, inside: Tensor, order: Tensor) -> Execution:
    return engine.bind({"frames": outside, "order": order, "turned": inside})
