"""Engines on ONNX Runtime, on the CPU or with the CUDA provider: optimized graphs, bound to tensors by address.

On the GPU the session of the ticks runs on the device's main stream, asynchronously, on device memory. A second session
with its own stream runs on host arrays.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime.base.errors import ENDINGS, CaptureError, EngineDeadError, EngineError, EngineMismatchError, TickError
from runtime.devices.device import Device, Level, Stream, Tensor
from runtime.devices.machine import num_cores
from runtime.engines.adapters import FACTORS_A, FACTORS_B
from runtime.engines.engine import Execution, check_tensors
from runtime.engines.manifest import Manifest, TensorInfo, measured_threads
from runtime.engines.node_times import NodeTimes, trace_events, trace_node_times
from runtime.engines.onnxruntime_cuda import (
    ASYNCHRONOUS,
    CPU_PROVIDER,
    DATA_FOLDER_ENTRY,
    NOTHING_TO_RECORD,
    RECORDING,
    check_on_device,
    executing,
    open_session,
    translate_error,
)

if TYPE_CHECKING:
    from runtime.engines.merging import MergedWeights

MIN_ROWS = 2


def row_parts(
    infos: Mapping[str, TensorInfo], tensors: Mapping[str, Tensor], number: int
) -> list[Mapping[str, Tensor]]:
    """`number` parts of a decoder's rows, over the same memory; one where a part would have less than MIN_ROWS.

    Rows are the first dimension of all its tensors, under any name, but for the factors of adapters, which
    belong to every part. A graph whose rows are fixed has one part.
    """
    names = infos.keys() - {FACTORS_A, FACTORS_B}
    rows = min(tensors[name].shape[0] for name in names)
    is_free = all(isinstance(infos[name].shape[0], str) and tensors[name].shape[0] == rows for name in names)
    if number == 1 or not is_free or rows < MIN_ROWS * number:
        return [tensors]
    # Parts differ by one row at most.
    ends = [rows * index // number for index in range(number + 1)]
    return [
        {name: _rows(tensor, *part) if name in names else tensor for name, tensor in tensors.items()}
        for part in pairwise(ends)
    ]


def _rows(tensor: Tensor, first: int, end: int) -> Tensor:
    return tensor.view(end - first, *tensor.shape[1:], start=first * prod(tensor.shape[1:]))


class PartsExecution:
    """Executions that run at once: the first on the caller's thread, the others on the pool's.

    whole: all rows in one execute. Where the parts fail and it does not, it runs from then on, and `refused` is told.
    """

    def __init__(
        self,
        parts: Sequence[Execution],
        pool: ThreadPoolExecutor,
        whole: Execution,
        refused: Callable[[EngineError], None],
    ) -> None:
        self._parts, self._pool, self._whole, self._refused = parts, pool, whole, refused

    def prepare(self, stream: Stream) -> bool:
        """Whether it is ready, as on the CPU always."""
        return self._whole.prepare(stream)

    def launch(self, stream: Stream) -> None:
        """Execute; blocks until all parts are done, also where one fails. Raises EngineError."""
        failed = self._launch_parts(stream)
        if failed is not None or not self._parts:
            self._whole.launch(stream)
        if failed is not None:
            self._parts = ()
            self._refused(failed)

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    def warm_up(self, stream: Stream) -> None:
        """Execute; nothing else needs to be prepared. Raises EngineError."""
        self.launch(stream)

    def release(self) -> None:
        """Does nothing."""

    def _launch_parts(self, stream: Stream) -> EngineError | None:
        """Execute the parts, if any is left; returns why they failed. Raises EngineDeadError."""
        others = [self._pool.submit(part.launch, stream) for part in self._parts[1:]]
        try:
            for part in self._parts[:1]:
                part.launch(stream)
            for other in others:
                other.result()
        except EngineDeadError:
            raise
        except EngineError as error:
            return error
        finally:
            # Until no thread uses the tensors, also where a part has failed: their owner may write to them next.
            wait(others)
        return None


WARM_UP_RUNS = 3
# Of an engine that may run in parts: their session holds the weights again.
LARGEST_PARTS_BYTES = 256 << 20

logger = logging.getLogger(__name__)


def session_options(threads: int) -> ort.SessionOptions:
    """Options for a graph that is optimized already. `threads`: 0 = all cores, 1 = the calling thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # What it would log is in the error that it raises.
    options.log_severity_level = 4
    # A pattern takes memory for a whole execute, and there is one for each shape that ever was; runs are no faster.
    options.enable_mem_pattern = False
    # Between two executes the threads leave the cores to the codec and the server.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


