"""Keys and values of all rows, grown in place: an execute's outputs are bound to the addresses of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.planner import LanguageGraphSpec
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import Engine

# Spans that attention reads are multiples of this, longer ones of its doubles, at most a quarter too long: few shapes.
LEAST_SPAN = 64


class KvCache:
    """Each layer's keys and values `[R,H,M,J]`, for `rows` rows; M is `capacity`.

    Position p of a row lies in slot p mod M. Attention reads the first slots, as many as `span` says.
    """

    def __init__(self, device: Device, stream: Stream, engine: Engine, graph: LanguageGraphSpec, rows: int) -> None:
        self._device, self._stream, self._names = device, stream, graph.inputs
        self._pairs = list(zip(graph.inputs.past, graph.outputs.present, strict=True))
        info = engine.inputs[graph.inputs.past[0]]
        self._row = tuple(int(size) for size in info.shape[1:])
        self.capacity = self._row[1]
        self._tensors = [device.zeros((rows, *self._row), info.dtype) for _ in self._pairs]  # [R, H, M, J] each
        self._zeros = device.zeros(self._row, info.dtype)  # [H, M, J]
        self._slots = device.zeros((self.capacity,), np.int64)  # [M]
        device.upload(self._slots, np.arange(self.capacity), stream)  # [M]

    def span(self, length: int) -> int:
        """How many slots attention reads where the longest row has `length` positions."""
        multiple = LEAST_SPAN
        while 8 * multiple < length:
            multiple *= 2
        return min(-(-length // multiple) * multiple, self.capacity)

    def spans(self, length: int) -> list[int]:
        """The spans of a row that grows to `length` positions."""
        return sorted({self.span(count) for count in range(1, min(length, self.capacity) + 1)})

    def tensors(self, begin: int, end: int, span: int) -> dict[str, Tensor]:
        """Tensor name -> memory of an execute over rows `begin` to `end`."""
        shape, start = (end - begin, *self._row), begin * prod(self._row)
        bound = {self._names.slots: self._slots.view(span)}  # [span]
        for (past, present), tensor in zip(self._pairs, self._tensors, strict=True):
            bound[past] = bound[present] = tensor.view(*shape, start=start)  # [R, H, M, J]
        return bound

    def clear(self, row: int) -> None:
        """Zero a row: what is behind the mask counts too where it is not finite."""
        for target in self._of_row(row):
            self._device.copy(target, self._zeros, self._stream)  # [H, M, J]

    def read(self, row: int) -> tuple[NDArray[Any], ...]:
        """Copies of a row's keys and values `[H,M,J]` of every layer. Waits for the device."""
        staged = [self._device.staging(self._row, tensor.dtype) for tensor in self._tensors]  # [H, M, J] each
        for out, source in zip(staged, self._of_row(row), strict=True):
            self._device.download(out, source, self._stream)
        # Until the copies, and what was launched before them, have run.
        self._stream.record().wait()
        return tuple(np.array(out) for out in staged)

    def write(self, row: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Write a row that was read from any row of a cache of the same model."""
        for target, array in zip(self._of_row(row), arrays, strict=True):
            self._device.upload(target, array, self._stream)  # [H, M, J]

    def _of_row(self, row: int) -> list[Tensor]:
        return [tensor.view(*self._row, start=row * prod(self._row)) for tensor in self._tensors]  # [H, M, J] each
