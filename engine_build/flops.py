"""Floating-point operations of a graph's matrix products, from the shapes that its values have in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx

from engine_build.graph_view import attribute
from engine_build.precision_parts import PRODUCTS

Shape = tuple[int, ...]


def product_values(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """The values whose shapes `product_flops` needs."""
    names = [name for node in nodes if node.op_type in PRODUCTS for name in (*node.input[:2], *node.output[:1])]
    return list(dict.fromkeys(names))


def product_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Multiplications and additions of a matrix product or convolution; 0 for every other operator."""
    if node.op_type not in PRODUCTS:
        return 0
    first, second, out = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    if node.op_type == "Gemm":
        return 2 * prod(out) * first[0 if attribute(node, "transA", 0) else 1]
    if node.op_type == "Conv":
        return 2 * prod(out) * prod(second[1:])
    if node.op_type == "ConvTranspose":
        return 2 * prod(first) * prod(second[1:])
    if node.op_type == "Einsum":
        return _einsum_flops(attribute(node, "equation").decode(), (first, second))
    if node.op_type == "Attention":
        return 4 * prod(first) * second[-2]
    return 2 * prod(out) * first[-1]


def _einsum_flops(equation: str, shapes: Sequence[Shape]) -> int:
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return 2 * prod(sizes.values())
