"""Graphs that fail for one size of an axis, as a real graph does whose author never tried that size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def fail_at(path: Path, name: str, axis: int, size: int) -> None:
    """Rewrite the graph in a file: where an axis of input `name` has this size, an index is out of bounds."""
    model = onnx.load(path)
    graph = model.graph
    value = next(item for item in graph.input if item.name == name)
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    for node in graph.node:
        node.input[:] = [f"{name}/checked" if each == name else each for each in node.input]
    constants = {"size": np.array([size]), "one": np.ones(1, dtype)}
    graph.initializer.extend(numpy_helper.from_array(array, f"{name}/{key}") for key, array in constants.items())
    nodes = [
        helper.make_node("Shape", [name], [f"{name}/found"], start=axis, end=axis + 1),
        helper.make_node("Equal", [f"{name}/found", f"{name}/size"], [f"{name}/is_bad"]),
        helper.make_node("Cast", [f"{name}/is_bad"], [f"{name}/index"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", [f"{name}/one", f"{name}/index"], [f"{name}/factor"], name="fails_at_one_size"),
        helper.make_node("Mul", [name, f"{name}/factor"], [f"{name}/checked"]),
    ]
    nodes += list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
