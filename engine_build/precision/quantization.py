"""8-bit products for GPUs, as QuantizeLinear and DequantizeLinear before them (QDQ), which builders fuse into them.

Weights are stored in 8 bits, with a scale per output feature. Activations are rounded with one scale per tensor, known
from calibration, so that what a row becomes depends on no other row; larger values than in calibration saturate. Both
are symmetric. What is not quantized runs as in the recipe bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine_build.graphs.graph_view import GraphView, attribute, node_name, replace_nodes
from engine_build.precision.casts import InlineWeights
from engine_build.precision.node_rules import NodeRule

EightBits = Literal["fp8", "int8"]
KINDS: Mapping[EightBits, int] = {"fp8": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}
LARGEST: Mapping[EightBits, float] = {"fp8": 448.0, "int8": 127.0}
# How much larger than in calibration an activation may be. In fp8 it costs no precision, only the smallest numbers.
HEADROOM: Mapping[EightBits, float] = {"fp8": 2.0, "int8": 1.1}
# The axis of output features in a weight.
FEATURE_AXES = {"MatMul": -1, "Gemm": 1, "Conv": 0, "ConvTranspose": 1}
SMALLEST_PEAK = 1e-12


@dataclass(frozen=True)
class Quantization:
    """Which products of a decoder run in 8 bits, and why: what quantization_of decided.

    peaks: value -> its largest magnitude in calibration. errors: product -> the velocity's error where it alone is
    quantized, root mean square over that of the velocity. work: product -> its share of the graph's work. products:
    those that run in 8 bits. by_token: as the recipe int8 for CPUs, without peaks.
    """

    recipe: EightBits
    peaks: Mapping[str, float] = field(repr=False)
    errors: Mapping[str, float] = field(repr=False)
    work: Mapping[str, float] = field(repr=False)
    products: frozenset[str]
    by_token: bool = False

    @property
    def predicted(self) -> float:
        """The velocity's error if the products' own are independent."""
        return sqrt(sum(self.errors[name] ** 2 for name in self.products))

    @property
    def kept(self) -> dict[str, float]:
        """The products that are not in 8 bits, with their errors; the largest share of the work first."""
        names = sorted(self.errors.keys() - self.products, key=lambda name: -self.work[name])
        return {name: round(self.errors[name], 5) for name in names}


def candidates(view: GraphView) -> Iterator[int]:
    """The indices of the products that may run in 8 bits: those of an activation and a weight.

    Attention's own products are none: with QDQ before them, TensorRT-RTX 1.7 gives up its fused kernels for
    attention: all in fp8, at least half of them in int8.
    """
    for index, node in enumerate(view.nodes):
        if node.op_type in FEATURE_AXES and attribute(node, "group", 1) == 1 and view.floats_out(index):
            x, weight = node.input[:2]
            if not view.is_constant(x) and view.is_constant(weight) and len(view.initializers[weight].dims) > 1:
                yield index


def activation_scale(peak: float, recipe: EightBits) -> NDArray[np.float32]:
    """The scale of an activation with this peak in calibration."""
    return _rounded_scale(np.array(HEADROOM[recipe] * peak), recipe)


def _rounded_scale(peaks: NDArray[Any], recipe: EightBits) -> NDArray[np.float32]:
    """The scales that map these peaks to the largest 8-bit number, as numbers that bf16 has."""
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    return np.asarray((np.maximum(peaks, SMALLEST_PEAK) / LARGEST[recipe]).astype(kind), np.float32)


def weight_scales(node: onnx.NodeProto, weight: NDArray[Any], recipe: EightBits) -> tuple[NDArray[np.float32], int]:
    """The scale of each output feature of a product's weight, and their axis."""
    axis = FEATURE_AXES[node.op_type] % weight.ndim
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        axis = 0
    others = tuple(other for other in range(weight.ndim) if other != axis)
    return _rounded_scale(np.abs(weight).max(axis=others), recipe), axis


