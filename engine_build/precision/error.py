"""The error of a precision recipe, emulated and measured on a CPU over the states of a real generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine_build.graphs.graph_file import Graph
from engine_build.graphs.graph_view import GraphView, attribute, node_flops, node_name, product_values, replace_nodes
from engine_build.graphs.reference_session import (
    exact_options,
    exact_session,
    model_of,
    model_session,
    onnxruntime_errors,
    run_reason,
    session,
)
from engine_build.precision.casts import InlineWeights
from engine_build.precision.node_rules import LAYOUT
from engine_build.precision.quantization import Quantization
from engine_build.precision.recipe import NodePrecision, RecipeName, node_precisions, write_recipe
from runtime.base.errors import BuildError
from runtime.engines.value_shapes import Shape

SMALLEST_PEAK = 1e-6
# Noise so far below the audio is not heard: codec_snr_db says why.
AUDIBLE_DB = 55.0

Arrays = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]


LOW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(frozen=True)
class RecipeError:
    """A recipe against the float32 graph: errors per execute, and the work per part.

    max_rel: an execute's largest error over its largest output. rms_rel: root mean square of the error over that of the
    output. flops: node name -> floating-point operations of its matrix product, in the last execute.
    """

    recipe: RecipeName
    max_rel: tuple[float, ...]
    rms_rel: tuple[float, ...]
    nodes: tuple[NodePrecision, ...]
    flops: Mapping[str, int]

    @property
    def low_work(self) -> float:
        """Share of the work that runs in the recipe's own precision."""
        low = sum(count for name, count in self.flops.items() if self._precision(name) == self.recipe)
        return low / max(sum(self.flops.values()), 1)

    def summary(self) -> dict[str, float]:
        """Worst max_rel and rms_rel over the executes, and the share of low-precision work: for the manifest."""
        figures = {"max_rel": max(self.max_rel), "rms_rel": max(self.rms_rel), "low_work": self.low_work}
        return {f"recipe_{name}": value for name, value in figures.items()}

    def _precision(self, name: str) -> str:
        return next(node.precision for node in self.nodes if node.name == name)


def recipe_error(
    graph: Graph,
    recipe: RecipeName,
    feeds: Sequence[Arrays],
    *,
    without: Iterable[str] = (),
    quantization: Quantization | None = None,
    threads: int = 0,
) -> RecipeError:
    """Runs a float32 graph and its emulated recipe on the CPU over `feeds` (inputs by name), for the decoder those of
    decoder_sample_states.

    Raises BuildError where an output is not finite, or the graph does not run. One session is open at a time.
    """
    model = model_of(graph)
    expected, shapes = _reference(graph, model, feeds, threads)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.onnx"
        write_emulated(graph, recipe, path, without=without, quantization=quantization)
        runner = session(path, exact_options(threads), f"{graph.label} in {recipe}")
        found = [_outputs(runner, feed, f"{graph.label} in {recipe}") for feed in feeds]
    errors = [_errors(*pair, f"{graph.label} in {recipe}") for pair in zip(expected, found, strict=True)]
    return RecipeError(
        recipe=recipe,
        max_rel=tuple(error[0] for error in errors),
        rms_rel=tuple(error[1] for error in errors),
        nodes=node_precisions(
            model, recipe, without=without, weights=InlineWeights(graph.folder), quantization=quantization
        ),
        flops={node_name(node): flops for node in model.graph.node if (flops := node_flops(node, shapes))},
    )


