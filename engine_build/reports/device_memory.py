"""What a deployment is expected to take of a device's memory, by target: engines, tensors, caches, contexts, graphs.

Engines, tensors and caches are counted exactly but for what a builder adds to weights. Activation memory is that of a
graph without fusion, but for attention in 16 bits. Of contexts and graphs nothing is known before a card has made some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper

from engine_build.compile.rebuild_check import TICK_KINDS, RebuildDecision, engine_precision, tensor_bytes
from engine_build.config import BuildConfig
from engine_build.graphs.reference_session import model_of
from engine_build.precision.recipe import has_low_caches
from engine_build.specs.engine_spec import EngineSpec, input_shapes
from runtime.config.deployment import HOST_TARGETS, PLAN_TARGETS, RuntimeConfig, Target
from runtime.engines.graph_bodies import reads
from runtime.engines.value_shapes import Values, value_shapes

# Bytes of a number in the precisions of engines; what has no name here has 4.
WIDTHS = {"fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
CACHE = "RHMJ"
# Kinds whose engines run for live audio and in the background: two sets of contexts and tensors.
TWICE = frozenset({"codec_decode"})
# A tick's part of a captured graph: rows, decoder, step.
EXECUTES = 3
# No card has measured these two: they are a guess at a decoder of 2 B parameters.
CONTEXT_BYTES, GRAPH_BYTES = 4 << 20, 1 << 20
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten"})
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


@dataclass(frozen=True)
class MemoryPart:
    """What takes `size_bytes`, and of what it consists."""

    name: str
    size_bytes: int
    what: str


def expected_memory(
    decisions: Sequence[RebuildDecision], target: Target, options: BuildConfig, runtime: RuntimeConfig
) -> list[MemoryPart]:
    """The parts of one target, without those that take nothing. On the CPU it is memory of the process."""
    precisions = {item.spec.name: engine_precision(item.spec, target, options) for item in decisions}
    specs = [decision.spec for decision in decisions]
    caches = [(spec, cache_bytes(spec, target, precisions[spec.name])) for spec in specs]
    engines = [_weights(decision, target, precisions[decision.spec.name]) for decision in decisions]
    tensors = _by_kind(specs, [tensor_bytes(spec) - _float32_caches(spec) for spec in specs])
    parts = [
        MemoryPart("engines", sum(engines), f"weights of {len(engines)} engines"),
        MemoryPart("tensors", tensors, "inputs and outputs at the largest shapes"),
        MemoryPart("caches", sum(size for _, size in caches), _caches_text(caches)),
    ]
    if target not in HOST_TARGETS:
        parts.append(_activation(specs, target, precisions))
    if target in PLAN_TARGETS:
        parts += _contexts(specs, runtime)
    return [part for part in parts if part.size_bytes]


def cache_bytes(spec: EngineSpec, target: Target, precision: str) -> int:
    """Keys and values of all rows of a planner's graph, in a precision of the target."""
    return _float32_caches(spec) // (1 + has_low_caches(target, precision))


def kernel_bytes(spec: EngineSpec, precision: str) -> int:
    """What TensorRT-RTX compiles kernels on beside ticks, at most: all updated caches are one piece of memory.

    It grows with the rows, and a piece that it has outgrown is not given back: twice the largest one.
    """
    caches = sum(port.letters == CACHE for port in spec.inputs)
    largest = [np.dtype(port.dtype).itemsize * _elements(spec, port.letters) for port in spec.inputs]
    return 2 * max(largest, default=0) // (1 + (caches > 0 and has_low_caches("tensorrt-rtx", precision)))


