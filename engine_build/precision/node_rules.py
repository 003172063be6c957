"""The rules that give each node of a decoder its precision, with the reason.

Rules match the graph's structure, not names: a norm is a mean of squares and the division by its root, the time
embedding is what depends on the time only, the output projection is the last matrix product before the output. Where
the exporter recorded module classes, a class with "Norm" in its name is a norm as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import NodeProto, numpy_helper

from engine_build.graphs.graph_view import DATA, FLOATS, SHAPE_OPS, TIME, GraphView
from runtime.engines.value_shapes import PRODUCTS

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
CACHE_UPDATE = "TensorScatter"
CLASS_HIERARCHY = "pkg.torch.onnx.class_hierarchy"


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A kind of node: its name, the width its nodes run in ("index": no floating-point numbers), and the reason."""

    name: str
    width: Width
    reason: str


NODE_RULES = {
    rule.name: rule
    for rule in (
        NodeRule("index", "index", "sizes, indices and flags: no floating-point numbers"),
        NodeRule("time", "full", "time embedding and AdaLN tables: one number per row and channel, scales every frame"),
        NodeRule("table", "full", "depends on sizes only (positions, windows): bf16 cannot count beyond 256"),
        NodeRule("norm", "full", "sums of squares lose their small terms, and fp16 overflows above 255 squared"),
        NodeRule("reduction", "full", "a sum over many values loses the small ones"),
        NodeRule("modulation", "full", "AdaLN, rotation and scale on a normalized value: rounded once, after them"),
        NodeRule("edge", "full", "prepares the decoder's inputs: rounded once, where the trunk begins"),
        NodeRule("output", "full", "computes the velocity, which every step integrates in fp32; under 2% of the work"),
        NodeRule("unknown", "full", "an operator that is not known to be safe in low precision"),
        NodeRule("no kernel", "full", "ONNX (at this opset) or the target has this operator in full precision only"),
        NodeRule("wide", "full", "the residual stream and what is added to it: beyond 65,504 in published weights"),
        NodeRule("product", "low", "matrix products: nearly all of the work, summed in fp32 inside tensor cores"),
        NodeRule("8 bits", "low", "products that alone change the velocity little for their work: sensitivity.py"),
        NodeRule("cache", "low", "keys and values for later products: half the memory of a sequence"),
        NodeRule("softmax", "low", "sums in fp32 inside; its inputs and outputs belong to products"),
        NodeRule("pointwise", "low", "memory-bound, on values that are rounded already: half the bytes, half the time"),
        NodeRule("layout", "low", "moves values without arithmetic"),
        NodeRule("layout, full", "full", "moves values that are needed in full precision"),
    )
}


def node_rules(
    view: GraphView, without: frozenset[str] = frozenset(), wide: frozenset[str] = frozenset()
) -> list[NodeRule]:
    """The rule of every node.

    Operators in `without` stay in full precision, because the target has no kernels for them, and so does what reads or
    gives values in `wide`, which the low precision may not hold.
    """
    classifier = _Classifier(view, without, wide)
    names = [classifier.rule(index) for index in range(len(view.nodes))]
    _lower_layout(view, names, without)
    return [NODE_RULES[name] for name in names]


class _Classifier:
    """Visits the nodes in order; tracks which values are rounded, and which depend on a matrix product."""

    def __init__(self, view: GraphView, without: frozenset[str], wide: frozenset[str]) -> None:
        self._view, self._without, self._wide = view, without, wide
        self._norms = set(norm_nodes(view))
        self._outputs = set(_output_nodes(view))
        self._low: set[str] = set()
        self._computed: set[str] = set()

    def rule(self, index: int) -> str:
        """The name of a node's rule."""
        node = self._view.nodes[index]
        rule = self._structural_rule(index)
        if NODE_RULES[rule].width == "low" and node.op_type in self._without:
            rule = "no kernel"
        if NODE_RULES[rule].width == "low" and not self._wide.isdisjoint((*self._view.reads[index], *node.output)):
            rule = "wide"
        if NODE_RULES[rule].width == "low":
            self._low.update(node.output)
        if node.op_type not in SHAPE_OPS and (
            node.op_type in PRODUCTS or self._computed.intersection(self._view.reads[index])
        ):
            self._computed.update(node.output)
        return rule

    def _structural_rule(self, index: int) -> str:
        view, node, inputs = self._view, self._view.nodes[index], self._view.floats_in(index)
        if not view.floats_out(index):
            return "index" if node.op_type in SHAPE_OPS or not inputs else "edge"
        if node.op_type == CACHE_UPDATE:
            return "cache"
        if index in self._norms:
            return "norm"
        if index in self._outputs:
            return "output"
        if node.op_type in LAYOUT:
            return "layout" if self._low.intersection(inputs) else "layout, full"
        source = view.sources(node.output[0])
        if not source & DATA:
            return "time" if source == TIME else "table"
        return self._computing_rule(node, inputs)

    def _computing_rule(self, node: NodeProto, inputs: list[str]) -> str:
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
        return "modulation" if self._computed.intersection(inputs) else "edge"


