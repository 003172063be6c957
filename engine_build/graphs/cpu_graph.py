"""A graph rewritten for ONNX Runtime's CPU kernels: attention and rotary embedding as single operators, patches as
matrix products.

The patterns are those that torch's exporter writes for transformers: heads that share keys and values, masks, rotary
embedding by halves, convolutions of patches. What does not fit stays as it is; normalization and SiLU are fused by
ONNX Runtime itself. Weights of linear layers keep their names, so adapters can still be merged into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper, shape_inference

from engine_build.graphs.graph_view import (
    Found,
    Matcher,
    Op,
    attribute,
    node_name,
    op,
    remove_unused,
    replace_nodes,
    with_weights_as_inputs,
)
from engine_build.graphs.plain_graph import opset
from runtime.engines.graph_bodies import all_nodes

OPSET = 23
OLDEST_OPSET = 18
CONTRIB = "com.microsoft"
# What changed its meaning between OLDEST_OPSET and OPSET.
CHANGED = frozenset({"GroupNormalization"})
SCOPE = "cpu"
# Of a mask. ONNX Runtime takes a query whose scores are all the lowest float32 for one without keys.
LOWEST = -1e38

Shape = tuple[Any, ...]

HEADS = [0, 2, 1, 3]
SWAP = [0, 2, 1]
LAST = [-1, 3]
ONE, TWO_ONES, REST = "slot_sums/one", "slot_sums/two_ones", "slot_sums/rest"
CONSTANTS = {ONE: [1], TWO_ONES: [1, 1], REST: [-1]}


def _twice(function: str, name: str) -> list[Any]:
    """cos or sin `[T,H/2]`, or of angles of this shape, for both halves of all heads."""
    angles = op("Unsqueeze", op("Concat", "angles", "angles", axis=-1), [(0, 2), 1])
    return [op("Unsqueeze", op("Concat", name, name, axis=-1), (0, 2)), op(function, angles)]


HALVES = op("Reshape", "x", "_halves").named("halves")
ROTATED_HALVES = op(
    "Concat",
    op("Neg", op("Squeeze", op("Slice", HALVES, 1, 2, -2), -2)),
    op("Squeeze", op("Slice", HALVES, 0, 1, -2), -2),
    axis=-1,
)
ROTARY = op("Add", op("Mul", "x", _twice("Cos", "cos")), op("Mul", ROTATED_HALVES, _twice("Sin", "sin")))
# As ROTARY was written: that of the first channels of every head, beside the rest.
FIRST_CHANNELS = op("Reshape", op("Slice", "x", 0, "rotated", LAST, 1), "_flat")
PARTIAL_ROTARY = op(
    "Concat",
    op("Reshape", op("RotaryEmbedding", FIRST_CHANNELS, "positions", "cos", "sin"), "_heads"),
    op("Slice", "x", "rotated", "end", LAST, 1),
    axis=-1,
)


def _repeated(heads: Any, name: str) -> list[Any]:
    """Heads, or groups of heads that read the same keys and values."""
    return [heads, op("Reshape", op("Expand", op("Unsqueeze", heads, 2), f"_{name}5"), f"_{name}4")]


def _attended(number: str = "") -> Op:
    """Attention `[R,T,N,H]` of the queries, keys and scales that have this number."""
    keys = _repeated(op("Transpose", f"k{number}", perm=HEADS), f"k{number}")
    turned = op("Reshape", op("Transpose", op("Reshape", keys, f"_k3{number}"), perm=SWAP), f"_kt{number}")
    queries = op("Mul", op("Transpose", f"q{number}", perm=HEADS), f"q_scale{number}")
    scores = op("MatMul", queries, op("Mul", turned, f"k_scale{number}"))
    weights = op("Softmax", [op("Add", scores, f"mask{number}"), scores], axis=-1)
    return op("Transpose", op("MatMul", weights, _repeated(op("Transpose", "v", perm=HEADS), f"v{number}")), perm=HEADS)


ATTENTION = op("Reshape", [_attended(), op("Sub", _attended(), _attended("2"))], "_out")
PATCHES = op("Transpose", op("Conv", op("Transpose", "x", perm=SWAP), "weight").named("conv"), perm=SWAP)
UNPATCHED = op("Transpose", op("ConvTranspose", op("Transpose", "x", perm=SWAP), "weight").named("conv"), perm=SWAP)


def cpu_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function with fewer operators, at opset OPSET and with operators of ONNX Runtime; or the model itself.

    External weights are not read. Graphs with functions, and bodies of control flow, stay as they are.
    """
    domains = {item.domain.removesuffix("ai.onnx"): item.version for item in model.opset_import}
    changed = any(node.op_type in CHANGED for node in all_nodes(model.graph))
    if opset(model) < OLDEST_OPSET or model.functions or changed:
        return model
    fusion = _Fusion(model)
    nodes = [new for node in model.graph.node for new in fusion.rewritten(node)]
    if not fusion.num_fused:
        return model
    result = deepcopy(model)
    replace_nodes(result.graph, nodes)
    result.graph.initializer.extend(fusion.constants.values())
    remove_unused(result.graph)
    domains |= {"": max(domains[""], OPSET), CONTRIB: 1}
    del result.graph.value_info[:], result.opset_import[:]
    result.opset_import.extend(helper.make_opsetid(*item) for item in domains.items())
    return result


