"""Casts where precisions differ, and constants that are stored once in the precision of their use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.casts import DATA_ALIGNMENT_BYTES, FileWeights, InlineWeights, Rewriter
from engine_build.precision.node_rules import NODE_RULES
from runtime.base.errors import BuildError


def two_products(weight: float = 1.0) -> onnx.ModelProto:
    graph = GraphWriter("two")
    x = graph.input("x", ("rows", 4))
    shared = graph.constant(weight * np.eye(4), name="w")
    graph.output("y", graph.op("MatMul", graph.op("MatMul", x, shared), shared), ("rows", 4))
    return graph.model()


def rewritten(model: onnx.ModelProto, *rules: str) -> onnx.ModelProto:
    chosen = [NODE_RULES[name] for name in rules]
    result = Rewriter(GraphView(model), chosen, TensorProto.FLOAT16, "fp16", InlineWeights()).rewrite()
    onnx.checker.check_model(result, full_check=True)
    return result


def test_values_are_cast_where_precisions_differ() -> None:
    result = rewritten(two_products(), "product", "output")
    assert [node.op_type for node in result.graph.node] == ["Cast", "MatMul", "Cast", "MatMul"]
    kinds = {tensor.name: tensor.data_type for tensor in result.graph.initializer}
    assert kinds == {"w.fp16": TensorProto.FLOAT16, "w": TensorProto.FLOAT}


def test_nothing_is_cast_between_nodes_of_one_precision() -> None:
    result = rewritten(two_products(), "product", "product")
    assert [node.op_type for node in result.graph.node] == ["Cast", "MatMul", "MatMul", "Cast"]
    assert [tensor.name for tensor in result.graph.initializer] == ["w.fp16"]
    assert result.graph.node[-1].output[0] == "y"


def test_a_size_is_read_of_the_value_that_there_is() -> None:
    graph = GraphWriter("size")
    product = graph.op("MatMul", graph.input("x", ("rows", 4)), graph.constant(np.eye(4), name="w"))
    graph.output("size", graph.op("Shape", product), (2,), np.int64)
    for rule, expected in (("product", ["Cast", "MatMul", "Shape"]), ("output", ["MatMul", "Shape"])):
        assert [node.op_type for node in rewritten(graph.model(), rule, "index").graph.node] == expected


def test_a_constant_out_of_range_is_refused() -> None:
    with pytest.raises(BuildError, match=r"'w' has values up to 1e\+05: out of fp16's range"):
        rewritten(two_products(1e5), "product", "product")


def test_large_constants_go_into_an_aligned_file(tmp_path: Path) -> None:
    weights = FileWeights(tmp_path, tmp_path / "weights.data")
    arrays = {name: np.full((40, 16), value, np.float16) for name, value in (("a", 1), ("b", 2))}
    tensors = {name: weights.write(name, array) for name, array in arrays.items()}
    small = weights.write("small", np.float32([1, 2]))
    assert small.data_location != TensorProto.EXTERNAL
    for name, tensor in tensors.items():
        entries = {item.key: item.value for item in tensor.external_data}
        assert int(entries["offset"]) % DATA_ALIGNMENT_BYTES == 0
        np.testing.assert_array_equal(InlineWeights(tmp_path).read(tensor), arrays[name])
