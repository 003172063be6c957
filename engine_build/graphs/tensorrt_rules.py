"""What TensorRT refuses in a graph: found before its parser sees the graph, without a GPU.

The rules are those of TensorRT's ONNX parser and of its network definition: operators and types by the parser's table,
scalars where a layer wants rank 0, kernels of convolutions that are constants, caches that are updated in place,
tensors of less than 2^31 elements. Each names its evidence. What only TensorRT-RTX was seen to refuse is a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto

from engine_build.graphs.graph_view import attribute
from runtime.engines.graph_bodies import bodies, scopes
from runtime.engines.value_shapes import Values

TABLE = Path(__file__).with_name("tensorrt_operators.txt")
NAMES = {
    TensorProto.FLOAT: "FP32", TensorProto.FLOAT16: "FP16", TensorProto.BFLOAT16: "BF16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8", TensorProto.INT8: "INT8",
    TensorProto.INT4: "INT4", TensorProto.FLOAT8E4M3FN: "FP8", TensorProto.FLOAT4E2M1: "FP4",
    TensorProto.DOUBLE: "FP32",  # the parser reads double as float
}  # fmt: skip
# Not in the table; the parser lowers it to an elementwise sum, which takes integers.
ALSO_SUPPORTED = {("CumSum", "INT64")}
DATA_INPUT = {"Where": 1, "OneHot": 2}
LARGEST_VOLUME = (1 << 31) - 1
# Inputs that have rank 0: ONNX Runtime takes one element of rank 1 as well, TensorRT's LINSPACE fill does not.
SCALARS = {"Range": (0, 1, 2)}
KERNELS = frozenset({"Conv", "ConvTranspose"})

# The most values that TopK finds.
LARGEST_K = 3840

Tensors = Mapping[str, onnx.ValueInfoProto]


@dataclass(frozen=True)
class View:
    """A graph: the constants that it sees, its inputs and outputs, shapes and types of the model's values."""

    constants: Collection[str]
    inputs: Tensors
    outputs: Tensors
    values: Values

    @classmethod
    def of(cls, graph: onnx.GraphProto, constants: Collection[str], values: Values) -> View:
        """The view of a model's graph, or of a body in it."""
        inputs, outputs = ({value.name: value for value in side} for side in (graph.input, graph.output))
        return cls(constants, inputs, outputs, values)

    def kind(self, node: onnx.NodeProto, place: int) -> str:
        """The type of an input, as the table names it; "?" one that it does not have, "" where it is not known."""
        return NAMES.get(self.values[node.input[place]][1], "?") if node.input[place] in self.values else ""


@dataclass(frozen=True)
class Rule:
    """What is refused: the check gives the reason, "" where nothing is; where that is known from; by which targets.

    doubted_for: targets of which it is not known, because another one refuses it.
    """

    find: Callable[[onnx.NodeProto, View], str]
    evidence: str
    refused_by: frozenset[str] = frozenset()
    doubted_for: frozenset[str] = frozenset()


def problems(model: onnx.ModelProto, values: Values, target: str = "tensorrt") -> Iterator[str]:
    """The nodes that a target refuses. `values`: shapes and types of all values, at any sizes."""
    return _found(model, values, [rule for rule in RULES if target in rule.refused_by])


def doubts(model: onnx.ModelProto, values: Values, target: str = "tensorrt") -> Iterator[str]:
    """The nodes that a target may refuse: another one does."""
    return _found(model, values, [rule for rule in RULES if target in rule.doubted_for])


def _found(model: onnx.ModelProto, values: Values, rules: Sequence[Rule]) -> Iterator[str]:
    for graph, constants in scopes(model.graph):
        view = View.of(graph, constants, values)
        for node in graph.node:
            yield from (f"{_label(node)}: {problem}" for rule in rules if (problem := rule.find(node, view)))


def oversized(model: onnx.ModelProto, values: Values) -> Iterator[str]:
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


def _unsupported(node: onnx.NodeProto, graph: View) -> str:
    if node.op_type not in operators() or node.domain not in ("", "ai.onnx"):
        return "the parser does not support this operator"
    allowed, has_constant_axes = operators()[node.op_type]
    kind = graph.kind(node, min(DATA_INPUT.get(node.op_type, 0), len(node.input) - 1)) if node.input else ""
    if kind and kind not in allowed and (node.op_type, kind) not in ALSO_SUPPORTED:
        return f"data of type {kind}, TensorRT takes {', '.join(sorted(allowed))}"
    axes = node.input[3 if node.op_type in ("Slice", "Pad") else 1 :][:1]
    if has_constant_axes and axes and axes[0] and axes[0] not in graph.constants:
        return f"the axes {axes[0]!r} are computed, expected a constant"
    return ""


def _wrong_rank(node: onnx.NodeProto, graph: View) -> str:
    for place in SCALARS.get(node.op_type, ()):
        shape = graph.values[node.input[place]][0] if node.input[place] in graph.values else ()
        if shape:
            return f"input {place} has shape {list(shape)}, expected a scalar of rank 0"
    return ""


def _computed_kernel(node: onnx.NodeProto, graph: View) -> str:
    computed = [name for name in node.input[1:] if name not in graph.constants] if node.op_type in KERNELS else []
    return f"its kernel or bias {computed[0]!r} is computed, expected a constant" if computed else ""


