"""What TensorRT refuses in a graph: found before its parser sees the graph, without a GPU.

The rules are those of TensorRT's ONNX parser and of its network definition: operators and types by the parser's table,
scalars where a layer wants rank 0, kernels of convolutions that are constants, caches that are updated in place,
tensors of less than 2^31 elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto

from engine_build.graphs.graph_view import attribute
from runtime.engines.value_shapes import Values

TABLE = Path(__file__).with_name("tensorrt_operators.txt")
NAMES = {
    TensorProto.FLOAT: "FP32", TensorProto.FLOAT16: "FP16", TensorProto.BFLOAT16: "BF16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8",
    TensorProto.DOUBLE: "FP32",  # the parser reads double as float
}  # fmt: skip
# Not in the table; the parser lowers it to an elementwise sum, which takes integers.
ALSO_SUPPORTED = {("CumSum", "INT64")}
DATA_INPUT = {"Where": 1, "OneHot": 2}
LARGEST_VOLUME = (1 << 31) - 1
# Inputs that have rank 0: ONNX Runtime takes one element of rank 1 as well, TensorRT's LINSPACE fill does not.
SCALARS = {"Range": (0, 1, 2)}
KERNELS = frozenset({"Conv", "ConvTranspose"})

Tensors = Mapping[str, onnx.ValueInfoProto]


def problems(model: onnx.ModelProto, values: Values) -> Iterator[str]:
    """The nodes that TensorRT refuses. `values`: shapes and types of all values, at any sizes."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {output for node in model.graph.node if node.op_type == "Constant" for output in node.output}
    inputs, outputs = ({value.name: value for value in side} for side in (model.graph.input, model.graph.output))
    for node in model.graph.node:
        found = (
            _unsupported(node, values, constants),
            _wrong_rank(node, values),
            _computed_kernel(node, constants),
            _wrong_cache(node, inputs, outputs),
            _wrong_attention(node),
        )
        yield from (f"{_label(node)}: {problem}" for problem in found if problem)


def too_large(model: onnx.ModelProto, values: Values) -> Iterator[str]:
    """The values that have too many elements. `values`: shapes and types of all values, at the largest sizes."""
    for node in model.graph.node:
        for shape in (values[name][0] for name in node.output if name in values):
            if prod(shape) > LARGEST_VOLUME:
                sizes = " x ".join(map(str, shape))
                yield f"{_label(node)}: {sizes} = {prod(shape):.3g} elements, a tensor has less than 2^31"


@cache
def operators() -> dict[str, tuple[frozenset[str], bool]]:
    """Operator -> its data types, and whether its axes must be constant."""
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {name: (frozenset(types.split(",")), bool(star)) for name, types, *star in lines}


def _unsupported(node: onnx.NodeProto, values: Values, constants: set[str]) -> str:
    if node.op_type not in operators() or node.domain not in ("", "ai.onnx"):
        return "the parser does not support this operator"
    allowed, has_constant_axes = operators()[node.op_type]
    place = min(DATA_INPUT.get(node.op_type, 0), len(node.input) - 1)
    kind = NAMES.get(values[node.input[place]][1], "?") if node.input and node.input[place] in values else ""
    if kind and kind not in allowed and (node.op_type, kind) not in ALSO_SUPPORTED:
        return f"data of type {kind}, TensorRT takes {', '.join(sorted(allowed))}"
    axes = node.input[3 if node.op_type in ("Slice", "Pad") else 1 :][:1]
    if has_constant_axes and axes and axes[0] and axes[0] not in constants:
        return f"the axes {axes[0]!r} are computed, expected a constant"
    return ""


def _wrong_rank(node: onnx.NodeProto, values: Values) -> str:
    for place in SCALARS.get(node.op_type, ()):
        shape = values[node.input[place]][0] if node.input[place] in values else ()
        if shape:
            return f"input {place} has shape {list(shape)}, expected a scalar of rank 0"
    return ""


def _computed_kernel(node: onnx.NodeProto, constants: set[str]) -> str:
    computed = [name for name in node.input[1:] if name not in constants] if node.op_type in KERNELS else []
    return f"its kernel or bias {computed[0]!r} is computed, expected a constant" if computed else ""


def _wrong_cache(node: onnx.NodeProto, inputs: Tensors, outputs: Tensors) -> str:
    """A cache update is of a network input of static capacity, in place: its result is a network output."""
    if node.op_type != "TensorScatter":
        return ""
    if attribute(node, "mode", b"linear") != b"linear":
        return "mode circular, TensorRT has mode linear"
    if node.input[0] not in inputs or node.output[0] not in outputs:
        return "its cache is not an input of the graph, or its result not an output"
    dims = inputs[node.input[0]].type.tensor_type.shape.dim
    if len(dims) != 4 or attribute(node, "axis", -2) not in (-2, 2):
        return "expected a cache of 4 dimensions, written along the third"
    return "" if dims[2].HasField("dim_value") else "the cache's capacity is dynamic, expected a fixed one"


def _wrong_attention(node: onnx.NodeProto) -> str:
    """Caches are inputs of their own, and what a query sees is the mask's."""
    if node.op_type != "Attention" or not any(node.input[4:]):
        return ""
    return "past keys and values or their lengths are inputs, expected a mask alone"


def _label(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"
