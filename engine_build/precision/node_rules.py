"""Which part of a decoder each node belongs to, found by structure, and in what precision that part runs, and why.

The rules need no names: a norm is a mean of squares and the division by its root, the time embedding is what depends on
nothing but the time, the output projection is the last matrix product before the output. Where an exporter noted module
classes, a class that calls itself a norm is taken for one as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import NodeProto, numpy_helper

from engine_build.graphs.graph_view import DATA, FLOATS, SHAPE_OPS, TIME, GraphView
from runtime.engines.operator_flops import PRODUCTS

Width = Literal["full", "low", "index"]

LAYOUT = frozenset({
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze", "Where",
})  # fmt: skip
POINTWISE = frozenset({
    "Abs", "Add", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mish",
    "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Swish", "Tanh",
})  # fmt: skip
NORMS = frozenset({
    "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization",
    "MeanVarianceNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
})  # fmt: skip
CLASS_NOTE = "pkg.torch.onnx.class_hierarchy"

PARTS: dict[str, tuple[Width, str]] = {
    "index": ("index", "sizes, indices and flags: no floating-point numbers"),
    "time": ("full", "time embedding and AdaLN tables: one number per row and channel, scales every frame it meets"),
    "table": ("full", "depends on sizes only (positions, windows): low precision cannot count positions beyond 256"),
    "norm": ("full", "sums of squares lose their small terms, and fp16 overflows above 255 squared"),
    "reduction": ("full", "a sum over many values loses the small ones"),
    "modulation": ("full", "AdaLN, rotation and scale on a normalized value: rounded once, behind them"),
    "edge": ("full", "prepares the decoder's inputs: rounded once, where the trunk begins"),
    "output": ("full", "writes the velocity, which every step integrates in fp32; under 2% of the work"),
    "unknown": ("full", "an operator that is not known to be safe in low precision"),
    "no kernel": ("full", "ONNX (at this opset) or the target has this operator in full precision only"),
    "product": ("low", "matrix products: nearly all of the work, summed in fp32 inside tensor cores"),
    "softmax": ("low", "sums in fp32 inside; its scores come rounded from a product and its weights go into one"),
    "pointwise": ("low", "works on rounded values of the trunk, bound by memory: half the bytes, half the time"),
    "layout": ("low", "moves values without arithmetic"),
    "layout, full": ("full", "moves values that are needed in full precision"),
}


@dataclass(frozen=True, slots=True)
class NodePart:
    """One node: the part it belongs to (a key of PARTS)."""

    part: str

    @property
    def width(self) -> Width:
        """Whether it runs in full or in low precision, or holds no floating-point numbers."""
        return PARTS[self.part][0]

    @property
    def why(self) -> str:
        """The reason, for people."""
        return PARTS[self.part][1]


def parts_of(view: GraphView, without: frozenset[str] = frozenset()) -> list[NodePart]:
    """The part of every node. Operators in `without` stay in full precision: the target has no kernels for them."""
    sorter = _Sorter(view, without)
    parts = [sorter.part(place) for place in range(len(view.nodes))]
    _lower_layout(view, parts, without)
    return [NodePart(part) for part in parts]


class _Sorter:
    """Goes through the nodes in order and remembers which values are rounded, and which a product has touched."""

    def __init__(self, view: GraphView, without: frozenset[str]) -> None:
        self._view, self._without = view, without
        self._norms = set(_norm_nodes(view))
        self._outputs = set(_output_nodes(view))
        self._low: set[str] = set()
        self._worked: set[str] = set()

    def part(self, place: int) -> str:
        node = self._view.nodes[place]
        part = self._part(place)
        if PARTS[part][0] == "low" and node.op_type in self._without:
            part = "no kernel"
        if PARTS[part][0] == "low":
            self._low.update(node.output)
        if node.op_type not in SHAPE_OPS and (node.op_type in PRODUCTS or self._worked.intersection(node.input)):
            self._worked.update(node.output)
        return part

    def _part(self, place: int) -> str:
        view, node, inputs = self._view, self._view.nodes[place], self._view.floats_in(place)
        if not view.floats_out(place):
            return "index" if node.op_type in SHAPE_OPS or not inputs else "edge"
        if place in self._norms:
            return "norm"
        if place in self._outputs:
            return "output"
        if node.op_type in LAYOUT:
            return "layout" if self._low.intersection(inputs) else "layout, full"
        source = view.sources(node.output[0])
        if not source & DATA:
            return "time" if source == TIME else "table"
        return self._working_part(node, inputs)

    def _working_part(self, node: NodeProto, inputs: list[str]) -> str:
        if node.op_type in PRODUCTS:
            return "product"
        if node.op_type == "Softmax":
            return "softmax"
        if node.op_type.startswith("Reduce"):
            return "reduction"
        if node.op_type not in POINTWISE:
            return "unknown" if inputs else "edge"
        if self._low.intersection(inputs):
            return "pointwise"
        return "modulation" if self._worked.intersection(inputs) else "edge"


def _lower_layout(view: GraphView, parts: list[str], without: frozenset[str]) -> None:
    """Round before moving, where everything that reads the moved value wants it rounded: fewer bytes to move."""
    for place in reversed(range(len(parts))):
        node = view.nodes[place]
        if parts[place] != "layout, full" or node.op_type in without or view.outputs.intersection(node.output):
            continue
        widths = [PARTS[parts[reader]][0] for reader in view.reading(place) if parts[reader] != "index"]
        if widths and all(width == "low" for width in widths):
            parts[place] = "layout"


def _norm_nodes(view: GraphView) -> Iterator[int]:
    for place, node in enumerate(view.nodes):
        if node.op_type in NORMS or (_says_norm(node) and view.floats_out(place) and node.op_type not in PRODUCTS):
            yield place
        if _is_root(view, node):
            yield from _norm_around(view, place)


def _says_norm(node: NodeProto) -> bool:
    """Whether the module that wrote a node calls itself a norm: its class is the last but one that is noted."""
    notes = [item.value for item in node.metadata_props if item.key == CLASS_NOTE]
    classes = notes[0].strip("[]").replace("'", "").split(", ") if notes else []
    return len(classes) > 1 and "Norm" in str(classes[-2]).rsplit(".", 1)[-1]


def _is_root(view: GraphView, node: NodeProto) -> bool:
    if node.op_type == "Pow":
        return _constant_of(view, node.input[1]) in (0.5, -0.5)
    return str(node.op_type) == "Sqrt"


def _norm_around(view: GraphView, root: int) -> Iterator[int]:
    """The nodes of the norm whose root this is: mean of squares, plus epsilon, root, division, weight and bias."""
    before = list(_mean_of_squares(view, view.nodes[root].input[0]))
    if not before:
        return
    yield from (*before, root)
    for place in view.reading(root):
        if view.nodes[place].op_type == "Reciprocal":
            yield place
            for scaled in view.reading(place):
                yield from _scaled(view, scaled)
        elif view.nodes[place].op_type == "Div":
            yield from _scaled(view, place)


def _scaled(view: GraphView, place: int) -> Iterator[int]:
    """A normalized value, times its weight per channel, plus its bias."""
    yield place
    for weighed in view.reading(place):
        if view.nodes[weighed].op_type in ("Mul", "Add") and _has_weight(view, weighed):
            yield from _scaled(view, weighed)


def _has_weight(view: GraphView, place: int) -> bool:
    """Whether a node has an operand that is one weight per channel."""
    tensors = [view.initializers[name] for name in view.nodes[place].input if view.is_constant(name)]
    return any(len(tensor.dims) == 1 and tensor.dims[0] > 1 for tensor in tensors)


def _mean_of_squares(view: GraphView, value: str) -> Iterator[int]:
    """Nodes from the squares to the mean with its epsilon; none where it is something else."""
    found = []
    node = view.maker(value)
    while node is not None and node.op_type in ("Add", "Max", "Clip"):
        found.append(view.producers[value])
        value = next((name for name in node.input if name and not view.is_constant(name)), "")
        node = view.maker(value)
    if node is None or node.op_type not in ("ReduceMean", "ReduceSum", "ReduceSumSquare"):
        return
    found.append(view.producers[value])
    squares = view.maker(node.input[0])
    if squares is not None and _is_square(view, squares):
        found.append(view.producers[node.input[0]])
        found += _centring(view, squares)
    elif node.op_type != "ReduceSumSquare":
        return
    yield from found


def _is_square(view: GraphView, node: NodeProto) -> bool:
    if node.op_type == "Pow":
        return _constant_of(view, node.input[1]) == 2.0
    return str(node.op_type) == "Mul" and str(node.input[0]) == node.input[1]


def _centring(view: GraphView, squares: NodeProto) -> Iterator[int]:
    """LayerNorm's x - mean(x), where there is one."""
    node = view.maker(squares.input[0])
    if node is not None and node.op_type == "Sub":
        mean = view.maker(node.input[1])
        if mean is not None and mean.op_type == "ReduceMean":
            yield view.producers[squares.input[0]]
            yield view.producers[node.input[1]]


def _constant_of(view: GraphView, value: str) -> float | None:
    tensor = view.initializers.get(value)
    if tensor is None or tensor.data_type not in FLOATS or int(np.prod(tensor.dims)) != 1:
        return None
    return float(numpy_helper.to_array(tensor).astype(np.float64).reshape(()))


def _output_nodes(view: GraphView) -> Iterator[int]:
    """From the outputs back to the last product of each path, through what only moves or reshapes its values."""
    pending, seen = [name for name in view.outputs if view.is_float(name)], set()
    while pending:
        place = view.producers.get(pending.pop())
        if place is None or place in seen:
            continue
        seen.add(place)
        node = view.nodes[place]
        if node.op_type not in PRODUCTS | LAYOUT | POINTWISE:
            continue
        yield place
        if node.op_type not in PRODUCTS:
            pending += [name for name in view.floats_in(place) if view.sources(name) & DATA]
