"""The decoder for LoRA adapters: every listed matrix gets the low-rank term of each row's adapters.

For a matrix W with input x: y = x W + ((x A^T) * w) B, with A `[Q, in]` and B `[Q, out]` the factors of all adapters in
use, below each other, and w `[R, Q]` each row's strengths, 0 for adapters that it does not use. So rows with different
adapters share one pair of matrix products, which is what a GPU and ONNX Runtime do well; products per row would be many
small ones. Q is the sum of the ranks: what no row uses costs nothing but the columns of adapters that others use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_view import attribute, replace_nodes
from runtime.base.errors import BuildError, ConfigError
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.engines.adapters import FACTORS_A, FACTORS_B, ROW_WEIGHTS
from runtime.engines.graph_bodies import reads

SCOPE = "adapters"
RANK = "adapter_rank"
LINEAR = "torch.nn.modules.linear.Linear"
_FIX = "export the bundle again, or correct [adapters.matrices] in bundle.toml"


def adapter_graph(model: onnx.ModelProto, spec: AdapterSpec, latents: str) -> onnx.ModelProto:
    """A decoder's graph with the inputs FACTORS_A `[Q, I]`, FACTORS_B `[Q, O]` and ROW_WEIGHTS `[R, Q]`.

    latents: the input whose first dimension is R. External weights are not read. Raises ConfigError where a matrix is
    not in the graph, BuildError where it is not a factor of a product over rows.
    """
    result = deepcopy(model)
    graph = result.graph
    rows = next(value for value in graph.input if value.name == latents).type.tensor_type.shape.dim[0]
    graph.input.extend([
        _input(FACTORS_A, RANK, spec.num_inputs),
        _input(FACTORS_B, RANK, spec.num_outputs),
        _input(ROW_WEIGHTS, rows.dim_param or rows.dim_value or None, RANK),
    ])  # fmt: skip
    writer = _Writer(result, spec)
    replace_nodes(result.graph, [*writer.split(), *writer.nodes()])
    graph.initializer.extend(writer.constants)
    return result


def linear_matrices(model: onnx.ModelProto) -> dict[str, AdapterMatrix]:
    """Module path in the decoder -> its matrix, of all linear layers that torch's exporter names in the nodes."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, AdapterMatrix] = {}
    for node in model.graph.node:
        path = _linear_path(node)
        if path and node.op_type in ("MatMul", "Gemm") and node.input[1] in weights:
            tensor = weights[node.input[1]]
            found[path] = AdapterMatrix(weight=tensor.name, **_features(node, tensor))
    return found


def _linear_path(node: onnx.NodeProto) -> str:
    """The path, below the exported module `decoder`, of the linear layer that a node belongs to; "" where of none.

    Each part of the namespace is "PATH: CLASS". An embedder that the exporter wraps has its layer as `linear`.
    """
    namespace = next((entry.value for entry in node.metadata_props if entry.key == "namespace"), "")
    paths = [part.partition(": ")[0] for part in namespace.split("/") if part.endswith(LINEAR)]
    return paths[-1].rpartition("decoder.")[2].removesuffix(".linear") if paths else ""


class _Writer:
    """Adds the low-rank terms to a graph's nodes."""

    def __init__(self, model: onnx.ModelProto, spec: AdapterSpec) -> None:
        self._spec, self._nodes = spec, model.graph.node
        self._ranks = _ranks(model)
        initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._products = {path: self._product(path, matrix, initializers) for path, matrix in spec.matrices.items()}
        sizes = [[m.inputs for m in spec.matrices.values()], [m.outputs for m in spec.matrices.values()]]
        self.constants = [
            numpy_helper.from_array(np.array(values, np.int64), f"{SCOPE}/{name}")
            for name, values in (("inputs", sizes[0]), ("outputs", sizes[1]), ("time", [1]))
        ]

    def split(self) -> Iterator[onnx.NodeProto]:
        """The factors of each matrix."""
        for name, sizes, side in ((FACTORS_A, "inputs", "a"), (FACTORS_B, "outputs", "b")):
            outputs = [f"{SCOPE}/{path}/{side}" for path in self._spec.matrices]
            yield helper.make_node("Split", [name, f"{SCOPE}/{sizes}"], outputs, f"{SCOPE}/split_{side}", axis=1)
        yield helper.make_node("Unsqueeze", [ROW_WEIGHTS, f"{SCOPE}/time"], [f"{SCOPE}/weights"], f"{SCOPE}/unsqueeze")

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """The graph's nodes; behind each listed product its low-rank term, added to what it gave."""
        terms = {id(node): path for path, node in self._products.items()}
        for node in self._nodes:
            if id(node) not in terms:
                yield node
                continue
            x, y, scope = node.input[0], node.output[0], f"{SCOPE}/{terms[id(node)]}"
            node.output[0] = f"{scope}/y"
            yield node
            weights = ROW_WEIGHTS if self._ranks.get(x) == 2 else f"{SCOPE}/weights"
            for kind, inputs, output in (
                ("Transpose", [f"{scope}/a"], f"{scope}/a_t"),
                ("MatMul", [x, f"{scope}/a_t"], f"{scope}/low"),
                ("Mul", [f"{scope}/low", weights], f"{scope}/weighted"),
                ("MatMul", [f"{scope}/weighted", f"{scope}/b"], f"{scope}/term"),
                ("Add", [f"{scope}/y", f"{scope}/term"], y),
            ):
                added = helper.make_node(kind, inputs, [output], f"{scope}/{output.rpartition('/')[2]}")
                added.metadata_props.extend(node.metadata_props)
                yield added

    def _product(self, path: str, matrix: AdapterMatrix, weights: Mapping[str, TensorProto]) -> onnx.NodeProto:
        where = f"adapters.matrices {path!r}"
        if matrix.weight not in weights:
            raise ConfigError(f"{where}: the decoder has no initializer {matrix.weight!r}", fix=_FIX)
        readers = [node for node in self._nodes if matrix.weight in reads(node)]
        if len(readers) != 1 or readers[0].op_type not in ("MatMul", "Gemm") or readers[0].input[1] != matrix.weight:
            kinds = ", ".join(node.op_type for node in readers) or "nothing"
            raise ConfigError(f"{where}: {matrix.weight!r} is read by {kinds}, expected one MatMul or Gemm", fix=_FIX)
        (node,) = readers
        found, wanted = _features(node, weights[matrix.weight]), matrix.model_dump(include={"inputs", "outputs"})
        if found != wanted:
            raise ConfigError(f"{where} is {wanted}, the graph has {found}", fix=_FIX)
        if self._ranks.get(node.input[0]) not in (2, 3):
            raise BuildError(f"{where}: its input {node.input[0]!r} is not [R, in] or [R, N, in]", fix=_FIX)
        return node


def _features(node: onnx.NodeProto, weight: TensorProto) -> dict[str, int]:
    """Input and output features of a product's second factor."""
    sizes = [int(size) for size in weight.dims]
    if len(sizes) != 2:
        raise ConfigError(f"{weight.name!r} has shape {sizes}, expected a matrix", fix=_FIX)
    inputs, outputs = reversed(sizes) if node.op_type == "Gemm" and attribute(node, "transB", 0) else sizes
    return {"inputs": inputs, "outputs": outputs}


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    """Number of dimensions by value, where it is known."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}


def _input(name: str, *shape: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
