"""Tidying: what engines fuse, nothing of the machine; the graph computes the same."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from engine_build.export.cleanup import divide_by_roots, drop_idle_reshapes, name_dimensions, paths_in, strip_metadata


def graph_of(nodes: list[onnx.NodeProto], values: dict[str, list[int | str]]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "2*blocks"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "2*blocks"])
    graph = helper.make_graph(nodes, "g", [x], [y], value_info=infos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model: onnx.ModelProto) -> np.ndarray:
    values = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": values})[0])


def reshaping(shape: list[int | str]) -> onnx.ModelProto:
    """x -> Shape -> Reshape -> Sqrt, with what the exporter says of the reshaped value."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Sqrt", ["r"], ["y"]),
    ]
    return graph_of(nodes, {"r": shape})


def test_a_reshape_to_the_same_shape_goes_with_what_only_it_needs() -> None:
    model = reshaping(["rows", "2*blocks"])
    before = run(model)
    drop_idle_reshapes(model)
    assert [node.op_type for node in model.graph.node] == ["Sqrt"]
    assert np.array_equal(run(model), before)


@pytest.mark.parametrize("shape", [["rows", "other"], ["2*blocks", "rows"], ["rows", ""]])
def test_a_reshape_that_may_change_the_shape_stays(shape: list[int | str]) -> None:
    model = reshaping(shape)
    drop_idle_reshapes(model)
    assert [node.op_type for node in model.graph.node] == ["Shape", "Reshape", "Sqrt"]


def test_a_reshape_that_is_the_output_stays() -> None:
    model = graph_of([helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["y"])], {})
    drop_idle_reshapes(model)
    assert len(model.graph.node) == 2


def test_reciprocals_of_roots_become_divisions() -> None:
    nodes = [
        helper.make_node("Sqrt", ["x"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["over"]),
        helper.make_node("Mul", ["x", "over"], ["y"]),
    ]
    model = graph_of(nodes, {})
    before = run(model)
    divide_by_roots(model)
    assert [node.op_type for node in model.graph.node] == ["Sqrt", "Div"]
    assert np.allclose(run(model), before, rtol=1e-6)


def test_dimensions_get_names() -> None:
    model = reshaping(["rows", "2*blocks"])
    name_dimensions(model, {"2*blocks": "frames"})
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        assert [dim.dim_param for dim in value.type.tensor_type.shape.dim] == ["rows", "frames"]


def test_only_module_scopes_stay() -> None:
    model = reshaping(["rows", "2*blocks"])
    for node in model.graph.node:
        node.doc_string = "somewhere"
        node.metadata_props.add(key="namespace", value="layers.0")
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="somewhere")
    model.graph.input[0].metadata_props.add(key="pkg.torch.export", value="somewhere")
    strip_metadata(model)
    assert b"somewhere" not in model.SerializeToString()
    assert {entry.key for node in model.graph.node for entry in node.metadata_props} == {"namespace"}


def test_paths_are_found(tmp_path: Path) -> None:
    file = tmp_path / "graph.onnx"
    file.write_bytes(b'\x08stack "/some/where/export.py", line 3')
    assert paths_in(file)
