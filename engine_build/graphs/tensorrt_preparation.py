"""A graph as TensorRT's parser gets it: constants folded, scalars of rank 0, keys transposed by one node.

ONNX Runtime takes graphs that TensorRT does not: a Range with arguments of rank 1, a convolution whose kernel is
computed from constants, a comparison of truth values. And torch's exporter transposes the keys of attention through
two reshapes by computed shapes, which hides the pattern of attention from TensorRT. Results stay the same, and so do
the names of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_file import Graph, derived_graph
from engine_build.graphs.graph_view import attribute, remove_unused, replace_nodes
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.tensorrt_rules import SCALARS
from runtime.engines.operator_flops import Shape
from runtime.engines.value_shapes import can_fold, evaluated, value_shapes

# Raised with every change to what is prepared: plans of an older version are built again.
PREPARATION = 2
# Operators whose result is BOOL.
TRUTHS = ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")


def prepared(graph: Graph, shapes: Sequence[Mapping[str, Shape]]) -> Graph:
    """The graph for TensorRT. `shapes`: of its inputs, at several sizes. External weights are not read."""
    return derived_graph(prepare(model_of(graph), shapes), graph)


def prepare(model: onnx.ModelProto, shapes: Sequence[Mapping[str, Shape]]) -> onnx.ModelProto:
    """Prepare a model in place, and return it."""
    fold_constants(model)
    make_scalars(model)
    compare_truths(model)
    transpose_directly(model, shapes)
    remove_unused(model.graph)
    return model


def fold_constants(model: onnx.ModelProto) -> None:
    """Compute every node that depends on constants alone. External weights do not count as constants."""
    opset = next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    known: dict[str, NDArray[np.generic]] = {}
    inline = {tensor.name: tensor for tensor in model.graph.initializer if not _is_external(tensor)}
    kept = []
    for node in model.graph.node:
        names = [name for name in node.input if name]
        values = None
        if can_fold(node) and all(name in known or name in inline for name in names):
            feeds = {name: known[name] if name in known else numpy_helper.to_array(inline[name]) for name in names}
            values = evaluated(node, feeds, opset)
        if values is None:
            kept.append(node)
        else:
            known.update(zip(node.output, values, strict=True))
    replace_nodes(model, kept)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in known.items())


def make_scalars(model: onnx.ModelProto) -> None:
    """Give constants of one element rank 0 where TensorRT wants scalars."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    scalars: dict[str, TensorProto] = {}
    for node in model.graph.node:
        for place in SCALARS.get(node.op_type, ()):
            tensor = constants.get(node.input[place])
            if tensor is not None and len(tensor.dims) and prod(tensor.dims) == 1:
                name = f"{tensor.name}/scalar"
                scalars[name] = numpy_helper.from_array(numpy_helper.to_array(tensor).reshape(()), name)
                node.input[place] = name
    model.graph.initializer.extend(scalars.values())


def compare_truths(model: onnx.ModelProto) -> None:
    """Turn Equal of BOOL, as torch's exporter writes it for `//`, into Xor and Not."""
    truths = {tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.BOOL}
    truths |= {name for node in model.graph.node if node.op_type in TRUTHS for name in node.output}
    kept = []
    for node in model.graph.node:
        if node.op_type == "Equal" and truths.intersection(node.input):
            differs, name = f"{node.output[0]}/differs", f"{node.name}/differs"
            kept.append(helper.make_node("Xor", list(node.input), [differs], name))
            same = helper.make_node("Not", [differs], list(node.output), node.name)
            same.metadata_props.extend(node.metadata_props)
            node.CopyFrom(same)
        kept.append(node)
    replace_nodes(model, kept)


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
