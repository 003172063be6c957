"""ONNX graphs inside plans: their tensors, their nodes, and an ONNX Runtime session that executes them.

ONNX Runtime's CPU provider has few operators in bfloat16. They are executed in float32, with the values rounded to
bfloat16 where the graph casts to it, and where it stores an output so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ._enums import DataType

DTYPES = {
    TensorProto.FLOAT: DataType.FLOAT,
    TensorProto.FLOAT16: DataType.HALF,
    TensorProto.BFLOAT16: DataType.BF16,
    TensorProto.INT8: DataType.INT8,
    TensorProto.INT32: DataType.INT32,
    TensorProto.INT64: DataType.INT64,
    TensorProto.BOOL: DataType.BOOL,
    TensorProto.UINT8: DataType.UINT8,
}
ELEMENTS = {kind: element for element, kind in DTYPES.items()}
NUMPY = {
    DataType.FLOAT: np.float32,
    DataType.HALF: np.float16,
    DataType.BF16: ml_dtypes.bfloat16,
    DataType.INT8: np.int8,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
}


def signature(model: onnx.ModelProto) -> Iterator[tuple[str, int, tuple[int, ...], bool]]:
    """Name, element type, shape (-1 where free) and whether it is an input, of every input and output."""
    weights = {item.name for item in model.graph.initializer}
    inputs = [item for item in model.graph.input if item.name not in weights]
    for items, is_input in ((inputs, True), (model.graph.output, False)):
        for item in items:
            kind = item.type.tensor_type
            shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
            yield item.name, kind.elem_type, shape, is_input


def aliases(model: onnx.ModelProto) -> dict[str, str]:
    """Output -> the input whose memory it must have: caches that are updated in place."""
    return {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "TensorScatter"}


@lru_cache(256)
def open_graph(data: bytes) -> tuple[onnxruntime.InferenceSession, dict[str, str]]:
    """A session that executes the graph in one thread, and its aliases; equal graphs share it: it has no state.

    Raises what ONNX Runtime raises.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    model = onnx.load_from_string(data)
    found = aliases(model)
    if _has_bfloat16(model.graph):
        _to_float32(model.graph)
        data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]), found


def _has_bfloat16(graph: onnx.GraphProto) -> bool:
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    return TensorProto.BFLOAT16 in (
        *casts,
        *(item.data_type for item in graph.initializer),
        *map(_element, graph.input),
    )


def _element(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _to_float32(graph: onnx.GraphProto) -> None:
    for index, item in enumerate(graph.initializer):
        if item.data_type == TensorProto.BFLOAT16:
            graph.initializer[index].CopyFrom(_wide(item))
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.BFLOAT16:
                attribute.t.CopyFrom(_wide(attribute.t, attribute.t.name))
        nodes += _rounded(node)
    nodes = _cast_at_the_border(graph, nodes)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _cast_at_the_border(graph: onnx.GraphProto, nodes: list[Any]) -> list[Any]:
    """Inputs and outputs in bfloat16 are memory of the caller."""
    inputs = [item.name for item in graph.input if _element(item) == TensorProto.BFLOAT16]
    outputs = [item.name for item in graph.output if _element(item) == TensorProto.BFLOAT16]
    inner = {name: f"{name}__float" for name in (*inputs, *outputs)}
    for node in nodes:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    return [
        *(helper.make_node("Cast", [name], [inner[name]], to=TensorProto.FLOAT) for name in inputs),
        *nodes,
        *(helper.make_node("Cast", [inner[name]], [name], to=TensorProto.BFLOAT16) for name in outputs),
    ]


def _wide(tensor: TensorProto, name: str | None = None) -> TensorProto:
    values = np.asarray(numpy_helper.to_array(tensor)).astype(np.float32)
    return numpy_helper.from_array(values, tensor.name if name is None else name)


def _rounded(node: Any) -> list[Any]:
    """A cast to bfloat16 becomes one there and one back to float32."""
    to = next((a for a in node.attribute if a.name == "to"), None)
    if node.op_type != "Cast" or to is None or to.i != TensorProto.BFLOAT16:
        return [node]
    narrow = f"{node.output[0]}__bfloat16"
    return [
        helper.make_node("Cast", node.input, [narrow], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", [narrow], node.output, to=TensorProto.FLOAT),
    ]
