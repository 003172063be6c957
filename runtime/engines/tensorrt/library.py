"""TensorRT 10.16 to 11: the library, loaded engines, execution contexts.

Calls that return False or None on failure are checked by `check_trt`, which adds the messages that TensorRT logged.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import ref

from runtime.base.errors import EngineError, EngineMismatchError, ShapeError
from runtime.devices.cuda_calls import free_bytes, probe
from runtime.devices.device import ALIGNMENT_BYTES, Stream, Tensor
from runtime.engines.engine import check_tensors
from runtime.engines.manifest import Manifest, TensorInfo
from runtime.engines.node_times import LayerTimes
from runtime.engines.tensorrt.binding import NAMES, is_rtx, trt
from runtime.engines.tensorrt.engine_file import check_engine_version, read_engine_header
from runtime.engines.tensorrt.errors import check_trt, dtype_name

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProfileRange:
    """One shape range of a plan: the smallest and the largest shape of every input."""

    least: Mapping[str, Shape]
    largest: Mapping[str, Shape]

    def misfit(self, shapes: Mapping[str, Shape]) -> tuple[str, int] | None:
        """The first input and dimension outside the range; None where all are inside."""
        for name, low in self.least.items():
            for axis, (least, size, largest) in enumerate(zip(low, shapes[name], self.largest[name], strict=True)):
                if not least <= size <= largest:
                    return name, axis
        return None


def choose_range(
    engine: str, ranges: Sequence[ProfileRange], infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], fix: str
) -> int:
    """The index of the first range that contains all shapes.

    Raises ShapeError with the dimension that each range refuses, the sizes it allows, and the build command `fix`.
    """
    misfits = [shape_range.misfit(shapes) for shape_range in ranges]
    if None in misfits:
        return misfits.index(None)
    refusals = [
        _refusal(index, shape_range, infos, *misfit)
        for index, (shape_range, misfit) in enumerate(zip(ranges, misfits, strict=True))
        if misfit is not None
    ]
    names = dict.fromkeys(misfit[0] for misfit in misfits if misfit is not None)
    asked = ", ".join(f"{name} {shapes[name]}" for name in names)
    raise ShapeError(
        f"{engine}: no shape range contains {asked}; {'; '.join(dict.fromkeys(refusals))}",
        fix=f"add a [[shapes]] table for it to the deployment file, then {fix or 'tickrt-build CONFIG'}",
    )


def _refusal(index: int, shape_range: ProfileRange, infos: Mapping[str, TensorInfo], name: str, axis: int) -> str:
    word = infos[name].shape[axis]
    label = f"dimension {axis} ({word})" if isinstance(word, str) else f"dimension {axis}"
    allowed = f"{shape_range.least[name][axis]}..{shape_range.largest[name][axis]}"
    return f"range {index} allows {allowed} in {label} of {name}"


KEPT_MESSAGES = 16
WARM_UP_RUNS = 3
LIBRARY = 0
# With less free memory a call that failed without a reason has failed for want of it.
SHORT_BYTES = 64 << 20

log = logging.getLogger(__name__)


class RecentMessagesLogger(trt.ILogger):  # type: ignore[misc]
    """Keeps the latest errors and warnings of each thread, and passes all messages to Python's logging.

    Those of the library's own threads are anybody's: which call they belong to is not known.
    """

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
            self._messages.append((_caller(), msg))
        # At most INFO: errors are raised as exceptions with this text.
        log.log(min(level, logging.INFO), "TensorRT: %s", msg)

    def take(self) -> str:
        """The errors and warnings of this thread's calls, and of the library's threads, since the last `take`."""
        own = [pair for pair in list(self._messages) if pair[0] in (threading.get_ident(), LIBRARY)]
        for pair in own:
            with suppress(ValueError):
                self._messages.remove(pair)
        return "; ".join(dict.fromkeys(text for _, text in own))


class NativeLogger(trt.Logger):  # type: ignore[misc]
    """The library's own logger, which prints errors on standard output without Python.

    A thread of TensorRT-RTX compiles kernels, and the end of a context waits for it with Python's lock held. Where it
    logged to Python, it would wait for that lock, and neither thread would ever go on.
    """

    def __init__(self) -> None:
        trt.Logger.__init__(self, trt.Logger.ERROR)

    def take(self) -> str:
        """Whether memory is short, where a call has failed: nothing else is known. Raises EngineDeadError."""
        free = free_bytes()
        return f"probably out of memory: {free >> 20} MiB of the GPU's memory are free" * (free < SHORT_BYTES)


def _caller() -> int:
    """The calling thread; LIBRARY where Python has not started it."""
    ident = threading.get_ident()
    own = (thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread))
    return ident if any(thread.ident == ident for thread in own) else LIBRARY


@dataclass(frozen=True, slots=True)
class Library:
    """TensorRT's runtime object and its logger, one per process."""

    logger: RecentMessagesLogger | NativeLogger
    runtime: trt.Runtime


