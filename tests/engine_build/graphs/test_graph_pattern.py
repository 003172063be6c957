"""Patterns of nodes: what fits, what a name stands for, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from engine_build.graphs.graph_view import LARGEST_CONSTANT, Matcher, is_small, op

NODES = [
    helper.make_node("Mul", ["a", "two"], ["double"]),
    helper.make_node("Add", ["double", "b"], ["sum"]),
    helper.make_node("Transpose", ["sum"], ["turned"], perm=[1, 0]),
    helper.make_node("Sub", ["turned", "double"], ["difference"]),
    helper.make_node("Mul", ["double", "double"], ["square"]),
    helper.make_node("Slice", ["square", "axes", "two"], ["part"]),
    helper.make_node("Gemm", ["a", "b"], ["product"], alpha=2.0, transB=1),
]
CONSTANTS = [
    numpy_helper.from_array(np.array(2.0, np.float32), "two"),
    numpy_helper.from_array(np.array([0, 2]), "axes"),
    numpy_helper.from_array(np.zeros(LARGEST_CONSTANT + 1), "weight"),
]


@pytest.fixture
def matcher() -> Matcher:
    return Matcher(NODES, CONSTANTS)


@pytest.mark.parametrize(
    ("pattern", "value", "found"),
    [
        (op("Mul", "x", 2.0), "double", {"x": "a"}),
        (op("Mul", 2, "x"), "double", {"x": "a"}),
        (op("Add", "y", op("Mul", "x", 2.0)), "sum", {"x": "a", "y": "b"}),
        (op("Mul", "x", "x"), "square", {"x": "double"}),
        (op("Sub", "x", "y"), "difference", {"x": "turned", "y": "double"}),
        (op("Sub", op("Transpose", op("Add", "x", "y")), "x"), "difference", {"x": "double", "y": "b"}),
        (op("Transpose", "x", perm=[1, 0]), "turned", {"x": "sum"}),
        (op("Transpose", op("Add", "x", "y").named("z")), "turned", {"x": "double", "y": "b", "z": "sum"}),
        (op("Slice", "x", (0, 2), 2.0), "part", {"x": "square"}),
        (op("Slice", "x"), "part", {"x": "square"}),
        (op("Gemm", "x", "y", alpha=2.0, transB=1), "product", {"x": "a", "y": "b"}),
        ([op("Sub", "x", "y"), op("Slice", "x", "y")], "part", {"x": "square", "y": "axes"}),
    ],
)
def test_fits(matcher: Matcher, pattern: Any, value: str, found: dict[str, str]) -> None:
    assert matcher.find(pattern, value) == found


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (op("Mul", "x", 3.0), "double"),
        (op("Mul", "x", "x"), "double"),
        (op("Sub", op("Mul", "x", 2.0), "y"), "difference"),
        (op("Sub", op("Transpose", "x", perm=[0, 1]), "y"), "difference"),
        (op("Slice", "x", (0, 1), 2.0), "part"),
        (op("Slice", "x", (0, 2), 2.0, "steps"), "part"),
        (op("Mul", "x", "y"), "a"),
        (op("Gemm", "x", "y", alpha=2.0, transB=0), "product"),
        ([], "double"),
    ],
)
def test_does_not_fit(matcher: Matcher, pattern: Any, value: str) -> None:
    assert matcher.find(pattern, value) is None


def test_added_nodes_replace_those_that_make_the_same_value(matcher: Matcher) -> None:
    matcher.add([helper.make_node("Neg", ["c"], ["double"])])
    assert matcher.find(op("Add", op("Neg", "x"), "b"), "sum") == {"x": "c", "b": "b"}
    assert matcher.producer("double").op_type == "Neg"  # type: ignore[union-attr]


def test_large_and_external_constants_have_no_values(matcher: Matcher) -> None:
    assert matcher.constant("axes") == (0, 2)
    assert matcher.constant("weight") is None
    outside = numpy_helper.from_array(np.array(2.0), "outside")
    assert is_small(outside)
    outside.data_location = outside.EXTERNAL
    assert not is_small(outside)
