"""Engines on TensorRT: plans of versions 10.16 to 11.x, executed from contexts that know what is set in them.

Every call that answers with False or None goes through `must`, which adds what TensorRT logged.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import ref

import tensorrt as trt
from numpy.typing import NDArray

from runtime.devices.cuda import probe
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import NodeTimes, check_tensors
from runtime.engines.manifest import Manifest, TensorInfo
from runtime.engines.tensorrt.activation import reserve_for_ticks
from runtime.engines.tensorrt.errors import check_trt, dtype_name
from runtime.engines.tensorrt.execution import AnyContext, Binding, ContextExecution, LayerRun, LayerTimes
from runtime.engines.tensorrt.host_execution import HostRuns
from runtime.engines.tensorrt.layers import layer_records, node_times
from runtime.engines.tensorrt.plan_file import check_plan_version, read_plan_header
from runtime.engines.tensorrt.shape_ranges import Shape, ShapeRange, choose_range
from runtime.errors import EngineError, EngineMismatchError

ALIGNMENT_BYTES = 256


KEPT_MESSAGES = 16


WARM_UP_RUNS = 3


log = logging.getLogger(__name__)


class RingLogger(trt.ILogger):  # type: ignore[misc]
    """Keeps the last errors and warnings of each thread, and passes everything on to Python's logging."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._messages: deque[tuple[int, str]] = deque(maxlen=KEPT_MESSAGES)
        self._levels = {
            trt.ILogger.INTERNAL_ERROR: logging.ERROR,
            trt.ILogger.ERROR: logging.ERROR,
            trt.ILogger.WARNING: logging.WARNING,
            trt.ILogger.INFO: logging.DEBUG,
            trt.ILogger.VERBOSE: logging.DEBUG,
        }

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Take one message; called by TensorRT, from any thread."""
        level = self._levels[severity]
        if level >= logging.WARNING:
            self._messages.append((threading.get_ident(), msg))
        # Errors come out as exceptions with this text; logged as well they would be said twice.
        log.log(min(level, logging.INFO), "TensorRT: %s", msg)

    def take(self) -> str:
        """What this thread's calls made TensorRT say since this was asked last."""
        mine = [pair for pair in list(self._messages) if pair[0] == threading.get_ident()]
        for pair in mine:
            with suppress(ValueError):
                self._messages.remove(pair)
        return "; ".join(dict.fromkeys(text for _, text in mine))


@dataclass(frozen=True, slots=True)
class Library:
    """TensorRT's runtime and what it logs to; one per process, for as long as that lives."""

    logger: RingLogger
    runtime: trt.Runtime


def library_version() -> str:
    """TensorRT's version: "11.4.0.106"."""
    return str(trt.__version__)


_library: Library | None = None


_library_lock = threading.Lock()


_load_lock = threading.Lock()


def library() -> Library:
    """The process's TensorRT. Raises EngineError where there is no GPU: without a driver TensorRT crashes."""
    global _library
    with _library_lock:
        if _library is None:
            probe()
            logger = RingLogger()
            try:
                _library = Library(logger, trt.Runtime(logger))
            except TypeError as error:
                raise EngineError(f"TensorRT does not start: {logger.take() or error}") from error
        return _library


def load(manifest: Manifest, folder: Path, fix: str) -> trt.ICudaEngine:
    """A plan, opened; its header is read first. Raises EngineMismatchError, OutOfMemoryError, EngineError."""
    path = folder / manifest.engine_file
    compatible = bool(manifest.build.get("version_compatible", False))
    header = read_plan_header(path, fix=fix)
    check_plan_version(header, library_version(), str(path), version_compatible=compatible, fix=fix)
    here = library()
    with _load_lock, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        # Such a plan brings its own runtime: code, whose hash the manifest has.
        here.runtime.engine_host_code_allowed = compatible
        engine = here.runtime.deserialize_cuda_engine(plan)
    check_trt(engine, f"{path} does not load", here.logger, kind=EngineMismatchError, fix=fix)
    return engine