_library: Library | None = None
# The first holds for the start of the library, the second while one plan is deserialized: loading threads take turns.
_library_lock = threading.Lock()
_load_lock = threading.Lock()


def library_version() -> str:
    """TensorRT's version: "11.4.0.106"."""
    return str(trt.__version__)


def library() -> Library:
    """The process's TensorRT. Raises EngineError where there is no GPU: without a driver TensorRT crashes."""
    global _library
    with _library_lock:
        if _library is None:
            probe()
            logger = NativeLogger() if is_rtx() else RecentMessagesLogger()
            try:
                _library = Library(logger, trt.Runtime(logger))
            except TypeError as error:
                raise EngineError(f"TensorRT does not start: {logger.take() or error}") from error
        return _library


class LayerProfiler(trt.IProfiler):  # type: ignore[misc]
    """Collects the layer times that TensorRT reports, one list per run."""

    def __init__(self) -> None:
        trt.IProfiler.__init__(self)
        self.runs: list[LayerTimes] = []

    def begin_run(self) -> None:
        """Times reported from now on belong to a new run."""
        self.runs.append([])

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Take one layer's time; called by TensorRT."""
        self.runs[-1].append((layer_name, ms))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ContextSettings:
    """What one execute sets in a context: shape range, shapes of inputs with free dimensions, all addresses.

    `tensors` keeps their memory alive.
    """

    range_index: int
    shapes: Mapping[str, Shape]
    addresses: Mapping[str, int] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()


class LoadedEngine:
    """A deserialized plan. Raises EngineMismatchError (another GPU or version, damaged), OutOfMemoryError, EngineError.

    `ranges`: the shape ranges it was built for. `fix`: the build command, for errors.
    """

    def __init__(self, manifest: Manifest, folder: Path, fix: str) -> None:
        self.name, self._fix = manifest.name, fix
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.outputs}
        self._engine = _deserialize(manifest, folder / manifest.engine_file, fix)
        self._check_tensor_names(str(folder / manifest.engine_file))
        # Output -> the input that it updates in place, whose memory it must have.
        self.aliases = {name: str(source) for name in self.outputs if (source := self._aliased_input(name))}
        self._free_inputs = [name for name in self.inputs if -1 in tuple(self._engine.get_tensor_shape(name))]
        self.ranges = tuple(self._shape_range(index) for index in range(self._engine.num_optimization_profiles))

    @property
    def engine(self) -> trt.ICudaEngine:
        """TensorRT's engine."""
        return self._engine

    @property
    def activation_bytes(self) -> int:
        """Activation memory of one execute at the largest shape."""
        return int(self._engine.device_memory_size_v2)

    def range_bytes(self, index: int) -> int:
        """Activation memory of one execute at the largest shape of a range."""
        return int(self._engine.get_device_memory_size_for_profile_v2(index))

    def settings(self, tensors: Mapping[str, Tensor]) -> ContextSettings:
        """What an execute on these tensors sets in a context. Raises ShapeError, EngineError."""
        check_tensors(self.name, {**self.inputs, **self.outputs}, tensors)
        addresses = {name: tensors[name].address for name in (*self.inputs, *self.outputs)}
        for name, address in addresses.items():
            if address % ALIGNMENT_BYTES:
                raise EngineError(f"{self.name}: {name} lies at {address:#x}, expected a multiple of {ALIGNMENT_BYTES}")
        for output, source in self.aliases.items():
            if addresses[output] != addresses[source]:
                raise EngineError(f"{self.name}: {output} is not bound to the memory of {source}, updated in place")
        shapes = self.shape_settings({name: tensors[name].shape for name in self.inputs})
        return replace(shapes, addresses=addresses, tensors=tuple(tensors[name] for name in addresses))

    def shape_settings(self, shapes: Mapping[str, Shape]) -> ContextSettings:
        """Settings without addresses, in the first range that holds these input shapes. Raises ShapeError."""
        index = choose_range(self.name, self.ranges, self.inputs, shapes, self._fix)
        # TensorRT takes no shape for an input without free dimensions.
        return ContextSettings(index, {name: shapes[name] for name in self._free_inputs})

    def new_context(self, index: int, memory: Tensor, kernels: str = "") -> Context:
        """A context for a shape range, on the caller's activation memory; kernels: see rtx. Raises EngineError."""
        context = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        check_trt(context, f"{self.name}: no execution context for shape range {index}", library().logger.take)
        return Context(context, self._engine, self.name, index, memory)

    def close(self) -> None:
        """Release the plan; it is destroyed with its last context."""
        with suppress(AttributeError):
            del self._engine

    def _aliased_input(self, output: str) -> str | None:
        found: str | None = self._engine.get_aliased_input_tensor(output)
        return found

    def _check_tensor_names(self, label: str) -> None:
        engine = self._engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        found = {name: (engine.get_tensor_mode(name).name, dtype_name(engine.get_tensor_dtype(name))) for name in names}
        expected = {info.name: ("INPUT", info.dtype) for info in self.inputs.values()}
        expected |= {info.name: ("OUTPUT", info.dtype) for info in self.outputs.values()}
        if found != expected:
            raise EngineMismatchError(f"{label} has the tensors {found}, its manifest says {expected}", fix=self._fix)

    def _shape_range(self, index: int) -> ProfileRange:
        limits = {name: self._shape_limits(name, index) for name in self.inputs}
        return ProfileRange(
            {n: least for n, (least, _) in limits.items()}, {n: most for n, (_, most) in limits.items()}
        )

    def _shape_limits(self, name: str, index: int) -> tuple[Shape, Shape]:
        shape = tuple(self._engine.get_tensor_shape(name))
        if -1 not in shape:
            return shape, shape
        least, _, largest = self._engine.get_tensor_profile_shape(name, index)
        return tuple(least), tuple(largest)