def peak_bytes(model: onnx.ModelProto, values: Values, width: int) -> int:
    """The largest sum of values that are alive at a time, in the order of the nodes, without inputs and outputs.

    width: bytes of a floating-point number. Of 2 bytes, attention keeps no scores.
    """
    kept = {value.name for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    softmax = [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]
    scores = {values[name][0] for name in softmax if name in values}
    roots, last = dict[str, str](), dict[str, int]()
    for index, node in enumerate(model.graph.node):
        if node.op_type in VIEWS:
            roots[node.output[0]] = roots.get(node.input[0], node.input[0])
        for name in reads(node):
            last[roots.get(name, name)] = index
    ends = [list[str]() for _ in model.graph.node]
    for name, index in last.items():
        ends[index].append(name)
    alive, most, sizes = 0, 0, dict[str, int]()
    for index, node in enumerate(model.graph.node):
        for name in node.output:
            if name in values and name not in kept and name not in roots:
                shape, kind = values[name]
                size = 0 if width == 2 and shape in scores else prod(shape) * _itemsize(kind, width)
                sizes[name] = size
                alive += size
        most = max(most, alive)
        alive -= sum(sizes.pop(name, 0) for name in ends[index])
    return most


def _itemsize(kind: int, width: int) -> int:
    return width if kind in FLOATS else helper.tensor_dtype_to_np_dtype(kind).itemsize


def _elements(spec: EngineSpec, letters: str) -> int:
    return prod(spec.largest[letter] for letter in letters)


def _float32_caches(spec: EngineSpec) -> int:
    return sum(4 * _elements(spec, port.letters) for port in spec.inputs if port.letters == CACHE)


def _weights(decision: RebuildDecision, target: Target, precision: str) -> int:
    """ONNX Runtime's CUDA provider has a session of its own for live audio, with the weights once more."""
    times = 2 if target == "cuda" and decision.spec.kind in TWICE else 1
    if decision.action == "reuse":
        return times * decision.weights_bytes
    return times * decision.weights_bytes * WIDTHS.get(precision, 4) // 4


def _by_kind(specs: Iterable[EngineSpec], sizes: Iterable[int]) -> int:
    """Variants of one kind share their tensors."""
    most = dict[str, int]()
    for spec, size in zip(specs, sizes, strict=True):
        most[spec.kind] = max(most.get(spec.kind, 0), size * (1 + (spec.kind in TWICE)))
    return sum(most.values())


def _caches_text(caches: Sequence[tuple[EngineSpec, int]]) -> str:
    return ", ".join(f"{spec.name}: {spec.largest['R']} rows" for spec, size in caches if size)


def _activation(specs: Sequence[EngineSpec], target: Target, precisions: dict[str, str]) -> MemoryPart:
    """Engines of ticks share theirs; TensorRT-RTX compiles their kernels on as much once more."""
    ticks, others, kernels = 0, 0, 0
    for spec in specs:
        width, model = max(2, WIDTHS.get(precisions[spec.name], 4)), model_of(spec.graph)
        found = peak_bytes(model, value_shapes(model, input_shapes(spec, spec.largest)), width)
        if spec.kind in TICK_KINDS:
            ticks, kernels = max(ticks, found), max(kernels, kernel_bytes(spec, precisions[spec.name]))
        else:
            others += found * (1 + (spec.kind in TWICE))
    more = ticks + kernels if target == "tensorrt-rtx" else 0
    text = "values between inputs and outputs, without fusion" + ", and to compile kernels" * bool(more)
    return MemoryPart("activation", ticks + others + more, text)


def _contexts(specs: Sequence[EngineSpec], runtime: RuntimeConfig) -> list[MemoryPart]:
    shared = sum(len(spec.ranges) * (1 + (spec.kind in TWICE)) for spec in specs)
    graphs = runtime.captured_graphs if runtime.capture else 0
    mib = CONTEXT_BYTES >> 20
    return [
        MemoryPart("contexts", shared * CONTEXT_BYTES, f"{shared} at {mib} MiB, which no card has measured"),
        MemoryPart(
            "graphs",
            graphs * (GRAPH_BYTES + EXECUTES * CONTEXT_BYTES),
            f"up to {graphs}, each with {EXECUTES} contexts, which no card has measured",
        ),
    ]