def codec_snr_db(
    graph: Graph, recipe: RecipeName, feed: Arrays, window: int, *, without: Iterable[str] = (), threads: int = 0
) -> float:
    """How far below the audio of a codec in float32 the noise of a recipe is, in its worst `window` samples, in dB.

    Compared with AUDIBLE_DB. The noise is rounding, in proportion to what sounds: it is broad, ends with the sound, and
    is masked by it. A tone masks noise in its band that is 14.5 dB and 1 dB per Bark below it (Johnston 1988), 38.5 dB
    at the upper end of hearing, so 40 dB are enough in every band. Noise has the same level in all bands and music has
    not: 15 dB more are for those with less of it. At 90 dB SPL the noise is then at 35 dB SPL over all of hearing,
    about as much as a quiet living room has. A window that is more than 40 dB below the loudest counts as if it were
    40 dB below: noise 95 dB below the loudest is under the threshold of hearing. Raises BuildError where the graph does
    not run.

    Measured so, over the emulation, which rounds more often than engines do: fp16 62 dB on the demo's codec, 58 to 64
    on Oobleck in its published structure with random weights, 69 on SAME; bf16, which authors use, 42, 35 to 41, 44.
    """
    label = f"{graph.label} in {recipe}"
    output = model_of(graph).graph.output[0].name
    exact = _outputs(exact_session(graph, threads), feed, graph.label)[output].astype(np.float64)  # [B,A,W]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.onnx"
        write_emulated(graph, recipe, path, without=without)
        found = _outputs(session(path, exact_options(threads), label), feed, label)[output]
    count = max(exact.shape[-1] // window, 1)
    signal, noise = (
        np.array([np.square(part).mean() for part in np.array_split(values, count, axis=-1)])
        for values in (exact, np.nan_to_num(found - exact, nan=np.inf))
    )
    ratios = np.maximum(signal, signal.max() * 1e-4) / np.maximum(noise, 1e-30)
    return float(10 * np.log10(max(ratios.min(), 1e-30)))


def write_emulated(
    graph: Graph,
    recipe: RecipeName,
    path: Path,
    *,
    without: Iterable[str] = (),
    quantization: Quantization | None = None,
) -> None:
    """Write the emulated recipe of a graph to `path`; large weights stay beside it. Raises BuildError."""
    write_recipe(graph, path, recipe, without=without, quantization=quantization)
    is_for_cpus = recipe == "int8" and (quantization is None or quantization.by_token)
    if not is_for_cpus:  # which are what a CPU computes
        onnx.save(emulated(onnx.load(path, load_external_data=False)), path)


def _reference(
    graph: Graph, model: onnx.ModelProto, feeds: Sequence[Arrays], threads: int
) -> tuple[list[Outputs], dict[str, Shape]]:
    """The graph's outputs over all feeds, and the shapes of its products' values in the last one."""
    made = {name for node in model.graph.node for name in node.output}
    values = product_values(model.graph.node)
    probe = _with_shapes(model, [name for name in values if name in made])
    runner = model_session(probe, graph, threads)
    outputs = [_outputs(runner, feed, graph.label) for feed in feeds]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes |= {name: array.shape for name, array in feeds[-1].items()}
    shapes |= {name: tuple(outputs[-1][_shape_name(name)].tolist()) for name in values if name in made}
    wanted = [value.name for value in model.graph.output]
    return [{name: output[name] for name in wanted} for output in outputs], shapes


def _with_shapes(model: onnx.ModelProto, values: Sequence[str]) -> onnx.ModelProto:
    probe = deepcopy(model)
    for name in values:
        probe.graph.node.append(helper.make_node("Shape", [name], [_shape_name(name)]))
        probe.graph.output.append(helper.make_tensor_value_info(_shape_name(name), onnx.TensorProto.INT64, None))
    return probe


def _shape_name(value: str) -> str:
    return f"{value}/shape"


def _outputs(runner: Any, feed: Arrays, label: str) -> Outputs:
    names = [output.name for output in runner.get_outputs()]
    try:
        return dict(zip(names, runner.run(names, dict(feed)), strict=True))
    except onnxruntime_errors() as error:
        raise BuildError(
            f"{label} does not run: {run_reason(error)}", fix="check frame_multiple in bundle.toml"
        ) from error


def _errors(expected: Outputs, found: Outputs, label: str) -> tuple[float, float]:
    """Largest relative and root-mean-square relative error over the floating-point outputs. Raises BuildError."""
    worst = (0.0, 0.0)
    for name, exact in expected.items():
        if exact.dtype.kind != "f":
            continue
        if not np.isfinite(found[name]).all():
            raise BuildError(f"{label}: {name} is not finite", fix='precision = "bf16" in [build], or "fp32"')
        reference = exact.astype(np.float64)
        difference = found[name] - reference
        peak, power = float(np.abs(reference).max()), float(np.mean(reference**2))
        largest = float(np.abs(difference).max()) / max(peak, SMALLEST_PEAK)
        rms = float(np.sqrt(np.mean(difference**2) / max(power, SMALLEST_PEAK**2)))
        worst = (max(worst[0], largest), max(worst[1], rms))
    return worst


def emulated(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph with 16-bit nodes as one that ONNX Runtime's CPU provider runs, equal up to the order of sums.

    Every value is a float32 tensor of numbers that the 16-bit type can represent: an operator gets rounded inputs,
    computes in float32 and rounds its result, as tensor cores do. An engine that fuses operators rounds less often, so
    its error is smaller than the emulation's. 8-bit numbers are what they are: what DequantizeLinear gives is a factor
    of the product that reads it, never stored in 16 bits.

    Weights stay stored in 16 bits, external ones in their files, and are widened in the graph.
    """
    view = GraphView(model)
    nodes = list(_widened_weights(view))
    for node in view.nodes:
        nodes += _emulated_node(view, node)
    result = deepcopy(model)
    del result.graph.value_info[:]
    for tensor in result.graph.initializer:
        if tensor.data_type in LOW:
            tensor.name = _stored(tensor.name)
    replace_nodes(result.graph, nodes)
    return result


def _widened_weights(view: GraphView) -> Iterator[onnx.NodeProto]:
    for name, tensor in view.initializers.items():
        if tensor.data_type in LOW:
            yield _cast(_stored(name), name, TensorProto.FLOAT)


def _emulated_node(view: GraphView, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    low = {name: view.types[name] for name in node.output if view.types.get(name) in LOW}
    if node.op_type == "Cast":
        yield from _emulated_cast(view, node, low)
    elif not low or node.op_type in LAYOUT or node.op_type == "DequantizeLinear":
        yield node
    else:
        wide = deepcopy(node)
        wide.output[:] = [f"{name}.exact" if name in low else name for name in node.output]
        yield wide
        for name, kind in low.items():
            yield from _rounding(f"{name}.exact", name, kind)


def _emulated_cast(view: GraphView, node: onnx.NodeProto, low: dict[str, int]) -> Iterator[onnx.NodeProto]:
    source, target = node.input[0], node.output[0]
    if low:
        yield from _rounding(source, target, low[target])
    elif view.types[source] in LOW and attribute(node, "to") == TensorProto.FLOAT:
        yield helper.make_node("Identity", [source], [target], name=node.name)
    else:
        yield node


def _rounding(source: str, target: str, kind: int) -> Iterator[onnx.NodeProto]:
    yield _cast(source, f"{target}.rounded", kind)
    yield _cast(f"{target}.rounded", target, TensorProto.FLOAT)


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"cast/{target}", to=kind)


def _stored(name: str) -> str:
    return f"{name}.stored"
