"""The nodes of the model's graph that each layer of an engine holds, and the modules that they belong to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from profiling.layers.kinds import FOREIGN_NODES
from runtime.engines.node_times import NodeTimes

SCOPES = "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
NAMESPACE = "namespace"
# The exporter's text for nodes without a module.
NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
# The inspector's list of a layer's nodes: [ONNX Layer: a]\x1e[ONNX Layer: b]
PROVENANCE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\[\s]|$)")
KERNEL_SUFFIX = re.compile(r"(?: \[profile \d+\])?(?:_myl\d+_\d+)?$")


@dataclass(frozen=True)
class GraphNode:
    """One node of an ONNX graph.

    module: the dotted path of the model's module that it was exported from; None where it is not known. origin: the
    torch operator that it was exported from, such as aten.linear.default.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: str | None = None
    origin: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class OriginGraph:
    """An ONNX model and its nodes, with look-ups by name and by value."""

    model: onnx.ModelProto
    nodes: tuple[GraphNode, ...]

    @cached_property
    def by_name(self) -> dict[str, GraphNode]:
        """Nodes that have a name."""
        return {node.name: node for node in self.nodes if node.name}

    @cached_property
    def producers(self) -> dict[str, GraphNode]:
        """Value -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def variables(self) -> frozenset[str]:
        """Values that depend on the graph's inputs; all others are constants."""
        found = {item.name for item in self.model.graph.input} - {item.name for item in self.model.graph.initializer}
        for node in self.nodes:
            if found.intersection(node.inputs):
                found.update(node.outputs)
        return frozenset(found)


def read_graph(path: Path) -> OriginGraph:
    """The graph in a file, without its large weights. Raises OSError, DecodeError."""
    model = onnx.load(path, load_external_data=False)
    return OriginGraph(model, tuple(_node(node) for node in model.graph.node))


def _node(node: onnx.NodeProto) -> GraphNode:
    notes = {item.key: item.value for item in node.metadata_props}
    return GraphNode(
        node.name,
        node.op_type,
        tuple(name for name in node.input if name),
        tuple(name for name in node.output if name),
        module_of(notes, node.name),
        origin_of(notes),
        {item.name: helper.get_attribute_value(item) for item in node.attribute},
    )


def module_of(notes: Mapping[str, str], name: str = "") -> str | None:
    """A node's module path: from torch's scopes, from its namespace, or from a name like layers.0/attn/MatMul."""
    if SCOPES in notes:
        scopes = ast.literal_eval(notes[SCOPES])
        return None if NO_MODULE in scopes or len(scopes) < 2 else str(scopes[-2])
    if NAMESPACE in notes:
        scopes = [part.partition(": ")[0] for part in notes[NAMESPACE].split("/")]
        return None if NO_MODULE in scopes or len(scopes) < 2 else scopes[-2]
    # ONNX Runtime appends the name of the fusion.
    path = [part for part in name.split("/") if part and not part.endswith("Fusion")][:-1]
    return ".".join(path) or None


def origin_of(notes: Mapping[str, str]) -> str:
    """The torch operator that a node was exported from; empty where it is not known."""
    if CLASSES in notes:
        return str((ast.literal_eval(notes[CLASSES]) or [""])[-1])
    return notes[NAMESPACE].rpartition(": ")[2] if NAMESPACE in notes else ""


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
        names = PROVENANCE.findall(str(layer.facts.get("Metadata", "")))
        if not names and layer.op_type not in FOREIGN_NODES:
            names = [KERNEL_SUFFIX.sub("", layer.name)]
        nodes = (self.source.by_name.get(name) for name in dict.fromkeys(names))
        return tuple(node for node in nodes if node is not None)

    def engine_node(self, layer: NodeTimes) -> GraphNode | None:
        """The node of the graph that ONNX Runtime runs."""
        return self.engine.by_name.get(layer.name) if self.engine is not None else None

    def _of_kernel(self, layer: NodeTimes) -> tuple[GraphNode, ...]:
        """The nodes between values that the engine's graph and the model's have in common; without these, by name."""
        assert self.source is not None
        node = self.engine_node(layer)
        found = _between(self.source, node, self._made_by_engine) if node is not None else ()
        if found:
            return found
        named = self.source.by_name.get(layer.name) or self.source.by_name.get(layer.name.split("/")[0])
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
