"""Inferred shapes, compared with those of a run in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.paths import ROOT
from onnx import TensorProto, helper

from profiling.layers.origins import Graph, read_graph
from profiling.layers.value_shapes import item_bytes, value_shapes

DEMO = ROOT / "configs" / "demo"
SIZES = {"rows": 3, "frames": 22, "tokens": 5, "batch": 2}


def seen(path: Path, graph: Graph, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], float]]:
    """Every value's shape and element size, in a run."""
    model = onnx.load(path)
    names = [name for node in graph.nodes for name in node.outputs]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        item.name: np.ones(shapes[item.name], helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
        for item in model.graph.input
    }
    return {n: (a.shape, a.itemsize) for n, a in zip(names, session.run(names, feeds), strict=True)}


@pytest.mark.parametrize("name", ["decoder", "codec_decode", "text_encoder"])
def test_the_demo_models_graphs_have_the_shapes_of_a_run(name: str) -> None:
    path = DEMO / f"{name}.onnx"
    graph = read_graph(path)
    shapes = {
        item.name: tuple(SIZES.get(dim.dim_param) or dim.dim_value for dim in item.type.tensor_type.shape.dim)
        for item in graph.model.graph.input
    }
    expected = seen(path, graph, shapes)
    found = value_shapes(graph, shapes)
    assert {name: (found[name].shape, found[name].item_bytes) for name in expected} == expected


def test_shapes_that_depend_on_data_are_left_out(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Neg", ["x"], ["y"])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), tmp_path / "g.onnx")
    found = value_shapes(read_graph(tmp_path / "g.onnx"), {"x": (7,)})
    assert found["y"].shape == (7,)
    assert "where" not in found


def test_constants_that_cannot_be_folded_are_left_out(tmp_path: Path) -> None:
    """Sizes of 5 and 7 cannot be added."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    constants = [helper.make_tensor(name, TensorProto.INT64, [size], [1] * size) for name, size in (("a", 5), ("b", 7))]
    nodes = [helper.make_node("Add", ["a", "b"], ["c"], "bad"), helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants), opset_imports=opsets)
    onnx.save(model, tmp_path / "g.onnx")
    found = value_shapes(read_graph(tmp_path / "g.onnx"), {"x": (7,)})
    assert found["y"].shape == (7,)
    assert "c" not in found


def test_element_sizes() -> None:
    assert [item_bytes(kind) for kind in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.INT4)] == [4, 2, 0.5]