def quantized(
    view: GraphView, rules: Sequence[NodeRule], quantization: Quantization, weights: InlineWeights
) -> tuple[GraphView, list[NodeRule]]:
    """A view of the graph with QDQ before its chosen products, and the rule of each of its nodes.

    What is added has the rule of its product. Products of values that calibration did not see stay as they are.
    """
    writer = _Writer(view, quantization, weights)
    nodes, found = list[onnx.NodeProto](), list[NodeRule]()
    chosen = set(chosen_nodes(view, quantization))
    for index, (node, rule) in enumerate(zip(view.nodes, rules, strict=True)):
        new = [*writer.product(node, rule)] if index in chosen else [node]
        nodes += new
        found += [rule] * len(new)
    model = view.model
    replace_nodes(model.graph, nodes)
    model.graph.initializer.extend(writer.constants.values())
    return GraphView(model), found


def chosen_nodes(view: GraphView, quantization: Quantization) -> Iterator[int]:
    """The indices of a graph's products that are in 8 bits; the graph may have more than the calibrated one."""
    for index in candidates(view):
        node = view.nodes[index]
        if node.input[0] in quantization.peaks and node_name(node) in quantization.products:
            yield index


class _Writer:
    """Writes products with QDQ before them, and collects the constants that these read."""

    def __init__(self, view: GraphView, quantization: Quantization, weights: InlineWeights) -> None:
        self._view, self._quantization, self._weights = view, quantization, weights
        self._recipe = quantization.recipe
        self._dtype = np.dtype(helper.tensor_dtype_to_np_dtype(KINDS[self._recipe]))
        self._made = set[str]()
        self.constants: dict[str, TensorProto] = {}

    def product(self, node: onnx.NodeProto, rule: NodeRule) -> Iterator[onnx.NodeProto]:
        """The product of what its factors are in 8 bits; the nodes that make these come first."""
        copy = deepcopy(node)
        copy.input[:2] = [f"{name}.{self._recipe}.{rule.width}" for name in node.input[:2]]
        (x, weight), (x8, weight8) = node.input[:2], copy.input[:2]
        for name, make in ((x8, self._activation(x, x8)), (weight8, self._weight(node, weight, weight8))):
            if name not in self._made:  # once for all products
                self._made.add(name)
                for new in make:
                    new.metadata_props.extend(node.metadata_props)
                    yield new
        yield copy

    def _weight(self, node: onnx.NodeProto, name: str, output: str) -> Iterator[onnx.NodeProto]:
        exact, stored = self._weights.read(self._view.initializers[name]), f"{output}.stored"
        scale, axis = weight_scales(node, exact, self._recipe)
        spread = np.expand_dims(scale, [other for other in range(exact.ndim) if other != axis])
        self.constants[stored] = self._weights.write(stored, self._rounded(exact / spread))
        inputs = [stored, *self._scale(output, scale)]
        yield helper.make_node("DequantizeLinear", inputs, [output], f"dequantize/{output}", axis=axis)

    def _activation(self, name: str, output: str) -> Iterator[onnx.NodeProto]:
        inner = f"{output}.stored"
        scale = self._scale(output, activation_scale(self._quantization.peaks[name], self._recipe))
        yield helper.make_node("QuantizeLinear", [name, *scale], [inner], f"quantize/{output}")
        yield helper.make_node("DequantizeLinear", [inner, *scale], [output], f"dequantize/{output}")

    def _scale(self, name: str, scale: NDArray[np.float32]) -> tuple[str, str]:
        """The names of the constants with a scale and its zero point, which is 0."""
        names = f"{name}.scale", f"{self._recipe}.zero.{scale.size if scale.shape else 'scalar'}"
        for key, values in zip(names, (scale, np.zeros(scale.shape, self._dtype)), strict=True):
            if key not in self.constants:
                self.constants[key] = self._weights.write(key, values)
        return names

    def _rounded(self, scaled: NDArray[Any]) -> NDArray[Any]:
        largest = LARGEST[self._recipe]
        limited = np.clip(scaled, -largest, largest)
        return np.asarray(np.rint(limited) if self._recipe == "int8" else limited, self._dtype)
