"""The playhead's estimate, lead and limits; band, seek, and the part that a picture shows."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, HOP, MODEL, RATE, at

from runtime.base.errors import RequestError
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, Placement, Timeline
from runtime.live.playback.navigation import Navigation
from runtime.live.playback.playhead import (
    LEAD_MAX_S,
    LEAD_MIN_S,
    LEAD_PER_DIP,
    LEAD_START_S,
    MAX_RATE,
    MAX_RATE_SLACK_S,
    REACH_S,
    Playhead,
    SessionClock,
)
from runtime.live.protocol.messages import Ack


def attached(sent_until: int = 5000) -> Playhead:
    """A playhead of a client that was sent so much."""
    playhead = Playhead(SessionClock(0.0), RATE)
    playhead.attach()
    playhead.sent_until = sent_until
    return playhead


def test_it_stands_still_before_the_first_ack_and_runs_after_it() -> None:
    playhead = attached()
    assert at(playhead, 3.0).position == 0
    at(playhead, 3.0).ack(Ack(playhead_sample=100))
    assert (at(playhead, 3.0).position, at(playhead, 3.5).position) == (100, 600)


def test_a_client_is_awaited_while_it_has_no_audio_and_then_for_some_seconds() -> None:
    playhead = Playhead(SessionClock(0.0), RATE)
    playhead.attach()
    assert at(playhead, 60.0).is_active
    at(playhead, 60.0).send(1000)
    assert at(playhead, 64.9).is_active
    assert not at(playhead, 65.1).is_active


def test_audio_that_is_sent_after_an_ack_is_no_sign_of_a_client() -> None:
    playhead = Playhead(SessionClock(0.0), RATE)
    playhead.attach()
    at(playhead, 1.0).ack(Ack(playhead_sample=0))
    at(playhead, 5.0).send(1000)
    assert at(playhead, 5.9).is_active
    assert not at(playhead, 6.1).is_active


def test_it_never_passes_what_was_sent_and_never_runs_backwards() -> None:
    playhead = attached(sent_until=1000)
    at(playhead, 1.0).ack(Ack(playhead_sample=500))
    assert at(playhead, 9.0).position == 1000
    at(playhead, 9.0).ack(Ack(playhead_sample=700))
    assert at(playhead, 9.0).position == 1000
    assert at(playhead, 9.1).position == 1000


def test_an_overestimate_does_not_last() -> None:
    playhead = attached()
    at(playhead, 1.0).ack(Ack(playhead_sample=100))
    at(playhead, 1.1).ack(Ack(playhead_sample=150))
    assert at(playhead, 1.1).position == 200
    assert at(playhead, 1.3).position == 350


def test_it_stands_still_while_paused_and_after_a_detach() -> None:
    playhead = attached()
    at(playhead, 1.0).ack(Ack(playhead_sample=100))
    at(playhead, 1.5).pause()
    assert at(playhead, 9.0).position == 600
    assert not at(playhead, 1.5).is_active
    at(playhead, 9.0).play()
    assert at(playhead, 9.5).position == 600
    at(playhead, 9.5).ack(Ack(playhead_sample=600))
    at(playhead, 9.6).detach()
    assert at(playhead, 20.0).position == 700


def test_an_ack_further_than_time_allows_is_refused() -> None:
    playhead = attached(sent_until=1000)
    at(playhead, 0.0).check_ack(Ack(playhead_sample=1000))
    with pytest.raises(RequestError, match="too far ahead"):
        at(playhead, 0.0).check_ack(Ack(playhead_sample=2200))
    at(playhead, 2.0).check_ack(Ack(playhead_sample=2200))


def test_without_acks_it_is_not_active_for_long() -> None:
    playhead = attached()
    assert at(playhead, 4.9).is_active
    assert not at(playhead, 5.0).is_active
    at(playhead, 6.0).ack(Ack(playhead_sample=0))
    assert at(playhead, 6.0).is_active


def test_the_lead_grows_at_once_and_shrinks_slowly_within_its_limits() -> None:
    playhead = attached()
    leads = []
    for index in range(20):
        at(playhead, index / 10).ack(Ack(playhead_sample=0, worst_lead_s=0.0))
        leads.append(playhead.lead_s)
    assert leads[0] == pytest.approx(LEAD_PER_DIP * LEAD_START_S)
    assert leads[-1] == pytest.approx(LEAD_MAX_S, rel=0.01)
    at(playhead, 3.0).ack(Ack(playhead_sample=0, worst_lead_s=2.0))
    at(playhead, 4.0).ack(Ack(playhead_sample=0, worst_lead_s=2.0))
    assert LEAD_MAX_S * 0.9 < playhead.lead_s < LEAD_MAX_S
    for index in range(120):
        at(playhead, 5.0 + index).ack(Ack(playhead_sample=0, worst_lead_s=2.0))
    assert 1.0 < playhead.lead_s < LEAD_MAX_S
    for index in range(600):
        at(playhead, 125.0 + index).ack(Ack(playhead_sample=0, worst_lead_s=2.0))
    assert playhead.lead_s == LEAD_MIN_S


def test_the_lead_stays_where_dips_come_now_and_then() -> None:
    playhead = attached()
    for index in range(600):
        dip_s = 0.12 if index % 300 == 0 else 0.01
        at(playhead, index / 10).ack(Ack(playhead_sample=0, worst_lead_s=playhead.lead_s - dip_s))
        assert playhead.lead_s >= LEAD_MIN_S
    assert 0.12 * LEAD_PER_DIP * 0.8 < playhead.lead_s < 0.12 * LEAD_PER_DIP


def test_an_empty_buffer_before_the_first_audio_is_no_dip() -> None:
    playhead = Playhead(SessionClock(0.0), RATE)
    playhead.attach()
    at(playhead, 0.1).ack(Ack(playhead_sample=0, worst_lead_s=0.0))
    assert playhead.lead_s <= LEAD_START_S


def test_a_playhead_that_runs_faster_than_time_counts_as_twice_as_fast() -> None:
    playhead = attached(sent_until=100_000)
    for _ in range(10):
        at(playhead, 1.0).ack(Ack(playhead_sample=90_000))
    assert at(playhead, 1.0).position == round((MAX_RATE * 1.0 + MAX_RATE_SLACK_S) * playhead.rate_hz)


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
    return placement.canvas_frame_at(sample // HOP)


def test_a_band_goes_on_inside_and_jumps_to_its_beginning_from_outside() -> None:
    chosen, timeline = navigation(position=20 * HOP)
    chosen.set_band(0.4, 1.2)
    assert heard(timeline, 20 * HOP + REACH) == 20
    chosen.set_band(0.0, 0.4)
    assert [heard(timeline, 20 * HOP + REACH + frame * HOP) for frame in (0, 9, 10)] == [0, 9, 0]
    chosen.set_band(None, None)
    assert timeline.newest.band == (0, 64)


def test_seek_is_heard_after_the_reach() -> None:
    sought, timeline = navigation()
    sought.seek(1.0)
    assert (heard(timeline, REACH - 1), heard(timeline, REACH)) == (0, 25)


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
