"""The nodes of the model's graph that each layer of an engine holds, and the modules that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from profiling.layers.kinds import FOREIGN_NODES
from runtime.engines.graph_bodies import bodies
from runtime.engines.node_times import NodeTimes

SCOPES = "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
NAMESPACE = "namespace"
# The exporter's text for nodes without a module.
NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
# The inspector's list of a layer's nodes: [ONNX Layer: a]\x1e[ONNX Layer: b]
PROVENANCE = "[ONNX Layer: "
# One name of a list as torch writes it: ['', 'layers.0', "it's"].
_LISTED = re.compile(r"""(?:, ?)?(?:'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)")""", re.DOTALL)
# Larger ones are weights: of them a profile needs the shapes alone.
WEIGHT_BYTES = 65_536
_ESCAPED = re.compile(r"\\([\\'\"])")
KERNEL_SUFFIX = re.compile(r"(?: \[profile \d+\])?(?:_myl\d+_\d+)?$")


@dataclass(frozen=True)
class GraphNode:
    """One node of an ONNX graph, or of a body in it.

    module: the dotted path of the model's module that it was exported from; None where it is not known. origin: the
    torch operator that it was exported from, such as aten.linear.default. path: the nodes whose bodies it is in, by
    their runtime_name, outermost first. runtime_name: what ONNX Runtime calls it.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: str | None = None
    origin: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    path: tuple[str, ...] = ()
    runtime_name: str = ""


@dataclass(frozen=True)
class OriginGraph:
    """An ONNX model without large weights, and its nodes, those of bodies too, with look-ups by name and by value."""

    model: onnx.ModelProto
    nodes: tuple[GraphNode, ...]

    @cached_property
    def by_place(self) -> dict[tuple[str, ...], GraphNode]:
        """Nodes by their path and ONNX Runtime's name."""
        return {(*node.path, node.runtime_name): node for node in self.nodes}

    @cached_property
    def by_name(self) -> dict[str, GraphNode]:
        """Nodes that have a name."""
        return {node.name: node for node in self.nodes if node.name}

    def named(self, text: str) -> GraphNode | None:
        """The node whose name a text begins with, up to its last bracket, or else its first: names may have some."""
        whole = text.rstrip("\x1e\x1f \t\r\n").removesuffix("]")
        return self.by_name.get(whole) or self.by_name.get(text.partition("]")[0])

    @cached_property
    def producers(self) -> dict[str, GraphNode]:
        """Value -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def variables(self) -> frozenset[str]:
        """Values that depend on the graph's inputs; all others are constants."""
        graphs = [graph for graph, _ in graphs_of(self.model.graph)]
        found = {item.name for graph in graphs for item in graph.input}
        found -= {item.name for graph in graphs for item in graph.initializer}
        for node in self.nodes:
            if found.intersection(node.inputs):
                found.update(node.outputs)
        return frozenset(found)


def read_origin_graph(path: Path) -> OriginGraph:
    """The graph in a file, without its large weights. Raises OSError, DecodeError."""
    model = onnx.load(path, load_external_data=False)
    found = list(graphs_of(model.graph))
    for graph, _ in found:
        for tensor in graph.initializer:
            if len(tensor.raw_data) > WEIGHT_BYTES:
                tensor.ClearField("raw_data")
    return OriginGraph(
        model,
        tuple(_node(node, name, place) for graph, place in found for node, name in _named_nodes(graph)),
    )


def graphs_of(graph: onnx.GraphProto, path: tuple[str, ...] = ()) -> Iterator[tuple[onnx.GraphProto, tuple[str, ...]]]:
    """A graph and the bodies of its nodes, of theirs, and so on, each with the nodes that it is in."""
    yield graph, path
    for node, name in _named_nodes(graph):
        for body in bodies(node):
            yield from graphs_of(body, (*path, name))


def _named_nodes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Nodes with the names that ONNX Runtime gives those without one; it counts no constants."""
    computed = [node for node in graph.node if node.op_type != "Constant"]
    yield from ((node, node.name or f"{node.op_type}_{index}") for index, node in enumerate(computed))
    yield from ((node, node.name) for node in graph.node if node.op_type == "Constant")


def _node(node: onnx.NodeProto, runtime_name: str, path: tuple[str, ...]) -> GraphNode:
    notes = {item.key: item.value for item in node.metadata_props}
    return GraphNode(
        node.name,
        node.op_type,
        tuple(name for name in node.input if name),
        tuple(name for name in node.output if name),
        module_of(notes, node.name),
        origin_of(notes),
        {item.name: helper.get_attribute_value(item) for item in node.attribute},
        path,
        runtime_name,
    )


def module_of(notes: Mapping[str, str], name: str = "") -> str | None:
    """A node's module path: from torch's scopes, from its namespace, or from a name like layers.0/attn/MatMul."""
    scopes = listed_names(notes.get(SCOPES, "")) or [
        part.partition(": ")[0] for part in notes.get(NAMESPACE, "").split("/") if part
    ]
    if scopes:
        return None if NO_MODULE in scopes or len(scopes) < 2 else scopes[-2]
    # ONNX Runtime appends the name of the fusion.
    path = [part for part in name.split("/") if part and not part.endswith("Fusion")][:-1]
    return ".".join(path) or None


def origin_of(notes: Mapping[str, str]) -> str:
    """The torch operator that a node was exported from; empty where it is not known."""
    if CLASSES in notes:
        return (listed_names(notes[CLASSES]) or [""])[-1]
    return notes[NAMESPACE].rpartition(": ")[2] if NAMESPACE in notes else ""


def listed_names(text: str) -> list[str]:
    """The names in a list as torch writes it; none where a text is no such list: any exporter may write any text."""
    names: list[str] = []
    end = int(text.startswith("["))
    while found := _LISTED.match(text, end):
        names.append(_ESCAPED.sub(r"\1", found[1] or found[2] or ""))
        end = found.end()
    return names if text[:1] == "[" and text[end:] == "]" else []


@dataclass(frozen=True)
class Origins:
    """Finds the model's nodes in layers. `source`: the model's graph; `engine`: the graph that ONNX Runtime runs."""

    source: OriginGraph | None = None
    engine: OriginGraph | None = None

    def of(self, layer: NodeTimes) -> tuple[GraphNode, ...]:
        """The model's nodes in a layer, by its metadata, its values or its name; empty where they are not known."""
        if self.source is None:
            return ()
        if "provider" in layer.facts:
            return self._of_kernel(layer)
        listed = str(layer.facts.get("Metadata", "")).split(PROVENANCE)[1:]
        nodes = [self.source.named(text) for text in listed]
        if not listed and layer.op_type not in FOREIGN_NODES:
            nodes = [self.source.by_name.get(layer.name) or self.source.by_name.get(KERNEL_SUFFIX.sub("", layer.name))]
        return tuple({node.name: node for node in nodes if node is not None}.values())

    def engine_node(self, layer: NodeTimes) -> GraphNode | None:
        """The node of the graph that ONNX Runtime runs."""
        return self.engine.by_place.get((*layer.path, layer.name)) if self.engine is not None else None

    def _of_kernel(self, layer: NodeTimes) -> tuple[GraphNode, ...]:
        """The nodes between values that the engine's graph and the model's have in common; without these, by name."""
        assert self.source is not None
        node = self.engine_node(layer)
        found = _between(self.source, node, self._made_by_engine) if node is not None else ()
        if found:
            return found
        name = layer.name if node is None else node.name
        named = self.source.by_name.get(name) or self.source.by_name.get(name.split("/")[0])
        return (named,) if named is not None else ()

    @cached_property
    def _made_by_engine(self) -> frozenset[str]:
        return frozenset(self.engine.producers) if self.engine is not None else frozenset()


def _between(source: OriginGraph, node: GraphNode, known: frozenset[str]) -> tuple[GraphNode, ...]:
    """The model's nodes in a fused node: from its outputs back to values that the engine has too."""
    found: dict[str, GraphNode] = {}
    waiting = [name for name in node.outputs if name in source.producers]
    while waiting:
        maker = source.producers[waiting.pop()]
        if maker.outputs[0] in found:
            continue
        found[maker.outputs[0]] = maker
        waiting += [
            name
            for name in maker.inputs
            if name not in known and name in source.variables and name in source.producers and name not in node.inputs
        ]
    return tuple(found.values())


def common_module(modules: Iterable[str | None]) -> str | None:
    """The innermost module that holds all of these; None is ignored, and the result where there is no other."""
    paths = [path.split(".") if path else [] for path in modules if path is not None]
    return ".".join(_common(paths)) if paths else None


def _common(paths: Sequence[list[str]]) -> list[str]:
    shortest, longest = min(paths), max(paths)
    same = next((i for i, part in enumerate(shortest) if i >= len(longest) or part != longest[i]), len(shortest))
    return shortest[:same]
