"""Values that float16 may not hold, and products scaled so that theirs fit.

Published weights have residual streams of 1e5 and more: the last projection of ACE-Step's lyric encoder gives 505,000,
and float16 ends at 65,504. What a norm gives, and what a product behind a norm gives, fits; what blocks add to the
stream, the stream itself and products of two activations may not: they stay in float32. A product that reads or gives
such values reads one factor times 2^-6, and its result is multiplied by 2^6 in float32. Powers of two are exact, so
the graph is the same function, and what it adds to the stream may be 4.19 million.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine_build.graphs.graph_view import DATA, GraphView, replace_nodes
from engine_build.precision.casts import InlineWeights
from engine_build.precision.node_rules import CACHE_UPDATE, LAYOUT, POINTWISE, norm_nodes
from engine_build.precision.normalize import mask_nodes
from runtime.engines.value_shapes import PRODUCTS

SCALE = 2.0**-6
# The constants SCALE and 1 / SCALE.
DOWN, UP = "float16/down", "float16/up"
LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# Of which all values are at most 1.
UNIT = frozenset({"Cos", "Erf", "HardSigmoid", "Sigmoid", "Sin", "Softmax", "Tanh"})
# Whose values are no longer than their first input's.
ROTATIONS = frozenset({"RotaryEmbedding"})
# Where values end that a block adds to nothing.
ENDS = PRODUCTS | UNIT | {CACHE_UPDATE}
FACTORS = frozenset({"Div", "Mul", "Pow", "Reciprocal"})


def in_range(model: onnx.ModelProto, weights: InlineWeights) -> tuple[onnx.ModelProto, frozenset[str]]:
    """The same function with scaled products, changed in place, and the values that float16 may not hold."""
    view = GraphView(model)
    found = _Finder(view)
    nodes, read, constants = list[onnx.NodeProto](), set[str](), set[str]()
    for index, node in enumerate(view.nodes):
        if index not in found.scaled:
            nodes.append(node)
            continue
        source, result = found.scaled[index], node.output[0]
        if source not in read and not view.is_constant(source):
            nodes.append(_scaling(source, _scaled(source), DOWN))
        read.add(source)
        bias = [name for name in node.input[2:] if name]
        constants.update(name for name in (source, *bias) if view.is_constant(name))
        node.input[:] = [_scaled(name) if name in (source, *bias) else name for name in node.input]
        node.output[0] = f"{result}/product"
        nodes += [node, _scaling(node.output[0], result, UP)]
    if found.scaled:
        replace_nodes(model.graph, nodes)
        for name in sorted(constants):
            tensor = model.graph.initializer.add()
            tensor.CopyFrom(view.initializers[name])
            tensor.name = _scaled(name)
            weights.factors[tensor.name] = SCALE
        for name, value in ((DOWN, SCALE), (UP, 1 / SCALE)):
            model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return model, frozenset(found.wide)


def _scaling(source: str, target: str, factor: str) -> onnx.NodeProto:
    return helper.make_node("Mul", [source, factor], [target], name=f"scale/{target}")


def _scaled(name: str) -> str:
    return f"{name}/scaled"


class _Finder:
    """Visits the nodes in order. `wide`: values that float16 may not hold; `scaled`: product -> the factor to scale."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._safe = {*norm_nodes(view), *mask_nodes(view)}
        self._units = set[str]()
        caches = {node.input[0] for node in view.nodes if node.op_type == CACHE_UPDATE}
        self.wide = {value.name for value in view.inputs if self._is_data(value.name)} - caches
        self.scaled = dict[int, str]()
        for index, node in enumerate(view.nodes):
            if view.floats_out(index) and self._is_data(node.output[0]) and self._is_wide(index, node):
                self.wide.update(view.floats_out(index))

    def _is_data(self, name: str) -> bool:
        return self._view.is_float(name) and bool(self._view.sources(name) & DATA)

    def _is_wide(self, index: int, node: onnx.NodeProto) -> bool:
        inputs = [name for name in node.input if name and self._is_data(name)]
        if node.op_type in UNIT:
            self._units.update(node.output)
        if index in self._safe or node.op_type in UNIT:
            return False
        if node.op_type in ROTATIONS:
            return node.input[0] in self.wide
        any_wide = not self.wide.isdisjoint(inputs)
        if node.op_type in LAYOUT or node.op_type == CACHE_UPDATE:
            if inputs and self._units.issuperset(inputs):
                self._units.update(node.output)
            return any_wide
        if node.op_type in PRODUCTS:
            factor = self._factor_to_scale(index, node)
            if factor:
                self.scaled[index] = factor
            return bool(factor) or any_wide
        if node.op_type in FACTORS:
            factors = [name for name in inputs if name not in self._units]
            is_scaled = node.op_type == "Mul" or (node.op_type == "Div" and node.input[1] not in inputs)
            return any_wide or len(factors) > 1 or not is_scaled
        return any_wide or node.op_type not in POINTWISE

    def _factor_to_scale(self, index: int, node: onnx.NodeProto) -> str:
        """The factor of a product that is scaled: the wide one, or the weight of what is added up; "" for none."""
        factors, bias = node.input[:2], node.input[2:]
        if node.op_type not in LINEAR or not all(self._view.is_constant(name) for name in bias if name):
            return ""
        if wide := [name for name in factors if name in self.wide]:
            return wide[0] if len(wide) == 1 else ""
        weights = [name for name in factors if self._view.is_constant(name)]
        return weights[0] if len(weights) == 1 and self._is_added(index) else ""

    def _is_added(self, product: int) -> bool:
        """Whether what a product gives, moved and multiplied, is added to what does not depend on it, or is a result.

        Values that turn by sums of themselves (rotary embedding) do depend on it.
        """
        view, reached = self._view, {self._view.nodes[product].output[0]}
        pending = sorted(view.readers_of(product))
        while pending:
            index = heappop(pending)
            node = view.nodes[index]
            if index in self._safe or node.op_type in ENDS or not view.floats_out(index):
                continue
            if node.op_type not in LAYOUT | POINTWISE | ROTATIONS:
                return True
            others = {name for name in node.input if name and name not in reached and self._is_data(name)}
            if others and node.op_type not in FACTORS | LAYOUT | ROTATIONS:
                return True
            if reached.isdisjoint(node.output):
                reached.update(node.output)
                for reader in view.readers_of(index):
                    heappush(pending, reader)
        return not view.outputs.isdisjoint(reached)
