"""Execution contexts of TensorRT that know what is set in them. This module only calls what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.device import Stream, Tensor
from runtime.engines.answers import Messages, must
from runtime.engines.shape_choice import Shape
from runtime.errors import EngineError

WARM_UP_RUNS = 3


class LayerTimes(Protocol):
    """A profiler that keeps what it hears, one list of (layer, ms) per run."""

    runs: list[list[tuple[str, float]]]

    def begin(self) -> None:
        """What comes now belongs to a new run."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Inputs and outputs of one execute: shapes of those inputs that have free dimensions, and all addresses.

    `tensors` keeps their memory alive.
    """

    range_index: int
    shapes: Mapping[str, Shape]
    addresses: Mapping[str, int] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()


class Context:
    """An execution context with what is set in it: only what changes is set again. One stream at a time."""

    def __init__(
        self, context: Any, engine: Any, name: str, range_index: int, memory: Tensor, logger: Messages
    ) -> None:
        self.range_index = range_index
        self._name, self._memory, self._logger = name, memory, logger
        self._context = context
        # Set after the context: whatever drops both without `close` drops the engine last.
        self._engine = engine
        context.set_device_memory(memory.address, memory.size_bytes)
        # A new context is on the first range.
        self._is_on_range = range_index == 0
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._binding: Binding | None = None

    def launch(self, binding: Binding, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        if binding is not self._binding:
            self.prepare(binding, stream)
            self._set_addresses(binding)
            self._binding = binding
        self._must(self._context.execute_async_v3(stream.handle), "failed to execute")

    def prepare(self, binding: Binding, stream: Stream) -> None:
        """Set range and shapes, in this order. Raises EngineError."""
        self._binding = None
        if not self._is_on_range:
            answer = self._context.set_optimization_profile_async(self.range_index, stream.handle)
            self._must(answer, f"cannot switch to shape range {self.range_index}")
            self._is_on_range = True
        for name, shape in binding.shapes.items():
            if self._shapes.get(name) != shape:
                self._shapes.pop(name, None)
                self._must(self._context.set_input_shape(name, shape), f"{name} does not take shape {shape}")
                self._shapes[name] = shape

    def output_shape(self, name: str) -> Shape:
        """An output's shape for the shapes that are set. Raises EngineError."""
        missing = self._context.infer_shapes()
        if missing:
            raise EngineError(f"{self._name}: shapes of {', '.join(missing)} are not set")
        return tuple(self._context.get_tensor_shape(name))

    def profile(self, binding: Binding, stream: Stream, runs: int, times: LayerTimes) -> None:
        """Measure every layer of `runs` executes after a warm-up. `times` outlives this context. Raises EngineError."""
        for _ in range(WARM_UP_RUNS):
            self.launch(binding, stream)
        stream.record().wait()
        # Reporting inside an enqueue would make it wait for the device.
        self._context.enqueue_emits_profile = False
        self._context.profiler = times
        for _ in range(runs):
            times.begin()
            self.launch(binding, stream)
            stream.record().wait()
            self._must(self._context.report_to_profiler(), "reports no layer times")

    def close(self) -> None:
        """Destroy it; nothing of it may be pending, no captured graph of it may live."""
        self._binding = None
        del self._context
        del self._engine

    def _set_addresses(self, binding: Binding) -> None:
        for name, address in binding.addresses.items():
            if self._addresses.get(name) != address:
                self._must(self._context.set_tensor_address(name, address), f"{name} does not take its address")
                self._addresses[name] = address

    def _must(self, answer: Any, what: str) -> None:
        if not answer:
            self._binding = None
            must(None, f"{self._name}: {what}", self._logger)