class OnnxRuntimeEngine:
    """One graph in ONNX Runtime. Any thread may call `run`.

    `in_tick`: open the sessions of the ticks now, and the one for host arrays on first use; else the other way round.
    `stream`: on which ticks execute, by default the device's main one. `threads`: 0 for as many as the build found best
    where it had as many cores as this process, else all cores. `weights`: take the place of the graph's.
    Raises EngineMismatchError, EngineError, OutOfMemoryError.
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
        self.name = manifest.name
        self.manifest = manifest
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.outputs}
        self.is_recordable: bool | None = None
        self.device, self.stream = device, stream or device.main
        self._path, self._fix = folder / manifest.engine_file, fix
        self._threads = threads or measured_threads(manifest, num_cores())
        self._graph = None if weights is None else weights.graph(self._path)
        self._sessions: dict[tuple[Level | None, int], ort.InferenceSession] = {}
        self._streams: dict[Level, Stream] = {}
        # Held for a whole execute on host arrays on the GPU: callers of one level share its stream, and take turns.
        self._turns = {level: threading.Lock() for level in Level}
        self._pool: ThreadPoolExecutor | None = None
        # Held while a session opens: another thread that needs one waits for as long as reading the file takes.
        self._lock = threading.Lock()
        self._session(None if in_tick else Level.BACKGROUND)
        may_have_parts = not self.is_on_gpu and manifest.size_bytes <= LARGEST_PARTS_BYTES
        self._num_parts = (self._threads or num_cores()) if may_have_parts else 1
        # Only decoders have shape ranges.
        most_rows = max((shapes.rows.max for shapes in manifest.shapes), default=0)
        if most_rows < MIN_ROWS * self._num_parts:
            self._num_parts = 1
        if in_tick and self._num_parts > 1:
            self._session(None, 1)

    @property
    def is_on_gpu(self) -> bool:
        """Whether it was compiled for the CUDA provider."""
        return self.manifest.target == "cuda"

    def bind(self, tensors: Mapping[str, Tensor]) -> Execution:
        """Bind every input and output by address. Raises ShapeError, EngineError.

        On the CPU an execute of many rows runs in a part for each core, in a session of one thread (row_parts).
        """
        infos = {**self.inputs, **self.outputs}
        check_tensors(self.name, infos, tensors)
        kind = OnnxRuntimeCudaExecution if self.is_on_gpu else OnnxRuntimeExecution
        whole = kind(self._session(None), self, tensors)
        # Parts are views of the caller's tensors, a range of rows each: nothing is copied.
        parts = [tensors] if self._num_parts == 1 else row_parts(infos, tensors, self._num_parts)
        if len(parts) == 1:
            return whole
        self._pool = self._pool or ThreadPoolExecutor(len(parts) - 1, thread_name_prefix=self.name)
        session = self._session(None, 1)
        executions = [OnnxRuntimeExecution(session, self, part) for part in parts]
        return PartsExecution(executions, self._pool, whole, self._refuse_parts)

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute. Raises EngineError, OutOfMemoryError.

        On the GPU what is not LIVE is BACKGROUND: a session of each level would hold the weights once more.
        """
        names = list(self.outputs)
        kept = Level.LIVE if level is Level.LIVE else Level.BACKGROUND
        session, given = self._session(kept), {name: feeds[name] for name in self.inputs}
        with self._turns[kept] if self.is_on_gpu else nullcontext():
            results = executing(self.label(given), session.run, names, given)
        return dict(zip(names, results, strict=True))

    def label(self, tensors: Mapping[str, Any]) -> str:
        """Its name in errors of an execute, with the shape of the first input, which mostly tells that of all."""
        name = next(iter(self.inputs))
        return f"{self.name} with {name} {'x'.join(map(str, tensors[name].shape))}"

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """Times from ONNX Runtime's profiler, in a new session over the same file. Raises EngineError.

        The weights are in memory once: sessions without executions close, and open again for the next one.
        On the GPU these are times of launches, not of kernels. With CUDA_LAUNCH_BLOCKING=1 in the environment each
        launch waits for its kernel, and they are the kernels' times.
        """
        options = session_options(self._threads)
        options.enable_profiling = True
        self._close_sessions()
        with tempfile.TemporaryDirectory() as folder:
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = self._open(options, None)
            for _ in range(WARM_UP_RUNS + runs):
                executing(self.label(feeds), session.run, None, {name: feeds[name] for name in self.inputs})
            with Path(session.end_profiling()).open(encoding="utf-8", errors="replace", newline="\n") as lines:
                events = trace_events(lines)
        return trace_node_times(events, WARM_UP_RUNS, runs)

    def close(self) -> None:
        """Close the sessions."""
        self._close_sessions()
        if self._pool is not None:
            self._pool.shutdown()

    def _close_sessions(self) -> None:
        with self._lock:
            self._sessions.clear()

    def _session(self, level: Level | None, threads: int | None = None) -> ort.InferenceSession:
        """The session of the ticks (None), or that of a level for host arrays; on the CPU they are the same."""
        key = level if self.is_on_gpu else None, self._threads if threads is None else threads
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._open(session_options(key[1]), self._stream(level))
            return self._sessions[key]

    def _stream(self, level: Level | None) -> int | None:
        """The handle of the stream that a session runs on; it is kept for the engine's life. None on the CPU."""
        if not self.is_on_gpu:
            return None
        if level is not None and level not in self._streams:
            self._streams[level] = self.device.stream(level)
        return (self.stream if level is None else self._streams[level]).handle

    def _source(self, options: ort.SessionOptions) -> str | bytes:
        """What a session opens: the file, or its graph with other weights, which the options then refer to."""
        if self._graph is None:
            return str(self._path)
        values = [ort.OrtValue.ortvalue_from_numpy_with_onnx_type(*value) for value in self._graph.weights.values()]
        options.add_external_initializers([*self._graph.weights], values)
        options.add_session_config_entry(DATA_FOLDER_ENTRY, str(self._path.parent))
        return self._graph.model

    def _refuse_parts(self, error: EngineError) -> None:
        """A graph does not take a part of the rows that it takes in one execute: it has all of them from now on."""
        if self._num_parts > 1:
            logger.warning("%s takes no part of its rows, and runs all of them in one execute: %s", self.name, error)
        self._num_parts = 1

    def _open(self, options: ort.SessionOptions, stream: int | None) -> ort.InferenceSession:
        try:
            source = self._source(options)
            if self.is_on_gpu:
                tf32 = bool(self.manifest.build.get("tf32"))
                session = open_session(ort, source, options, stream=stream, tf32=tf32)
                check_on_device(self.name, session.get_provider_graph_assignment_info(), self._fix)
                return session
            return ort.InferenceSession(source, options, providers=[CPU_PROVIDER])
        except (TickError, *ENDINGS):
            raise
        except BaseException as error:
            translated = translate_error(self.name, error)
            if type(translated) is not EngineError:
                raise translated from error
            raise EngineMismatchError(f"{self._path} does not load: {error}", fix=self._fix) from error


