from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.audio.timeline import Timeline, Window


def cut(total: int, margin: int, first: int, size: int, parts: list[int]) -> list[Window]:
    timeline, windows, known = Timeline(total, margin, first, size), [], 0
    for part in parts:
        timeline.append(np.arange(known, known + part, dtype=np.float32)[:, None])
        known += part
        while (window := timeline.take()) is not None:
            windows.append(window)
    assert timeline.is_finished
    assert timeline.take() is None
    return windows


def test_a_short_window_first_then_longer_ones() -> None:
    assert [w.frames for w in cut(100, 2, 10, 40, [100])] == [10, 40, 40, 10]


def test_even_a_short_generation_has_two() -> None:
    assert [w.frames for w in cut(6, 2, 10, 40, [6])] == [3, 3]
    assert [w.frames for w in cut(1, 2, 10, 40, [1])] == [1]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(1, 20),
    st.integers(1, 20),
)
@settings(max_examples=200, deadline=None)
def test_windows_cover_everything_once_with_their_margin(parts: list[int], margin: int, first: int, size: int) -> None:
    total = sum(parts)
    windows = cut(total, margin, first, size, parts)
    begin = 0
    for index, window in enumerate(windows):
        assert window.index == index
        assert window.start_frame + window.lead == begin
        low, high = max(0, begin - margin), min(total, begin + window.frames + margin)
        np.testing.assert_array_equal(window.latents[:, 0], np.arange(low, high))
        begin += window.frames
    assert begin == total


def test_a_part_is_cut_up_to_its_margin() -> None:
    assert [w.frames for w in cut(60, 2, 5, 20, [30, 30])] == [5, 20, 3, 20, 12]


def test_a_window_waits_for_its_margin() -> None:
    timeline = Timeline(20, 2, 5, 5)
    timeline.append(np.zeros((2, 1), np.float32))
    assert timeline.take() is None
    timeline.append(np.zeros((1, 1), np.float32))
    window = timeline.take()
    assert window is not None
    assert (window.frames, len(window.latents)) == (1, 3)


def test_what_is_behind_is_forgotten() -> None:
    timeline = Timeline(10_000, 2, 5, 10)
    for _ in range(100):
        timeline.append(np.zeros((100, 1), np.float32))
        while timeline.take() is not None:
            pass
        assert sum(len(part) for part in timeline._latents) <= 14


@pytest.mark.parametrize("margin", [0, 3])
def test_known_frames_count_from_the_start(margin: int) -> None:
    timeline = Timeline(30, margin, 10, 10)
    timeline.append(np.zeros((15, 1), np.float32))
    timeline.take()
    assert timeline.known_frames == 15
