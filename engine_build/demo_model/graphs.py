"""A small writer of ONNX graphs: one method call per node, numpy arrays as initializers."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET: Final = 20
IR_VERSION: Final = 9


class GraphWriter:
    """Collects nodes and initializers; values are referred to by name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: int, shape: Sequence[str | int]) -> str:
        """Declare a graph input; a string in the shape is a free dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: int, shape: Sequence[str | int]) -> None:
        """Declare a graph output that carries `value`."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Store an array as an initializer."""
        name = f"constant_{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(np.asarray(array, dtype)), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output and return its name."""
        return self.nodes(op_type, *inputs, num_outputs=1, **attributes)[0]

    def nodes(self, op_type: str, *inputs: str, num_outputs: int, **attributes: Any) -> list[str]:
        """Append a node with several outputs and return their names."""
        stem = f"{op_type.lower()}_{len(self._nodes)}"
        outputs = [f"{stem}_{index}" for index in range(num_outputs)]
        self._nodes.append(helper.make_node(op_type, inputs, outputs, name=stem, **attributes))
        return outputs

    def model(self) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="tickrt")
        onnx.checker.check_model(model, full_check=True)
        return model