def _lower_layout(view: GraphView, rules: list[str], without: frozenset[str]) -> None:
    """Round before moving, where all readers of the moved value need it rounded: fewer bytes to move.

    An output of the graph stays in full precision: of a cache only the part that is read is rounded.
    """
    for index in reversed(range(len(rules))):
        node = view.nodes[index]
        is_output = view.outputs.intersection((*node.input, *node.output))
        if rules[index] != "layout, full" or node.op_type in without or is_output:
            continue
        widths = [NODE_RULES[rules[reader]].width for reader in view.readers_of(index) if rules[reader] != "index"]
        if widths and all(width == "low" for width in widths):
            rules[index] = "layout"


def norm_nodes(view: GraphView) -> Iterator[int]:
    for index, node in enumerate(view.nodes):
        if node.op_type in NORMS or (_is_norm_class(node) and view.floats_out(index) and node.op_type not in PRODUCTS):
            yield index
        if _is_root(view, node):
            yield from _norm_around(view, index)


def _is_norm_class(node: NodeProto) -> bool:
    """Whether the class of a node's module, the last but one in the recorded hierarchy, has "Norm" in its name."""
    hierarchies = [item.value for item in node.metadata_props if item.key == CLASS_HIERARCHY]
    classes = hierarchies[0].strip("[]").replace("'", "").split(", ") if hierarchies else []
    return len(classes) > 1 and "Norm" in str(classes[-2]).rsplit(".", 1)[-1]


def _is_root(view: GraphView, node: NodeProto) -> bool:
    if node.op_type == "Pow":
        return _constant_of(view, node.input[1]) in (0.5, -0.5)
    return str(node.op_type) == "Sqrt"


def _norm_around(view: GraphView, root: int) -> Iterator[int]:
    """The nodes of the norm around its root: mean of squares, epsilon, root, division, weight and bias."""
    before = list(_mean_of_squares(view, view.nodes[root].input[0]))
    if not before:
        return
    yield from (*before, root)
    for index in view.readers_of(root):
        if view.nodes[index].op_type == "Reciprocal":
            yield index
            for scaled in view.readers_of(index):
                yield from _scaled(view, scaled)
        elif view.nodes[index].op_type == "Div":
            yield from _scaled(view, index)


def _scaled(view: GraphView, index: int) -> Iterator[int]:
    """The node, then its multiplication by a weight per channel and the addition of a bias."""
    yield index
    for weighed in view.readers_of(index):
        if view.nodes[weighed].op_type in ("Mul", "Add") and _has_weight(view, weighed):
            yield from _scaled(view, weighed)


def _has_weight(view: GraphView, index: int) -> bool:
    """Whether an operand of a node is a constant of one value per channel."""
    tensors = [view.initializers[name] for name in view.nodes[index].input if view.is_constant(name)]
    return any(len(tensor.dims) == 1 and tensor.dims[0] > 1 for tensor in tensors)


def _mean_of_squares(view: GraphView, value: str) -> Iterator[int]:
    """The nodes from the squares to their mean with its epsilon; none where `value` is something else."""
    found = []
    node = view.producer(value)
    while node is not None and node.op_type in ("Add", "Max", "Clip"):
        found.append(view.producers[value])
        value = next((name for name in node.input if name and not view.is_constant(name)), "")
        node = view.producer(value)
    if node is None or node.op_type not in ("ReduceMean", "ReduceSum", "ReduceSumSquare"):
        return
    found.append(view.producers[value])
    squares = view.producer(node.input[0])
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
    """The nodes of LayerNorm's x - mean(x), if there are any."""
    node = view.producer(squares.input[0])
    if node is not None and node.op_type == "Sub":
        mean = view.producer(node.input[1])
        if mean is not None and mean.op_type == "ReduceMean":
            yield view.producers[squares.input[0]]
            yield view.producers[node.input[1]]


def _constant_of(view: GraphView, value: str) -> float | None:
    tensor = view.initializers.get(value)
    if tensor is None or tensor.data_type not in FLOATS or int(np.prod(tensor.dims)) != 1:
        return None
    return float(numpy_helper.to_array(tensor).astype(np.float64).reshape(()))


def _output_nodes(view: GraphView) -> Iterator[int]:
    """The nodes from the outputs back to the last product of each path, through layout and pointwise nodes."""
    pending, seen = [name for name in view.outputs if view.is_float(name)], set()
    while pending:
        index = view.producers.get(pending.pop())
        if index is None or index in seen:
            continue
        seen.add(index)
        node = view.nodes[index]
        if node.op_type not in PRODUCTS | LAYOUT | POINTWISE:
            continue
        yield index
        if node.op_type not in PRODUCTS:
            pending += [name for name in view.floats_in(index) if view.sources(name) & DATA]
