"""An engine on ONNX Runtime over a graph's own file, without a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakSet

import onnx
import onnxruntime as ort

from runtime.devices.device import HostDevice
from runtime.engines.manifest import Manifest, TensorInfo
from runtime.engines.onnxruntime import OnnxRuntimeEngine

# Tests share sessions of small engines.
LARGE = 1 << 30
DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}


class CountedSessions(OnnxRuntimeEngine):
    """An engine that knows how many of its sessions, each of which holds the weights, were open at once."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.opened, self.most_open = WeakSet[ort.InferenceSession](), 0
        super().__init__(*arguments, **settings)

    def _open(self, *arguments: Any) -> ort.InferenceSession:
        session = super()._open(*arguments)
        self.opened.add(session)
        self.most_open = max(self.most_open, len(self.opened))
        return session


def opened_graph(model: onnx.ModelProto, folder: Path, device: HostDevice) -> CountedSessions:
    """The graph, saved as folder/graph.onnx and opened on one thread."""
    path = folder / "graph.onnx"
    onnx.save(model, path)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = (
        tuple(TensorInfo(name=item.name, dtype=DTYPES[item.type], shape=tuple(item.shape)) for item in items)
        for items in (session.get_inputs(), session.get_outputs())
    )
    manifest = Manifest(
        name="graph", target="cpu", tool_versions={}, device={}, graph_sha256="", build={}, engine_file=path.name,
        engine_sha256="", size_bytes=LARGE, inputs=inputs, outputs=outputs, error={}, build_s=0.0,
    )  # fmt: skip
    return CountedSessions(manifest, folder, device=device, threads=1)
