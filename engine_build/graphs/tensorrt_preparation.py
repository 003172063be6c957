"""A graph as TensorRT's parser gets it: constants folded, scalars of rank 0, keys transposed by one node.

ONNX Runtime takes graphs that TensorRT does not: a Range with arguments of rank 1, a convolution whose kernel is
computed from constants, a comparison of truth values. And torch's exporter transposes the keys of attention through
two reshapes by computed shapes, which hides the pattern of attention from TensorRT. Results stay the same, and so do
the names of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_file import Graph, derived_graph
from engine_build.graphs.graph_view import attribute, is_small, node_name, remove_unused, replace_nodes
from engine_build.graphs.plain_graph import opset
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.tensorrt_rules import SCALARS
from runtime.engines.graph_bodies import all_nodes, scopes
from runtime.engines.value_shapes import Shape, can_fold, evaluated, value_shapes

# Raised with every change to what is prepared: plans of an older version are built again.
PREPARATION = 2
# The number of trips and the condition of a Loop that has none.
MOST_TRIPS, ALWAYS = "tensorrt/most_trips", "tensorrt/always"
MOST = 2**31 - 2
# Operators whose result is BOOL.
TRUTHS = ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")


def prepared(graph: Graph, shapes: Sequence[Mapping[str, Shape]]) -> Graph:
    """The graph for TensorRT. `shapes`: of its inputs, at several sizes. External weights are not read."""
    return derived_graph(prepare_model(model_of(graph), shapes), graph)


def prepare_model(model: onnx.ModelProto, shapes: Sequence[Mapping[str, Shape]]) -> onnx.ModelProto:
    """Prepare a model in place, and return it."""
    version = opset(model)
    for graph, constants in scopes(model.graph):
        fold_constants(graph, constants, version)
        make_scalars(graph, constants)
        compare_truths(graph, constants)
    give_conditions(model.graph)
    transpose_directly(model, shapes)
    remove_unused(model.graph)
    return model


def fold_constants(graph: onnx.GraphProto, constants: MutableMapping[str, TensorProto], version: int) -> None:
    """Compute every node that depends on constants alone, but for those that make outputs.

    External weights do not count as constants. `version`: the opset.
    """
    outputs = {value.name for value in graph.output}
    known: dict[str, NDArray[np.generic]] = {}
    inline = {name: tensor for name, tensor in constants.items() if not _is_external(tensor)}
    kept = []
    for node in graph.node:
        names = [name for name in node.input if name]
        values = None
        if can_fold(node) and not outputs.intersection(node.output) and all(n in known or n in inline for n in names):
            feeds = {name: known[name] if name in known else numpy_helper.to_array(inline[name]) for name in names}
            values = evaluated(node, feeds, version)
        if values is None:
            kept.append(node)
        else:
            known.update(zip(node.output, values, strict=True))
    replace_nodes(graph, kept)
    for name, value in known.items():
        constants[name] = numpy_helper.from_array(np.asarray(value), name)
        graph.initializer.append(constants[name])


def make_scalars(graph: onnx.GraphProto, constants: Mapping[str, TensorProto]) -> None:
    """Give constants of one element rank 0 where TensorRT wants scalars."""
    scalars: dict[str, TensorProto] = {}
    for node in graph.node:
        for place in SCALARS.get(node.op_type, ()):
            tensor = constants.get(node.input[place])
            if tensor is not None and len(tensor.dims) and prod(tensor.dims) == 1:
                name = f"{tensor.name}/scalar"
                scalars[name] = numpy_helper.from_array(numpy_helper.to_array(tensor).reshape(()), name)
                node.input[place] = name
    graph.initializer.extend(scalars.values())


def compare_truths(graph: onnx.GraphProto, constants: Mapping[str, TensorProto]) -> None:
    """Turn Equal of BOOL, as torch's exporter writes it for `//`, into Xor and Not."""
    truths = {name for name, tensor in constants.items() if tensor.data_type == TensorProto.BOOL}
    truths |= {name for node in graph.node if node.op_type in TRUTHS for name in node.output}
    kept = []
    for node in graph.node:
        if node.op_type == "Equal" and truths.intersection(node.input):
            differs = f"{node.output[0]}/differs"
            kept.append(helper.make_node("Xor", list(node.input), [differs], f"{node_name(node)}/differs"))
            same = helper.make_node("Not", [differs], list(node.output), node.name)
            same.metadata_props.extend(node.metadata_props)
            node.CopyFrom(same)
        kept.append(node)
    replace_nodes(graph, kept)


def give_conditions(graph: onnx.GraphProto) -> None:
    """Give every Loop a number of trips and a first condition, where the graph leaves them out.

    TensorRT's parser (RTX 1.7) expects them where a body reads their counterparts; the largest int32 is none to it.
    """
    numbers = {each.name: each for each in graph.initializer if each.data_type == TensorProto.INT64}
    endless = {
        name for name, each in numbers.items() if is_small(each) and numpy_helper.to_array(each).max(initial=0) > MOST
    }
    for node in all_nodes(graph):
        if node.op_type == "Loop":
            trips, condition = (*node.input[:2], "")[:2]
            node.input[:2] = [MOST_TRIPS if trips in {"", *endless} else trips, condition or ALWAYS]
    for name, value in ((MOST_TRIPS, np.array(MOST)), (ALWAYS, np.array(True))):
        graph.initializer.append(numpy_helper.from_array(value, name))


def transpose_directly(model: onnx.ModelProto, shapes: Sequence[Mapping[str, Shape]]) -> None:
    """Turn `[a, b, c, d]` -> Reshape `[a b, c, d]` -> Transpose -> Reshape `[a, b, d, c]` into one Transpose.

    What the computed shapes are is seen at the given sizes; of a pattern that they do not decide, nothing changes.
    """
    chains = list(_key_chains(model))
    values = [value_shapes(model, inputs) for inputs in shapes] if chains else []
    for first, middle, last in chains:
        names = (first.input[0], first.output[0], middle.output[0], last.output[0])
        if _is_swap([found.get(name, ((), 0))[0] for name in names] for found in values):
            swap = helper.make_node("Transpose", [first.input[0]], list(last.output), last.name, perm=[0, 1, 3, 2])
            swap.metadata_props.extend(last.metadata_props)
            last.CopyFrom(swap)


def _key_chains(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto, onnx.NodeProto]]:
    """Reshape, transposition of the last two of three axes, reshape."""
    producers = {name: node for node in model.graph.node for name in node.output}
    for last in model.graph.node:
        middle = producers.get(last.input[0]) if last.op_type == "Reshape" else None
        if middle is not None and middle.op_type == "Transpose" and attribute(middle, "perm") == [0, 2, 1]:
            first = producers.get(middle.input[0])
            if first is not None and first.op_type == "Reshape":
                yield first, middle, last


def _is_swap(seen: Iterable[Sequence[Shape]]) -> bool:
    """Whether the shapes of the four values are those of a swap of the last two axes, and of nothing else."""
    is_decided = False
    for source, flat, _, result in seen:
        if len(source) != 4:
            return False
        a, b, c, d = source
        if flat != (a * b, c, d) or result != (a, b, d, c):
            return False
        is_decided |= all(one != other for one, other in pairwise(sorted(source)))
    return is_decided


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)
