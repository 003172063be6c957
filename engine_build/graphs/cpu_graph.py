"""A graph rewritten for ONNX Runtime's CPU kernels: attention and rotary embedding as single operators, patches as
matrix products.

The patterns are those that torch's exporter writes for transformers: heads that share keys and values, masks, rotary
embedding by halves, convolutions of patches. What does not fit stays as it is; normalization and SiLU are fused by
ONNX Runtime itself. Weights of linear layers keep their names, so adapters can still be merged into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper, shape_inference

from engine_build.graphs.graph_pattern import Found, Matcher, Op, op
from engine_build.graphs.graph_view import attribute, node_name, remove_unused, replace_nodes, without_weights

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
HALVES = op("Reshape", "x", "_halves").named("halves")
ROTATED_HALVES = op(
    "Concat",
    op("Neg", op("Squeeze", op("Slice", HALVES, 1, 2, -2), -2)),
    op("Squeeze", op("Slice", HALVES, 0, 1, -2), -2),
    axis=-1,
)
ROTARY = op(
    "Add",
    op("Mul", "x", op("Unsqueeze", op("Concat", "cos", "cos", axis=-1), (0, 2))),
    op("Mul", ROTATED_HALVES, op("Unsqueeze", op("Concat", "sin", "sin", axis=-1), (0, 2))),
)


def _repeated(heads: Any, name: str) -> list[Any]:
    """Heads, or groups of heads that read the same keys and values."""
    return [heads, op("Reshape", op("Expand", op("Unsqueeze", heads, 2), f"_{name}5"), f"_{name}4")]


KEYS = _repeated(op("Transpose", "k", perm=HEADS), "k")
TRANSPOSED_KEYS = op("Reshape", op("Transpose", op("Reshape", KEYS, "_k3"), perm=SWAP), "_kt")
SCORES = op("MatMul", op("Mul", op("Transpose", "q", perm=HEADS), "q_scale"), op("Mul", TRANSPOSED_KEYS, "k_scale"))
ATTENTION = op(
    "Reshape",
    op(
        "Transpose",
        op(
            "MatMul",
            op("Softmax", [op("Add", SCORES, "mask"), SCORES], axis=-1),
            _repeated(op("Transpose", "v", perm=HEADS), "v"),
        ),
        perm=HEADS,
    ),
    "_out",
)
PATCHES = op("Transpose", op("Conv", op("Transpose", "x", perm=SWAP), "weight").named("conv"), perm=SWAP)
UNPATCHED = op("Transpose", op("ConvTranspose", op("Transpose", "x", perm=SWAP), "weight").named("conv"), perm=SWAP)


def cpu_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function with fewer operators, at opset OPSET and with operators of ONNX Runtime; or the model itself.

    External weights are not read. Graphs with control flow or functions stay as they are.
    """
    domains = {item.domain.removesuffix("ai.onnx"): item.version for item in model.opset_import}
    if domains[""] < OLDEST_OPSET or model.functions or not all(_is_plain(node) for node in model.graph.node):
        return model
    fusion = _Fusion(model)
    nodes = [new for node in model.graph.node for new in fusion.rewritten(node)]
    if not fusion.num_fused:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    replace_nodes(result, nodes)
    result.graph.initializer.extend(fusion.constants.values())
    remove_unused(result.graph)
    domains |= {"": max(domains[""], OPSET), CONTRIB: 1}
    del result.graph.value_info[:], result.opset_import[:]
    result.opset_import.extend(helper.make_opsetid(*item) for item in domains.items())
    return result


def _is_plain(node: onnx.NodeProto) -> bool:
    return node.op_type not in CHANGED and not any(item.HasField("g") or item.graphs for item in node.attribute)


class _Fusion:
    """Rewrites a graph node by node. `num_fused`: patterns found so far; `constants`: those of the new nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = shape_inference.infer_shapes(without_weights(model)).graph
        self.num_fused = 0
        self.constants: dict[str, onnx.TensorProto] = {}
        self._shapes: dict[str, Shape] = {v.name: _shape(v) for v in (*graph.input, *graph.value_info, *graph.output)}
        self._shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self._matcher = Matcher(graph.node, graph.initializer)
        self._patches = _patch_lengths(self._matcher, graph.node)
        self._masks: dict[tuple[str, str], str] = {}
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
        heads, cos, halves = (self._shapes.get(found[name], ()) for name in ("x", "cos", "halves"))
        if len(heads) != 4 or len(cos) != 2 or halves[2:] != (heads[2], 2, cos[1]):
            return ""
        inputs = self._flat(found["x"]), self._constant((0,)), found["cos"], found["sin"]
        return self._reshaped(self._op("RotaryEmbedding", *inputs, domain=CONTRIB), 0, 0, *heads[2:])

    def attention(self, found: Found) -> str:
        """Attention without transposes; keys and values are not repeated for the heads that share them."""
        q, k, v = (self._heads(found[name]) for name in "qkv")
        if q is None or k is None or v is None or k[0] != v[0] or q[0] % k[0] or q[1] != k[1]:
            return ""
        scales, mask = [self._matcher.constant(found[name]) for name in ("q_scale", "k_scale")], found.get("mask", "")
        if not all(isinstance(scale, float) for scale in scales) or (mask and len(self._shapes.get(mask, ())) != 4):
            return ""
        inputs = [self._flat(found[name]) for name in "qkv"] + ([self._mask(mask, found["q"])] if mask else [])
        return self._op("Attention", *inputs, q_num_heads=q[0], kv_num_heads=k[0], scale=prod(scales))

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
    "Reshape": ((ATTENTION, _Fusion.attention),),
    "Transpose": ((PATCHES, _Fusion.patches), (UNPATCHED, _Fusion.unpatched)),
}
