"""Writes an ONNX graph op by op: values are names, scopes become node names, equal constants are stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

OPSET = 20
# The oldest version of the file format that has an opset.
IR_VERSIONS = {20: 10, 24: 11}

Dimensions = Sequence[int | str]


class GraphWriter:
    """Writes one graph. Every method that makes a value returns its name."""

    def __init__(self, name: str, opset: int = OPSET) -> None:
        self._name, self._opset = name, opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._outputs: dict[str, onnx.ValueInfoProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], onnx.TensorProto] = {}
        self._scopes: list[str] = []
        self._counts: Counter[str] = Counter()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes written inside get `name/` before their own name."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def input(self, name: str, shape: Dimensions, dtype: DTypeLike = np.float32) -> str:
        """A graph input. A string names a dynamic dimension."""
        self._inputs[name] = _value_info(name, shape, dtype)
        return name

    def output(self, name: str, value: str, shape: Dimensions, dtype: DTypeLike = np.float32) -> None:
        """Make `value` the graph output `name`, without a copy where a node made it."""
        if value in self._inputs or value in self._outputs or self._is_constant(value):
            self._nodes.append(helper.make_node("Identity", [value], [name], name=f"Identity/{name}"))
        else:
            self._rename(value, name)
        self._outputs[name] = _value_info(name, shape, dtype)

    def constant(self, value: ArrayLike, dtype: DTypeLike = np.float32, name: str = "") -> str:
        """A constant; equal ones share an initializer. `name`: the initializer's name, for weights."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str + name, array.shape, array.tobytes())
        if key not in self._constants:
            label = name or f"constant_{len(self._constants)}"
            self._constants[key] = numpy_helper.from_array(array, label)
        return str(self._constants[key].name)

    def tensor(self, tensor: onnx.TensorProto) -> str:
        """A constant that is stored already, for weights in a file of their own."""
        return str(self._constants.setdefault((tensor.name, (), b""), tensor).name)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One node with one output. An empty name omits an optional input."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """One node with several outputs."""
        name = self._unique("/".join([*self._scopes, kind]))
        names = [f"{name}:{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names

    def model(self) -> onnx.ModelProto:
        """The finished graph, checked; with weights in other files the checker needs the graph in its own file."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            list(self._inputs.values()),
            list(self._outputs.values()),
            list(self._constants.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], producer_name="tickrt")
        model.ir_version = IR_VERSIONS[self._opset]
        if not any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in self._constants.values()):
            onnx.checker.check_model(model)
        return model

    def _unique(self, name: str) -> str:
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name}_{self._counts[name]}"

    def _is_constant(self, value: str) -> bool:
        return any(tensor.name == value for tensor in self._constants.values())

    def _rename(self, old: str, new: str) -> None:
        for node in self._nodes:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == old:
                        names[index] = new


def _value_info(name: str, shape: Dimensions, dtype: DTypeLike) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
