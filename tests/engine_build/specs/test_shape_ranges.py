"""Samples are in their range, small, and of every length."""

from engine_build.specs.shape_ranges import decoder_samples
from runtime.config.targets import ShapeRange, ShapeRanges


def test_samples_lie_inside_the_range() -> None:
    ranges = ShapeRanges(
        rows=ShapeRange(min=3, opt=4, max=8),
        frames=ShapeRange(min=4, opt=6, max=12),
        tokens=ShapeRange(min=2, opt=2, max=9),
    )
    samples = list(decoder_samples(ranges))
    assert all(ranges.holds(sample["R"], sample["T"], sample["L"]) for sample in samples)
    assert {sample["T"] for sample in samples} == {4, 6, 12}
    assert max(sample["R"] for sample in samples) == 8


def test_samples_of_long_canvases_stay_affordable() -> None:
    canvas, tokens = ShapeRange(min=6000, opt=6000, max=6000), ShapeRange(min=1, opt=2, max=9)
    few = ShapeRanges(rows=ShapeRange(min=1, opt=4, max=8), frames=canvas, tokens=tokens)
    many = ShapeRanges(rows=ShapeRange(min=9, opt=16, max=16), frames=canvas, tokens=tokens)
    assert [sample["R"] for sample in decoder_samples(few)] == [1, 1, 1]
    assert [sample["R"] for sample in decoder_samples(many)] == [9]
