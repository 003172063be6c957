"""The bundle's decoder graph in OpenVINO, on the CPU. Needs the extra `peers`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino.properties import hint, inference_num_threads

from runtime.errors import EngineError


class OpenVinoDecoder:
    """An ONNX graph compiled in float32 for exactly the shapes of `inputs`, which is OpenVINO's fastest case.

    inputs: every input of the graph by name. threads: of the CPU, 0 is all cores. Raises EngineError where OpenVINO
    does not take the graph.
    """

    def __init__(self, graph: Path, inputs: Mapping[str, NDArray[Any]], output: str, threads: int = 0) -> None:
        core = openvino.Core()
        options = {
            hint.inference_precision: openvino.Type.f32,
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            inference_num_threads: threads,
        }
        try:
            model = core.read_model(graph)
            model.reshape({name: list(array.shape) for name, array in inputs.items()})
            self._request = core.compile_model(model, "CPU", options).create_infer_request()
        except RuntimeError as error:
            raise EngineError(f"OpenVINO {openvino.__version__} does not take {graph}: {error}") from error
        self._inputs, self._output = dict(inputs), output

    def time_ms(self, times: int = 1) -> float:
        """Wall time of one pass over all rows, mean of `times` in a row, in milliseconds."""
        begin_s = time.perf_counter()
        for _ in range(times):
            self._infer()
        return (time.perf_counter() - begin_s) * 1e3 / times

    def velocity(self) -> NDArray[np.float32]:
        """One pass: `[R, T, C]`."""
        return np.array(self._infer()[self._output])

    def _infer(self) -> Any:
        return self._request.infer(self._inputs, share_inputs=True, share_outputs=True)
