"""The first range that contains every input, or an error with the allowed sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import ShapeError
from runtime.engines.manifest import TensorInfo
from runtime.engines.tensorrt.shape_ranges import ProfileRange, choose_range

INFOS = {
    "x": TensorInfo(name="x", dtype="float32", shape=("rows", "frames", 8)),
    "t": TensorInfo(name="t", dtype="float32", shape=("rows",)),
}
SMALL = ProfileRange({"x": (1, 2, 8), "t": (1,)}, {"x": (4, 64, 8), "t": (4,)})
LONG = ProfileRange({"x": (1, 2, 8), "t": (1,)}, {"x": (2, 128, 8), "t": (2,)})
MANY = ProfileRange({"x": (8, 2, 8), "t": (8,)}, {"x": (16, 64, 8), "t": (16,)})
RANGES = (SMALL, LONG, MANY)


def choose(rows: int, frames: int) -> int:
    return choose_range("decoder", RANGES, INFOS, {"x": (rows, frames, 8), "t": (rows,)}, "tickrt-build x.toml")


@pytest.mark.parametrize(("rows", "frames", "index"), [(1, 2, 0), (4, 64, 0), (2, 65, 1), (8, 64, 2), (16, 2, 2)])
def test_the_first_range_that_contains_all_shapes_is_chosen(rows: int, frames: int, index: int) -> None:
    assert choose(rows, frames) == index


def test_a_refusal_names_tensor_dimension_ranges_and_command() -> None:
    with pytest.raises(ShapeError) as caught:
        choose(6, 100)
    assert caught.value.what == (
        "decoder: no shape range contains x (6, 100, 8); range 0 allows 1..4 in dimension 0 (rows) of x; "
        "range 1 allows 1..2 in dimension 0 (rows) of x; range 2 allows 8..16 in dimension 0 (rows) of x"
    )
    assert caught.value.fix == ("add a [[shapes]] table for it to the deployment file, then tickrt-build x.toml")


def test_two_tensors_are_both_named() -> None:
    with pytest.raises(ShapeError, match=r"contains x \(4, 65, 8\), t \(3,\)") as caught:
        choose_range("decoder", (SMALL, ProfileRange({"x": (1, 1, 8), "t": (1,)}, {"x": (9, 99, 8), "t": (2,)})), INFOS,
                     {"x": (4, 65, 8), "t": (3,)}, "")  # fmt: skip
    assert "range 0 allows 2..64 in dimension 1 (frames) of x; range 1 allows 1..2 in dimension 0 (rows) of t" in str(
        caught.value
    )


@given(st.integers(1, 20), st.integers(1, 150))
def test_a_range_is_chosen_exactly_if_one_contains_the_shapes(rows: int, frames: int) -> None:
    shapes = {"x": (rows, frames, 8), "t": (rows,)}
    inside = [
        all(
            low <= size <= high
            for name in shapes
            for low, size, high in zip(r.least[name], shapes[name], r.largest[name], strict=True)
        )
        for r in RANGES
    ]
    try:
        index = choose(rows, frames)
    except ShapeError:
        assert not any(inside)
    else:
        assert inside.index(True) == index
