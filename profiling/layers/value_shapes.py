"""Shapes of all values of an ONNX graph at given input shapes: inferred node by node, with constants folded."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import SchemaError, get_schema
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs

from profiling.layers.origins import Graph
from profiling.layers.roofline import Value
from runtime.engines.operator_flops import Shape

# Constants of at most so many elements are folded: sizes, axes and ranges. Larger ones are weights.
SMALL = 4096
# What the reference evaluator raises for operators that it does not support.
NOT_EVALUATED = (NotImplementedError, RuntimeError, ValueError, TypeError, IndexError)
PACKED_BYTES = {TensorProto.INT4: 0.5, TensorProto.UINT4: 0.5, TensorProto.FLOAT4E2M1: 0.5}


def value_shapes(graph: Graph, inputs: Mapping[str, Shape]) -> dict[str, Value]:
    """Value -> shape and element size. A value whose shape depends on data is left out."""
    inference = _Inference(graph, inputs)
    for node in graph.model.graph.node:
        inference.add(node)
    return {name: value for name, kind in inference.types.items() if (value := _value(kind)) is not None}


class _Inference:
    """What is known so far: the type of every value, and the elements of small ones."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Shape]) -> None:
        model = graph.model
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
        names = [name for name in node.input if name]
        if node.op_type == "Shape" and (value := _value(self.types.get(node.input[0]))) is not None:
            self._evaluate(node, {node.input[0]: np.broadcast_to(np.float32(0), value.shape)})
        elif node.domain in ("", "ai.onnx") and self._can_fold(node) and all(name in self._elements for name in names):
            self._evaluate(node, {name: self._elements[name] for name in names})
        else:
            self._infer(node, names)

    def _can_fold(self, node: onnx.NodeProto) -> bool:
        """Whether a node can be folded: it has no body and is not random."""
        bodies = any(item.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for item in node.attribute)
        return not bodies and not node.op_type.startswith("Random")

    def _evaluate(self, node: onnx.NodeProto, feeds: Mapping[str, NDArray[np.generic]]) -> None:
        version = {"": self._versions.get("", self._versions.get("ai.onnx", 1))}
        try:
            results = ReferenceEvaluator(node, opsets=version).run(None, dict(feeds))
        except NOT_EVALUATED:
            self._infer(node, list(feeds))
            return
        for name, result in zip(node.output, results, strict=True):
            array = np.asarray(result)
            self.types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            if array.size <= SMALL:
                self._elements[name] = array

    def _infer(self, node: onnx.NodeProto, names: list[str]) -> None:
        if any(name not in self.types for name in names):
            return
        elements = {name: numpy_helper.from_array(self._elements[name]) for name in names if name in self._elements}
        try:
            schema = get_schema(node.op_type, self._versions.get(node.domain, 1), node.domain)
            types = {name: self.types[name] for name in names}
            found = infer_node_outputs(schema, node, types, elements, {}, self._opsets, self._ir_version)
        except (SchemaError, InferenceError):
            return
        self.types.update(found)


def _value(kind: onnx.TypeProto | None) -> Value | None:
    """A tensor type's shape and element size; None where a dimension is not known."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") for dim in dims):
        return None
    return Value(tuple(dim.dim_value for dim in dims), item_bytes(kind.tensor_type.elem_type))


def item_bytes(element: int) -> float:
    """Bytes per element of an ONNX element type."""
    return PACKED_BYTES.get(element) or float(helper.tensor_dtype_to_np_dtype(element).itemsize)
