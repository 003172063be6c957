"""The Engine on TensorRT: executions for the ticks, and blocking executes on host arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import Device, Level, Stream, Tensor
from runtime.engines.manifest import Manifest
from runtime.engines.node_times import NodeTimes, layer_records, node_times
from runtime.engines.tensorrt.host_execution import HostExecution
from runtime.engines.tensorrt.library import Context, ContextSettings, LoadedEngine
from runtime.engines.tensorrt.refit import refit

if TYPE_CHECKING:
    from runtime.engines.merging import MergedWeights

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


class TensorRtExecution:
    """One set of shapes and addresses. Launches use the shape range's shared context, warm-ups and captures another."""

    def __init__(self, pool: ContextPool, settings: ContextSettings) -> None:
        self._pool, self._settings = pool, settings
        self._own: Context | None = None

    def prepare(self, stream: Stream) -> bool:
        """True: a plan has all its kernels."""
        return True

    def launch(self, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        self._pool.shared(self._settings.range_index).launch(self._settings, stream)

    def make(self) -> None:
        """Make a context of this execution alone, in any thread. Raises EngineError."""
        self._own = self._own or self._pool.take(self._settings.range_index)

    def warm_up(self, stream: Stream) -> None:
        """Put one execute on the stream, on a context of this execution alone. Raises EngineError."""
        self._own = self._own or self._pool.take(self._settings.range_index)
        self._own.launch(self._settings, stream)

    def release(self) -> None:
        """Return the context of this execution alone; graphs that captured it must be closed."""
        if self._own is not None:
            self._pool.give_back(self._own)
            self._own = None


class TensorRtEngine:
    """One plan. The thread of the ticks calls `bind` and uses executions; any thread calls `run` and `profile`.

    `in_tick`: allocate what ticks need now: activation memory, and a context per shape range. `stream`: on which they
    execute, by default the device's main one. `weights`: take the place of the plan's. Raises EngineMismatchError
    (another GPU or version, damaged), OutOfMemoryError, EngineError.
    """

    def __init__(
        self,
        manifest: Manifest,
        folder: Path,
        *,
        device: Device,
        fix: str = "",
        in_tick: bool = False,
        stream: Stream | None = None,
        weights: MergedWeights | None = None,
    ) -> None:
        self.name, self.manifest = manifest.name, manifest
        self._device, self._is_in_tick, self._stream = device, in_tick, stream or device.main
        self._hosts: dict[Level, HostExecution] = {}
        # Held for a whole execute on host arrays: callers of one level take turns. Ticks never wait for it.
        self._host_locks = {level: threading.Lock() for level in Level}
        self._plan = self._load(folder, fix)
        if weights is not None:
            refit(self._plan, device, weights, str(folder / manifest.engine_file))
        self.inputs, self.outputs = self._plan.inputs, self._plan.outputs
        self._pool = self._new_pool()
        if in_tick:
            for index in range(len(self._plan.ranges)):
                self._pool.shared(index)

    def bind(self, tensors: Mapping[str, Tensor]) -> TensorRtExecution:
        """Bind every input and output by address. Raises ShapeError, EngineError."""
        return TensorRtExecution(self._pool, self._plan.settings(tensors))

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute with context, stream and memory of its level. Raises ShapeError, EngineError."""
        with self._host_execution(level) as host:
            return host.run(feeds)

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """Times per layer, as TensorRT measures them. Raises ShapeError, EngineError."""
        with self._host_execution(Level.TICK) as host:
            times, layers_json = host.profile(feeds, runs)
        return node_times(times, layer_records(layers_json))

    def close(self) -> None:
        """Release everything but contexts that executions have taken. No work may be pending."""
        self._pool.close()
        for level, lock in self._host_locks.items():
            with lock:
                if (host := self._hosts.pop(level, None)) is not None:
                    host.close()
        self._plan.close()

    def _load(self, folder: Path, fix: str) -> LoadedEngine:
        return LoadedEngine(self.manifest, folder, fix)

    def _new_pool(self) -> ContextPool:
        return ContextPool(self._plan, self._device, self._stream)

    @contextmanager
    def _host_execution(self, level: Level) -> Iterator[HostExecution]:
        """What `run` executes with; kept for the next call, except in engines of ticks, which seldom run so."""
        with self._host_locks[level]:
            # A context that ends at once compiles nothing: its end would wait for that.
            kernels: Literal["NONE", "LAZY"] = "NONE" if self._is_in_tick else "LAZY"
            host = self._hosts.get(level) or HostExecution(self._plan, self._device, level, kernels)
            try:
                yield host
            finally:
                if self._is_in_tick:
                    host.close()
                else:
                    self._hosts[level] = host
