"""The bundle's graphs in OpenVINO, on the CPU. Needs the extra `peers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino.properties import hint, inference_num_threads

from profiling.bench.statistics import mean_ms
from runtime.base.errors import EngineError
from runtime.devices.device import Level
from runtime.engines.manifest import TensorInfo

Shapes = Mapping[str, tuple[int, ...]]


class OpenVinoGraph:
    """A RunnableGraph of a file, compiled in float32 for exactly the shapes that it is given, once for each of them.

    threads: of the CPU, 0 is all cores. Raises EngineError where OpenVINO does not take the graph.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        self.name, self._path, self._threads = path.stem, path, threads
        model = _read(openvino.Core(), path)
        self.inputs: Mapping[str, TensorInfo] = {port.any_name: _info(port) for port in model.inputs}
        self.outputs: Mapping[str, TensorInfo] = {port.any_name: _info(port) for port in model.outputs}
        self._requests: dict[tuple[tuple[int, ...], ...], Any] = {}

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute with new outputs; also compiles where the shapes are new."""
        shapes = {name: feeds[name].shape for name in self.inputs}
        key = tuple(shapes.values())
        if key not in self._requests:
            self._requests[key] = compiled_request(self._path, shapes, self._threads)
        found = self._requests[key].infer({name: feeds[name] for name in self.inputs}, share_inputs=True)
        return {name: np.array(found[name]) for name in self.outputs}


def compiled_request(path: Path, shapes: Shapes, threads: int) -> Any:
    """What runs a graph in float32 for exactly these shapes, OpenVINO's fastest case. Raises EngineError."""
    core = openvino.Core()
    options = {
        hint.inference_precision: openvino.Type.f32,
        hint.performance_mode: hint.PerformanceMode.LATENCY,
        inference_num_threads: threads,
    }
    model = _read(core, path)
    try:
        model.reshape({name: list(shape) for name, shape in shapes.items()})
        return core.compile_model(model, "CPU", options).create_infer_request()
    except RuntimeError as error:
        raise _not_taken(path, error) from error


def _read(core: openvino.Core, path: Path) -> Any:
    try:
        return core.read_model(path)
    except RuntimeError as error:
        raise _not_taken(path, error) from error


def _not_taken(path: Path, error: RuntimeError) -> EngineError:
    return EngineError(f"OpenVINO {openvino.__version__} does not take {path}: {error}")


def _info(port: Any) -> TensorInfo:
    name = port.any_name
    sizes = enumerate(port.partial_shape)
    shape = tuple(f"{name}.{axis}" if size.is_dynamic else size.get_length() for axis, size in sizes)
    return TensorInfo(name=name, dtype=np.dtype(port.element_type.to_dtype()).name, shape=shape)


class OpenVinoDecoder:
    """An ONNX graph compiled in float32 for exactly the shapes of `inputs`, which is OpenVINO's fastest case.

    inputs: every input of the graph by name. threads: of the CPU, 0 is all cores. Raises EngineError where OpenVINO
    does not take the graph.
    """

    def __init__(self, graph: Path, inputs: Mapping[str, NDArray[Any]], output: str, threads: int = 0) -> None:
        shapes = {name: array.shape for name, array in inputs.items()}
        self._request = compiled_request(graph, shapes, threads)
        self._inputs, self._output = dict(inputs), output

    def time_ms(self, times: int = 1) -> float:
        """Wall time of one pass over all rows, mean of `times` in a row, in milliseconds."""
        return mean_ms(self._infer, times)

    def velocity(self) -> NDArray[np.float32]:
        """One pass: `[R, T, C]`."""
        return np.array(self._infer()[self._output])

    def _infer(self) -> Any:
        return self._request.infer(self._inputs, share_inputs=True, share_outputs=True)
