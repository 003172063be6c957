"""Work of layers: ONNX Runtime's by reported shapes, TensorRT's by the model's graph and the engine's element types."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx
import pytest
from helpers.recorded_profiles import FOREIGN_NODE, SHAPES, VERSIONS, recorded, recorded_nodes, transformer
from onnx import TensorProto

from profiling.layers.origins import OriginGraph, Origins, read_graph
from profiling.layers.roofline import Ceilings, Work
from profiling.layers.work import float_bytes, item_bytes, layer_works
from runtime.engines.node_times import NodeTimes

ROWS, FRAMES, WIDTH = SHAPES["x"]
NUMBERS = ROWS * FRAMES * WIDTH
PRODUCT = 2 * NUMBERS * WIDTH
HALF = 2


def works(version: str, folder: Path) -> dict[str, Work | None]:
    """By the layer's name up to its kernel's number."""
    nodes = recorded_nodes(version)
    found = layer_works(nodes, Origins(transformer(folder)), SHAPES)
    return {node.name.split("_myl")[0].split(" [")[0]: work for node, work in zip(nodes, found, strict=True)}


@pytest.mark.parametrize("version", VERSIONS)
def test_tensorrt_layers_have_the_work_of_their_nodes(version: str, tmp_path: Path) -> None:
    found = works(version, tmp_path)
    # One product in fp16: its input, its weight, its output.
    assert found["up_0"] == Work(PRODUCT, HALF * (2 * NUMBERS + WIDTH * WIDTH))
    # A fused attention: both products and the softmax; scores stay inside, q, k and v come in, the result goes out.
    scores = ROWS * FRAMES * FRAMES
    inside = found["_gemm_mha_v2"]
    assert inside == Work(2 * PRODUCT // WIDTH * FRAMES + 5 * scores, HALF * 4 * NUMBERS)
    subgraph = found[FOREIGN_NODE]
    assert subgraph is not None
    assert subgraph.flops > PRODUCT


@pytest.mark.parametrize("version", VERSIONS)
def test_an_inserted_reformat_moves_its_tensors(version: str, tmp_path: Path) -> None:
    nodes = recorded_nodes(version)
    (copy,) = (node for node in nodes if node.op_type == "Reformat")
    assert layer_works([copy], Origins(transformer(tmp_path)), SHAPES) == [Work(0, HALF * 2 * NUMBERS)]
    free = NodeTimes(copy.name, copy.op_type, (1.0,), {"Inputs": [{"Dimensions": [-1, 2], "Datatype": "Half"}]})
    assert layer_works([free], Origins(transformer(tmp_path)), SHAPES) == [None]
    one = {"Inputs": [{"Dimensions": [], "Datatype": "Int64"}], "Outputs": [{"Dimensions": [0, 2], "Datatype": "Half"}]}
    scalar = NodeTimes(copy.name, copy.op_type, (1.0,), one)
    assert layer_works([scalar], Origins(transformer(tmp_path)), SHAPES) == [Work(0, 8)], "of a scalar, and of nothing"


def test_a_fused_onnxruntime_kernel_has_the_operations_of_its_nodes(tmp_path: Path) -> None:
    """An attention in one node: its operator's name says nothing of its two products."""
    source = transformer(tmp_path)
    parts = [source.by_name[f"{name}_0"] for name in ("scores", "weights", "mixed")]
    inputs = ["to_q_0", "turned_0", "normed_0"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MultiHeadAttention", inputs, ["mixed_0"], "fused", domain="com.microsoft")],
        "engine",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in inputs],
        [onnx.helper.make_tensor_value_info("mixed_0", onnx.TensorProto.FLOAT, None)],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "engine.onnx")
    origins = Origins(source, read_graph(tmp_path / "engine.onnx"))
    facts = {"provider": "CUDAExecutionProvider", "output_type_shape": [{"float": list(SHAPES["x"])}]}
    shapes = {"x": SHAPES["x"], "to_q_0": SHAPES["x"], "turned_0": (2, 16, 8), "normed_0": SHAPES["x"]}
    (work,) = layer_works([NodeTimes("fused", "MultiHeadAttention", (1.0,), facts)], origins, shapes)
    assert {node.name for node in origins.of(NodeTimes("fused", "MultiHeadAttention", (1.0,), facts))} == {
        node.name for node in parts
    }
    assert work == Work(2 * PRODUCT // WIDTH * FRAMES + 5 * ROWS * FRAMES * FRAMES, 4 * 4 * NUMBERS)


def test_a_plain_operator_has_its_own_operations_alone(tmp_path: Path) -> None:
    """The last operator of several that compute a node of the model has not the node's operations."""
    value = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=None)
    node = onnx.helper.make_node

    def saved(name: str, *nodes: onnx.NodeProto) -> OriginGraph:
        graph = onnx.helper.make_graph(nodes, name, [value("x"), value("w"), value("b")], [value("y")])
        onnx.save(onnx.helper.make_model(graph), tmp_path / name)
        return read_graph(tmp_path / name)

    source = saved("source", node("MatMul", ["x", "w"], ["z"], "product"), node("Sum", ["z", "b"], ["y"], "sum"))
    engine = saved("engine", node("MatMul", ["x", "w"], ["p"], "kernel"), node("Add", ["p", "b"], ["y"], "bias"))
    facts = {"provider": "CPUExecutionProvider", "output_type_shape": [{"float": [4, 2]}]}
    layers = [NodeTimes(name, op_type, (1.0,), facts) for name, op_type in (("kernel", "MatMul"), ("bias", "Add"))]
    works = layer_works(layers, Origins(source, engine), {"x": (4, 3), "w": (3, 2), "b": (2,)})
    assert [work and work.flops for work in works] == [2 * 4 * 3 * 2, 4 * 2]


