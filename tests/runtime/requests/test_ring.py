"""What the decoder sees of a loop, and where its velocity lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.requests.ring import shift_at, stretched, velocity_frames, window_frames
from runtime.requests.timesteps import schedule


@st.composite
def turns(draw: st.DrawFn) -> tuple[int, int, int]:
    frames = draw(st.integers(1, 40))
    loop = draw(st.integers(1, frames))
    return frames, loop, draw(st.integers(0, loop - 1))


@given(turn=turns())
def test_what_is_turned_is_turned_back_and_repeats(turn: tuple[int, int, int]) -> None:
    frames, loop, _ = turn
    there, back = window_frames(*turn), velocity_frames(*turn)
    assert there.shape == back.shape == (frames,)
    np.testing.assert_array_equal(there[back], np.arange(frames) % loop)


@given(turn=turns())
def test_the_window_is_the_loop_without_a_gap_and_is_read_in_its_middle(turn: tuple[int, int, int]) -> None:
    frames, loop, shift = turn
    there, back = window_frames(*turn), velocity_frames(*turn)
    assert there[0] == shift
    np.testing.assert_array_equal(np.diff(there) % loop, [1 % loop] * (frames - 1))
    margins = back.min(), frames - 1 - back.max()
    assert margins == ((frames - loop) // 2, -(-(frames - loop) // 2))


def test_a_loop_that_is_not_turned_keeps_its_frames() -> None:
    for frames in (1, 2, 31, 32):
        np.testing.assert_array_equal(window_frames(frames, frames, 0), np.arange(frames))
        np.testing.assert_array_equal(velocity_frames(frames, frames, 0), np.arange(frames))


def test_steps_at_near_times_turn_it_by_shifts_that_lie_all_over_it() -> None:
    """No fixed bar is the beginning of the window, neither in one generation nor over several."""
    times = schedule(50, shift=3.0)[:-1].tolist()
    shifts = np.array([[shift_at(time, 250, seed) for time in times] for seed in range(20)])
    assert ((shifts >= 0) & (shifts < 250)).all()
    assert (np.ptp(shifts[:, :10], axis=1) > 125).all()
    assert len(np.unique(shifts[:, 0])) > 15
    shares, _ = np.histogram(shifts, bins=5, range=(0, 250))
    assert (np.abs(shares / shifts.size - 0.2) < 0.05).all()


def test_a_shift_does_not_depend_on_how_a_time_is_rounded() -> None:
    assert shift_at(0.1, 250, 7) == shift_at(float(np.float32(0.1)), 250, 7)


@pytest.mark.parametrize("count", [198, 199, 201, 202])
def test_a_source_of_nearly_the_loops_length_fits_it_also_where_it_begins_again(count: int) -> None:
    turns = np.arange(count) / count * 2 * np.pi
    found = stretched(np.stack([np.sin(turns), np.cos(3 * turns)], axis=1).astype(np.float32), 200)
    wanted = np.arange(200) / 200 * 2 * np.pi
    np.testing.assert_allclose(found, np.stack([np.sin(wanted), np.cos(3 * wanted)], axis=1), atol=3e-3)
    assert found.dtype == np.float32


@pytest.mark.parametrize("count", [1, 100, 197, 200, 203, 400])
def test_another_source_stays_as_it_is(count: int) -> None:
    source = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    assert stretched(source, 200) is source
