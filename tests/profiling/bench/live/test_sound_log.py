"""A client's log of received and played audio, by synthetic sequences of chunks at 1000 samples per second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.bench.live.sound_log import AudioRange, SoundLog

RATE = 1000


def chunk(begin: int, end: int, first: int = 0, full: int = 0, at_s: float = 0.0) -> AudioRange:
    return AudioRange(begin, end, first, full, at_s)


def playing(*chunks: AudioRange, start_s: float = 10.0) -> SoundLog:
    """A client that received chunks before it began to play, at sample 0."""
    log = SoundLog(RATE, 0)
    for each in chunks:
        log.write(each, start_s)
    log.start(start_s)
    return log


def heard(log: SoundLog) -> list[tuple[int, int, int, int]]:
    return [(audio.begin, audio.end, audio.first_seq, audio.full_seq) for audio in log.played]


def test_the_playhead_waits_for_the_start_and_then_follows_the_clock() -> None:
    log = SoundLog(RATE, 500)
    assert (log.playhead(99.0), log.is_playing) == (500, False)
    log.start(100.0)
    log.start(101.0)
    assert (log.playhead(100.25), log.time_of(750)) == (750, 100.25)


def test_audio_is_played_in_order_and_once() -> None:
    log = playing(chunk(0, 200), chunk(200, 400, 1))
    log.advance(10.1)
    assert heard(log) == [(0, 100, 0, 0)]
    log.advance(10.3)
    assert heard(log) == [(0, 200, 0, 0), (200, 300, 1, 0)]
    assert (log.underruns, log.missing_samples, log.lead_s()) == (0, 0, 0.1)


def test_only_what_is_not_played_yet_is_replaced() -> None:
    log = playing(chunk(0, 400))
    log.write(chunk(50, 300, 7, 7), 10.1)
    log.advance(10.4)
    assert heard(log) == [(0, 100, 0, 0), (100, 300, 7, 7), (300, 400, 0, 0)]
    assert log.late_samples == 50


def test_late_audio_is_dropped() -> None:
    log = playing(chunk(0, 400))
    log.write(chunk(100, 200, 7, 7), 10.3)
    log.advance(10.4)
    assert heard(log) == [(0, 400, 0, 0)]
    assert log.late_samples == 100


def test_a_gap_is_one_underrun_and_takes_its_time() -> None:
    log = playing(chunk(0, 100))
    log.advance(10.15)
    log.write(chunk(200, 300), 10.18)
    log.advance(10.4)
    assert heard(log) == [(0, 100, 0, 0), (200, 300, 0, 0)]
    assert (log.underruns, log.missing_samples) == (2, 200)


def test_the_worst_lead_is_the_smallest_since_it_was_asked_for() -> None:
    log = playing(chunk(0, 300))
    assert log.take_worst_lead_s() == 0.3
    log.advance(10.1)
    log.advance(10.25)
    log.write(chunk(300, 600), 10.26)
    log.advance(10.27)
    assert log.take_worst_lead_s() == pytest.approx(0.04, abs=0.0011)
    assert log.take_worst_lead_s() == pytest.approx(0.33, abs=0.0011)


def test_first_and_full_are_where_the_control_is_played() -> None:
    log = playing(chunk(0, 500))
    log.write(chunk(160, 500, 3, 2, at_s=10.1), 10.1)
    log.write(chunk(300, 500, 3, 3, at_s=10.2), 10.2)
    log.write(chunk(500, 600, 3, 3, at_s=10.3), 10.3)
    log.advance(10.6)
    first, full = log.first(3), log.full(3)
    assert first is not None
    assert full is not None
    assert (log.time_of(first.begin), first.received_s) == (10.16, 10.1)
    assert (log.time_of(full.begin), full.received_s) == (10.3, 10.2)
    assert log.first(4) is None is log.full(4)


def test_a_control_is_not_full_while_older_audio_follows() -> None:
    log = playing(chunk(0, 100, 1, 1), chunk(100, 200, 1, 0))
    log.advance(10.2)
    assert log.full(1) is None
    log.write(chunk(200, 300, 2, 2), 10.2)
    log.advance(10.3)
    full = log.full(1)
    assert full is not None
    assert full.begin == 200


times = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 900), st.integers(1, 300)), max_size=20)


@given(times)
def test_every_sample_up_to_the_playhead_is_played_once_or_missing(steps: list[tuple[int, int, int]]) -> None:
    log, now, newest = playing(), 0, dict[int, int]()
    for seq, (wait, begin, length) in enumerate(steps, start=1):
        now += wait
        log.write(chunk(begin, begin + length, seq, seq), 10.0 + now / RATE)
        newest |= dict.fromkeys(range(max(begin, now), begin + length), seq)
    log.advance(10.0 + 1500 / RATE)
    played = {sample: audio.full_seq for audio in log.played for sample in range(audio.begin, audio.end)}
    assert played == newest
    assert len(played) == sum(audio.end - audio.begin for audio in log.played)
    assert len(played) + log.missing_samples == max(1500, now)
