"""Shapes of all values of an ONNX graph at given input shapes, and what its products cost.

Shapes are inferred node by node, with constants folded.

The module imports onnx: only builds and profiles use it, no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.checker import ValidationError
from onnx.defs import SchemaError, get_schema
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs, infer_shapes

from runtime.engines.graph_bodies import bodies, reads

Shape = tuple[int, ...]
PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})


def product_flops(op_type: str, attributes: Mapping[str, Any], first: Shape, second: Shape, out: Shape) -> int:
    """Multiplications and additions of an ONNX matrix product or convolution; 0 for every other operator.

    `attributes`: transA of a Gemm, the equation of an Einsum (bytes). `first`, `second`: its first two inputs.
    """
    if op_type not in PRODUCTS:
        return 0
    if op_type == "Gemm":
        return 2 * prod(out) * first[0 if attributes.get("transA") else 1]
    if op_type == "Conv":
        return 2 * prod(out) * prod(second[1:])
    if op_type == "ConvTranspose":
        return 2 * prod(first) * prod(second[1:])
    if op_type == "Einsum":
        return _einsum_flops(attributes["equation"].decode(), (first, second))
    if op_type == "Attention":
        return 4 * prod(first) * second[-2]
    return 2 * prod(out) * first[-1]


def _einsum_flops(equation: str, shapes: Sequence[Shape]) -> int:
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return 2 * prod(sizes.values())


# Constants of at most so many elements are folded: sizes, axes and ranges. Larger ones are weights.
SMALL = 4096
# What the reference evaluator raises for operators that it does not support.
NOT_EVALUATED = (NotImplementedError, RuntimeError, ValueError, TypeError, IndexError)


# Operators whose result is another one in every execute; Dropout where it is in training.
RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
NOT_FOLDED = RANDOM | {"DequantizeLinear"}

Values = Mapping[str, tuple[Shape, int]]


def value_shapes(model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> Values:
    """Value -> shape and ONNX element type. A value whose shape depends on data is left out."""
    inference = _Inference(model, inputs)
    for node in model.graph.node:
        inference.add(node)
    shapes = {name: _shape(kind) for name, kind in inference.types.items()}
    return {
        name: (shape, inference.types[name].tensor_type.elem_type)
        for name, shape in shapes.items()
        if shape is not None
    }


def evaluated(
    node: onnx.NodeProto, feeds: Mapping[str, NDArray[np.generic]], opset: int
) -> list[NDArray[np.generic]] | None:
    """The outputs of a node of ONNX's own domain; None where the reference evaluator does not support it.

    None also where an output is no tensor (a sequence, an optional).
    """
    try:
        results = ReferenceEvaluator(node, opsets={"": opset}).run(None, dict(feeds))
    except NOT_EVALUATED:
        return None
    is_tensors = all(isinstance(result, np.ndarray | np.generic) for result in results)
    return [np.asarray(result) for result in results] if is_tensors else None


def can_fold(node: onnx.NodeProto) -> bool:
    """Whether a node of constant inputs is a constant: one of ONNX's own domain, without a body, not random.

    What is stored in 8 bits stays so: builders fuse DequantizeLinear into what reads it.
    """
    has_bodies = any(True for _ in bodies(node))
    return node.domain in ("", "ai.onnx") and not has_bodies and node.op_type not in NOT_FOLDED


class _Inference:
    """What is known so far: the type of every value, and the elements of small ones."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> None:
        self._opsets = list(model.opset_import)
        self._versions = {item.domain: item.version for item in model.opset_import}
        self._ir_version = model.ir_version
        self.types: dict[str, onnx.TypeProto] = {}
        self._elements: dict[str, NDArray[np.generic]] = {}
        for item in model.graph.input:
            element = item.type.tensor_type.elem_type
            self.types[item.name] = helper.make_tensor_type_proto(element, inputs.get(item.name))
        for tensor in model.graph.initializer:
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            if prod(tensor.dims) <= SMALL and tensor.data_location != TensorProto.EXTERNAL:
                self._elements[tensor.name] = numpy_helper.to_array(tensor)

    def add(self, node: onnx.NodeProto) -> None:
        """Evaluate or infer a node's outputs; leave out those that depend on data."""
        names = [name for name in reads(node) if name]
        if node.op_type == "Shape" and (shape := _shape(self.types.get(node.input[0]))) is not None:
            self._evaluate(node, {node.input[0]: np.broadcast_to(np.float32(0), shape)})
        elif can_fold(node) and all(name in self._elements for name in names):
            self._evaluate(node, {name: self._elements[name] for name in names})
        else:
            self._infer(node, names)

    def _evaluate(self, node: onnx.NodeProto, feeds: Mapping[str, NDArray[np.generic]]) -> None:
        results = evaluated(node, feeds, self._versions.get("", self._versions.get("ai.onnx", 1)))
        if results is None:
            self._infer(node, list(feeds))
            return
        for name, array in zip(node.output, results, strict=True):
            self.types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            if array.size <= SMALL:
                self._elements[name] = array

    def _infer(self, node: onnx.NodeProto, names: list[str]) -> None:
        if any(name not in self.types for name in names):
            return
        if any(True for _ in bodies(node)):
            self._infer_with_bodies(node, names)
            return
        elements = {name: numpy_helper.from_array(self._elements[name]) for name in names if name in self._elements}
        try:
            schema = get_schema(node.op_type, self._versions.get(node.domain, 1), node.domain)
            types = {name: self.types[name] for name in names}
            found = infer_node_outputs(schema, node, types, elements, {}, self._opsets, self._ir_version)
        except (SchemaError, InferenceError, ValidationError):
            return
        self.types.update(found)

    def _infer_with_bodies(self, node: onnx.NodeProto, names: list[str]) -> None:
        """As a graph of this node alone: inference of single nodes does not see what bodies read from outside."""
        kinds = [helper.make_value_info(name, self.types[name]) for name in dict.fromkeys(names)]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        elements = [numpy_helper.from_array(self._elements[name], name) for name in names if name in self._elements]
        graph = helper.make_graph([node], "node", kinds, results, elements)
        alone = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        try:
            inferred = infer_shapes(alone, data_prop=True).graph.output
        except InferenceError:
            return
        self.types.update({value.name: value.type for value in inferred if value.HasField("type")})


def _shape(kind: onnx.TypeProto | None) -> Shape | None:
    """A tensor type's shape; None where a dimension is not known."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None