def test_without_a_graph_no_work_is_known() -> None:
    nodes = recorded_nodes("10")
    assert layer_works(nodes, Origins(), SHAPES) == [None] * len(nodes)


@pytest.mark.parametrize(
    ("tensor", "width"),
    [
        ({"Format/Datatype": "Row-major linear FP16 format"}, 2.0),
        ({"Format/Datatype": "Channel major FP32 format where C % 32 == 0"}, 4.0),
        ({"Format": "Row-major linear", "Datatype": "BFloat16"}, 2.0),
        ({"Format": "Row-major linear", "Datatype": "FP8"}, 1.0),
        ({"Format": "Row-major linear", "Datatype": "FP4"}, 0.5),
        ({"Format": "Row-major linear", "Datatype": "Half"}, 2.0),
        ({"Format": "Row-major linear", "Datatype": "Float"}, 4.0),
        ({"Format": "Row-major linear", "Datatype": "Int64"}, 4.0),
        ({}, 4.0),
    ],
)
def test_widths_in_both_schemas(tensor: dict[str, str], width: float) -> None:
    assert float_bytes({"Inputs": [tensor]}) == width


@pytest.mark.parametrize("version", VERSIONS)
def test_layers_are_compared_with_their_roofs(version: str, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path, Ceilings(1e12, 1e9, "given"))
    roofs = [layer.roof(profile.ceilings) for layer in profile.layers]
    reached = [roof.reached for roof in roofs if roof is not None and roof.reached is not None]
    assert len(reached) > 10
    assert all(share > 0 for share in reached)


def test_element_sizes() -> None:
    assert [item_bytes(kind) for kind in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.INT4)] == [4, 2, 0.5]


@pytest.mark.parametrize(
    ("datatype", "size_bytes"),
    [("Int64", 48), ("Int32", 24), ("BF16", 12), ("FP8", 6), ("UINT8", 6), ("Int8", 6), ("Bool", 6), ("FP4", 3),
     ("INT4", 3), ("Quux", None)],
)  # fmt: skip
def test_a_copy_moves_bytes_by_the_type_of_its_elements(datatype: str, size_bytes: int | None, tmp_path: Path) -> None:
    copy = NodeTimes("copy", "Reformat", (1.0,), {"Outputs": [{"Dimensions": [2, 3], "Datatype": datatype}]})
    expected = None if size_bytes is None else Work(0, size_bytes)
    assert layer_works([copy], Origins(transformer(tmp_path)), SHAPES) == [expected]
