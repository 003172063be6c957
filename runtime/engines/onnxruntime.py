"""Engines on ONNX Runtime's CPU provider: offline-optimized graphs, bound to addresses once per shape."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from runtime.device import Device, Stream, Tensor
from runtime.errors import EngineError, EngineMismatchError
from runtime.manifest import Manifest, TensorInfo
from runtime.nodes import NodeTimes
from runtime.tensors import check_tensors

LOAD_ERRORS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)
WARM_UP_RUNS = 3
KERNEL_SUFFIX = "_kernel_time"
RUN_ERRORS = (ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.RuntimeException)


def session_options(threads: int) -> ort.SessionOptions:
    """The graph is already optimized; `threads` 0 means all cores. One thread runs in the caller's own."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def node_times(events: list[dict[str, Any]], warm_up: int, runs: int) -> tuple[NodeTimes, ...]:
    """Node times from ONNX Runtime's trace events, without the first `warm_up` executes. Durations there are in us."""
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    first_us = starts[warm_up]
    nodes: dict[tuple[str, str], dict[int, float]] = {}
    for event in sorted((e for e in events if e.get("cat") == "Node"), key=lambda e: float(e["ts"])):
        if event["name"].endswith(KERNEL_SUFFIX) and event["ts"] >= first_us:
            key = (event["name"].removesuffix(KERNEL_SUFFIX), event["args"]["op_name"])
            run = bisect_right(starts, event["ts"]) - 1 - warm_up
            times = nodes.setdefault(key, {})
            times[run] = times.get(run, 0.0) + event["dur"] / 1e3
    return tuple(
        NodeTimes(name, op_type, tuple(times.get(run, 0.0) for run in range(runs)))
        for (name, op_type), times in nodes.items()
    )


class OnnxRuntimeEngine:
    """One ONNX Runtime session. `bind` gives an execution; `run` blocks and allocates its outputs."""

    def __init__(self, manifest: Manifest, folder: Path, *, device: Device, threads: int = 0, fix: str = "") -> None:
        self.name = manifest.name
        self.manifest = manifest
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.outputs}
        self._path, self._threads = folder / manifest.engine_file, threads
        try:
            self._session = self._open(session_options(threads))
        except LOAD_ERRORS as error:
            raise EngineMismatchError(f"{self._path} does not load: {error}", fix=fix) from error

    def _open(self, options: ort.SessionOptions) -> ort.InferenceSession:
        return ort.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])

    def bind(self, tensors: Mapping[str, Tensor]) -> OnnxRuntimeExecution:
        """Bind every input and output by address. Raises ShapeError."""
        check_tensors(self.name, {**self.inputs, **self.outputs}, tensors)
        return OnnxRuntimeExecution(self._session, self, tensors)

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One blocking execute. Raises EngineError."""
        names = list(self.outputs)
        try:
            results = self._session.run(names, {name: feeds[name] for name in self.inputs})
        except RUN_ERRORS as error:
            raise EngineError(f"{self.name} failed to execute: {error}") from error
        return dict(zip(names, results, strict=True))

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """ONNX Runtime's own profile of a second session over the same file. Raises EngineError."""
        options = session_options(self._threads)
        options.enable_profiling = True
        with tempfile.TemporaryDirectory() as folder:
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = self._open(options)
            try:
                for _ in range(WARM_UP_RUNS + runs):
                    session.run(None, {name: feeds[name] for name in self.inputs})
            except RUN_ERRORS as error:
                raise EngineError(f"{self.name} failed to execute: {error}") from error
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return node_times(events, WARM_UP_RUNS, runs)

    def close(self) -> None:
        """Drop the session."""
        del self._session


class OnnxRuntimeExecution:
    """A session's IoBinding; the tensors are kept alive as long as it lives."""

    def __init__(self, session: ort.InferenceSession, engine: OnnxRuntimeEngine, tensors: Mapping[str, Tensor]) -> None:
        self._session = session
        self._name = engine.name
        self._binding = session.io_binding()
        self._tensors = {name: tensors[name] for name in (*engine.inputs, *engine.outputs)}
        for name in engine.inputs:
            tensor = tensors[name]
            self._binding.bind_input(name, "cpu", 0, np.dtype(tensor.dtype), tensor.shape, tensor.address)
        for name in engine.outputs:
            tensor = tensors[name]
            self._binding.bind_output(name, "cpu", 0, np.dtype(tensor.dtype), tensor.shape, tensor.address)

    def launch(self, stream: Stream) -> None:
        """One execute, done when this returns. Raises EngineError."""
        try:
            self._session.run_with_iobinding(self._binding)
        except RUN_ERRORS as error:
            raise EngineError(f"{self._name} failed to execute: {error}") from error

    def hold(self, stream: Stream) -> None:
        """A launch: the binding is this execution's own anyway. Raises EngineError."""
        self.launch(stream)

    def release(self) -> None:
        """Nothing was taken."""
