"""Activation memory: one arena per device for all engines whose work lies on the stream of ticks, and so never
overlaps."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

import numpy as np

from runtime.devices.device import Device, Tensor


class ActivationArena:
    """Grows when an engine needs more than there is. A context keeps the memory that it was given: captured graphs and
    pending work of older contexts never see it move."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: Tensor | None = None

    def reserve(self, device: Device, size_bytes: int) -> Tensor:
        """At least `size_bytes` (and one byte) of memory, 256-byte aligned. Raises OutOfMemoryError."""
        with self._lock:
            if self._memory is None or self._memory.size_bytes < size_bytes:
                self._memory = device.zeros((max(size_bytes, 1),), np.uint8)
            return self._memory


_arenas: WeakKeyDictionary[Device, ActivationArena] = WeakKeyDictionary()
_lock = threading.Lock()


def reserve_for_ticks(device: Device, size_bytes: int) -> Tensor:
    """Memory of the one arena that all engines of a device's ticks share. Raises OutOfMemoryError."""
    with _lock:
        arena = _arenas.setdefault(device, ActivationArena())
    return arena.reserve(device, size_bytes)
