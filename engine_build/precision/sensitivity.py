"""Decides which products of a decoder run in 8 bits: by what each of them alone does to the velocity.

Calibration runs generations of the decoder in float32 and takes the largest magnitude of every activation. Then each
product alone is quantized, over states of these generations. Products are taken in the order of error per work until
the root of the sum of their squared errors is BUDGET: the rest runs as in the recipe bf16, on a CPU in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from math import sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.config import EIGHT_BITS, EIGHT_BITS_BASE
from engine_build.graphs.graph_file import Graph
from engine_build.graphs.graph_view import GraphView, node_flops, node_name, replace_nodes
from engine_build.graphs.reference_session import model_of, model_session
from engine_build.precision.casts import InlineWeights
from engine_build.precision.int8 import (
    CONSTANTS,
    CONTRIB,
    int8_product,
    int8_products,
    rounded_by_token,
    rounded_weight,
)
from engine_build.precision.quantization import (
    KINDS,
    EightBits,
    Quantization,
    activation_scale,
    candidates,
    weight_scales,
)
from engine_build.precision.recipe import float32_model, normalized_graph
from engine_build.precision.sample_states import calibration_states, middle, steps_of
from runtime.config.bundle import Bundle
from runtime.config.deployment import PLAN_TARGETS

# Of the velocity, root mean square: what all 8-bit products may add up to, on a GPU and on a CPU. With twice that of
# the CPU, the demo's violins become saxophones.
BUDGET, CPU_BUDGET = 0.04, 0.014
# Frames of the states over which each product alone is quantized.
PROBED_FRAMES = 64

# The input that says which product is quantized.
WHICH = "quantized"

Arrays = Mapping[str, NDArray[Any]]


def quantization_for(
    target: str, precision: str, bundle: Bundle, graph: Graph, threads: int = 0
) -> Quantization | None:
    """Which products of a bundle's decoder a target runs in 8 bits; None for a precision that needs no such decision.

    It takes minutes: callers keep it. Raises BuildError.
    """
    by_token = target == "cpu" and precision == "int8"
    if not by_token and (target not in PLAN_TARGETS or precision not in EIGHT_BITS):
        return None
    steps = steps_of(graph)
    states = list(calibration_states(bundle, graph, steps=steps, threads=threads))
    probes = probes_of(bundle, states, steps)
    if by_token:
        return quantization_by_token(graph, probes, threads=threads)
    return quantization_of(graph, "fp8" if precision == "fp8" else "int8", states, probes, threads=threads)


def quantization_of(
    graph: Graph, recipe: EightBits, calibration: Sequence[Arrays], probes: Sequence[Arrays], *, threads: int = 0
) -> Quantization:
    """Which products of a float32 graph run in 8 bits.

    calibration: inputs by name whose activations set the scales; probes: those over which errors are measured. Raises
    BuildError where the graph does not run.
    """
    weights = InlineWeights(graph.folder)
    view = GraphView(normalized_graph(model_of(graph), EIGHT_BITS_BASE, weights))
    places = list(candidates(view))
    if not places:
        return Quantization(recipe, {}, {}, {}, frozenset())
    peaks, work = _observed(view, graph, places, calibration, threads)

    def rounded(node: onnx.NodeProto) -> onnx.GraphProto:
        x, weight = node.input[:2]
        scales = (
            (x, activation_scale(peaks[x], recipe), 0),
            (weight, *weight_scales(node, weights.read(view.initializers[weight]), recipe)),
        )
        return _rounded_product(node, scales, recipe)

    errors = _errors(view, graph, places, rounded, probes, threads)
    return Quantization(recipe, peaks, errors, work, frozenset(_within_budget(errors, work, BUDGET)))


def quantization_by_token(graph: Graph, probes: Sequence[Arrays], *, threads: int = 0) -> Quantization:
    """Which products of a float32 graph run in 8 bits on a CPU, over these inputs.

    Raises BuildError where the graph does not run.
    """
    weights = InlineWeights(graph.folder)
    view = GraphView(float32_model(model_of(graph), weights))
    changed = {*int8_products(view.model).values()}
    places = [index for index, node in enumerate(view.nodes) if node_name(node) in changed]
    if not places:
        return Quantization("int8", {}, {}, {}, frozenset(), by_token=True)
    _, work = _observed(view, graph, places, probes[:1], threads)

    def rounded(node: onnx.NodeProto) -> onnx.GraphProto:
        x, weight = node.input
        values, scale = rounded_weight(weights.read(view.initializers[weight]))
        constants = {**CONSTANTS, f"{weight}.int8": values, f"{weight}.scale": scale}
        named = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
            for name, value in constants.items()
        ]
        return _branch([*named, *rounded_by_token(x), *int8_product(node)])

    errors = _errors(view, graph, places, rounded, probes, threads)
    products = frozenset(_within_budget(errors, work, CPU_BUDGET))
    return Quantization("int8", {}, errors, work, products, by_token=True)


def probes_of(bundle: Bundle, states: Sequence[Arrays], steps: int) -> list[Arrays]:
    """The middle of one state of every generation, each from a later step, as far as there is one."""
    last = steps - 1
    chosen = [states[first + min(first // steps * (1 + steps // 4), last)] for first in range(0, len(states), steps)]
    return [middle(bundle, state, PROBED_FRAMES) for state in chosen]


def _within_budget(errors: Mapping[str, float], work: Mapping[str, float], budget: float) -> Iterator[str]:
    spent = 0.0
    for name in sorted(errors, key=lambda name: errors[name] ** 2 / max(work[name], 1e-12)):
        spent += errors[name] ** 2
        if not sqrt(spent) <= budget:  # also an error that is no number
            return
        yield name


def _observed(
    view: GraphView, graph: Graph, places: Iterable[int], feeds: Sequence[Arrays], threads: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Value -> its largest magnitude, for the products' activations; product -> its share of the work."""
    probe = deepcopy(view.model)
    values = list(dict.fromkeys(view.nodes[index].input[0] for index in places))
    results = [view.nodes[index].output[0] for index in places]
    for name in values:
        probe.graph.node.append(helper.make_node("Abs", [name], [f"{name}/magnitude"]))
        probe.graph.node.append(helper.make_node("ReduceMax", [f"{name}/magnitude"], [f"{name}/peak"], keepdims=0))
        probe.graph.output.append(helper.make_tensor_value_info(f"{name}/peak", TensorProto.FLOAT, []))
    for name in dict.fromkeys([*values, *results]):
        probe.graph.node.append(helper.make_node("Shape", [name], [f"{name}/shape"]))
        probe.graph.output.append(helper.make_tensor_value_info(f"{name}/shape", TensorProto.INT64, None))
    runner = model_session(probe, graph, threads)
    outputs = [output.name for output in runner.get_outputs()][len(view.model.graph.output) :]
    found = [dict(zip(outputs, runner.run(outputs, dict(feed)), strict=True)) for feed in feeds]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in view.model.graph.initializer}
    shapes |= {name: tuple(found[0][f"{name}/shape"].tolist()) for name in [*values, *results]}
    peaks = {name: max(float(item[f"{name}/peak"]) for item in found) for name in values}
    work = {node_name(view.nodes[i]): node_flops(view.nodes[i], shapes) for i in places}
    total = max(sum(work.values()), 1)
    return peaks, {name: flops / total for name, flops in work.items()}