def check_signature(
    engine: trt.ICudaEngine, inputs: Mapping[str, TensorInfo], outputs: Mapping[str, TensorInfo], label: str, fix: str
) -> None:
    """The plan has the tensors that its manifest names. Raises EngineMismatchError."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    found = {name: (engine.get_tensor_mode(name).name, dtype_name(engine.get_tensor_dtype(name))) for name in names}
    expected = {info.name: ("INPUT", info.dtype) for info in inputs.values()}
    expected |= {info.name: ("OUTPUT", info.dtype) for info in outputs.values()}
    if found != expected:
        raise EngineMismatchError(f"{label} has the tensors {found}, its manifest says {expected}", fix=fix)


def shape_ranges(engine: trt.ICudaEngine, inputs: Mapping[str, TensorInfo]) -> tuple[ShapeRange, ...]:
    """The shape ranges that an engine was built for."""
    ranges = []
    for index in range(engine.num_optimization_profiles):
        ends = {name: _least_and_largest(engine, name, index) for name in inputs}
        ranges.append(ShapeRange({n: low for n, (low, _) in ends.items()}, {n: high for n, (_, high) in ends.items()}))
    return tuple(ranges)


def _least_and_largest(engine: trt.ICudaEngine, name: str, index: int) -> tuple[Shape, Shape]:
    shape = tuple(engine.get_tensor_shape(name))
    if -1 not in shape:
        return shape, shape
    least, _, largest = engine.get_tensor_profile_shape(name, index)
    return tuple(least), tuple(largest)


class Profiler(trt.IProfiler):  # type: ignore[misc]
    """Takes what TensorRT reports of its layers, one list per run."""

    def __init__(self) -> None:
        trt.IProfiler.__init__(self)
        self.runs: list[LayerRun] = []

    def begin(self) -> None:
        """What comes now belongs to a new run."""
        self.runs.append([])

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Take one layer's time; called by TensorRT."""
        self.runs[-1].append((layer_name, ms))


class Context:
    """An execution context with what is set in it: only what changes is set again. One stream at a time."""

    def __init__(
        self, context: trt.IExecutionContext, engine: trt.ICudaEngine, name: str, range_index: int, memory: Tensor
    ) -> None:
        self.range_index = range_index
        self._name, self._memory = name, memory
        self._context = context
        # Set after the context: whatever drops both without `close` drops the engine last.
        self._engine = engine
        context.set_device_memory(memory.address, memory.size_bytes)
        # A new context is on the first range.
        self._is_on_range = range_index == 0
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        # Not kept alive: whoever dropped an execution wants its memory back.
        self._last: ref[Binding] | None = None

    def launch(self, binding: Binding, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        if self._last is None or self._last() is not binding:
            self.prepare(binding, stream)
            self._set_addresses(binding)
            self._last = ref(binding)
        self._must(self._context.execute_async_v3(stream.handle), "failed to execute")

    def prepare(self, binding: Binding, stream: Stream) -> None:
        """Set range and shapes, in this order. Raises EngineError."""
        self._last = None
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

    def layers(self) -> str:
        """The inspector's JSON. It knows the sizes of free dimensions from the shapes that are set here."""
        inspector = self._engine.create_engine_inspector()
        inspector.execution_context = self._context
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))

    def close(self) -> None:
        """Destroy it; nothing of it may be pending, no captured graph of it may live."""
        self._last = None
        del self._context
        del self._engine

    def _set_addresses(self, binding: Binding) -> None:
        for name, address in binding.addresses.items():
            if self._addresses.get(name) != address:
                self._must(self._context.set_tensor_address(name, address), f"{name} does not take its address")
                self._addresses[name] = address

    def _must(self, answer: Any, what: str) -> None:
        if not answer:
            self._last = None
            check_trt(None, f"{self._name}: {what}", library().logger)


