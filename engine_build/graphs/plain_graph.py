"""Any graph in the plain form, which every pass takes. It computes the same.

Plain: no local functions; constants are dense initializers of the main graph and no inputs. Bodies of If, Loop and Scan
stay: passes ask runtime.engines.graph_bodies what they read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, inliner, numpy_helper

from runtime.base.errors import BuildError
from runtime.engines.graph_bodies import all_nodes, rename_reads, scopes

# Attributes of Constant with numbers, and their type.
NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in the plain form; itself, changed in place, where it has no functions. External data is not read.

    A function stays one where an operator in it has another meaning in the graph's opset.
    """
    if model.functions:
        model = _inlined(model)
    for graph, _ in scopes(model.graph):
        _gather_constants(graph)
    _hoist_constants(model.graph)
    constants = {tensor.name for tensor in model.graph.initializer}
    # Files of version 3 and before list constants among the inputs, as their defaults.
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) < len(model.graph.input):
        model.ir_version = max(model.ir_version, 4)
        del model.graph.input[:]
        model.graph.input.extend(inputs)
    return model


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators. Raises BuildError where the model names none."""
    for item in model.opset_import:
        if item.domain in ("", "ai.onnx"):
            return int(item.version)
    raise BuildError("the graph names no opset of the standard ONNX domain", fix="export it again")


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """With every call of a function replaced by its nodes; calls get the defaults, which ONNX's inliner ignores."""
    defaults = {_key(function): list(function.attribute_proto) for function in model.functions}
    for node in all_model_nodes(model):
        given = {item.name for item in node.attribute}
        node.attribute.extend(item for item in defaults.get(_key(node), ()) if item.name not in given)
    version = opset(model)
    for function in model.functions:
        for item in function.opset_import:
            if item.domain in ("", "ai.onnx") and _means_the_same(function, item.version, version):
                item.version = version
    return inliner.inline_local_functions(model)


def _key(item: onnx.FunctionProto | onnx.NodeProto) -> tuple[str, str, str]:
    """What a call and its function share: a function's name is its calls' operator."""
    name = item.name if isinstance(item, onnx.FunctionProto) else item.op_type
    return item.domain, name, item.overload


def all_model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a model's graph, of its functions, and of the bodies in both."""
    for each in (model.graph, *model.functions):
        yield from all_nodes(each)


def _means_the_same(function: onnx.FunctionProto, old: int, new: int) -> bool:
    """Whether every operator of a function is the same one in two opsets."""
    operators = {node.op_type for node in all_nodes(function) if node.domain in ("", "ai.onnx")}
    return all(
        defs.has(name, new)
        and defs.has(name, old)
        and defs.get_schema(name, old).since_version == defs.get_schema(name, new).since_version
        for name in operators
    )


def _gather_constants(graph: onnx.GraphProto) -> None:
    """Make initializers of a graph's constants in every other form; a node that makes an output stays."""
    outputs = {value.name for value in graph.output}
    graph.initializer.extend(_dense(tensor) for tensor in graph.sparse_initializer)
    del graph.sparse_initializer[:]
    for index in reversed(range(len(graph.node))):
        tensor = None if outputs.intersection(graph.node[index].output) else _constant(graph.node[index])
        if tensor is not None:
            graph.initializer.append(tensor)
            del graph.node[index]


def _hoist_constants(graph: onnx.GraphProto) -> None:
    """Move the constants of bodies into the graph, under names that occur nowhere; one that is an output stays."""
    taken = {name for node in all_nodes(graph) for name in (*node.input, *node.output)}
    hoisted = list[TensorProto]()
    for body in [each for each, _ in scopes(graph)][1:]:
        outputs = {value.name for value in body.output}
        moved = [tensor for tensor in body.initializer if tensor.name not in outputs]
        kept = [tensor for tensor in body.initializer if tensor.name in outputs]
        names = {tensor.name: _unused(tensor.name, taken) for tensor in moved}
        for node in body.node:
            rename_reads(node, names)
        hoisted += [_renamed(tensor, names[tensor.name]) for tensor in moved]
        del body.initializer[:]
        body.initializer.extend(kept)
    graph.initializer.extend(hoisted)


def _unused(name: str, taken: set[str]) -> str:
    """A name that is not taken, which it then is."""
    found = next(each for count in itertools.count() if (each := f"{name}/{count}") not in taken)
    taken.add(found)
    return found


def _renamed(tensor: TensorProto, name: str) -> TensorProto:
    copy = deepcopy(tensor)
    copy.name = name
    return copy


def _constant(node: onnx.NodeProto) -> TensorProto | None:
    """The tensor of a node Constant; None for other nodes, and for text."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    item = node.attribute[0]
    if item.name == "value":
        tensor = item.t
    elif item.name == "sparse_value":
        tensor = _dense(item.sparse_tensor)
    elif item.name in NUMBERS:
        tensor = numpy_helper.from_array(np.array(helper.get_attribute_value(item), NUMBERS[item.name]))
    else:
        return None
    tensor.name = node.output[0]
    return tensor


def _dense(tensor: onnx.SparseTensorProto) -> TensorProto:
    """A sparse constant, which lies in the graph itself, with its zeros."""
    values, places = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices)
    dense: NDArray[np.generic] = np.zeros(tuple(tensor.dims), values.dtype)
    if places.ndim == 1:
        dense.reshape(-1)[places] = values
    else:
        dense[tuple(places.T)] = values
    return numpy_helper.from_array(dense, tensor.values.name)
