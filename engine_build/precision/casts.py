"""Applies node rules to a graph: casts where precisions differ, weights stored in the precision of their use."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_view import GraphView, replace_nodes
from engine_build.precision.node_rules import NodeRule
from runtime.base.errors import BuildError
from runtime.engines.graph_bodies import reads, rename_reads

DATA_MIN_BYTES = 1024
DATA_ALIGNMENT_BYTES = 4096


class InlineWeights:
    """Reads constants of the source graph, external ones from its `folder`; stores new ones inside the new graph."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path()
        # Name of a constant -> what its stored values are multiplied by when they are read.
        self.factors: dict[str, float] = {}

    def read(self, tensor: TensorProto) -> NDArray[Any]:
        """The values of a constant of the source graph."""
        stored = np.asarray(numpy_helper.to_array(tensor, base_dir=str(self._folder)))
        return stored * stored.dtype.type(self.factors[tensor.name]) if tensor.name in self.factors else stored

    def write(self, name: str, array: NDArray[Any]) -> TensorProto:
        """A constant of the new graph."""
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor(name, kind, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)

    def keep(self, tensor: TensorProto) -> TensorProto:
        """A constant of the new graph that equals one of the source."""
        return self.write(tensor.name, self.read(tensor)) if tensor.name in self.factors else tensor


class FileWeights(InlineWeights):
    """Large constants stored in one file beside the new graph. One constant at a time is in memory."""

    def __init__(self, folder: Path, target: Path) -> None:
        super().__init__(folder)
        self._target = target
        self._written: dict[str, TensorProto] = {}
        target.write_bytes(b"")

    def read(self, tensor: TensorProto) -> NDArray[Any]:
        """The values of a constant of the source graph, or of one that was written."""
        if tensor.data_location == TensorProto.EXTERNAL and self._written.get(tensor.name) == tensor:
            return np.asarray(numpy_helper.to_array(tensor, base_dir=str(self._target.parent)))
        return super().read(tensor)

    def write(self, name: str, array: NDArray[Any]) -> TensorProto:
        """A constant; one of DATA_MIN_BYTES or more is written to the file."""
        if array.nbytes < DATA_MIN_BYTES:
            return super().write(name, array)
        with self._target.open("ab") as file:
            file.write(b"\0" * (-file.tell() % DATA_ALIGNMENT_BYTES))
            offset = file.tell()
            file.write(np.ascontiguousarray(array).tobytes())
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
        entries = {"location": self._target.name, "offset": offset, "length": array.nbytes}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        self._written[name] = tensor
        return tensor

    def keep(self, tensor: TensorProto) -> TensorProto:
        """The constant; copied into the new file where it is external, and not there yet."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return super().keep(tensor)
        return self._written.get(tensor.name) or self.write(tensor.name, self.read(tensor))


class Rewriter:
    """One pass over a graph's nodes, in order. `kind` is the low precision's ONNX data type, `label` its name.

    Caches that are updated in low precision are inputs and outputs in it.
    """

    def __init__(self, view: GraphView, rules: list[NodeRule], kind: int, label: str, weights: InlineWeights) -> None:
        self._view, self._rules, self._weights = view, rules, weights
        self._kind, self._label = kind, label
        self._dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
        updates = [node for node, rule in zip(view.nodes, rules, strict=True) if rule.name == "cache"]
        self._caches = {name for node in updates for name in (node.input[0], node.output[0])}
        self._low = {node.input[0] for node in updates}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._casts: set[str] = set()

    def rewrite(self) -> onnx.ModelProto:
        """The view's model, changed in index. Raises BuildError where a weight does not fit the low precision."""
        for node, rule in zip(self._view.nodes, self._rules, strict=True):
            self._add(node, rule)
        for name in sorted((self._view.outputs & self._low) - self._caches):
            self._widen_output(name)
        return self._model()

    def _add(self, node: onnx.NodeProto, rule: NodeRule) -> None:
        copy = deepcopy(node)
        rename_reads(copy, {name: self._operand(name, rule) for name in reads(node)})
        if rule.width == "low":
            self._low.update(name for name in node.output if self._view.is_float(name))
        self._nodes.append(copy)

    def _operand(self, name: str, rule: NodeRule) -> str:
        """The name under which a node reads a value in the precision of its rule."""
        view = self._view
        if not view.is_float(name):
            return self._kept(name)
        if view.is_constant(name):
            return self._rounded(name) if rule.width == "low" else self._kept(name)
        if rule.width == "index" or (name in self._low) == (rule.width == "low"):
            return name
        return self._cast(name, self._label if rule.width == "low" else "fp32")

    def _cast(self, name: str, label: str) -> str:
        output = f"{name}.{label}"
        if output not in self._casts:
            self._casts.add(output)
            to = TensorProto.FLOAT if label == "fp32" else self._kind
            self._nodes.append(helper.make_node("Cast", [name], [output], name=f"cast/{output}", to=to))
        return output

    def _kept(self, name: str) -> str:
        if self._view.is_constant(name) and name not in self._constants:
            self._constants[name] = self._weights.keep(self._view.initializers[name])
        return name

    def _rounded(self, name: str) -> str:
        output = f"{name}.{self._label}"
        if output not in self._constants:
            exact = self._weights.read(self._view.initializers[name])
            with np.errstate(over="ignore"):
                rounded = exact.astype(self._dtype)
            if (np.isfinite(exact) & ~np.isfinite(rounded.astype(np.float32))).any():
                raise BuildError(
                    f"constant {name!r} has values up to {np.abs(exact).max():.3g}: out of {self._label}'s range",
                    fix='precision = "bf16" in [build], or "fp32"',
                )
            self._constants[output] = self._weights.write(output, rounded)
        return output

    def _widen_output(self, name: str) -> None:
        inner = f"{name}.{self._label}"
        for node in self._nodes:
            rename_reads(node, {name: inner})
            node.output[:] = [inner if value == name else value for value in node.output]
        to = TensorProto.FLOAT
        self._nodes.append(helper.make_node("Cast", [inner], [name], name=f"cast/{name}", to=to))

    def _model(self) -> onnx.ModelProto:
        model = self._view.model
        del model.graph.initializer[:]
        del model.graph.value_info[:]
        del model.graph.input[:]
        model.graph.input.extend(self._view.inputs)
        for value in (*model.graph.input, *model.graph.output):
            if value.name in self._caches:
                value.type.tensor_type.elem_type = self._kind
        model.graph.initializer.extend(self._constants.values())
        replace_nodes(model.graph, self._nodes)
        return model
