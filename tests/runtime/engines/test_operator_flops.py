"""Operations of matrix products, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.engines.value_shapes import PRODUCTS, Shape, product_flops


@pytest.mark.parametrize(
    ("op_type", "attributes", "first", "second", "out", "expected"),
    [
        ("MatMul", {}, (2, 3, 5), (5, 7), (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("Gemm", {"transA": 1}, (5, 3), (5, 8), (3, 8), 2 * 3 * 8 * 5),
        ("Gemm", {"transA": 0}, (3, 5), (5, 8), (3, 8), 2 * 3 * 8 * 5),
        ("Conv", {}, (2, 4, 10), (6, 4, 3), (2, 6, 10), 2 * 2 * 6 * 10 * 4 * 3),
        ("ConvTranspose", {}, (2, 4, 10), (4, 6, 3), (2, 6, 30), 2 * 2 * 10 * 4 * 6 * 3),
        ("Einsum", {"equation": b"bn, ntk -> btk"}, (2, 7), (7, 9, 4), (2, 9, 4), 2 * 2 * 7 * 9 * 4),
        ("Attention", {}, (1, 2, 8, 16), (1, 2, 12, 16), (1, 2, 8, 16), 2 * 2 * 2 * 8 * 12 * 16),
        ("Add", {}, (2,), (2,), (2,), 0),
    ],
)
def test_operations(
    op_type: str, attributes: dict[str, Any], first: Shape, second: Shape, out: Shape, expected: int
) -> None:
    assert product_flops(op_type, attributes, first, second, out) == expected
    assert (op_type in PRODUCTS) == (expected > 0)
