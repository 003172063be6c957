"""Small vectors in one piece of memory, written on the host and uploaded together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from runtime.devices.device import ALIGNMENT_BYTES, Device, Stream, Tensor


class PackedVectors:
    """Small vectors that lie in one piece of memory, each at an aligned address, and are uploaded together.

    used_bytes: what has been taken. limit_bytes: what lies behind it is not uploaded.
    """

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self._tensor = device.zeros((size_bytes,), np.uint8)
        self._host: NDArray[np.uint8] = device.mirror(self._tensor)
        self.used_bytes = self.limit_bytes = 0
        self.has_changed = False

    def take(self, count: int, dtype: DTypeLike) -> tuple[Tensor, NDArray[Any]]:
        """The next `count` elements: device side and host side."""
        kind, start = np.dtype(dtype), self.used_bytes
        size_bytes = count * kind.itemsize
        self.used_bytes += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.limit_bytes = self.used_bytes
        host: NDArray[Any] = self._host[start : start + size_bytes].view(kind)
        piece = self._tensor.view(size_bytes, start=start)
        seen = None if piece.host is None else piece.host.view(kind)
        return Tensor(piece.address, (count,), kind, piece.owner, seen), host

    def flush(self, stream: Stream) -> None:
        """Upload all of them, if any has changed; nothing to do where the device sees the host's memory."""
        if self.has_changed and self._tensor.host is None:
            self.has_changed = False
            self._device.upload(self._tensor.view(self.limit_bytes), self._host[: self.limit_bytes], stream)


def host_view(array: Any) -> Any:
    """The memory of an NDArray for item assignments without numpy; type checkers know only memoryviews of bytes."""
    return memoryview(array)