def _errors(
    view: GraphView,
    graph: Graph,
    places: Sequence[int],
    rounded: Callable[[onnx.NodeProto], onnx.GraphProto],
    feeds: Sequence[Arrays],
    threads: int,
) -> dict[str, float]:
    """Product -> what it alone does to the graph's first output: the largest error over all feeds.

    rounded: the branch of a product in 8 bits.
    """
    runner = model_session(_switched(view, places, rounded), graph, threads)
    output = [view.model.graph.output[0].name]

    def velocity(feed: Arrays, which: int) -> NDArray[Any]:
        found: NDArray[Any] = runner.run(output, {**feed, WHICH: np.array(which)})[0].astype(np.float64)
        return found

    # -1 is the place of no product: all of them run exactly.
    exact = [velocity(feed, -1) for feed in feeds]
    sizes = [max(float(np.mean(wanted**2)), 1e-24) for wanted in exact]
    return {
        node_name(view.nodes[place]): sqrt(
            max(float(np.mean((velocity(feeds[i], which) - exact[i]) ** 2)) / sizes[i] for i in range(len(feeds)))
        )
        for which, place in enumerate(places)
    }


def _switched(
    view: GraphView, places: Sequence[int], rounded: Callable[[onnx.NodeProto], onnx.GraphProto]
) -> onnx.ModelProto:
    """The graph with an input WHICH: the product of this number in `places` is quantized, and no other."""
    result = deepcopy(view.model)
    result.graph.input.append(helper.make_tensor_value_info(WHICH, TensorProto.INT64, []))
    nodes = list(view.nodes)
    for number, index in enumerate(places):
        node, is_this = nodes[index], f"{WHICH}/{number}"
        branches = {"then_branch": rounded(node), "else_branch": _branch([node])}
        nodes[index] = helper.make_node("If", [is_this], list(node.output), **branches)
        result.graph.initializer.append(numpy_helper.from_array(np.array(number), f"{is_this}/number"))
        nodes.append(helper.make_node("Equal", [WHICH, f"{is_this}/number"], [is_this]))
    result.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    # Those that say which one it is come first.
    replace_nodes(result.graph, [*nodes[len(view.nodes) :], *nodes[: len(view.nodes)]])
    return result


def _rounded_product(
    node: onnx.NodeProto, scales: Iterable[tuple[str, NDArray[np.float32], int]], recipe: EightBits
) -> onnx.GraphProto:
    """A branch with the product of rounded factors; `scales`: of each the name, the scale and its axis."""
    nodes, product = list[onnx.NodeProto](), deepcopy(node)
    for place, (name, scale, axis) in enumerate(scales):
        stored, product.input[place] = f"{node.name}/stored/{place}", f"{node.name}/value/{place}"
        zero = helper.make_tensor("", KINDS[recipe], scale.shape, bytes(scale.size), raw=True)
        constants = [f"{stored}/scale", f"{stored}/zero"]
        for constant, tensor in zip(constants, (numpy_helper.from_array(scale), zero), strict=True):
            nodes.append(helper.make_node("Constant", [], [constant], value=tensor))
        nodes.append(helper.make_node("QuantizeLinear", [name, *constants], [stored], axis=axis))
        nodes.append(helper.make_node("DequantizeLinear", [stored, *constants], [product.input[place]], axis=axis))
    return _branch([*nodes, product])


def _branch(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """A branch of If that gives what the last node does."""
    copies = [deepcopy(node) for node in nodes]
    copies[-1].output[0] = f"{nodes[-1].output[0]}/branch"
    return helper.make_graph(
        copies, "branch", [], [helper.make_tensor_value_info(copies[-1].output[0], TensorProto.FLOAT, None)]
    )