class _Fusion:
    """Rewrites a graph node by node. `num_fused`: patterns found so far; `constants`: those of the new nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = shape_inference.infer_shapes(with_weights_as_inputs(model)).graph
        self.num_fused = 0
        self.constants: dict[str, onnx.TensorProto] = {}
        self._shapes: dict[str, Shape] = {v.name: _shape(v) for v in (*graph.input, *graph.value_info, *graph.output)}
        self._shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self._matcher = Matcher(graph.node, graph.initializer)
        self._patches = _patch_lengths(self._matcher, graph.node)
        self._masks: dict[tuple[str, str], str] = {}
        self._functions: dict[tuple[str, str], str] = {}
        self._scope = ""
        self._nodes: list[onnx.NodeProto] = []

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that take a node's place: itself, where no pattern ends with it."""
        value, self._scope, self._nodes = node.output[0], node_name(node), []
        for pattern, rule in RULES.get(node.op_type, ()):
            found = self._matcher.find(pattern, value)
            if found is not None and rule(self, found):
                self._nodes[-1].output[0] = value
                for new in self._nodes:
                    new.metadata_props.extend(node.metadata_props)
                self._matcher.add(self._nodes)
                self.num_fused += 1
                return self._nodes
            self._nodes = []
        return [node]

    def rotary(self, found: Found) -> str:
        """Rotary embedding of `[R,T,N,H]`, the halves of H rotated, by cos and sin `[T,H/2]` of the positions."""
        heads, halves = self._heads(found["x"]), self._shapes.get(found["halves"], ())
        sizes = {self._shapes.get(found[name], ()) for name in ("cos", "sin", "angles") if name in found}
        size = sizes.pop() if len(sizes) == 1 else ()
        if heads is None or len(size) != 2 or halves[2:] != (heads[0], 2, size[1]):
            return ""
        cos, sin = self._of_angles("Cos", found), self._of_angles("Sin", found)
        inputs = self._flat(found["x"]), self._constant((0,)), cos, sin
        return self._reshaped(self._op("RotaryEmbedding", *inputs, domain=CONTRIB), 0, 0, *heads)

    def partial_rotary(self, found: Found) -> str:
        """Rotary embedding of the first channels of every head of `[R,T,N,H]`; the others stay."""
        heads = self._heads(found["x"])
        rotated, end = (self._matcher.constant(found[name]) for name in ("rotated", "end"))
        if heads is None or not isinstance(rotated, int) or not isinstance(end, int) or not rotated < heads[1] <= end:
            return ""
        sizes = {"num_heads": heads[0], "rotary_embedding_dim": rotated}
        inputs = self._flat(found["x"]), found["positions"], found["cos"], found["sin"]
        return self._reshaped(self._op("RotaryEmbedding", *inputs, domain=CONTRIB, **sizes), 0, 0, *heads)

    def attention(self, found: Found) -> str:
        """Attention without transposes, or the difference of two; keys and values are not repeated for their heads."""
        numbers = ("", "2") if "q2" in found else ("",)
        attributes = [self._attention_attributes(found, number) for number in numbers]
        if not all(attributes):
            return ""
        outputs = [self._attention(found, number, each) for number, each in zip(numbers, attributes, strict=True)]
        return outputs[0] if len(outputs) == 1 else self._op("Sub", *outputs)

    def _attention_attributes(self, found: Found, number: str) -> dict[str, Any]:
        """Of the operator; none where shapes or scales do not fit."""
        q, k, v = (self._heads(found[name]) for name in (f"q{number}", f"k{number}", "v"))
        if q is None or k is None or v is None or k[0] != v[0] or q[0] % k[0] or q[1] != k[1]:
            return {}
        scales = [self._matcher.constant(found[f"{name}{number}"]) for name in ("q_scale", "k_scale")]
        mask = found.get(f"mask{number}", "")
        if not all(isinstance(scale, float) for scale in scales) or (mask and len(self._shapes.get(mask, ())) != 4):
            return {}
        return {"q_num_heads": q[0], "kv_num_heads": k[0], "scale": prod(scales)}

    def _attention(self, found: Found, number: str, attributes: Mapping[str, Any]) -> str:
        queries, mask = found[f"q{number}"], found.get(f"mask{number}", "")
        inputs = [self._flat(value) for value in (queries, found[f"k{number}"], found["v"])]
        return self._op("Attention", *inputs, *([self._mask(mask, queries)] if mask else []), **attributes)

    def patches(self, found: Found) -> str:
        """A convolution of patches that do not overlap, `[R,T,C]` -> `[R,T/P,O]`, as a product."""
        conv, shape = self._matcher.producer(found["conv"]), self._shapes.get(found["weight"], ())
        if len(shape) != 3 or _patch_length(conv) not in self._patches:
            return ""
        weight = self._reshaped(self._op("Transpose", found["weight"], perm=[2, 1, 0]), shape[1] * shape[2], shape[0])
        frames = self._reshaped(found["x"], 0, -1, shape[1] * shape[2])
        return self._biased(self._op("MatMul", frames, weight), conv)

    def unpatched(self, found: Found) -> str:
        """A transposed convolution to patches that do not overlap, `[R,T/P,C]` -> `[R,T,O]`, as a product."""
        conv, shape = self._matcher.producer(found["conv"]), self._shapes.get(found["weight"], ())
        if len(shape) != 3 or _patch_length(conv) not in self._patches:
            return ""
        weight = self._reshaped(self._op("Transpose", found["weight"], perm=[0, 2, 1]), shape[0], shape[1] * shape[2])
        return self._biased(self._reshaped(self._op("MatMul", found["x"], weight), 0, -1, shape[1]), conv)

    def _of_angles(self, function: str, found: Found) -> str:
        """cos or sin, computed once for all layers where a graph has angles."""
        if function.lower() in found:
            return found[function.lower()]
        key = function, found["angles"]
        if key not in self._functions:
            self._functions[key] = self._op(function, found["angles"])
        return self._functions[key]

    def _biased(self, value: str, conv: onnx.NodeProto) -> str:
        return self._op("Add", value, conv.input[2]) if len(conv.input) > 2 else value

    def _heads(self, value: str) -> tuple[int, int] | None:
        """N and H of a value `[R,T,N,H]`; None for any other."""
        shape = self._shapes.get(value)
        if shape is None or len(shape) != 4 or not isinstance(shape[2], int) or not isinstance(shape[3], int):
            return None
        return shape[2], shape[3]

    def _flat(self, value: str) -> str:
        """`[R,T,N,H]` -> `[R,T,NH]`, which may be there already."""
        found = self._matcher.find(op("Reshape", "flat", "_heads"), value)
        if found is not None and len(self._shapes.get(found["flat"], ())) == 3:
            return found["flat"]
        return self._reshaped(value, 0, 0, -1)

    def _reshaped(self, value: str, *sizes: int) -> str:
        return self._op("Reshape", value, self._constant(sizes))

    def _mask(self, mask: str, queries: str) -> str:
        """A mask with a line for each query. A line of the lowest number only would give 0, not the mean."""
        length = self._shapes[queries][1]
        if (mask, length) not in self._masks:
            finite = self._op("Max", mask, self._constant((LOWEST,), np.float32))
            one = self._constant((1,))
            sizes = self._op("Concat", one, one, self._op("Shape", queries, start=1, end=2), one, axis=0)
            self._masks[mask, length] = self._op("Expand", finite, sizes)
        return self._masks[mask, length]

    def _op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        output = f"{self._scope}/{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], output, domain=domain, **attributes))
        return output

    def _constant(self, values: tuple[float, ...], dtype: DTypeLike = np.int64) -> str:
        tensor = numpy_helper.from_array(np.array(values, dtype), f"{SCOPE}/{'x'.join(map(str, values))}")
        return str(self.constants.setdefault(tensor.name, tensor).name)


