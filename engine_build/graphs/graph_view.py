"""A read-only view of an ONNX graph: producers, consumers, shapes, and the work of its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import onnx
from onnx import TensorProto, helper, shape_inference

from runtime.base.errors import BuildError
from runtime.engines import operator_flops as flops
from runtime.engines.graph_bodies import reads
from runtime.engines.operator_flops import PRODUCTS, Shape

# Precision recipes leave float64 as it is.
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
TIME, DATA = 1, 2
# The type of sequences and optionals.
NO_TENSOR = -1
SHAPE_OPS = frozenset({"Shape", "Size"})
# Larger constants are weights; these may lie beside the graph, and no pattern asks for their values.
LARGEST_CONSTANT = 16


class GraphView:
    """Edges of a model's main graph. Nodes are identified by index: names may be missing or not unique.

    `reads`: what each node reads, its bodies included. `types` maps a value to its element type; `initializers` a
    constant to its tensor. Raises BuildError where a value's type cannot be inferred.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes: Sequence[onnx.NodeProto] = model.graph.node
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.inputs = [value for value in model.graph.input if value.name not in self.initializers]
        self.outputs = {value.name for value in model.graph.output}
        self.producers = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.reads = [reads(node) for node in self.nodes]
        self.readers: dict[str, list[int]] = defaultdict(list)
        for index, names in enumerate(self.reads):
            for name in names:
                if name and index not in self.readers[name][-1:]:
                    self.readers[name].append(index)
        self.types = _types(model)
        self._sources = self._data_sources()

    def is_float(self, value: str) -> bool:
        """Whether a value holds floating-point numbers."""
        return self.types.get(value) in FLOATS

    def is_constant(self, value: str) -> bool:
        """Whether a value is an initializer."""
        return value in self.initializers

    def floats_in(self, index: int) -> list[str]:
        """The floating-point values that a node reads, constants included."""
        return [name for name in self.reads[index] if self.is_float(name)]

    def floats_out(self, index: int) -> list[str]:
        """The floating-point outputs of a node."""
        return [name for name in self.nodes[index].output if self.is_float(name)]

    def producer(self, value: str) -> onnx.NodeProto | None:
        """The node that produces a value; None for inputs and constants."""
        index = self.producers.get(value)
        return None if index is None else self.nodes[index]

    def sources(self, value: str) -> int:
        """What a value depends on: TIME (inputs with one number per row), DATA (other inputs), both or 0.

        Dependence on sizes does not count.
        """
        return self._sources.get(value, 0)

    def ancestors(self, value: str) -> set[int]:
        """The indices of all nodes that a value depends on; dependence on sizes does not count."""
        pending, found = [value], set[int]()
        while pending:
            index = self.producers.get(pending.pop())
            if index is not None and index not in found and self.nodes[index].op_type not in SHAPE_OPS:
                found.add(index)
                pending += self.reads[index]
        return found

    def readers_of(self, index: int) -> Iterator[int]:
        """The indices of the nodes that read an output of a node, each once."""
        seen: set[int] = set()
        for name in self.nodes[index].output:
            for reader in self.readers.get(name, ()):
                if reader not in seen:
                    seen.add(reader)
                    yield reader

    def _data_sources(self) -> dict[str, int]:
        found = {value.name: _source(value) for value in self.inputs}
        for node, names in zip(self.nodes, self.reads, strict=True):
            source = 0
            if node.op_type not in SHAPE_OPS:
                for name in names:
                    source |= found.get(name, 0)
            found.update(dict.fromkeys(node.output, source))
        return found


def node_name(node: onnx.NodeProto) -> str:
    """A node's name, or its first output's where it has none."""
    return str(node.name or node.output[0])


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """A node's attribute as a plain value."""
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace a graph's nodes; `nodes` may contain some of its own."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def remove_unused(graph: onnx.GraphProto) -> None:
    """Remove every node that no output depends on, and every initializer that no node reads."""
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    waiting, needed = [value.name for value in graph.output], set[int]()
    while waiting:
        index = producers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting += reads(graph.node[index])
    for index in reversed(range(len(graph.node))):
        if index not in needed:
            del graph.node[index]
    used = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in used:
            del graph.initializer[index]


def _source(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    return TIME if kind.elem_type in FLOATS and len(kind.shape.dim) <= 1 else DATA


def is_small(tensor: TensorProto) -> bool:
    """Whether a constant has few elements, stored in the graph itself."""
    is_inside = tensor.data_location != TensorProto.EXTERNAL and tensor.data_type != TensorProto.STRING
    return bool(is_inside and prod(tensor.dims) <= LARGEST_CONSTANT)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with all but small constants as inputs, which infers the same shapes in much less time."""
    graph = onnx.GraphProto(name=model.graph.name)
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, part).extend(getattr(model.graph, part))
    inputs = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if is_small(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    options = {"opset_imports": model.opset_import, "functions": model.functions, "ir_version": model.ir_version}
    return helper.make_model(graph, **options)


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of all values. Weights are not read."""
    bare = without_weights(model)
    del bare.graph.value_info[:]
    try:
        graph = shape_inference.infer_shapes(bare, strict_mode=True).graph
    except (shape_inference.InferenceError, ValueError) as error:
        fix = "export the graph again, with operators of the standard ONNX domain only"
        raise BuildError(f"types of the graph cannot be inferred: {error}", fix=fix) from error
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        is_tensor = value.type.HasField("tensor_type")
        types[value.name] = value.type.tensor_type.elem_type if is_tensor else NO_TENSOR
    for node in graph.node:
        if not all(types.get(name) for name in node.output if name):
            operator = f"{node.domain}.{node.op_type}".removeprefix(".")
            raise BuildError(
                f"node {node_name(node)!r} ({operator}): the type of its result cannot be inferred",
                fix='export it as operators of the standard ONNX domain, or set precision = "fp32" in [build]',
            )
    return types


def product_values(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """The values whose shapes `product_flops` needs."""
    names = [name for node in nodes if node.op_type in PRODUCTS for name in (*node.input[:2], *node.output[:1])]
    return list(dict.fromkeys(names))


def product_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Multiplications and additions of a matrix product or convolution; 0 for every other operator."""
    if node.op_type not in PRODUCTS:
        return 0
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    first, second, out = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    return flops.product_flops(node.op_type, attributes, first, second, out)