def _deserialize(manifest: Manifest, path: Path, fix: str) -> trt.ICudaEngine:
    compatible = bool(manifest.build.get("version_compatible", False))
    header = read_engine_header(path, fix=fix)
    name, version = NAMES[manifest.target], library_version()
    check_engine_version(header, name, version, str(path), version_compatible=compatible, fix=fix)
    trt_library = library()
    with _load_lock, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        # A version-compatible plan contains its runtime as code; its hash is checked against the manifest before.
        trt_library.runtime.engine_host_code_allowed = compatible
        engine = trt_library.runtime.deserialize_cuda_engine(plan)
    check_trt(engine, f"{path} does not load", trt_library.logger.take, kind=EngineMismatchError, fix=fix)
    return engine


class Context:
    """An execution context that remembers what is set in it, and sets only what changes. One stream at a time."""

    def __init__(
        self, context: trt.IExecutionContext, engine: trt.ICudaEngine, name: str, range_index: int, memory: Tensor
    ) -> None:
        self.range_index = range_index
        self._name, self._memory = name, memory
        self._context = context
        # Set after the context: when both are dropped without `close`, the engine is dropped last.
        self._engine = engine
        self._is_on_range = False
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        # A weak reference: the memory of a dropped execution must become free.
        self._last: ref[ContextSettings] | None = None

    def launch(self, settings: ContextSettings, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        if self._last is None or self._last() is not settings:
            self.prepare(settings, stream)
            self._set_addresses(settings)
            self._last = ref(settings)
        self._check(self._context.execute_async_v3(stream.handle), "failed to execute")

    def prepare(self, settings: ContextSettings, stream: Stream) -> None:
        """Set range and shapes, in this order. Raises EngineError."""
        self._last = None
        if not self._is_on_range:
            self._enter_range(stream)
        for name, shape in settings.shapes.items():
            if self._shapes.get(name) != shape:
                self._shapes.pop(name, None)
                self._check(self._context.set_input_shape(name, shape), f"{name} does not take shape {shape}")
                self._shapes[name] = shape

    def _enter_range(self, stream: Stream) -> None:
        """Switch to the range, then set the memory, which has to hold an execute of this range. Raises EngineError."""
        if self.range_index:  # a new context is on the first range
            switched = self._context.set_optimization_profile_async(self.range_index, stream.handle)
            self._check(switched, f"cannot switch to shape range {self.range_index}")
        self._context.set_device_memory(self._memory.address, self._memory.size_bytes)
        self._is_on_range = True

    def output_shape(self, name: str) -> Shape:
        """An output's shape for the shapes that are set. Raises EngineError."""
        missing = self._context.infer_shapes()
        if missing:
            raise EngineError(f"{self._name}: shapes of {', '.join(missing)} are not set")
        return tuple(self._context.get_tensor_shape(name))

    def profile(self, settings: ContextSettings, stream: Stream, runs: int, profiler: LayerProfiler) -> None:
        """Measure every layer of `runs` executes after a warm-up. `profiler` outlives this context.

        Raises EngineError.
        """
        for _ in range(WARM_UP_RUNS):
            self.launch(settings, stream)
        # Until the warm-up is over, which would be part of the first times otherwise.
        stream.record().wait()
        # Reporting inside an enqueue would make it wait for the device.
        self._context.enqueue_emits_profile = False
        self._context.profiler = profiler
        for _ in range(runs):
            profiler.begin_run()
            self.launch(settings, stream)
            stream.record().wait()
            self._check(self._context.report_to_profiler(), "reports no layer times")

    def layers_json(self) -> str:
        """The engine inspector's JSON, with free dimensions as set in this context."""
        inspector = self._engine.create_engine_inspector()
        inspector.execution_context = self._context
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))

    def close(self) -> None:
        """Destroy the context. No execute of it may be pending, no captured graph of it may exist."""
        self._last = None
        del self._context
        del self._engine

    def _set_addresses(self, settings: ContextSettings) -> None:
        for name, address in settings.addresses.items():
            if self._addresses.get(name) != address:
                self._check(self._context.set_tensor_address(name, address), f"{name} does not take its address")
                self._addresses[name] = address

    def _check(self, result: Any, what: str) -> None:
        if not result:
            self._last = None
            check_trt(None, f"{self._name}: {what}", library().logger.take)
