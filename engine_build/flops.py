"""Floating-point operations of a graph's matrix products, from the shapes that its values have in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from runtime.engines import operator_flops as flops
from runtime.engines.operator_flops import PRODUCTS, Shape


def product_values(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """The values whose shapes `product_flops` needs."""
    names = [name for node in nodes if node.op_type in PRODUCTS for name in (*node.input[:2], *node.output[:1])]
    return list(dict.fromkeys(names))


def product_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Multiplications and additions of a matrix product or convolution; 0 for every other operator."""
    if node.op_type not in PRODUCTS:
        return 0
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    first, second, out = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    return flops.product_flops(node.op_type, attributes, first, second, out)
