"""An engine that ONNX Runtime runs from an ONNX graph, without a build."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from runtime.devices.device import Level
from runtime.engines.manifest import TensorInfo

DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}


class GraphEngine:
    """Runs a graph; keeps its feeds, and fails when two threads run it at once."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.name = model.graph.name
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        self.inputs = {item.name: _info(item) for item in self._session.get_inputs()}
        self.outputs = {item.name: _info(item) for item in self._session.get_outputs()}
        self.feeds: list[dict[str, NDArray[Any]]] = []
        self._busy = threading.Lock()

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        assert self._busy.acquire(blocking=False), "two threads run one engine at once"
        try:
            self.feeds.append({name: np.array(feed) for name, feed in feeds.items()})
            names = list(self.outputs)
            return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        finally:
            self._busy.release()


def _info(item: Any) -> TensorInfo:
    return TensorInfo(name=item.name, dtype=DTYPES[item.type], shape=tuple(item.shape))
