"""Floating-point operations of matrix products and convolutions, from the shapes of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

Shape = tuple[int, ...]
PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})


def product_flops(op_type: str, attributes: Mapping[str, Any], first: Shape, second: Shape, out: Shape) -> int:
    """Multiplications and additions of an ONNX matrix product or convolution; 0 for every other operator.

    `attributes`: transA of a Gemm, the equation of an Einsum (bytes). `first`, `second`: its first two inputs.
    """
    if op_type not in PRODUCTS:
        return 0
    if op_type == "Gemm":
        return 2 * prod(out) * first[0 if attributes.get("transA") else 1]
    if op_type == "Conv":
        return 2 * prod(out) * prod(second[1:])
    if op_type == "ConvTranspose":
        return 2 * prod(first) * prod(second[1:])
    if op_type == "Einsum":
        return _einsum_flops(attributes["equation"].decode(), (first, second))
    if op_type == "Attention":
        return 4 * prod(first) * second[-2]
    return 2 * prod(out) * first[-1]


def _einsum_flops(equation: str, shapes: Sequence[Shape]) -> int:
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return 2 * prod(sizes.values())