def _shape(value: onnx.ValueInfoProto) -> Shape:
    """A value's sizes, or their names; () where the number of dimensions is not known."""
    return tuple(dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _patch_lengths(matcher: Matcher, nodes: Iterable[onnx.NodeProto]) -> set[int]:
    """Lengths of patches that a graph both makes and resolves: its frames are a multiple of them."""
    lengths: list[set[int]] = []
    for pattern in (PATCHES, UNPATCHED):
        found = [matcher.find(pattern, node.output[0]) for node in nodes if node.op_type == "Transpose"]
        lengths.append({_patch_length(matcher.producer(one["conv"])) for one in found if one is not None})
    return (lengths[0] & lengths[1]) - {0}


def _patch_length(conv: onnx.NodeProto | None) -> int:
    """P of a convolution over time whose kernels are patches that do not overlap; 0 for any other."""
    kernel = attribute(conv, "kernel_shape", [])
    plain = {
        "strides": kernel,
        "pads": [0, 0],
        "dilations": [1],
        "group": 1,
        "auto_pad": b"NOTSET",
        "output_padding": [0],
    }
    is_plain = all(attribute(conv, name, value) == value for name, value in plain.items())
    return kernel[0] if len(kernel) == 1 and is_plain else 0


Rule = Callable[[_Fusion, Found], str]
RULES: Mapping[str, tuple[tuple[Op, Rule], ...]] = {
    "Add": ((ROTARY, _Fusion.rotary),),
    "Concat": ((PARTIAL_ROTARY, _Fusion.partial_rotary),),
    "Reshape": ((ATTENTION, _Fusion.attention),),
    "Transpose": ((PATCHES, _Fusion.patches), (UNPATCHED, _Fusion.unpatched)),
}


def with_slot_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """A step graph with all sums over the second axis of `[S,K,...]` in one order, whether S is 1 or more.

    ONNX Runtime's ReduceSum adds the values of one slot in another order than those of several, and takes longer. A
    product with ones adds them in the latter order: a slot that is alone gets that.
    """
    axes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    result = deepcopy(model)
    nodes = list[onnx.NodeProto]()
    for node in model.graph.node:
        is_over_second = node.op_type == "ReduceSum" and axes[node.input[1]].tolist() == [1]
        nodes += _in_one_order(node) if is_over_second else [node]
    result.graph.initializer.extend(
        numpy_helper.from_array(np.array(values, np.int64), name) for name, values in CONSTANTS.items()
    )
    replace_nodes(result.graph, nodes)
    return result


def _in_one_order(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    x, total = node.input[0], node.output[0]
    several = deepcopy(node)
    several.output[0] = f"{total}/several"
    yield helper.make_node("Shape", [x], [f"{total}/slots"], f"{node.name}/slots", start=0, end=1)
    yield helper.make_node("Equal", [f"{total}/slots", ONE], [f"{total}/is_alone"], f"{node.name}/is_alone")
    yield helper.make_node(
        "If",
        [f"{total}/is_alone"],
        [total],
        node.name,
        then_branch=_branch(list(_product_with_ones(x, f"{total}/alone", attribute(node, "keepdims", 1)))),
        else_branch=_branch([several]),
    )


def _product_with_ones(x: str, total: str, keepdims: int) -> Iterator[onnx.NodeProto]:
    """The sum over K of `[1,K,...]`."""
    yield helper.make_node("Shape", [x], [f"{total}/count"], start=1, end=2)
    yield helper.make_node("Concat", [f"{total}/count", REST], [f"{total}/flat_shape"], axis=0)
    yield helper.make_node("Reshape", [x, f"{total}/flat_shape"], [f"{total}/flat"])  # [K,...]
    yield helper.make_node("Concat", [ONE, f"{total}/count"], [f"{total}/ones_shape"], axis=0)
    one = numpy_helper.from_array(np.ones(1, np.float32))
    yield helper.make_node("ConstantOfShape", [f"{total}/ones_shape"], [f"{total}/ones"], value=one)  # [1,K]
    yield helper.make_node("MatMul", [f"{total}/ones", f"{total}/flat"], [f"{total}/product"])  # [1,...]
    yield helper.make_node("Shape", [x], [f"{total}/rest"], start=2)
    yield helper.make_node("Concat", [TWO_ONES if keepdims else ONE, f"{total}/rest"], [f"{total}/shape"], axis=0)
    yield helper.make_node("Reshape", [f"{total}/product", f"{total}/shape"], [total])


def _branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [result])
