"""One of the bundle's graphs in ONNX Runtime as its own users run it: default options, no build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnxruntime
from numpy.typing import NDArray

from runtime.devices.device import Level
from runtime.engines.manifest import TensorInfo

DTYPES: Final = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}


class OnnxRuntimeGraph:
    """A RunnableGraph of a file, on the CPU. threads: of an execute, 0 is all cores."""

    def __init__(self, path: Path, threads: int = 0) -> None:
        self.name = path.stem
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs: Mapping[str, TensorInfo] = {each.name: _info(each) for each in self._session.get_inputs()}
        self.outputs: Mapping[str, TensorInfo] = {each.name: _info(each) for each in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute with new outputs."""
        return dict(zip(self.outputs, self._session.run(list(self.outputs), dict(feeds)), strict=True))


def _info(tensor: Any) -> TensorInfo:
    shape = tuple(f"{tensor.name}.{axis}" if size is None else size for axis, size in enumerate(tensor.shape))
    return TensorInfo(name=tensor.name, dtype=DTYPES[tensor.type], shape=shape)
