"""Executes on host arrays, for work outside the tick: on a stream, contexts and memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import check_tensors
from runtime.engines.manifest import TensorInfo
from runtime.engines.tensorrt.execution import AnyContext, Binding, LayerRun, LayerTimes
from runtime.engines.tensorrt.shape_ranges import Shape
from runtime.errors import EngineDeadError


class ContextEngine(Protocol):
    """An engine that runs from contexts."""

    name: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    @property
    def activation_bytes(self) -> int:
        """Memory that one execute works in, at the largest shape."""

    def shapes_binding(self, shapes: Mapping[str, Shape]) -> Binding:
        """What sets these input shapes, without addresses."""

    def binding(self, tensors: Mapping[str, Tensor]) -> Binding:
        """What an execute on these tensors sets."""

    def new_context(self, index: int, memory: Tensor) -> AnyContext:
        """A context for a shape range, on this activation memory."""


class HostBuffers:
    """One piece of device memory per tensor name, and of staging per output; each grows and never shrinks."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tensors: dict[str, Tensor] = {}
        self._staging: dict[str, NDArray[np.uint8]] = {}

    def tensor(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """`shape` laid over this name's memory. Raises OutOfMemoryError."""
        kind = np.dtype(dtype)
        size_bytes = prod(shape) * kind.itemsize
        memory = self._tensors.get(name)
        if memory is None or memory.size_bytes < size_bytes:
            memory = self._tensors[name] = self._device.zeros((size_bytes,), np.uint8)
        return Tensor(memory.address, shape, kind, memory.owner)

    def upload(self, feeds: Mapping[str, NDArray[Any]], stream: Stream) -> dict[str, Tensor]:
        """The arrays on the device, once the stream gets there."""
        tensors = {}
        for name, feed in feeds.items():
            tensors[name] = self.tensor(name, feed.shape, feed.dtype.name)
            self._device.upload(tensors[name], np.ascontiguousarray(feed), stream)
        return tensors

    def download(self, tensors: Mapping[str, Tensor], stream: Stream) -> dict[str, NDArray[Any]]:
        """The tensors as new arrays; blocks until the stream is there."""
        arrays = {name: self._stage(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._device.download(arrays[name], tensor, stream)
        stream.record().wait()
        return {name: array.copy() for name, array in arrays.items()}

    def _stage(self, name: str, tensor: Tensor) -> NDArray[Any]:
        memory = self._staging.get(name)
        if memory is None or memory.size < tensor.size_bytes:
            memory = self._staging[name] = self._device.staging((tensor.size_bytes,), np.uint8)
        return memory[: tensor.size_bytes].view(tensor.dtype).reshape(tensor.shape)


class HostRuns:
    """Runs an engine on host arrays. One thread at a time."""

    def __init__(self, engine: ContextEngine, device: Device, profiler: Callable[[], LayerTimes]) -> None:
        self._engine, self._profiler = engine, profiler
        self._stream = device.stream()
        self._buffers = HostBuffers(device)
        self._memory = device.zeros((max(engine.activation_bytes, 1),), np.uint8)
        self._contexts: dict[int, AnyContext] = {}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One execute, done when this returns. Raises ShapeError, EngineError."""
        index = self._range_of(feeds)
        if index not in self._contexts:
            self._contexts[index] = self._engine.new_context(index, self._memory)
        binding, outputs = self._bind(feeds, self._contexts[index])
        self._contexts[index].launch(binding, self._stream)
        return self._buffers.download(outputs, self._stream)

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[list[LayerRun], str]:
        """Layers and their ms, per run, on a context that nothing else uses; and what the library says of the layers.

        Raises ShapeError, EngineError.
        """
        times = self._profiler()
        context = self._engine.new_context(self._range_of(feeds), self._memory)
        try:
            binding, _ = self._bind(feeds, context)
            context.profile(binding, self._stream, runs, times)
            layers = context.layers()
        finally:
            context.close()
        return times.runs, layers

    def close(self) -> None:
        """Destroy the contexts, once what is pending is done."""
        with suppress(EngineDeadError):
            self._stream.record().wait()
        while self._contexts:
            self._contexts.popitem()[1].close()

    def _range_of(self, feeds: Mapping[str, NDArray[Any]]) -> int:
        check_tensors(self._engine.name, self._engine.inputs, feeds)
        return self._engine.shapes_binding({name: feeds[name].shape for name in self._engine.inputs}).range_index

    def _bind(self, feeds: Mapping[str, NDArray[Any]], context: AnyContext) -> tuple[Binding, dict[str, Tensor]]:
        """Inputs on the device, outputs as large as the engine says they will be."""
        engine = self._engine
        context.prepare(engine.shapes_binding({name: feeds[name].shape for name in engine.inputs}), self._stream)
        inputs = self._buffers.upload({name: feeds[name] for name in engine.inputs}, self._stream)
        outputs = {
            name: self._buffers.tensor(name, context.output_shape(name), info.dtype)
            for name, info in engine.outputs.items()
        }
        return engine.binding({**inputs, **outputs}), outputs
