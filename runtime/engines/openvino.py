"""Engines on OpenVINO: graphs in its own format (IR), on the CPU or an Intel GPU or NPU, bound to host arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import properties
from openvino.properties import hint

from runtime.base.errors import EngineError, EngineMismatchError, OutOfMemoryError
from runtime.devices.device import Device, Level, Stream, Tensor
from runtime.devices.machine import num_cores
from runtime.engines.engine import Execution, check_tensors
from runtime.engines.manifest import OPENVINO_DEVICE, Manifest, TensorInfo, measured_threads
from runtime.engines.node_times import NodeTimes, node_times
from runtime.engines.onnxruntime_cuda import executing, translate_error

if TYPE_CHECKING:
    from runtime.engines.merging import MergedWeights

WARM_UP_RUNS = 3
# Of an engine of one thread that no tick executes: so many callers of `run` execute at once, the next ones wait.
MOST_CALLERS = 4
CPU = "CPU"
NO_FEEDS: Mapping[str, NDArray[Any]] = {}


@cache
def core() -> openvino.Core:
    """What reads and compiles graphs, for this process."""
    return openvino.Core()


def need_device(name: str) -> None:
    """Raise EngineError where this machine has no such device of OpenVINO's ("CPU", "GPU", "GPU.1", "NPU")."""
    found = core().available_devices
    if name not in found and not any(each.startswith(f"{name}.") for each in found):
        raise EngineError(
            f"OpenVINO {openvino.__version__} finds no device {name!r} here, but {', '.join(found) or 'none'}",
            fix=f'{OPENVINO_DEVICE} = "{CPU}" in [build], or install the driver of that device',
        )


