"""Names of a graph's axes, where those that it came with contradict the roles of its tensors."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from engine_build.graphs.graph_file import Graph, derived_graph, load_model, messages_of, read_graph
from runtime.config.bundle import Bundle


def with_axis_names(graph: Graph, letters: Mapping[str, str]) -> Graph:
    """A graph whose axes are called by their shape letters, where one name of its own stands for several; else `graph`.

    letters: those of every input and output, by name. To TensorRT, to ONNX Runtime's reuse of memory and to what binds
    an engine, axes of one name are of one size.
    """
    if not _is_contradictory(graph, letters):
        return graph
    model = load_model(graph.source)
    for dimension in messages_of(model, onnx.TensorShapeProto.Dimension):
        dimension.ClearField("dim_param")
    for value in (*model.graph.input, *model.graph.output):
        for letter, dimension in zip(letters.get(value.name, ""), value.type.tensor_type.shape.dim, strict=False):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = letter
    return derived_graph(model, graph)


def decoder_graph(bundle: Bundle) -> Graph:
    """A bundle's decoder, see with_axis_names. Raises ConfigError, BuildError as read_graph does."""
    graph, decoder = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder
    ranks = {info.name: len(info.shape) for info in graph.inputs}
    letters = decoder.inputs.letters(ranks.get(decoder.inputs.condition or "", 3))
    return with_axis_names(graph, {**letters, decoder.outputs.velocity: "RTC"})


def _is_contradictory(graph: Graph, letters: Mapping[str, str]) -> bool:
    """Whether one name stands for several letters of inputs; other axes follow from these."""
    free = {letter for info in graph.inputs for letter in letters.get(info.name, "")}
    named: dict[str, str] = {}
    return any(
        isinstance(size, str) and letter in free and named.setdefault(size, letter) != letter
        for info in (*graph.inputs, *graph.outputs)
        for letter, size in zip(letters.get(info.name, ""), info.shape, strict=False)
    )
