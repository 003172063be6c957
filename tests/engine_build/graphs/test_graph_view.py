"""Floating-point operations, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from engine_build.graphs.graph_view import product_flops, product_values

SHAPES = {
    "a": (2, 3, 5), "b": (5, 7), "ab": (2, 3, 7),
    "x": (2, 4, 10), "w": (6, 4, 3), "xw": (2, 6, 10), "t": (4, 6, 3), "xt": (2, 6, 30),
    "m": (3, 5), "mt": (5, 3), "n": (5, 8), "mn": (3, 8), "e": (2, 7), "f": (7, 9, 4), "ef": (2, 9, 4),
    "q": (1, 2, 8, 16), "k": (1, 2, 12, 16), "qk": (1, 2, 8, 16),
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes", "expected"),
    [
        ("MatMul", ["a", "b"], "ab", {}, 2 * 2 * 3 * 7 * 5),
        ("Gemm", ["m", "n"], "mn", {}, 2 * 3 * 8 * 5),
        ("Gemm", ["mt", "n"], "mn", {"transA": 1}, 2 * 3 * 8 * 5),
        ("Conv", ["x", "w"], "xw", {}, 2 * 2 * 6 * 10 * 4 * 3),
        ("ConvTranspose", ["x", "t"], "xt", {}, 2 * 2 * 10 * 4 * 6 * 3),
        ("Einsum", ["e", "f"], "ef", {"equation": "bn,ntk->btk"}, 2 * 2 * 7 * 9 * 4),
        ("Attention", ["q", "k"], "qk", {}, 2 * 2 * 2 * 8 * 12 * 16),
        ("Add", ["a", "a"], "a", {}, 0),
    ],
)
def test_work(operator: str, inputs: list[str], output: str, attributes: dict[str, Any], expected: int) -> None:
    node = helper.make_node(operator, inputs, [output], **attributes)
    assert product_flops(node, SHAPES) == expected
    assert set(product_values([node])) == ({*inputs, output} if expected else set())
