"""Engines on ONNX Runtime's CPU provider: offline-optimized graphs, bound to addresses once per shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from runtime.device import Stream, Tensor
from runtime.errors import EngineError, EngineMismatchError
from runtime.manifest import Manifest, TensorInfo
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
RUN_ERRORS = (ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.RuntimeException)


def session_options(threads: int) -> ort.SessionOptions:
    """The graph is already optimized; `threads` 0 means all cores. One thread runs in the caller's own."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


class OnnxRuntimeEngine:
    """One ONNX Runtime session. `bind` gives an execution; `run` blocks and allocates its outputs."""

    def __init__(self, manifest: Manifest, folder: Path, *, threads: int = 0, fix: str = "") -> None:
        self.name = manifest.name
        self.manifest = manifest
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in manifest.outputs}
        path = folder / manifest.engine_file
        try:
            self._session = ort.InferenceSession(
                str(path), session_options(threads), providers=["CPUExecutionProvider"]
            )
        except LOAD_ERRORS as error:
            raise EngineMismatchError(f"{path} does not load: {error}", fix=fix) from error

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
