"""Sums over the second axis: those of one slot are, bit for bit, what they are beside other slots."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine_build.graphs.cpu_graph import with_slot_sums
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.step_graph import step_graph

RANDOM = np.random.default_rng(3)


def sums() -> onnx.ModelProto:
    """Over a slot's frames, over its conditions, and over all of it, with a mean."""
    graph = GraphWriter("sums")
    frames, parts = graph.input("frames", ("S", "T", 64)), graph.input("parts", ("S", "K", "T", 8))
    second = graph.constant([1], np.int64)
    graph.output("over_frames", graph.op("ReduceSum", frames, second, keepdims=1), ("S", 1, 64))
    graph.output("over_parts", graph.op("ReduceSum", parts, second, keepdims=0), ("S", "T", 8))
    whole = graph.op("ReduceSum", frames, graph.constant([1, 2], np.int64), keepdims=0)
    graph.output("of_all", whole, ("S",))
    mean = graph.op("ReduceMean", frames, graph.constant([1, 2], np.int64), keepdims=0)
    graph.output("mean", mean, ("S",))
    return graph.model()


@pytest.mark.parametrize("num_frames", [2, 64, 125, 256, 750])
@pytest.mark.parametrize("num_parts", [1, 5, 8])
def test_one_slot_is_added_up_as_several_are(num_frames: int, num_parts: int) -> None:
    frames = RANDOM.standard_normal((3, num_frames, 64)).astype(np.float32)
    parts = RANDOM.standard_normal((3, num_parts, num_frames, 8)).astype(np.float32)
    session = ort.InferenceSession(with_slot_sums(sums()).SerializeToString())
    together = session.run(None, {"frames": frames, "parts": parts})
    alone = session.run(None, {"frames": frames[:1], "parts": parts[:1]})
    for one, all_of_them in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, all_of_them[:1])
    exact = frames.sum(1, dtype=np.float64, keepdims=True), parts.sum(1, dtype=np.float64)
    for found, wanted in zip(together, exact, strict=False):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_only_sums_over_the_second_axis_change() -> None:
    model = with_slot_sums(sums())
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("If"), kinds.count("ReduceSum")) == (2, 1)
    onnx.checker.check_model(model)
    plain = step_graph(4, frozenset())
    assert [node.op_type for node in with_slot_sums(plain).graph.node] == [node.op_type for node in plain.graph.node]
