"""A read-only view of an ONNX graph: producers, consumers, types, the work of its nodes, and patterns of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import prod
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from runtime.base.errors import BuildError
from runtime.engines.graph_bodies import reads
from runtime.engines.value_shapes import PRODUCTS, Shape, product_flops

# Precision recipes leave float64 as it is.
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
TIME, DATA = 1, 2
# The type of sequences and optionals.
NO_TENSOR = -1
SHAPE_OPS = frozenset({"Shape", "Size"})
# Larger constants are weights; these may lie beside the graph, and no pattern asks for their values.
LARGEST_CONSTANT = 16


COMMUTATIVE = frozenset({"Add", "Mul"})
Pattern = Any
Found = Mapping[str, str]


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
    copies = [deepcopy(node) for node in nodes]
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


def with_weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
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
    bare = with_weights_as_inputs(model)
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


def node_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Multiplications and additions of a matrix product or convolution; 0 for every other operator."""
    if node.op_type not in PRODUCTS:
        return 0
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    first, second, out = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    return product_flops(node.op_type, attributes, first, second, out)


@dataclass(frozen=True)
class Op:
    """A node of this kind whose first inputs fit the patterns `inputs`; in `attributes` its own that must be equal.

    A pattern of an input is an Op, a name (any value, the same one wherever the name stands), a number or a tuple of
    numbers (a constant of these values), or a list of patterns (any of them). `name`: what its value is called, if
    anything.
    """

    kind: str
    inputs: tuple[Pattern, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def named(self, name: str) -> Op:
        """The same with a name."""
        return replace(self, name=name)


def op(kind: str, *inputs: Pattern, **attributes: Any) -> Op:
    """An Op."""
    return Op(kind, inputs, attributes)


class Matcher:
    """The nodes and small constants of a graph, to which nodes may be added."""

    def __init__(self, nodes: Iterable[onnx.NodeProto], constants: Iterable[TensorProto]) -> None:
        self._producers: dict[str, onnx.NodeProto] = {}
        self._constants = {tensor.name: _values(tensor) for tensor in constants if is_small(tensor)}
        self.add(nodes)

    def add(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Add nodes; one that makes a known value takes the place of the node that made it."""
        for node in nodes:
            self._producers.update({name: node for name in node.output if name})

    def find(self, pattern: Pattern, value: str) -> Found | None:
        """What the names in a pattern stand for, where it fits a value; else None."""
        return next(self._matches(pattern, value, {}), None)

    def producer(self, value: str) -> onnx.NodeProto | None:
        """The node that makes a value; None for inputs and constants."""
        return self._producers.get(value)

    def constant(self, value: str) -> float | tuple[float, ...] | None:
        """A small constant's number or numbers; None for every other value."""
        return self._constants.get(value)

    def _matches(self, pattern: Pattern, value: str, found: Found) -> Iterator[Found]:
        if isinstance(pattern, str):
            if found.get(pattern, value) == value:
                yield {**found, pattern: value}
        elif isinstance(pattern, list):
            for one in pattern:
                yield from self._matches(one, value, found)
        elif isinstance(pattern, Op):
            named = {**found, pattern.name: value} if pattern.name else found
            yield from self._node_matches(pattern, self.producer(value), named)
        elif self.constant(value) == pattern:
            yield found

    def _node_matches(self, pattern: Op, node: onnx.NodeProto | None, found: Found) -> Iterator[Found]:
        if node is None or node.op_type != pattern.kind or len(node.input) < len(pattern.inputs):
            return
        if any(attribute(node, name) != wanted for name, wanted in pattern.attributes.items()):
            return
        given = tuple(node.input[: len(pattern.inputs)])
        for inputs in permutations(given) if node.op_type in COMMUTATIVE else (given,):
            yield from self._all_match(pattern.inputs, inputs, found)

    def _all_match(self, patterns: tuple[Pattern, ...], values: tuple[str, ...], found: Found) -> Iterator[Found]:
        if not patterns:
            yield found
            return
        for first in self._matches(patterns[0], values[0], found):
            yield from self._all_match(patterns[1:], values[1:], first)


def _values(tensor: TensorProto) -> float | tuple[float, ...]:
    """A constant as a number (one element) or numbers."""
    values = tuple(numpy_helper.to_array(tensor).ravel().tolist())
    return values[0] if len(values) == 1 else values
