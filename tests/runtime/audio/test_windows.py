"""Windows cover every frame once, with their margins, and depend only on the lengths of parts and windows."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.audio.windows import MOST_TOGETHER_MS, Window, WindowCutter, together


def cut(parts: list[int], cutter: WindowCutter) -> list[Window]:
    """The windows of frames numbered from 0, which arrive in parts of these lengths."""
    numbers = np.arange(sum(parts), dtype=np.float32)[:, None]
    return [window for part in np.split(numbers, np.cumsum(parts)[:-1]) for window in cutter.cut(part)]


def frames(windows: list[Window]) -> list[int]:
    return [window.frames for window in windows]


@pytest.mark.parametrize(
    ("parts", "cutter", "expected"),
    [
        ([100], WindowCutter(2, 40, 100, first_frames=10), [10, 40, 40, 10]),
        ([100], WindowCutter(2, 40, 100), [40, 40, 20]),
        ([6], WindowCutter(2, 40, 6), [6]),
        ([6], WindowCutter(2, 40, 6, first_frames=10), [3, 3]),
        ([1], WindowCutter(2, 40, 1, first_frames=10), [1]),
        ([30, 30], WindowCutter(2, 20, 60, first_frames=5), [5, 20, 3, 20, 12]),
    ],
    ids=["short first", "equal", "one", "halves", "one frame", "parts end less the margin"],
)
def test_lengths_of_windows(parts: list[int], cutter: WindowCutter, expected: list[int]) -> None:
    assert frames(cut(parts, cutter)) == expected


def test_a_stream_of_unknown_length_ends_with_what_is_left() -> None:
    cutter = WindowCutter(2, 10)
    numbers = np.arange(29, dtype=np.float32)[:, None]
    windows = [*cutter.cut(numbers[:12]), *cutter.cut(numbers[12:22]), *cutter.end(numbers[22:])]
    expected = cut([29], WindowCutter(2, 10, 29))
    assert frames(windows) == frames(expected) == [10, 10, 9]
    assert all(np.array_equal(one.values, other.values) for one, other in zip(windows, expected, strict=True))
    assert list(WindowCutter(2, 10).end(numbers[:0])) == []


def test_the_first_window_of_a_part_knows_those_that_are_complete_with_it() -> None:
    windows = cut([30, 30], WindowCutter(2, 20, 60, first_frames=5))
    known = [window.following and [other.index for other in window.following] for window in windows]
    assert known == [[1, 2], None, None, [4], None]


@given(
    parts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    margin=st.integers(0, 5),
    first=st.integers(1, 20),
    size=st.integers(1, 20),
    start=st.integers(0, 100),
)
@settings(max_examples=200, deadline=None)
def test_windows_cover_every_frame_once_with_margins(
    parts: list[int], margin: int, first: int, size: int, start: int
) -> None:
    total = sum(parts)
    windows = cut(parts, WindowCutter(margin, size, total, first_frames=first, start_frame=start))
    begin = 0
    for index, window in enumerate(windows):
        assert window.index == index
        assert window.start_frame + window.margin_before == start + begin
        low, high = max(0, begin - margin), min(total, begin + window.frames + margin)
        np.testing.assert_array_equal(window.values[:, 0], np.arange(low, high))
        begin += window.frames
    assert begin == total
    assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True]


@given(
    parts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    groups=st.integers(0, 2),
    align=st.integers(2, 4),
    first=st.integers(1, 20),
    size=st.integers(1, 20),
    start=st.integers(0, 100),
)
@settings(max_examples=200, deadline=None)
def test_windows_in_groups_begin_and_end_with_one(
    parts: list[int], groups: int, align: int, first: int, size: int, start: int
) -> None:
    total, margin = sum(parts), groups * align
    cutter = WindowCutter(margin, size, total, first_frames=first, start_frame=start, align_frames=align)
    windows, begin = cut(parts, cutter), start
    for window in windows:
        assert window.first_frame == begin
        assert (begin - start) % align == (window.start_frame - start) % align == 0
        assert window.margin_before == min(margin, begin - start)
        assert window.frames <= max(size, first, align)
        assert (
            window.is_last
            or window.frames % align == len(window.values) % align == 0
            or (window.start_frame + len(window.values) == start + total)
        )
        begin += window.frames
    assert begin == start + total


def test_a_window_waits_for_its_margin() -> None:
    cutter = WindowCutter(2, 5, 20)
    assert list(cutter.cut(np.zeros((2, 1), np.float32))) == []
    (window,) = cutter.cut(np.zeros((1, 1), np.float32))
    assert (window.frames, len(window.values)) == (1, 3)


def test_a_stream_without_an_end_always_waits_for_the_margin() -> None:
    windows = cut([10, 10], WindowCutter(3, 4))
    assert frames(windows) == [4, 3, 4, 4, 2]
    assert not any(window.is_last for window in windows)


@pytest.mark.parametrize("total", [None, 10_000])
def test_decoded_frames_are_released_except_the_margin(total: int | None) -> None:
    cutter = WindowCutter(2, 10, total)
    for _ in range(100):
        windows = list(cutter.cut(np.zeros((100, 1), np.float32)))
        assert max(len(window.values) for window in windows) <= 14
        assert all(window.values.base is None or len(window.values.base) <= 104 for window in windows)


@given(
    parts=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    margin=st.integers(0, 8),
    size=st.integers(1, 60),
    seed=st.integers(0, 99),
    most=st.integers(76, 300),
)
@settings(max_examples=200, deadline=None)
def test_windows_that_are_decoded_as_one_take_less_than_alone(
    parts: list[int], margin: int, size: int, seed: int, most: int
) -> None:
    windows = cut(parts, WindowCutter(margin, size, sum(parts)))
    cost_ms = (np.arange(700) * np.random.default_rng(seed).uniform(0.01, 1, 700)).__getitem__
    runs = together(windows, cost_ms, most)
    assert [window for run in runs for window in run] == windows
    joined = [reduce(Window.with_next, run) for run in runs]
    for run, one in zip(runs, joined, strict=True):
        assert (one.first_frame, one.end_frame) == (run[0].first_frame, run[-1].end_frame)
        assert one.margin_before == min(margin, one.first_frame)
        end = one.start_frame + len(one.values)
        assert end == run[-1].start_frame + len(run[-1].values)
        np.testing.assert_array_equal(one.values[:, 0], np.arange(one.start_frame, end))
    lengths = [len(one.values) for one in joined]
    if len(runs) < len(windows):
        assert max(lengths) <= most
        assert max(map(cost_ms, lengths)) <= MOST_TOGETHER_MS
        assert sum(map(cost_ms, lengths)) < sum(cost_ms(len(window.values)) for window in windows)


@pytest.mark.parametrize(
    ("windows", "most", "expected"),
    [(2, 99, [1, 1]), (3, 99, [1, 2]), (6, 99, [3, 3]), (9, 99, [3, 3, 3]), (9, 25, [1, 2, 2, 2, 2]), (4, 15, [1] * 4)],
)
def test_there_are_few_runs_of_windows_of_even_numbers(windows: int, most: int, expected: list[int]) -> None:
    """10 frames and margins of 2 take a fixed 1 ms and 0.8 ms per frame."""
    runs = together(cut([10 * windows], WindowCutter(2, 10, 10 * windows)), lambda frames: 1 + 0.8 * frames, most)
    assert [len(run) for run in runs] == expected


def test_windows_whose_times_are_not_known_are_decoded_alone() -> None:
    windows = cut([100], WindowCutter(2, 10, 100))
    assert together(windows, lambda frames: np.inf, 300) == [[window] for window in windows]
