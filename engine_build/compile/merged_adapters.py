"""Adapters in the decoder's weights before it is built, for the target whose engines take no other weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from engine_build.compile.engine_folder import partial_folder
from engine_build.compile.rebuild_check import RebuildDecision
from engine_build.graphs.graph_file import Graph, read_graph
from engine_build.graphs.reference_session import model_of
from engine_build.precision.casts import FileWeights, InlineWeights
from runtime.config.deployment import Deployment
from runtime.engines.adapters import MERGED
from runtime.engines.loading import merged_weights
from runtime.engines.merging import MergedWeights


@contextlib.contextmanager
def with_merged_adapters(decision: RebuildDecision, deployment: Deployment, folder: Path) -> Iterator[RebuildDecision]:
    """The decision with a graph that has the adapters of its identity in its weights, as long as the context exists.

    Raises AdapterError, EngineMismatchError, BuildError.
    """
    weights = merged_weights(deployment) if decision.wanted.build.get(MERGED) else None
    if weights is None:
        yield decision
        return
    with partial_folder(folder, f"{decision.spec.name}.merged") as partial:
        path = partial / f"{decision.spec.name}.onnx"
        write_merged(decision.spec.graph, weights, path)
        yield replace(decision, spec=replace(decision.spec, graph=read_graph(path)))


def write_merged(graph: Graph, weights: MergedWeights, path: Path) -> None:
    """Write a graph with the weights that adapters change to `path`, large ones to a file beside it, one by one."""
    model = model_of(graph)
    data = path.with_name(f"{path.name}.data")
    store = FileWeights(graph.folder, data) if graph.has_data_files else InlineWeights()
    tensors = list(model.graph.initializer)
    changed = set(weights.changed([tensor.name for tensor in tensors], graph.label))
    kept = [_merged(store, weights, tensor) if tensor.name in changed else store.keep(tensor) for tensor in tensors]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, path)


def _merged(store: InlineWeights, weights: MergedWeights, tensor: Any) -> Any:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return store.write(tensor.name, weights.read(tensor.name).astype(dtype))
