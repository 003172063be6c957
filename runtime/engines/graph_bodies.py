"""Nodes with graphs of their own (If, Loop, Scan), whose bodies read values of the graph around them by name.

What a body reads from outside counts as an input of its node: code that follows values through a graph asks `reads`,
never `node.input`. The module imports onnx: only builds and profiles use it, no server.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping

import onnx
from onnx import TensorProto


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes: the branches of If, the bodies of Loop and Scan."""
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def reads(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads: its inputs ("" where one is left out), and what its bodies read from outside."""
    found = list(node.input)
    for body in bodies(node):
        found += outer_reads(body)
    return found


def outer_reads(body: onnx.GraphProto) -> list[str]:
    """The values of the graph around that a body reads, at any depth."""
    own, found = _given(body), list[str]()
    for node in body.node:
        found += [name for name in reads(node) if name and name not in own]
        own.update(node.output)
    return found + [value.name for value in body.output if value.name not in own]


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let a node read other values, in place, its bodies included. `names`: old -> new."""
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for body in bodies(node):
        own = _given(body).union(*(inner.output for inner in body.node))
        outside = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            rename_reads(inner, outside)
        for value in body.output:
            value.name = outside.get(value.name, value.name)


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or function and of the bodies in it, at any depth."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def scopes(
    graph: onnx.GraphProto, outer: ChainMap[str, TensorProto] | None = None
) -> Iterator[tuple[onnx.GraphProto, ChainMap[str, TensorProto]]]:
    """A graph and the bodies in it, at any depth, each with the constants that it sees, its own first.

    What is done to a graph and to its constants before the next one is asked for is seen by its bodies.
    """
    constants = (ChainMap() if outer is None else outer).new_child({each.name: each for each in graph.initializer})
    yield graph, constants
    for node in graph.node:
        for body in bodies(node):
            yield from scopes(body, constants)


def _given(body: onnx.GraphProto) -> set[str]:
    """What a body has before its first node."""
    constants = [*(each.name for each in body.initializer), *(each.values.name for each in body.sparse_initializer)]
    return {*(value.name for value in body.input), *constants}
