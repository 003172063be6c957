"""The roofline model of layers: their operations and bytes, their speed, and the ceiling that bounds them.

A layer that does F operations on B bytes takes at least max(F / peak, B / bandwidth) (Williams, Waterman and Patterson,
CACM 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from profiling.layers.kinds import node_kind
from runtime.engines.value_shapes import PRODUCTS, Shape, product_flops

Bound = Literal["compute", "memory"]

# Operations counted per input element, by kind, for operators that are not matrix products; a convention.
PER_INPUT: Mapping[str, int] = {"norm": 5, "attention": 5, "reduction": 1}
# Why a layer may be faster than a ceiling.
EXCEEDED = (
    "above 100 %: the ceilings are those of a copy in main memory and of one large matrix product; data that stays in a"
    " cache moves faster, and 8-bit products compute faster"
)
# Operators that move no memory, and operators that read as much as they write.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Shape", "Size", "Identity"})
PICKS = frozenset({"Gather", "Slice", "GatherND", "GatherElements"})
# ONNX Runtime's fused operators -> the operators whose work they do.
FUSED = {"FusedMatMul": "MatMul", "FusedGemm": "Gemm", "FusedConv": "Conv", "TransposeMatMul": "MatMul"}


@dataclass(frozen=True)
class Value:
    """A tensor in a run: its shape, and bytes per element (a fraction where elements are packed)."""

    shape: Shape
    item_bytes: float

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return round(prod(self.shape) * self.item_bytes)


@dataclass(frozen=True)
class Work:
    """Floating-point operations, and bytes read and written, of one execute."""

    flops: int
    bytes: int

    def times(self, count: float) -> Work:
        """That of `count` executes."""
        return Work(round(self.flops * count), round(self.bytes * count))


@dataclass(frozen=True)
class Ceilings:
    """A machine's peaks: operations per second in a large matrix product, bytes per second in a copy.

    cpu_share: CPU time of the matrix products over wall time times threads; below 1 where other programs had the cores.
    """

    flops_per_s: float
    bytes_per_s: float
    source: str = ""
    cpu_share: float = 1.0


@dataclass(frozen=True)
class Roof:
    """A layer's speed. bound: its lower ceiling; reached: share of that ceiling. Both None without ceilings.

    Ceilings are measured, so that a share may be above 1: see EXCEEDED.
    """

    flops_per_s: float
    bytes_per_s: float
    bound: Bound | None = None
    reached: float | None = None


def measured_roof(work: Work, time_ms: float, ceilings: Ceilings | None) -> Roof | None:
    """A layer's speed compared with its roof; None for a layer without time or work."""
    if time_ms <= 0 or not (work.flops or work.bytes):
        return None
    seconds = time_ms / 1e3
    speed = (work.flops / seconds, work.bytes / seconds)
    if ceilings is None:
        return Roof(*speed)
    compute_s, memory_s = work.flops / ceilings.flops_per_s, work.bytes / ceilings.bytes_per_s
    bound: Bound = "compute" if compute_s >= memory_s else "memory"
    return Roof(*speed, bound, max(compute_s, memory_s) / seconds)


def operator_flops(
    op_type: str, attributes: Mapping[str, Any], inputs: Sequence[Value], outputs: Sequence[Value]
) -> int:
    """Operations of one operator: exact for products, one per element for pointwise work, by PER_INPUT for others."""
    plain = FUSED.get(op_type, op_type)
    if plain in PRODUCTS:
        return _product_flops(op_type, plain, attributes, inputs, outputs)
    kind = node_kind(op_type)
    if kind == "pointwise":
        return sum(prod(value.shape) for value in outputs)
    return PER_INPUT.get(kind, 0) * (prod(inputs[0].shape) if inputs else 0)


def _product_flops(
    op_type: str, plain: str, attributes: Mapping[str, Any], inputs: Sequence[Value], outputs: Sequence[Value]
) -> int:
    first, second, out = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if op_type in ("FusedMatMul", "TransposeMatMul") and attributes.get("transA"):
        first = (*first[:-2], first[-1], first[-2])
    return product_flops(plain, attributes, first, second, out)


def operator_bytes(op_type: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> int:
    """Bytes that one operator reads and writes, each value once; a view moves none."""
    if op_type in VIEWS:
        return 0
    written = sum(value.size_bytes for value in outputs)
    if op_type in PICKS:
        return 2 * written + sum(value.size_bytes for value in inputs[1:])
    return written + sum(value.size_bytes for value in inputs)