def _run_options(entries: Mapping[str, str]) -> ort.RunOptions:
    options = ort.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options


class OnnxRuntimeExecution:
    """A session's IoBinding; it keeps the tensors alive."""

    device_type = "cpu"

    def __init__(self, session: ort.InferenceSession, engine: OnnxRuntimeEngine, tensors: Mapping[str, Tensor]) -> None:
        self._session = session
        self._engine, self._label = engine, engine.label(tensors)
        self._binding = session.io_binding()
        self._tensors = {name: tensors[name] for name in (*engine.inputs, *engine.outputs)}
        for name in engine.inputs:
            executing(self._label, self._binding.bind_input, name, *self._place(tensors[name]))
        for name in engine.outputs:
            executing(self._label, self._binding.bind_output, name, *self._place(tensors[name]))

    def prepare(self, stream: Stream) -> bool:
        """True: a session has all its kernels."""
        return True

    def launch(self, stream: Stream) -> None:
        """Execute; blocks until it is done. Raises EngineError, OutOfMemoryError."""
        self._run()

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    def warm_up(self, stream: Stream) -> None:
        """Execute; nothing else needs to be prepared. Raises EngineError."""
        self.launch(stream)

    def release(self) -> None:
        """Does nothing."""

    def _run(self, *options: ort.RunOptions) -> None:
        executing(self._label, self._session.run_with_iobinding, self._binding, *options)

    def _place(self, tensor: Tensor) -> tuple[str, int, np.dtype[Any], tuple[int, ...], int]:
        return self.device_type, 0, np.dtype(tensor.dtype), tensor.shape, tensor.address


class OnnxRuntimeCudaExecution(OnnxRuntimeExecution):
    """An IoBinding to device memory, executed asynchronously on the engine's stream."""

    device_type = "cuda"

    def __init__(self, session: ort.InferenceSession, engine: OnnxRuntimeEngine, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(session, engine, tensors)
        self._device = engine.device
        self._plain, self._recording = _run_options(ASYNCHRONOUS), _run_options(RECORDING)

    def launch(self, stream: Stream) -> None:
        """Put one execute on the engine's stream. Raises EngineError, OutOfMemoryError, CaptureError.

        A release of ONNX Runtime that does not support external captures is refused in one: it would end the process.
        """
        if stream.handle != self._engine.stream.handle:
            raise EngineError(f"{self._engine.name} is launched on another stream than that of its session")
        if not self._device.is_capturing:
            self._run(self._plain)
        elif self._engine.is_recordable:
            self._run(self._recording)
        else:
            raise CaptureError(
                f"ONNX Runtime {ort.__version__} cannot be recorded into a graph that its caller captures",
                fix="set capture = false in [runtime], or use target tensorrt",
            )

    def warm_up(self, stream: Stream) -> None:
        """Execute once, so that a captured execute allocates nothing. Raises EngineError.

        The engine's first call finds out whether this release supports external captures: such a release refuses to
        record outside a capture, others ignore the option and run.
        """
        # Known after the engine's first execute, and the same for all its executions.
        if self._engine.is_recordable is None:
            try:
                self._run(self._recording)
            except EngineError as error:
                if NOTHING_TO_RECORD not in error.what:
                    raise
                self._engine.is_recordable = True
            else:
                self._engine.is_recordable = False
                return
        self.launch(stream)