class OpenVinoEngine:
    """One graph in OpenVINO, in float32. Any thread may call `run`.

    Where no tick executes it and it has one thread, several callers execute at once, as in ONNX Runtime.

    `threads`: of the CPU; 0 for as many as the build found best where it had as many cores, else all. The other
    arguments are those of other engines. Raises EngineMismatchError, EngineError, OutOfMemoryError.
    """

    def __init__(
        self,
        manifest: Manifest,
        folder: Path,
        *,
        device: Device,
        threads: int = 0,
        fix: str = "",
        in_tick: bool = False,
        stream: Stream | None = None,
        weights: MergedWeights | None = None,
    ) -> None:
        del stream  # the host has one
        if weights is not None:
            raise EngineMismatchError(
                f"engines of OpenVINO take no other weights, and adapters are to be merged into {manifest.name!r}",
                fix="use them per request (adapter_rank), or build for target cpu",
            )
        self.name = manifest.name
        self.manifest = manifest
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.outputs}
        self.device = device
        self._path, self._fix = folder / manifest.engine_file, fix
        self._threads = threads or measured_threads(manifest, num_cores())
        self._callers = 1 if in_tick or self._threads != 1 else min(num_cores(), MOST_CALLERS)
        # Held while it compiles again, which other threads wait for.
        self._lock = threading.Lock()
        self.compiled: Any = self._compile()
        # Idle requests of `run`, and what they are of.
        self._idle: list[tuple[Any, Any]] = []

    def bind(self, tensors: Mapping[str, Tensor]) -> Execution:
        """Bind every input and output to its memory. Raises ShapeError, EngineError."""
        check_tensors(self.name, {**self.inputs, **self.outputs}, tensors)
        return OpenVinoExecution(self, tensors)

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute, in a request that no other caller has. Raises EngineError, OutOfMemoryError."""
        label, given = self.label(feeds), {name: feeds[name] for name in self.inputs}
        compiled = self.compiled
        try:
            of, request = self._idle.pop()
        except IndexError:
            of = None
        if of is not compiled:
            request = executing(label, compiled.create_infer_request)
        self.execute(label, compiled, _infer, request, given)
        found = {name: request.get_tensor(name).data.copy() for name in self.outputs}
        self._idle.append((compiled, request))
        return found

    def execute(self, label: str, compiled: Any, call: Callable[..., None], *arguments: Any) -> None:
        """Call what executes a compiled graph. Raises EngineError, OutOfMemoryError.

        Behind a failed execute, OpenVINO fails at all shapes: the graph is compiled again.
        """
        try:
            executing(label, call, *arguments)
        except EngineError:
            with self._lock:
                if self.compiled is compiled:
                    self.compiled = self._compile()
            raise

    def label(self, tensors: Mapping[str, Any]) -> str:
        """Its name in errors of an execute, with the shape of the first input, which mostly tells that of all."""
        name = next(iter(self.inputs))
        return f"{self.name} with {name} {'x'.join(map(str, tensors[name].shape))}"

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """Times from OpenVINO's performance counters, of the graph compiled once more. Raises EngineError.

        A layer has the name of the node that its fusion ends with.
        """
        request = self._compile(profiling=True).create_infer_request()
        label, given = self.label(feeds), {name: feeds[name] for name in self.inputs}
        times, records = [], dict[str, dict[str, Any]]()
        for run in range(WARM_UP_RUNS + runs):
            executing(label, _infer, request, given)
            if run < WARM_UP_RUNS:
                continue
            layers = [each for each in request.profiling_info if each.status == each.Status.EXECUTED]
            times.append([(each.node_name, each.real_time.total_seconds() * 1e3) for each in layers])
            records |= {each.node_name: {"LayerType": each.node_type, "kernel": each.exec_type} for each in layers}
        return node_times(times, records)

    def close(self) -> None:
        """Release the compiled graph, once no execution uses it."""
        self._idle.clear()
        self.compiled = None

    def _compile(self, *, profiling: bool = False) -> Any:
        name = str(self.manifest.build.get(OPENVINO_DEVICE, CPU))
        options: dict[Any, Any] = {
            hint.inference_precision: openvino.Type.f32,
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            properties.enable_profiling: profiling,
        }
        if name == CPU:
            # Threads of several engines that are kept on one core would wait for each other.
            threads = self._threads * self._callers
            options |= {properties.inference_num_threads: threads, hint.enable_cpu_pinning: False}
            if self._callers > 1:
                options[properties.num_streams()] = self._callers
        need_device(name)
        try:
            return core().compile_model(core().read_model(self._path), name, options)
        except RuntimeError as error:
            translated = translate_error(self.name, error)
            if isinstance(translated, OutOfMemoryError):
                raise translated from error
            raise EngineMismatchError(f"{self._path} does not load: {error}", fix=self._fix) from error


def _infer(request: Any, feeds: Mapping[str, NDArray[Any]]) -> None:
    """Execute, with feeds that are bound here.

    OpenVINO's `infer` would copy an array that is not contiguous over the one before it, and tells no failure.
    """
    for name, values in feeds.items():
        request.set_tensor(name, openvino.Tensor(np.require(values, requirements=("C", "W")), shared_memory=True))
    request.start_async()
    request.wait()


class OpenVinoExecution:
    """An infer request whose inputs and outputs are the tensors' own memory; it keeps them alive."""

    def __init__(self, engine: OpenVinoEngine, tensors: Mapping[str, Tensor]) -> None:
        self._engine, self._label = engine, engine.label(tensors)
        self._tensors = {name: tensors[name] for name in (*engine.inputs, *engine.outputs)}
        self._request, self._unchecked = self._bound(), True

    def prepare(self, stream: Stream) -> bool:
        """True: what is compiled has all its kernels."""
        return True

    def launch(self, stream: Stream) -> None:
        """Execute; blocks until it is done. Raises EngineError, OutOfMemoryError."""
        if self._compiled is not self._engine.compiled:
            self._request, self._unchecked = self._bound(), True
        self._engine.execute(self._label, self._compiled, _infer, self._request, NO_FEEDS)
        if self._unchecked:
            self._check_in_place()

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    def warm_up(self, stream: Stream) -> None:
        """Execute; nothing else needs to be prepared. Raises EngineError."""
        self.launch(stream)

    def release(self) -> None:
        """Does nothing."""

    def _bound(self) -> Any:
        self._compiled = self._engine.compiled
        request = executing(self._label, self._compiled.create_infer_request)
        for name, tensor in self._tensors.items():
            executing(self._label, request.set_tensor, name, openvino.Tensor(tensor.host, shared_memory=True))
        return request

    def _check_in_place(self) -> None:
        """After the first execute: whether every output is in its tensor, in the tensor's shape."""
        for name in self._engine.outputs:
            found, tensor = self._request.get_tensor(name).data, self._tensors[name]
            if found.ctypes.data != tensor.address or found.shape != tensor.shape:
                wanted = "x".join(map(str, tensor.shape))
                raise EngineError(
                    f"{self._label}: OpenVINO gives {name!r} as {'x'.join(map(str, found.shape))} in memory of its "
                    f"own, expected {wanted} in its tensor"
                )
        self._unchecked = False
