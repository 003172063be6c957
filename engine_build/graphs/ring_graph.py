"""The graph that puts the frames of a tick's rows in another order, before the decoder and behind it."""

from __future__ import annotations

import numpy as np
import onnx

from engine_build.graphs.graph_writer import GraphWriter
from runtime.tick.denoise.slot_fields import RING_TENSORS


def ring_graph(channels: int) -> onnx.ModelProto:
    """Frames `[R,T,channels]` -> turned `[R,T,channels]`: of all rows' frames, those that `order` `[R,T]` names."""
    graph = GraphWriter("rows.ring")
    for tensor in RING_TENSORS:
        graph.input(tensor.name, tensor.shape(channels), np.dtype(tensor.dtype))
    all_frames = graph.op("Reshape", "frames", graph.constant([-1, channels], np.int64))
    graph.output("turned", graph.op("Gather", all_frames, "order", axis=0), ("rows", "frames", channels))
    return graph.model()
