"""The Engine on TensorRT: executions for the ticks, and blocking executes on host arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from runtime.devices.device import Device, Level, Stream, Tensor
from runtime.engines.manifest import Manifest
from runtime.engines.node_times import NodeTimes
from runtime.engines.tensorrt.context_pool import ContextPool
from runtime.engines.tensorrt.execution import TensorRtExecution
from runtime.engines.tensorrt.host_execution import HostExecution
from runtime.engines.tensorrt.layers import layer_records, node_times
from runtime.engines.tensorrt.library import LoadedEngine
from runtime.engines.tensorrt.refit import refit

if TYPE_CHECKING:
    from runtime.engines.merging import MergedWeights


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
