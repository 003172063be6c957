"""The operators and types that TensorRT's ONNX parser supports, by the parser's table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, shape_inference

TABLE = Path(__file__).parents[1] / "data" / "tensorrt_operators.txt"
OPSETS = range(9, 21)
NAMES = {
    TensorProto.FLOAT: "FP32", TensorProto.FLOAT16: "FP16", TensorProto.BFLOAT16: "BF16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8",
    TensorProto.DOUBLE: "FP32",  # the parser reads double as float: see test_doubles_may_become_floats
}  # fmt: skip
# Not in the table; the parser lowers it to an elementwise sum, which takes integers.
ALSO_SUPPORTED = {("CumSum", "INT64")}
DATA_INPUT = {"Where": 1, "OneHot": 2}


def table() -> dict[str, tuple[frozenset[str], bool]]:
    """Operator -> its data types, and whether its axes must be constant."""
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {name: (frozenset(types.split(",")), bool(star)) for name, types, *star in lines}


def problems(model: onnx.ModelProto) -> Iterator[str]:
    """The nodes of a graph that TensorRT's parser does not support."""
    known = table()
    yield from (f"opset {item.version}" for item in model.opset_import if item.version not in OPSETS)
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    values = [*graph.input, *graph.output, *graph.value_info]
    types = constants | {value.name: value.type.tensor_type.elem_type for value in values}
    constants |= {output: 0 for node in graph.node if node.op_type == "Constant" for output in node.output}
    for node in graph.node:
        if node.op_type not in known or node.domain not in ("", "ai.onnx"):
            yield f"{node.name}: {node.op_type} is not supported"
            continue
        allowed, has_constant_axes = known[node.op_type]
        place = min(DATA_INPUT.get(node.op_type, 0), len(node.input) - 1)
        kind = NAMES.get(types.get(node.input[place], 0), "?") if node.input else "FP32"
        if kind not in allowed and (node.op_type, kind) not in ALSO_SUPPORTED:
            yield f"{node.name}: {node.op_type} of {kind}, TensorRT takes {', '.join(sorted(allowed))}"
        if has_constant_axes and len(node.input) > 1:
            axes = node.input[3 if node.op_type in ("Slice", "Pad") else 1 :]
            yield from (f"{node.name}: axes {name} are computed" for name in axes[:1] if name and name not in constants)
