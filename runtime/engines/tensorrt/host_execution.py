"""Executes on host arrays, for work outside the tick, with their own stream, contexts and memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import EngineDeadError
from runtime.devices.device import Device, Level, Stream, Tensor
from runtime.engines.engine import check_tensors
from runtime.engines.node_times import LayerTimes
from runtime.engines.tensorrt.library import Context, ContextSettings, LayerProfiler, LoadedEngine, Shape


class HostBuffers:
    """Device memory per tensor name and staging memory per output; each grows and never shrinks."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tensors: dict[str, Tensor] = {}
        self._staging: dict[str, NDArray[np.uint8]] = {}

    def tensor(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """A tensor of this shape over the name's memory. Raises OutOfMemoryError."""
        kind = np.dtype(dtype)
        size_bytes = prod(shape) * kind.itemsize
        memory = self._tensors.get(name)
        if memory is None or memory.size_bytes < size_bytes:
            memory = self._tensors[name] = self._device.zeros((size_bytes,), np.uint8)
        return Tensor(memory.address, shape, kind, memory.owner)

    def upload(self, feeds: Mapping[str, NDArray[Any]], stream: Stream) -> dict[str, Tensor]:
        """The arrays as tensors, complete in stream order."""
        tensors = {}
        for name, feed in feeds.items():
            tensors[name] = self.tensor(name, feed.shape, feed.dtype.name)
            self._device.upload(tensors[name], np.ascontiguousarray(feed), stream)
        return tensors

    def download(self, tensors: Mapping[str, Tensor], stream: Stream) -> dict[str, NDArray[Any]]:
        """The tensors as new arrays; blocks until the copies are done."""
        arrays = {name: self._stage(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._device.download(arrays[name], tensor, stream)
        # Until the copies are in the staging memory, which the next call overwrites.
        stream.record().wait()
        return {name: array.copy() for name, array in arrays.items()}

    def _stage(self, name: str, tensor: Tensor) -> NDArray[Any]:
        memory = self._staging.get(name)
        if memory is None or memory.size < tensor.size_bytes:
            memory = self._staging[name] = self._device.staging((tensor.size_bytes,), np.uint8)
        return memory[: tensor.size_bytes].view(tensor.dtype).reshape(tensor.shape)


class HostExecution:
    """Executes a plan on host arrays. One thread at a time.

    Activation memory is that of the ranges used so far: the engines of a tick run a row or two so, beside the tick's.
    kernels: see rtx.
    """

    def __init__(
        self, plan: LoadedEngine, device: Device, level: Level = Level.TICK, kernels: Literal["NONE", "LAZY"] = "LAZY"
    ) -> None:
        self._plan, self._kernels = plan, kernels
        self._stream = device.stream(level)
        self._buffers = HostBuffers(device)
        self._device = device
        self._memory: Tensor | None = None
        self._contexts: dict[int, Context] = {}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One blocking execute. Raises ShapeError, EngineError."""
        shapes = self._shape_settings(feeds)
        index = shapes.range_index
        if index not in self._contexts:
            self._contexts[index] = self._plan.new_context(index, self._memory_of(index), self._kernels)
        settings, outputs = self._bind(feeds, shapes, self._contexts[index])
        self._contexts[index].launch(settings, self._stream)
        return self._buffers.download(outputs, self._stream)

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[list[LayerTimes], str]:
        """Times of every layer per run, in a new context, and the engine inspector's JSON.

        Raises ShapeError, EngineError.
        """
        profiler, shapes = LayerProfiler(), self._shape_settings(feeds)
        index = shapes.range_index
        context = self._plan.new_context(index, self._memory_of(index), "EAGER")
        try:
            settings, _ = self._bind(feeds, shapes, context)
            context.profile(settings, self._stream, runs, profiler)
            layers_json = context.layers_json()
        finally:
            context.close()
        return profiler.runs, layers_json

    def close(self) -> None:
        """Wait for pending work and destroy the contexts."""
        with suppress(EngineDeadError):
            # Until no execute uses the contexts any more.
            self._stream.record().wait()
        while self._contexts:
            self._contexts.popitem()[1].close()

    def _memory_of(self, index: int) -> Tensor:
        """Activation memory for a range. Contexts keep what they were made with."""
        size_bytes = max(self._plan.range_bytes(index), 1)
        if self._memory is None or self._memory.size_bytes < size_bytes:
            self._memory = self._device.zeros((size_bytes,), np.uint8)
        return self._memory

    def _shape_settings(self, feeds: Mapping[str, NDArray[Any]]) -> ContextSettings:
        check_tensors(self._plan.name, self._plan.inputs, feeds)
        return self._plan.shape_settings({name: feeds[name].shape for name in self._plan.inputs})

    def _bind(
        self, feeds: Mapping[str, NDArray[Any]], shapes: ContextSettings, context: Context
    ) -> tuple[ContextSettings, dict[str, Tensor]]:
        """Upload the inputs, and make room for outputs of the shapes that the context infers."""
        plan = self._plan
        context.prepare(shapes, self._stream)
        inputs = self._buffers.upload({name: feeds[name] for name in plan.inputs}, self._stream)
        outputs = {name: inputs[source] for name, source in plan.aliases.items()}
        for name, info in plan.outputs.items():
            if name not in outputs:
                outputs[name] = self._buffers.tensor(name, context.output_shape(name), info.dtype)
        return plan.settings({**inputs, **outputs}), outputs
