"""Finds patterns of nodes in an ONNX graph, from the value that the last node makes back to its sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from engine_build.graphs.graph_view import attribute, is_small

COMMUTATIVE = frozenset({"Add", "Mul"})

Pattern = Any
Found = Mapping[str, str]


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
