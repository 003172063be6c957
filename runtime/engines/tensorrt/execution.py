"""Executes from contexts, seen from outside: what an execute sets, who runs it, and what holds it for a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runtime.devices.device import Stream, Tensor
from runtime.engines.tensorrt.shape_ranges import Shape

LayerRun = list[tuple[str, float]]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Binding:
    """Inputs and outputs of one execute: shapes of those inputs that have free dimensions, and all addresses.

    `tensors` keeps their memory alive.
    """

    range_index: int
    shapes: Mapping[str, Shape]
    addresses: Mapping[str, int] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()


class LayerTimes(Protocol):
    """A profiler that keeps what it hears, one list of (layer, ms) per run."""

    runs: list[LayerRun]

    def begin(self) -> None:
        """What comes now belongs to a new run."""


class AnyContext(Protocol):
    """What executes: knows what is set in it, and sets what changes. One stream at a time."""

    range_index: int

    def prepare(self, binding: Binding, stream: Stream) -> None:
        """Set range and shapes. Raises EngineError."""

    def launch(self, binding: Binding, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""

    def output_shape(self, name: str) -> Shape:
        """An output's shape for the shapes that are set. Raises EngineError."""

    def profile(self, binding: Binding, stream: Stream, runs: int, times: LayerTimes) -> None:
        """Measure every layer of `runs` executes after a warm-up. `times` outlives this context. Raises EngineError."""

    def layers(self) -> str:
        """What the library says of the engine's layers, at the shapes that are set."""

    def close(self) -> None:
        """Destroy it; nothing of it may be pending, no captured graph of it may live."""


class ContextPool(Protocol):
    """Where executions have their contexts from."""

    def shared(self, index: int) -> AnyContext:
        """The context for plain launches in a shape range. Raises EngineError."""

    def take(self, index: int) -> AnyContext:
        """A context for one execution alone. Raises EngineError."""

    def give(self, context: AnyContext) -> None:
        """Give a taken context back."""


class ContextExecution:
    """One set of shapes and addresses, launched on the context that its shape range shares, or on one of its own."""

    def __init__(self, engine: ContextPool, binding: Binding) -> None:
        self._engine, self._binding = engine, binding
        self._held: AnyContext | None = None

    def launch(self, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        context = self._held or self._engine.shared(self._binding.range_index)
        context.launch(self._binding, stream)

    def warm_up(self, stream: Stream) -> None:
        """Execute once on a context of its own: what a captured graph bakes in, warm. Raises EngineError."""
        if self._held is None:
            self._held = self._engine.take(self._binding.range_index)
        self._held.launch(self._binding, stream)

    def release(self) -> None:
        """Give the context back; the graph that captured it is closed."""
        if self._held is not None:
            context, self._held = self._held, None
            self._engine.give(context)
