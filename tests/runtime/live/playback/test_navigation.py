"""Band, seek, and the part that a picture shows."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, HOP, MODEL, RATE

from runtime.base.errors import RequestError
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, Placement, Timeline
from runtime.live.playback.navigation import Navigation
from runtime.live.playback.playhead import REACH_S, Playhead, SessionClock

REACH = round(REACH_S * RATE)


def navigation(frames: int = 64, *, is_loop: bool = True, position: int = 0) -> tuple[Navigation, Timeline]:
    """Of a session that plays a canvas of `frames` frames."""
    canvas = Canvas((CanvasPart(Piece("p", np.zeros((frames, CHANNELS), np.float32)), 0, 0, frames, 0, 0),))
    timeline = Timeline([Placement(0, canvas, 0, 0, (0, frames) if is_loop else None)])
    return moves(timeline, position, is_loop=is_loop), timeline


def moves(timeline: Timeline, position: int = 0, *, is_loop: bool = True) -> Navigation:
    """Of a session whose own band is its whole loop."""
    playhead, band = Playhead(SessionClock(0.0), RATE, position), (0, 64) if is_loop else None
    return Navigation(MODEL, 64, is_loop, timeline, playhead, lambda canvas: band)


def heard(timeline: Timeline, sample: int) -> int:
    placement = timeline.at(sample)
    assert placement is not None
    return placement.canvas_frame_at(sample // HOP)


def test_a_band_goes_on_inside_and_jumps_to_its_beginning_from_outside() -> None:
    chosen, timeline = navigation(position=20 * HOP)
    chosen.set_band(0.4, 1.2)
    assert heard(timeline, 20 * HOP + REACH) == 21
    chosen.set_band(0.0, 0.4)
    assert [heard(timeline, 20 * HOP + REACH + frame * HOP) for frame in (0, 9, 10)] == [0, 9, 0]
    chosen.set_band(None, None)
    assert timeline.newest is not None
    assert timeline.newest.band == (0, 64)


def test_seek_is_heard_after_the_reach() -> None:
    sought, timeline = navigation()
    sought.seek(1.0)
    assert (heard(timeline, REACH - 1), heard(timeline, REACH)) == (1, 25)


@pytest.mark.parametrize(
    ("to_frame", "heard_frames"),
    [
        (48, {47: 47, 48: 50, 49: 51, 50: 52}),  # sooner: what is between is left out
        (53, {49: 49, 50: 47, 52: 49, 53: 50}),  # later: it repeats
    ],
)
def test_what_is_played_at_a_sample_is_put_at_another_one(to_frame: int, heard_frames: dict[int, int]) -> None:
    moved, timeline = navigation(200, is_loop=False)
    assert moved.put(50 * HOP, to_frame * HOP, at_least=0.0)
    assert {frame: heard(timeline, frame * HOP) for frame in heard_frames} == heard_frames
    near, timeline = navigation(200, is_loop=False)
    assert not near.put(50 * HOP, to_frame * HOP, at_least=abs(to_frame - 50) * HOP / RATE)
    assert not near.put(50 * HOP, 50 * HOP + 1, at_least=0.0)
    assert heard(timeline, 53 * HOP) == 53


def test_positions_outside_are_refused() -> None:
    wrong, _ = navigation()
    with pytest.raises(RequestError, match=r"from 0\.00 to 2\.56 s"):
        wrong.set_band(1.0, 3.0)
    wrong.set_band(0.4, 0.8)
    with pytest.raises(RequestError, match=r"plays from 0\.40 to 0\.80 s"):
        wrong.seek(1.0)
    with pytest.raises(RequestError, match="no canvas yet"):
        moves(Timeline()).seek(0.0)


def test_a_picture_begins_with_the_loop_or_half_a_canvas_before_the_playhead() -> None:
    assert navigation(position=50 * HOP)[0].picture_start == 0
    assert navigation(200, is_loop=False, position=50 * HOP)[0].picture_start == 18
