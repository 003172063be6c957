"""The playhead's estimate, lead and limits."""

from __future__ import annotations

import pytest

from runtime.errors import RequestError
from runtime.sessions.playback.playhead import (
    LEAD_MAX_S,
    LEAD_MIN_S,
    LEAD_PER_DIP,
    LEAD_START_S,
    MAX_RATE,
    MAX_RATE_SLACK_S,
    Playhead,
)
from runtime.sessions.protocol.messages import Ack

RATE = 1000


def attached(sent_until: int = 5000) -> Playhead:
    """A playhead of a client that was sent so much."""
    playhead = Playhead(RATE)
    playhead.attach(0.0)
    playhead.sent_until = sent_until
    return playhead


def test_it_stands_still_before_the_first_ack_and_runs_after_it() -> None:
    playhead = attached()
    assert playhead.position(3.0) == 0
    playhead.ack(Ack(playhead_sample=100), 3.0)
    assert (playhead.position(3.0), playhead.position(3.5)) == (100, 600)


def test_a_client_is_awaited_while_it_has_no_audio_and_then_for_some_seconds() -> None:
    playhead = Playhead(RATE)
    playhead.attach(0.0)
    assert playhead.is_active(60.0)
    playhead.send(1000, 60.0)
    assert playhead.is_active(64.9)
    assert not playhead.is_active(65.1)


def test_it_never_passes_what_was_sent_and_never_runs_backwards() -> None:
    playhead = attached(sent_until=1000)
    playhead.ack(Ack(playhead_sample=500), 1.0)
    assert playhead.position(9.0) == 1000
    playhead.ack(Ack(playhead_sample=700), 9.0)
    assert playhead.position(9.0) == 1000
    assert playhead.position(9.1) == 1000


def test_an_overestimate_does_not_last() -> None:
    playhead = attached()
    playhead.ack(Ack(playhead_sample=100), 1.0)
    playhead.ack(Ack(playhead_sample=150), 1.1)
    assert playhead.position(1.1) == 200
    assert playhead.position(1.3) == 350


def test_it_stands_still_while_paused_and_after_a_detach() -> None:
    playhead = attached()
    playhead.ack(Ack(playhead_sample=100), 1.0)
    playhead.pause(1.5)
    assert playhead.position(9.0) == 600
    assert not playhead.is_active(1.5)
    playhead.play(9.0)
    assert playhead.position(9.5) == 600
    playhead.ack(Ack(playhead_sample=600), 9.5)
    playhead.detach(9.6)
    assert playhead.position(20.0) == 700


def test_an_ack_further_than_time_allows_is_refused() -> None:
    playhead = attached(sent_until=1000)
    playhead.check_ack(Ack(playhead_sample=1000), 0.0)
    with pytest.raises(RequestError, match="too far ahead"):
        playhead.check_ack(Ack(playhead_sample=2200), 0.0)
    playhead.check_ack(Ack(playhead_sample=2200), 2.0)


def test_without_acks_it_is_not_active_for_long() -> None:
    playhead = attached()
    assert playhead.is_active(4.9)
    assert not playhead.is_active(5.0)
    playhead.ack(Ack(playhead_sample=0), 6.0)
    assert playhead.is_active(6.0)


def test_the_lead_grows_at_once_and_shrinks_slowly_within_its_limits() -> None:
    playhead = attached()
    leads = []
    for index in range(20):
        playhead.ack(Ack(playhead_sample=0, worst_lead_s=0.0), index / 10)
        leads.append(playhead.lead_s)
    assert leads[0] == pytest.approx(LEAD_PER_DIP * LEAD_START_S)
    assert leads[-1] == pytest.approx(LEAD_MAX_S, rel=0.01)
    playhead.ack(Ack(playhead_sample=0, worst_lead_s=2.0), 3.0)
    playhead.ack(Ack(playhead_sample=0, worst_lead_s=2.0), 4.0)
    assert LEAD_MAX_S * 0.9 < playhead.lead_s < LEAD_MAX_S
    for index in range(120):
        playhead.ack(Ack(playhead_sample=0, worst_lead_s=2.0), 5.0 + index)
    assert 1.0 < playhead.lead_s < LEAD_MAX_S
    for index in range(600):
        playhead.ack(Ack(playhead_sample=0, worst_lead_s=2.0), 125.0 + index)
    assert playhead.lead_s == LEAD_MIN_S


def test_the_lead_stays_where_dips_come_now_and_then() -> None:
    playhead = attached()
    for index in range(600):
        dip_s = 0.12 if index % 300 == 0 else 0.01
        playhead.ack(Ack(playhead_sample=0, worst_lead_s=playhead.lead_s - dip_s), index / 10)
        assert playhead.lead_s >= LEAD_MIN_S
    assert 0.12 * LEAD_PER_DIP * 0.8 < playhead.lead_s < 0.12 * LEAD_PER_DIP


def test_an_empty_buffer_before_the_first_audio_is_no_dip() -> None:
    playhead = Playhead(RATE)
    playhead.attach(0.0)
    playhead.ack(Ack(playhead_sample=0, worst_lead_s=0.0), 0.1)
    assert playhead.lead_s <= LEAD_START_S


def test_a_stored_playhead_goes_on_at_its_position() -> None:
    playhead = attached()
    playhead.ack(Ack(playhead_sample=100), 1.0)
    restored = Playhead.restore(playhead.snapshot(1.5), RATE)
    assert (restored.position(99.0), restored.sent_until, restored.is_attached) == (600, 600, False)


def test_a_playhead_that_runs_faster_than_time_counts_as_twice_as_fast() -> None:
    playhead = attached(sent_until=100_000)
    for _ in range(10):
        playhead.ack(Ack(playhead_sample=90_000), 1.0)
    assert playhead.position(1.0) == round((MAX_RATE * 1.0 + MAX_RATE_SLACK_S) * playhead.rate_hz)
