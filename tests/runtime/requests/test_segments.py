"""Segments cover every frame once, have the length of the canvas, and get their own part of every curve."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import RequestError
from runtime.config.decoder import LatentSpec
from runtime.config.deployment import ShapeRange, ShapeRanges
from runtime.requests.option_types import DcwOptions, Span
from runtime.requests.options import StepOptions
from runtime.requests.segments import (
    Segment,
    generation_lengths,
    loop_lengths,
    next_segment,
    repaint_curve,
    step_parameters,
)  # fmt: skip


def all_segments(total: int, canvas: int, overlap: int, multiple: int = 1) -> list[Segment]:
    """Every segment of a generation whose lengths are all multiples up to the canvas."""
    lengths, segments = range(multiple, canvas + 1, multiple), []
    done = 0
    while (segment := next_segment(done, total, lengths=lengths, overlap_frames=overlap)) is not None:
        segments.append(segment)
        done = segment.start_frame + segment.frames
    return segments


def test_a_short_generation_is_one_segment() -> None:
    assert all_segments(32, 64, 16, multiple=2) == [Segment(0, 32, 0, 32)]


def test_segments_of_a_long_generation_overlap_and_end_with_it() -> None:
    segments = all_segments(150, 64, 16, multiple=2)
    assert [(s.start_frame, s.frames, s.keep_frames) for s in segments] == [(0, 64, 0), (48, 64, 16), (86, 64, 26)]


@given(total=st.integers(1, 500), canvas=st.integers(2, 100), overlap=st.integers(0, 99), multiple=st.integers(1, 4))
def test_segments_cover_every_frame_once(total: int, canvas: int, overlap: int, multiple: int) -> None:
    total, canvas, overlap = total * multiple, canvas * multiple, min(overlap, canvas - 1) * multiple
    segments = all_segments(total, canvas, overlap, multiple)
    done = 0
    for segment in segments:
        assert segment.start_frame + segment.keep_frames == done
        assert segment.frames % multiple == segment.keep_frames % multiple == 0
        assert segment.frames > segment.keep_frames
        done = segment.start_frame + segment.frames
    assert done == total
    assert all(segment.frames == canvas for segment in segments if len(segments) > 1)
    assert all(segment.keep_frames >= overlap for segment in segments[1:])


def test_a_generation_without_an_end_always_has_a_next_segment() -> None:
    assert next_segment(0, None, lengths=(32, 64), overlap_frames=16) == Segment(0, 64)
    assert next_segment(1024, None, lengths=(32, 64), overlap_frames=16) == Segment(1008, 64, 16)
    assert next_segment(64, 64, lengths=(32, 64), overlap_frames=16) is None


@pytest.mark.parametrize(("total", "frames"), [(2, 16), (16, 16), (18, 32), (34, 64), (64, 64), (66, 64)])
def test_a_short_generation_takes_the_first_length_that_holds_it(total: int, frames: int) -> None:
    assert next_segment(0, total, lengths=(16, 32, 64), overlap_frames=16) == Segment(0, frames, 0, total)


def latents_of(canvas: int, multiple: int = 2, **more: float) -> LatentSpec:
    return LatentSpec(channels=8, frame_rate_hz=25.0, frame_multiple=multiple, canvas_frames=canvas, **more)


def shapes_of(*ranges: tuple[int, int]) -> list[ShapeRanges]:
    one = ShapeRange(min=1, opt=1, max=1)
    return [ShapeRanges(rows=one, frames=ShapeRange(min=low, opt=low, max=high)) for low, high in ranges]


@pytest.mark.parametrize(
    ("of", "canvas", "ranges", "lengths"),
    [
        (generation_lengths, 64, [(2, 64)], (16, 32, 48, 64)),
        (generation_lengths, 64, [(2, 32), (34, 64)], (16, 32, 48, 64)),  # the canvas is the longest range's
        (generation_lengths, 64, [(40, 64), (2, 21)], (16, 20, 48, 64)),  # a range's largest T, even
        (generation_lengths, 96, [(2, 20), (22, 64)], (16, 20, 32, 48, 64)),  # no longer than what the engines take
        (generation_lengths, 24, [(2, 64)], (6, 12, 18, 24)),
        (loop_lengths, 24, [(2, 64)], (6, 12, 18, 24, 34, 44, 54, 64)),
        (loop_lengths, 64, [(2, 64)], (16, 32, 48, 64)),
        (loop_lengths, 96, [(2, 64)], (16, 32, 48, 64)),
        (loop_lengths, 24, [(2, 30), (50, 65)], (6, 12, 18, 24, 54, 64)),  # what a range holds
    ],
)
def test_generations_have_few_lengths_and_loops_those_that_the_engines_take(
    of: Callable[..., tuple[int, ...]], canvas: int, ranges: list[tuple[int, int]], lengths: tuple[int, ...]
) -> None:
    assert of(latents_of(canvas), shapes_of(*ranges)) == lengths


@pytest.mark.parametrize("multiple", [1, 2])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_lengths_are_as_close_as_the_bundle_says(share: float, multiple: int) -> None:
    lengths = generation_lengths(latents_of(1292, multiple, most_unused=share), shapes_of((20, 1292)))
    assert lengths[-1] == 1292
    assert lengths[0] >= 20
    assert all(length % multiple == 0 for length in lengths)
    for asked in range(20, 1293):
        frames = next(length for length in lengths if length >= asked)
        assert frames - asked < max(share * frames, multiple)
    assert len(lengths) <= {0.02: 330, 0.1: 60, 0.5: 9}[share]


def test_a_curve_ends_where_the_generation_ends() -> None:
    part = Segment(0, 6, 0, 3).curve([0.0, 1.0])
    assert np.array_equal(part, np.array([0.0, 0.5, 1.0, 1.0, 1.0, 1.0], np.float32))


def test_a_curve_spans_the_generation_and_each_segment_gets_its_part() -> None:
    segments = all_segments(150, 64, 16)
    whole = np.linspace(0.0, 3.0, 150)
    for segment in segments:
        part = segment.curve([0.0, 1.0, 2.0, 3.0])
        assert isinstance(part, np.ndarray)
        assert part.dtype == np.float32
        assert np.allclose(part, whole[segment.start_frame :][: segment.frames], atol=1e-6)


def test_a_curve_with_one_value_per_frame_is_unchanged() -> None:
    values = [0.5, 0.25, 1.0, 0.0]
    assert np.array_equal(Segment(0, 4, 0, 4).curve(values), np.array(values, np.float32))
    assert Segment(0, 4, 0, 4).curve(0.3) == 0.3
    assert np.array_equal(Segment(0, 4, 0, 4).curve([0.5]), np.full(4, 0.5, np.float32))


def test_without_an_end_a_curve_spans_each_segment() -> None:
    part = Segment(1008, 64, 16).curve([0.0, 1.0])
    assert isinstance(part, np.ndarray)
    assert (part[0], part[-1]) == (0.0, 1.0)


def test_a_part_of_latents_is_completed_after_their_end() -> None:
    latents = np.arange(20, dtype=np.float32).reshape(10, 2)
    beyond = -np.arange(1, 17, dtype=np.float32).reshape(8, 2)
    part = Segment(6, 8, 2, 14).part(latents, beyond)
    assert np.array_equal(part[:4], latents[6:])
    assert np.array_equal(part[4:], beyond[4:])


def test_step_parameters_are_curves_per_frame() -> None:
    options = StepOptions(
        guidance=3.0, momentum=[0.0, -0.5], channel_gain=[[1.0, 2.0], [3.0, 4.0]], dcw=DcwOptions(low=[0.0, 0.5])
    )
    parameters = step_parameters(options, Segment(0, 3, 0, 3))
    assert parameters.guidance == 3.0
    assert parameters.velocity_scale is None
    assert np.allclose(parameters.momentum, [0.0, -0.25, -0.5])
    assert np.allclose(parameters.channel_gain, [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]])
    assert parameters.dcw is not None
    assert np.allclose(parameters.dcw.low, [0.0, 0.25, 0.5])
    assert step_parameters(StepOptions(channel_gain=[1.0, 2.0]), Segment(0, 3)).channel_gain.tolist() == [1.0, 2.0]


def test_gains_of_unequal_length_are_refused() -> None:
    with pytest.raises(RequestError, match="channel_gain: its lists have unequal lengths"):
        step_parameters(StepOptions(channel_gain=[[1.0, 2.0], [3.0]]), Segment(0, 3))


def test_repaint_marks_every_frame_that_a_span_touches() -> None:
    spans = [Span(start_s=0.2, end_s=0.4), Span(start_s=0.95, end_s=9.0)]
    assert repaint_curve(spans, 10.0, Segment(0, 12, 0, 12)).tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]
    assert repaint_curve(spans, 10.0, Segment(3, 4, 0, 12)).tolist() == [1, 0, 0, 0]
