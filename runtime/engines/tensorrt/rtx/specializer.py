"""The thread that executes new shapes of TensorRT-RTX beside the ticks, so that their kernels are compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np

from runtime.base.errors import EngineError
from runtime.devices.device import ALIGNMENT_BYTES, Device, Level, Tensor
from runtime.engines.tensorrt.library import Shape
from runtime.engines.tensorrt.rtx.kernel_cache import KernelCache
from runtime.engines.tensorrt.rtx.loaded_engine import RtxContext, RtxLoadedEngine

Job = Future[RtxContext]


class Specializer:
    """The kernels of all engines of a folder on one device: their cache, and the thread that executes new shapes.

    Its executes have a stream and memory of their own: inputs are zeros, outputs are lost. `users`: open engines.
    """

    def __init__(self, folder: Path, device: Device) -> None:
        self.users = 0
        self.cache = KernelCache(folder)
        self._device, self._stream = device, device.stream(Level.BACKGROUND)
        # One thread: executes never overlap, so one stream and one set of memory do for all of them.
        self._worker = ThreadPoolExecutor(1, "kernels")
        self._zeros = self._written = self._activation = device.zeros((1,), np.uint8)

    def submit(self, work: Callable[[], RtxContext]) -> Job:
        """Run `work` on the thread."""
        return self._worker.submit(work)

    def settle(self) -> None:
        """Wait for what was submitted, and save the kernels."""
        # Until all that was submitted before has run: there is one thread, which takes work in order.
        self._worker.submit(_do_nothing).result()
        self.cache.save()

    def close(self) -> None:
        """Wait for the thread, and save the kernels."""
        self._worker.shutdown()
        self.cache.save()

    def execute(
        self,
        plan: RtxLoadedEngine,
        index: int,
        shapes: Mapping[str, Shape],
        context: RtxContext | None,
        kernels: str,
        activation: Callable[[], Tensor],
    ) -> RtxContext:
        """Execute inputs of these shapes on a context, else on a new one of this shape range, and wait.

        The context then has the ticks' activation memory, which `activation` gives. On the thread only. Raises
        EngineError, OutOfMemoryError.
        """
        self._activation = self._grown(self._activation, plan.range_bytes(index))
        context = context or plan.new_context(index, self._activation, kernels)
        try:
            context.use_memory(self._activation)
            context.prepare(plan.shape_settings(shapes), self._stream)
            context.launch(plan.settings(self._tensors(plan, shapes, context)), self._stream)
            # Until the device is done: from then on ticks may use the context, with memory of their own.
            self._stream.record().wait()
            context.use_memory(activation())
        except EngineError:
            context.close()
            raise
        return context

    def _tensors(self, plan: RtxLoadedEngine, inputs: Mapping[str, Shape], context: RtxContext) -> dict[str, Tensor]:
        infos = {**plan.inputs, **plan.outputs}
        updated = set(plan.aliases.values())
        written = {name: context.output_shape(name) for name in plan.outputs if name not in plan.aliases}
        shapes = {**inputs, **written}
        sizes = {name: prod(shape) * np.dtype(infos[name].dtype).itemsize for name, shape in shapes.items()}
        # What is updated in place shares the first piece: nothing reads it, and a cache of all layers is large.
        end = max((sizes[name] for name in updated), default=0)
        places = dict.fromkeys(inputs, 0)
        for name in written:
            places[name] = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            end = places[name] + sizes[name]
        self._zeros = self._grown(self._zeros, max((sizes[name] for name in inputs if name not in updated), default=0))
        self._written = self._grown(self._written, end)
        tensors = {}
        for name, shape in shapes.items():
            memory = self._written if name in written or name in updated else self._zeros
            tensors[name] = Tensor(memory.address + places[name], shape, np.dtype(infos[name].dtype), memory.owner)
        return tensors | {output: tensors[source] for output, source in plan.aliases.items()}

    def _grown(self, memory: Tensor, size_bytes: int) -> Tensor:
        return memory if memory.size_bytes >= size_bytes else self._device.zeros((size_bytes,), np.uint8)


_open: dict[tuple[Path, Device], Specializer] = {}
# Held while users are counted, and while a specializer is made; not while one waits for its thread or saves.
_lock = threading.Lock()


def open_specializer(folder: Path, device: Device) -> Specializer:
    """What the engines of a folder share on a device. Each gives it back with `close_specializer`."""
    with _lock:
        found = _open.get((folder, device))
        if found is None:
            found = _open[folder, device] = Specializer(folder, device)
        found.users += 1
        return found


def close_specializer(specializer: Specializer) -> None:
    """Give it back; with its last engine it is closed."""
    with _lock:
        specializer.users -= 1
        if specializer.users:
            return
        for key in [key for key, found in _open.items() if found is specializer]:
            del _open[key]
    specializer.close()


def settle() -> None:
    """Wait until all kernels are there that are being compiled, and save them."""
    with _lock:
        found = list(_open.values())
    for specializer in found:
        specializer.settle()


def _do_nothing() -> None:
    """What is submitted before it is done then."""
