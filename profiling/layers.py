"""Layer timings of one engine: shares, and rollups by kind of work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.engine import Engine, run_once
from runtime.nodes import NodeTimes

KINDS: Mapping[str, frozenset[str]] = {
    "attention": frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "Softmax"}),
    "gemm": frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum", "MatMulNBits"}),
    "convolution": frozenset({"Conv", "FusedConv", "ConvTranspose"}),
    "norm": frozenset(
        {
            "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "RMSNormalization",
            "SkipSimplifiedLayerNormalization", "GroupNormalization", "InstanceNormalization",
        }
    ),
    "reduction": frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceL2", "CumSum", "TopK"}),
    "pointwise": frozenset(
        {
            "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Sigmoid", "Tanh", "QuickGelu", "Gelu", "BiasGelu", "Erf", "Sin",
            "Cos", "Neg", "Abs", "Exp", "Log", "Max", "Min", "Where", "And", "Or", "Not", "Less", "LessOrEqual", "Mod",
            "Greater", "Equal", "Clip", "Relu", "Floor",
        }
    ),
    "reformat": frozenset(
        {
            "Reshape", "Transpose", "Concat", "Slice", "Split", "Gather", "Expand", "Squeeze", "Unsqueeze", "Shape",
            "Cast", "Pad", "Tile", "Identity", "Range", "ConstantOfShape", "Flatten", "ReorderInput", "ReorderOutput",
        }
    ),
}  # fmt: skip
OTHER = "other"


@dataclass(frozen=True)
class LayerTiming:
    """One layer over several executes; `share` is of the sum of all layers, 0..1."""

    name: str
    op_type: str
    kind: str
    total_ms: float
    average_ms: float
    median_ms: float
    share: float


@dataclass(frozen=True)
class Profile:
    """An engine's layers at one shape, and its unprofiled wall time, for profiling itself costs time."""

    engine: str
    runs: int
    layers: tuple[LayerTiming, ...]
    wall_ms: float

    @property
    def layer_sum_ms(self) -> float:
        """Sum of all layers, per execute."""
        return sum(layer.average_ms for layer in self.layers)

    def by_kind(self) -> dict[str, float]:
        """Milliseconds per execute by kind, most first; they add up to the layer sum."""
        totals: dict[str, float] = {}
        for layer in self.layers:
            totals[layer.kind] = totals.get(layer.kind, 0.0) + layer.average_ms
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def profile_engine(engine: Engine, feeds: Mapping[str, NDArray[Any]], runs: int) -> Profile:
    """Wall time first, without a profiler; then every layer's time. Raises ShapeError, EngineError."""
    run_once(engine, feeds)
    wall_ms = median(_wall_ms(engine, feeds) for _ in range(runs))
    return Profile(engine.name, runs, layer_timings(engine.profile(feeds, runs)), wall_ms)


def layer_timings(nodes: Sequence[NodeTimes]) -> tuple[LayerTiming, ...]:
    """One record per node, in execution order."""
    whole = sum(sum(node.runs_ms) for node in nodes) or 1.0
    return tuple(
        LayerTiming(
            name=node.name,
            op_type=node.op_type,
            kind=kind_of(node.op_type),
            total_ms=sum(node.runs_ms),
            average_ms=sum(node.runs_ms) / len(node.runs_ms),
            median_ms=median(node.runs_ms),
            share=sum(node.runs_ms) / whole,
        )
        for node in nodes
    )


def kind_of(op_type: str) -> str:
    """The kind of work of an operator; "other" for one that no kind names."""
    return next((kind for kind, names in KINDS.items() if op_type in names), OTHER)


def make_feeds(engine: Engine, sizes: Mapping[str, int], seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs of a shape: normal noise for floats, zeros for integers (valid as index), ones for masks.

    `sizes` maps the engine's free dimensions to their sizes. Raises KeyError with the dimension that is missing.
    """
    random = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for name, info in engine.inputs.items():
        shape = tuple(size if isinstance(size, int) else sizes[size] for size in info.shape)
        dtype = np.dtype(info.dtype)
        if name.endswith("mask"):
            feeds[name] = np.ones(shape, dtype)
        elif dtype.kind == "f":
            feeds[name] = random.standard_normal(shape).astype(dtype)
        else:
            feeds[name] = np.zeros(shape, dtype)
    return feeds


def _wall_ms(engine: Engine, feeds: Mapping[str, NDArray[Any]]) -> float:
    started_s = time.perf_counter()
    engine.run(feeds)
    return (time.perf_counter() - started_s) * 1e3