class TensorRtEngine:
    """One plan. `bind`, launches and holds belong to the thread of the ticks; `run` and `profile` to any.

    `in_tick` reserves what ticks need when it opens: activation memory, and a context per shape range. Raises
    EngineMismatchError (another GPU or version, damaged), OutOfMemoryError, EngineError.
    """

    def __init__(
        self, manifest: Manifest, folder: Path, *, device: Device, fix: str = "", in_tick: bool = False
    ) -> None:
        self.name, self.manifest = manifest.name, manifest
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.outputs}
        self._device, self._fix, self._is_in_tick = device, fix, in_tick
        self._shared: dict[int, Context] = {}
        self._free: dict[int, list[AnyContext]] = {}
        self._host: HostRuns | None = None
        self._host_lock = threading.Lock()
        self._is_closed = False
        self._engine: trt.ICudaEngine = load(manifest, folder, fix)
        check_signature(self._engine, self.inputs, self.outputs, f"{folder / manifest.engine_file}", fix)
        self._free_inputs = [name for name in self.inputs if -1 in tuple(self._engine.get_tensor_shape(name))]
        self.ranges = shape_ranges(self._engine, self.inputs)
        if in_tick:
            for index in range(len(self.ranges)):
                self._shared[index] = self._new_context(index)

    @property
    def activation_bytes(self) -> int:
        """Memory that one execute works in, at the largest shape."""
        return int(self._engine.device_memory_size_v2)

    def bind(self, tensors: Mapping[str, Tensor]) -> ContextExecution:
        """Bind every input and output by address. Raises ShapeError, EngineError."""
        return ContextExecution(self, self.binding(tensors))

    def binding(self, tensors: Mapping[str, Tensor]) -> Binding:
        """What an execute on these tensors sets in a context. Raises ShapeError, EngineError."""
        check_tensors(self.name, {**self.inputs, **self.outputs}, tensors)
        addresses = {name: tensors[name].address for name in (*self.inputs, *self.outputs)}
        for name, address in addresses.items():
            if address % ALIGNMENT_BYTES:
                raise EngineError(f"{self.name}: {name} lies at {address:#x}, expected a multiple of {ALIGNMENT_BYTES}")
        shapes = self.shapes_binding({name: tensors[name].shape for name in self.inputs})
        return replace(shapes, addresses=addresses, tensors=tuple(tensors[name] for name in addresses))

    def shapes_binding(self, shapes: Mapping[str, Shape]) -> Binding:
        """A binding that sets shapes only: in the first range that holds them. Raises ShapeError."""
        index = choose_range(self.name, self.ranges, self.inputs, shapes, self._fix)
        # TensorRT wants no shape for an input that has no free dimension.
        return Binding(index, {name: shapes[name] for name in self._free_inputs})

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One blocking execute on a context, stream and memory of its own. Raises ShapeError, EngineError."""
        with self._hosting() as host:
            return host.run(feeds)

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """TensorRT's own times per layer. Raises ShapeError, EngineError."""
        with self._hosting() as host:
            found, layers = host.profile(feeds, runs)
        return node_times(found, layer_records(layers))

    def close(self) -> None:
        """Release everything that no execution holds. Nothing of it may be pending."""
        contexts = [*self._shared.values(), *(context for free in self._free.values() for context in free)]
        self._shared, self._free = {}, {}
        for context in contexts:
            context.close()
        contexts.clear()
        with self._host_lock:
            if self._host is not None:
                self._host.close()
                self._host = None
        if not self._is_closed:
            self._is_closed = True
            del self._engine

    def shared(self, index: int) -> Context:
        """The context for plain launches in a shape range. Raises EngineError."""
        if index not in self._shared:
            self._shared[index] = self._new_context(index)
        return self._shared[index]

    def take(self, index: int) -> AnyContext:
        """A context for one execution alone: an idle one, or a new one. Raises EngineError."""
        free = self._free.get(index)
        return free.pop() if free else self._new_context(index)

    def give(self, context: AnyContext) -> None:
        """Give a taken context back; what captured it is gone."""
        if self._is_closed:
            context.close()
        else:
            self._free.setdefault(context.range_index, []).append(context)

    def new_context(self, index: int, memory: Tensor) -> Context:
        """A context on activation memory of the caller's. Raises EngineError."""
        context = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        check_trt(context, f"{self.name}: no execution context for shape range {index}", library().logger)
        return Context(context, self._engine, self.name, index, memory)

    def _new_context(self, index: int) -> Context:
        return self.new_context(index, reserve_for_ticks(self._device, self.activation_bytes))

    @contextmanager
    def _hosting(self) -> Iterator[HostRuns]:
        """What `run` works with; kept for the next time, but for engines of ticks, which seldom run so."""
        with self._host_lock:
            host = self._host or HostRuns(self, self._device, Profiler)
            try:
                yield host
            finally:
                if self._is_in_tick:
                    host.close()
                else:
                    self._host = host
