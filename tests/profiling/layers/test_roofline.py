"""Rooflines by hand."""

from __future__ import annotations

from typing import Any

import pytest

from profiling.layers.roofline import Ceilings, Value, Work, measured_roof, operator_bytes, operator_flops

TOP = Ceilings(100e9, 10e9)


def values(*shapes: tuple[int, ...], item_bytes: float = 4.0) -> list[Value]:
    return [Value(shape, item_bytes) for shape in shapes]


@pytest.mark.parametrize(
    ("op_type", "attributes", "inputs", "output", "flops"),
    [
        ("MatMul", {}, [(2, 3, 5), (5, 7)], (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("FusedMatMul", {}, [(2, 3, 5), (2, 5, 7)], (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("FusedMatMul", {"transA": 1}, [(2, 5, 3), (2, 5, 7)], (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("FusedGemm", {}, [(3, 5), (5, 7)], (3, 7), 2 * 3 * 7 * 5),
        ("Add", {}, [(3, 5), (5,)], (3, 5), 15),
        ("ReduceMean", {}, [(3, 5)], (3,), 15),
        ("Softmax", {}, [(3, 5)], (3, 5), 75),
        ("SimplifiedLayerNormalization", {}, [(3, 5), (5,)], (3, 5), 75),
        ("Transpose", {}, [(3, 5)], (5, 3), 0),
        ("Quux", {}, [(3, 5)], (5, 3), 0),
    ],
)
def test_operations(
    op_type: str, attributes: dict[str, Any], inputs: list[tuple[int, ...]], output: tuple[int, ...], flops: int
) -> None:
    assert operator_flops(op_type, attributes, values(*inputs), values(output)) == flops


def test_bytes_are_inputs_and_outputs() -> None:
    assert operator_bytes("Add", values((3, 5), (5,)), values((3, 5))) == 4 * (15 + 5 + 15)
    assert operator_bytes("Reshape", values((3, 5)), values((15,))) == 0
    # A gather reads the lines that it takes, not the table.
    assert operator_bytes("Gather", [*values((1000, 8)), *values((2,), item_bytes=8)], values((2, 8))) == 2 * 64 + 16
    assert Value((3,), 0.5).size_bytes == 2


def test_the_lower_ceiling_bounds() -> None:
    heavy, light = measured_roof(Work(10**9, 10**6), 20.0, TOP), measured_roof(Work(10**6, 10**8), 20.0, TOP)
    assert heavy is not None
    assert light is not None
    assert (heavy.bound, heavy.reached) == ("compute", pytest.approx(0.5))
    assert (light.bound, light.reached) == ("memory", pytest.approx(0.5))
    assert heavy.flops_per_s == pytest.approx(50e9)
    assert light.bytes_per_s == pytest.approx(5e9)


def test_a_roof_needs_time_and_some_work() -> None:
    assert measured_roof(Work(0, 0), 20.0, TOP) is measured_roof(Work(10, 10), 0.0, TOP) is None
    moved, computed = measured_roof(Work(0, 10**8), 20.0, TOP), measured_roof(Work(10**9, 0), 20.0, TOP)
    assert moved is not None
    assert computed is not None
    assert (moved.bound, computed.bound) == ("memory", "compute")


def test_without_ceilings_only_speeds_are_known() -> None:
    roof = measured_roof(Work(10**9, 10**6), 20.0, None)
    assert roof is not None
    assert (roof.bound, roof.reached) == (None, None)
    assert measured_roof(Work(0, 0), 1.0, TOP) is None
    assert measured_roof(Work(1, 1), 0.0, TOP) is None
