"""LoRA adapters merged into a decoder's weights: all generations have them, and no tick computes their terms.

W + strength * scale * (B A)^T in float32, rounded once to what an engine stores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime.base.errors import EngineMismatchError
from runtime.config.decoder import AdapterSpec
from runtime.engines.adapters import AdapterUse, Floats

# What a precision recipe appends to the names of weights that it rounds.
SUFFIXES = ("", ".fp16", ".bf16")
_EXPORT_FIX = "export the bundle again, or correct [adapters.matrices] in bundle.toml"


class MergedGraph(NamedTuple):
    """A serialized ONNX model without some weights, and these: name -> values (bfloat16 as uint16) and ONNX's type."""

    model: bytes
    weights: Mapping[str, tuple[NDArray[Any], int]]


class MergedWeights:
    """The weights of a bundle's decoder with adapters in them; read from its graph, at `path`, one at a time.

    Raises EngineMismatchError where the graph lacks one of `[adapters.matrices]`.
    """

    def __init__(self, path: Path, spec: AdapterSpec, uses: Sequence[AdapterUse]) -> None:
        graph = onnx.load(path, load_external_data=False).graph
        self._spec, self._uses = spec, uses
        self._modules = {matrix.weight: module for module, matrix in spec.matrices.items()}
        self._path, self._tensors = path, {tensor.name: tensor for tensor in graph.initializer}
        self._transposed = {node.input[1] for node in graph.node if _is_transposed(node)}
        if missing := self._modules.keys() - self._tensors.keys():
            raise EngineMismatchError(f"{path} has no initializer {min(missing)!r}", fix=_EXPORT_FIX)

    def changed(self, stored: Collection[str], engine: str) -> list[str]:
        """Which of an engine's weights the adapters change. Raises EngineMismatchError where it lacks one."""
        modules = {module for use in self._uses for module in use.adapter.modules}
        found = {self._base(name): name for name in stored}
        names = [matrix.weight for module, matrix in self._spec.matrices.items() if module in modules]
        if missing := [name for name in names if name not in found]:
            raise EngineMismatchError(
                f"{engine} has no weight {missing[0]!r} any more: it was changed when the engine was compiled",
                fix='use the adapters per request, or set optimization = "basic" and no precision of 8 bits in [build]',
            )
        return [found[name] for name in names]

    def read(self, stored: str) -> Floats:
        """A weight by its name in an engine, in the layout of the graph; as it is where adapters do not change it.

        Raises EngineMismatchError where the graph has none of this name.
        """
        name, base = self._base(stored), self.read_base(stored)
        if name not in self._modules:
            return base
        inputs, outputs = self._spec.places[self._modules[name]]
        for adapter, strength in self._uses:
            change = np.float32(strength) * (adapter.a[:, inputs].T @ adapter.b[:, outputs])
            base += change.T if name in self._transposed else change
        return base

    def read_base(self, stored: str) -> Floats:
        """As read(), without adapters."""
        name = self._base(stored)
        if name not in self._tensors:
            raise EngineMismatchError(f"{self._path} has no initializer {name!r}", fix=_EXPORT_FIX)
        values: Floats = numpy_helper.to_array(self._tensors[name], base_dir=str(self._path.parent))
        return values.astype(np.float32)

    def graph(self, path: Path) -> MergedGraph:
        """An ONNX engine with the weights that the adapters change beside it. Raises EngineMismatchError."""
        model = onnx.load(path, load_external_data=False)
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        values = {}
        for name in self.changed(tensors, str(path)):
            kind = tensors[name].data_type
            rounded = np.ascontiguousarray(self.read(name).astype(helper.tensor_dtype_to_np_dtype(kind)))
            values[name] = (rounded.view(np.uint16) if kind == TensorProto.BFLOAT16 else rounded, kind)
            beside = TensorProto(name=name, data_type=kind, dims=rounded.shape, data_location=TensorProto.EXTERNAL)
            beside.external_data.add(key="location", value="merged")
            tensors[name].CopyFrom(beside)
        return MergedGraph(model.SerializeToString(), values)

    def _base(self, stored: str) -> str:
        """The name in the bundle's graph of an engine's weight; itself where the graph does not have it."""
        return next((name for suffix in SUFFIXES if (name := stored.removesuffix(suffix)) in self._tensors), stored)


def _is_transposed(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gemm" and any(item.name == "transB" and item.i for item in node.attribute)
