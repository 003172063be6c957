"""The execution contexts of one plan for the ticks, on activation memory that all engines of a device share."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

import numpy as np

from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.tensorrt.library import Context, LoadedEngine

# Per device, by the handle of a stream.
_activation: WeakKeyDictionary[Device, dict[int, Tensor]] = WeakKeyDictionary()
# Held while memory grows: by the thread of the ticks, those that open engines, and that of compiled kernels.
_lock = threading.Lock()


def reserve_activation(device: Device, size_bytes: int, stream: int = 0) -> Tensor:
    """At least `size_bytes` of the activation memory that engines of one stream share, by its handle.

    Their executes never overlap. Raises OutOfMemoryError. Contexts keep the memory they were created with, because
    captured graphs and pending executes use its address; a larger engine gets new memory.
    """
    with _lock:
        shared = _activation.setdefault(device, {})
        if stream not in shared or shared[stream].size_bytes < size_bytes:
            shared[stream] = device.zeros((max(size_bytes, 1),), np.uint8)
        return shared[stream]


class ContextPool:
    """One shared context per shape range, and contexts for single executions. Used by the thread of the ticks; any
    thread takes and gives back.

    stream: on which they execute.
    """

    def __init__(self, plan: LoadedEngine, device: Device, stream: Stream) -> None:
        self._plan, self._device, self._stream = plan, device, stream
        self._shared: dict[int, Context] = {}
        self._idle: dict[int, list[Context]] = {}
        self._is_closed = False

    def shared(self, index: int) -> Context:
        """The context for launches without a captured graph in a shape range. Raises EngineError."""
        if index not in self._shared:
            self._shared[index] = self._new_context(index)
        return self._shared[index]

    def take(self, index: int) -> Context:
        """A context for one execution alone: an idle one, or a new one. Raises EngineError."""
        try:
            return self._idle[index].pop()
        except (KeyError, IndexError):
            return self._new_context(index)

    def give_back(self, context: Context) -> None:
        """Return a taken context; graphs that captured it must be closed."""
        if self._is_closed:
            context.close()
        else:
            self._idle.setdefault(context.range_index, []).append(context)

    def close(self) -> None:
        """Destroy all contexts that are not taken, and the others when they are given back."""
        self._is_closed = True
        contexts = [*self._shared.values(), *(context for idle in self._idle.values() for context in idle)]
        self._shared, self._idle = {}, {}
        for context in contexts:
            context.close()

    def _new_context(self, index: int) -> Context:
        return self._plan.new_context(index, self.activation())

    def activation(self) -> Tensor:
        """Memory for an execute at the largest shape. Raises OutOfMemoryError."""
        return reserve_activation(self._device, self._plan.activation_bytes, self._stream.handle)
