"""The graph writer: names, shared constants, outputs without copies."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx.checker import ValidationError

from engine_build.graphs.graph_writer import GraphWriter


def test_scopes_are_in_node_names_and_names_are_unique() -> None:
    graph = GraphWriter("names")
    x = graph.input("x", ("n",))
    with graph.scope("outer"), graph.scope("inner"):
        x = graph.op("Neg", graph.op("Neg", x))
    graph.output("y", x, ("n",))
    assert [node.name for node in graph.model().graph.node] == ["outer/inner/Neg", "outer/inner/Neg_2"]


def test_equal_constants_are_stored_once() -> None:
    graph = GraphWriter("constants")
    x = graph.input("x", ("n",))
    same = [graph.constant(1.0), graph.constant(1.0), graph.constant(np.float32(1))]
    others = [graph.constant(1, np.int64), graph.constant([1.0]), graph.constant(1.0, name="weight")]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 4
    graph.output("y", graph.op("Add", x, same[0]), ("n",))
    assert len(graph.model().graph.initializer) == 4


def test_an_output_renames_its_value_everywhere() -> None:
    graph = GraphWriter("outputs")
    x = graph.input("x", (2,))
    doubled = graph.op("Add", x, x)
    shifted = graph.op("Add", doubled, graph.constant(1.0))
    graph.output("doubled", doubled, (2,))
    graph.output("shifted", shifted, (2,))
    graph.output("same", x, (2,))
    graph.output("again", "doubled", (2,))
    model = graph.model()
    results = ort.InferenceSession(model.SerializeToString()).run(None, {"x": np.float32([1, 2])})
    np.testing.assert_array_equal(results, [[2, 4], [3, 5], [1, 2], [2, 4]])
    assert [node.op_type for node in model.graph.node] == ["Add", "Add", "Identity", "Identity"]


def test_an_invalid_graph_is_refused() -> None:
    graph = GraphWriter("wrong")
    graph.output("y", graph.op("Add", graph.input("x", ("n",)), "nowhere"), ("n",))
    with pytest.raises(ValidationError, match="nowhere"):
        graph.model()