def _wrong_cache(node: onnx.NodeProto, graph: View) -> str:
    """A cache update is of a network input of static capacity, in place: its result is a network output."""
    if node.op_type != "TensorScatter":
        return ""
    if attribute(node, "mode", b"linear") != b"linear":
        return "mode circular, TensorRT has mode linear"
    if node.input[0] not in graph.inputs or node.output[0] not in graph.outputs:
        return "its cache is not an input of the graph, or its result not an output"
    dims = graph.inputs[node.input[0]].type.tensor_type.shape.dim
    if len(dims) != 4 or attribute(node, "axis", -2) not in (-2, 2):
        return "expected a cache of 4 dimensions, written along the third"
    return "" if dims[2].HasField("dim_value") else "the cache's capacity is dynamic, expected a fixed one"


def _cache_of_integers(node: onnx.NodeProto, graph: View) -> str:
    is_wrong = node.op_type == "TensorScatter" and graph.kind(node, 0).startswith("INT")
    return "a cache of integers, expected floating-point numbers" if is_wrong else ""


def _ignored_lengths(node: onnx.NodeProto, graph: View) -> str:
    is_wrong = node.op_type == "Attention" and any(node.input[6:])
    return "the lengths of its keys are an input, which is ignored: expected a mask alone" if is_wrong else ""


def _past_of_attention(node: onnx.NodeProto, graph: View) -> str:
    """Caches are inputs of their own, and what a query sees is the mask's."""
    is_wrong = node.op_type == "Attention" and (any(node.input[4:6]) or any(node.output[1:]))
    return "past keys and values are inputs or outputs, expected a mask alone" if is_wrong else ""


def _option_of_attention(node: onnx.NodeProto, graph: View) -> str:
    if node.op_type != "Attention":
        return ""
    if attribute(node, "softcap", 0.0):
        return "softcap is not supported"
    return "softmax_precision is not supported" if attribute(node, "softmax_precision", 0) else ""


def _many_best(node: onnx.NodeProto, graph: View) -> str:
    if node.op_type != "TopK" or node.output[0] not in graph.values:
        return ""
    shape = graph.values[node.output[0]][0]
    count = shape[attribute(node, "axis", -1)]
    return f"the {count} largest, at most {LARGEST_K} can be found" if count > LARGEST_K else ""


def _computed_axis(node: onnx.NodeProto, graph: View) -> str:
    is_wrong = node.op_type == "CumSum" and node.input[1] not in graph.constants
    return f"the axis {node.input[1]!r} is computed, expected a constant" if is_wrong else ""


def _reduction(node: onnx.NodeProto, graph: View) -> str:
    is_wrong = node.op_type == "ScatterElements" and attribute(node, "reduction", b"none") != b"none"
    return "it reduces what it scatters, expected reduction none" if is_wrong else ""


def _transposed_in_bf16(node: onnx.NodeProto, graph: View) -> str:
    is_wrong = node.op_type == "ConvTranspose" and graph.kind(node, 0) == "BF16"
    return "in BF16, expected FP32 or FP16" if is_wrong else ""


def _label(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


TENSORRT, RTX = "tensorrt", "tensorrt-rtx"
TENSORRT_ONLY = frozenset({TENSORRT})
# For tensorrt-rtx its builder decides, which needs no GPU; here is what it takes and then computes wrongly.
RULES = (
    Rule(_unsupported, "onnx-tensorrt, docs/operators.md", TENSORRT_ONLY),
    Rule(_wrong_rank, "onnx-tensorrt, Range: LINSPACE wants scalars (RTX 1.7 takes them)", TENSORRT_ONLY),
    Rule(_computed_kernel, "onnx-tensorrt before 10.15: kernels are weights (RTX 1.7 takes them)", TENSORRT_ONLY),
    Rule(_wrong_cache, "NvInfer.h, IKVCacheUpdateLayer; refused by RTX 1.7", TENSORRT_ONLY),
    Rule(_ignored_lengths, "taken by RTX 1.7, with the warning Unused Input", frozenset({TENSORRT, RTX})),
    Rule(_past_of_attention, "onnx-tensorrt, Attention: one output; refused by RTX 1.7", TENSORRT_ONLY),
    Rule(_option_of_attention, "onnx-tensorrt, static checker of Attention; softcap refused by RTX 1.7", TENSORRT_ONLY),
    Rule(_many_best, "NvInfer.h, ITopKLayer; refused by RTX 1.7", TENSORRT_ONLY),
    Rule(_computed_axis, "NvInfer.h, ICumulativeLayer; refused by RTX 1.7", TENSORRT_ONLY),
    Rule(_cache_of_integers, "refused by RTX 1.7", doubted_for=TENSORRT_ONLY),
    Rule(_reduction, "refused by RTX 1.7", doubted_for=TENSORRT_ONLY),
    Rule(_transposed_in_bf16, "refused by RTX 1.7", doubted_for=TENSORRT_ONLY),
)


def nested_control_flow(graph: Path) -> str:
    """The first control flow inside control flow of a graph's file, as a text; "" where there is none."""
    for node in onnx.load(graph, load_external_data=False).graph.node:
        for inner in (each for body in bodies(node) for each in body.node if any(True for _ in bodies(each))):
            return " in ".join(f"{each.op_type} {each.name or each.output[0]!r}" for each in (inner, node))
    return ""
