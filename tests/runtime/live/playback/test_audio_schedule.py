"""Windows, their order, what is decoded again, and what is reported as applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, HOP, MARGIN, MODEL, RATE

from runtime.live.playback.audio_schedule import AudioSchedule
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, Placement, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import DecodeWindow, LiveModel
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import Ack
from runtime.live.protocol.server_messages import Applied

FRAMES = 16
FADE = 25


def canvas(value: float, seq: int, frames: int = FRAMES) -> Canvas:
    """One part; channel 0 is `value`, channel 1 the frame."""
    latents = np.full((frames, CHANNELS), value, np.float32)
    latents[:, 1] = np.arange(frames)
    return Canvas((CanvasPart(Piece(f"{value}", latents), 0, 0, frames, seq, seq),))


class Schedule:
    """A schedule over a canvas that repeats, whose windows are decoded at once."""

    def __init__(self, band: tuple[int, int] | None = (0, FRAMES), model: LiveModel = MODEL) -> None:
        self.clock = SessionClock(0.0)
        self.playhead = Playhead(self.clock, RATE, lead_s=0.25)
        self.playhead.attach()
        self.timeline = Timeline([Placement(0, canvas(1, 0), 0, 0, band)])
        self.audio = AudioSchedule(model, self.timeline, self.playhead)

    def at(self, now_s: float) -> Self:
        self.clock.now_s = now_s
        return self

    def sent(self) -> list[AudioChunk | Applied]:
        for window in self.audio.windows():
            self.audio.decoded(window, pcm_of(window))
        return list(self.audio.sendable())


def pcm_of(window: DecodeWindow) -> np.ndarray:
    return np.repeat(window.values, HOP, axis=0)[window.trim_begin : window.trim_end]


def ranges(sent: list[AudioChunk | Applied]) -> list[tuple[int, int, bool]]:
    return [(item.start_sample, item.end_sample, item.is_replacing) for item in sent if isinstance(item, AudioChunk)]


def test_a_window_has_margins_from_the_other_end_of_the_loop() -> None:
    schedule = Schedule()
    (first,) = schedule.audio.windows()
    assert (first.start_frame, first.trim_begin, first.is_first) == (0, 0, True)
    assert first.values[:, 1].tolist() == list(range(7 + MARGIN))
    schedule.audio.decoded(first, pcm_of(first))
    list(schedule.audio.sendable())
    schedule.at(0.5).playhead.ack(Ack(playhead_sample=240))
    (second,) = schedule.at(0.5).audio.windows()
    assert (second.start_frame, second.is_first) == (6 - MARGIN, False)
    assert second.trim_begin == 250 - (6 - MARGIN) * HOP


def test_audio_leaves_in_the_order_of_the_windows() -> None:
    schedule = Schedule()
    schedule.playhead.lead_s = 2.0
    windows = schedule.audio.windows()
    assert len(windows) == 2
    schedule.audio.decoded(windows[1], pcm_of(windows[1]))
    assert list(schedule.audio.sendable()) == []
    schedule.audio.decoded(windows[0], pcm_of(windows[0]))
    assert len(ranges(list(schedule.audio.sendable()))) == 2


def test_what_comes_next_does_not_wait_for_replacements() -> None:
    schedule = Schedule()
    schedule.sent()
    schedule.timeline.place_canvas(60, canvas(2, 5))
    (replacement,) = schedule.audio.windows()
    schedule.at(0.1).playhead.ack(Ack(playhead_sample=100))
    following = [window for window in schedule.at(0.1).audio.windows() if not window.is_replacing]
    for window in following:
        schedule.audio.decoded(window, pcm_of(window))
    assert ranges(list(schedule.at(0.1).audio.sendable()))[0][:2] == (250, following[0].end_sample)
    schedule.audio.decoded(replacement, pcm_of(replacement))
    sent = list(schedule.at(0.1).audio.sendable())
    assert ranges(sent)[0] == (101, 250, True)
    assert schedule.playhead.sent_until == following[-1].end_sample


def test_a_replacement_does_not_leave_before_what_it_replaces() -> None:
    schedule = Schedule()
    (first,) = schedule.audio.windows()
    schedule.timeline.place_canvas(60, canvas(2, 5))
    (replacement,) = (window for window in schedule.audio.windows() if window.is_replacing)
    schedule.audio.decoded(replacement, pcm_of(replacement))
    assert list(schedule.audio.sendable()) == []
    schedule.audio.decoded(first, pcm_of(first))
    assert ranges(list(schedule.audio.sendable())) == [(0, 250, False), (60, 250, True)]


def test_what_was_sent_and_has_changed_is_sent_again_after_the_reach() -> None:
    schedule = Schedule()
    schedule.sent()
    schedule.timeline.place_canvas(60, canvas(2, 5))
    sent = schedule.sent()
    assert ranges(sent) == [(60, 250, True)]
    assert sent[-1] == Applied(seq=5, first_sample=60, full_sample=60)
    assert schedule.sent() == []


def test_only_frames_within_the_codecs_margin_of_a_change_are_sent_again() -> None:
    schedule = Schedule()
    schedule.playhead.lead_s = 0.6
    schedule.sent()
    part = CanvasPart(Piece("w", np.zeros((1, CHANNELS), np.float32)), 0, 8, 9, 1, 1)
    schedule.timeline.place_canvas(60, schedule.timeline.canvas.with_part(part))
    sent = ranges(schedule.sent())
    assert (sent[0][0], sent[-1][1]) == ((8 - MARGIN) * HOP, (9 + MARGIN) * HOP)
    assert len(sent) == 3


def test_a_canvas_for_later_begins_at_its_sample_with_audio_to_fade_from() -> None:
    schedule = Schedule()
    schedule.timeline.place_canvas(100, canvas(2, 5))
    sent = schedule.sent()
    assert ranges(sent) == [(0, 100 + FADE, False), (100 + FADE, 325, False), (100, 100 + FADE, True)]
    chunks = {(item.start_sample, item.is_replacing): item for item in sent if isinstance(item, AudioChunk)}
    assert chunks[0, False].pcm[:, 0].tolist() == [1.0] * 125
    assert chunks[100, True].pcm[:, 0].tolist() == [2.0] * 25
    assert chunks[100, True].full_seq == 5


def test_frames_whose_margin_is_not_known_wait() -> None:
    schedule = Schedule(band=None)
    schedule.playhead.lead_s = 2.0
    assert ranges(schedule.sent())[-1][1] == (FRAMES - MARGIN) * HOP
    assert schedule.sent() == []


def test_an_underrun_is_counted_once_and_the_canvas_goes_on() -> None:
    schedule = Schedule()
    schedule.sent()
    for late in (300, 310, 320):  # again, while what comes next is decoded
        schedule.at(late / RATE).playhead.ack(Ack(playhead_sample=late))
        schedule.at(late / RATE).audio.skip_missing(late)
    assert schedule.playhead.underruns == 1
    chunk = schedule.at(0.32).sent()[0]
    assert isinstance(chunk, AudioChunk)
    assert chunk.is_after_underrun
    assert chunk.start_sample % HOP == 0
    assert chunk.pcm[0, 1] == 250 // HOP


def test_before_the_first_audio_there_is_no_underrun() -> None:
    schedule = Schedule()
    schedule.at(0.3).playhead.ack(Ack(playhead_sample=300))
    schedule.at(0.3).audio.skip_missing(300)
    assert schedule.playhead.underruns == 0
    chunk = schedule.at(0.3).sent()[0]
    assert isinstance(chunk, AudioChunk)
    assert not chunk.is_after_underrun
    assert chunk.start_sample >= 300


def test_what_was_played_is_forgotten() -> None:
    schedule, kept = Schedule(), []
    for number in range(60):
        now_s, played = number / 10, round(number * RATE / 10)
        schedule.timeline.place_canvas(schedule.playhead.reach, canvas(number, number + 1))
        schedule.at(now_s).playhead.ack(Ack(playhead_sample=min(played, schedule.playhead.sent_until)))
        schedule.sent()
        kept.append((len(schedule.audio._ledger), len(schedule.timeline.placements)))
    assert max(kept[30:]) <= max(kept[:30])


def test_the_first_chunk_after_an_underrun_says_so() -> None:
    schedule = Schedule(model=replace(MODEL, margin_frames=8, window_frames=256))
    schedule.playhead.lead_s = 2.0
    schedule.sent()
    end = schedule.playhead.sent_until
    schedule.at(5.0).audio.skip_missing(schedule.playhead.ack(Ack(playhead_sample=end + 10)))
    chunks = [item for now_s in (5.0, 5.5, 6.0, 6.5) for item in schedule.at(now_s).sent()]
    assert [chunk.is_after_underrun for chunk in chunks if isinstance(chunk, AudioChunk)][:3] == [True, False, False]


def test_a_window_that_was_cut_before_an_underrun_says_so_where_it_comes_late() -> None:
    schedule = Schedule()
    end = ranges(schedule.sent())[-1][1]
    schedule.at(0.1).playhead.ack(Ack(playhead_sample=100))
    (window,) = schedule.audio.windows()
    late = end + 10
    schedule.at(0.26).audio.skip_missing(schedule.playhead.ack(Ack(playhead_sample=late)))
    schedule.audio.decoded(window, pcm_of(window))
    (chunk,) = schedule.audio.sendable()
    assert isinstance(chunk, AudioChunk)
    assert (chunk.start_sample, chunk.is_after_underrun) == (late, True)


def test_a_new_epoch_sends_again_from_the_playhead() -> None:
    schedule = Schedule()
    stale = schedule.audio.windows()
    schedule.at(1.0).playhead.attach()
    schedule.audio.start_epoch()
    schedule.audio.decoded(stale[0], pcm_of(stale[0]))
    assert list(schedule.at(1.0).audio.sendable()) == []
    chunk = schedule.at(1.0).sent()[0]
    assert isinstance(chunk, AudioChunk)
    assert (chunk.epoch, chunk.start_sample) == (1, 0)


def test_a_lost_window_is_an_underrun() -> None:
    schedule = Schedule()
    (window,) = schedule.audio.windows()
    schedule.audio.decoded(window, None)
    assert list(schedule.audio.sendable()) == []
    assert schedule.playhead.underruns == 1


def test_while_windows_wait_for_the_codec_there_are_no_more_of_them() -> None:
    schedule = Schedule()
    schedule.sent()
    schedule.playhead.ack(Ack(playhead_sample=0))
    (waiting,) = schedule.at(0.001).audio.windows()
    assert schedule.at(0.3).audio.windows() == []
    assert not schedule.at(0.3).audio.is_short
    schedule.audio.decoded(waiting, pcm_of(waiting))
    list(schedule.at(0.3).audio.sendable())
    assert schedule.at(0.3).audio.is_short
    (following,) = schedule.at(0.3).audio.windows()
    assert (following.start_sample, following.num_samples) == (waiting.end_sample, 200)


def test_a_client_with_a_long_lead_gets_longer_windows_but_none_longer_than_what_it_has_left() -> None:
    schedule = Schedule()
    schedule.playhead.lead_s = 1.0
    schedule.sent()
    schedule.playhead.ack(Ack(playhead_sample=0))
    assert ranges(schedule.at(0.01).sent()) == [(1000, 1320, False)]
    schedule.at(1.0).playhead.ack(Ack(playhead_sample=1100))
    assert ranges(schedule.at(1.0).sent()) == [(1320, 1540, False)]


def test_after_a_window_that_waited_long_for_the_codec_the_next_is_longer() -> None:
    schedule = Schedule(model=replace(MODEL, margin_frames=8, window_frames=256))
    schedule.sent()
    schedule.playhead.ack(Ack(playhead_sample=0))
    (waited,) = schedule.at(0.01).audio.windows()
    schedule.at(0.2).audio.decoded(waited, pcm_of(waited))
    schedule.playhead.ack(Ack(playhead_sample=200))
    assert len(ranges(list(schedule.audio.sendable()))) == 1
    (following,) = schedule.at(0.21).audio.windows()
    assert (waited.num_samples, following.num_samples) == (200, 380)  # Half of four times the 0.19 s that it waited.


@pytest.fixture
def held() -> Schedule:
    """A schedule with a decoded window [1000, 1960) of which the first chunk was sent at 0.01 s."""
    schedule = Schedule(model=replace(MODEL, margin_frames=8, window_frames=256))
    schedule.playhead.lead_s = 2.0
    schedule.sent()
    schedule.playhead.ack(Ack(playhead_sample=0))
    assert ranges(schedule.at(0.01).sent()) == [(2000, 2320, False)]
    return schedule


def test_a_long_window_is_sent_in_chunks_when_the_client_wants_them(held: Schedule) -> None:
    assert held.playhead.sent_until == 2320
    assert held.at(0.01).audio.due_s == pytest.approx(0.32)
    assert ranges(held.at(0.3).sent()) == []
    assert ranges(held.at(0.33).sent()) == [(2320, 2640, False)]
    assert ranges(held.at(0.97).sent()) == [(2640, 2960, False), (2960, 3280, False)]


def test_the_rest_of_a_window_leaves_before_what_replaces_it(held: Schedule) -> None:
    held.timeline.place_canvas(2500, canvas(2, 5))
    assert ranges(held.at(0.02).sent()) == [(2320, 2960, False), (2500, 2960, True)]
    assert held.playhead.sent_until == 2960


def test_applied_follows_the_first_chunk_of_a_long_window(held: Schedule) -> None:
    held.timeline.place_canvas(2960, canvas(2, 5))
    sent = held.at(0.97).sent()
    (place,) = (place for place, item in enumerate(sent) if isinstance(item, Applied))
    (before,) = ranges([sent[place - 1]])
    assert before[0] <= sent[place].first_sample < before[1]
    assert not any(isinstance(item, Applied) for item in held.at(1.3).sent())


def test_the_rest_of_a_window_is_not_sent_after_a_new_epoch(held: Schedule) -> None:
    held.audio.start_epoch()
    assert ranges(list(held.at(0.5).audio.sendable())) == []


def test_a_waiting_replacement_is_followed_by_one_with_the_newest_changes_only() -> None:
    schedule = Schedule()
    schedule.sent()
    schedule.timeline.place_canvas(60, canvas(2, 5))
    (first,) = schedule.audio.windows()
    for seq in (6, 7, 8):
        schedule.timeline.place_canvas(60, canvas(seq, seq))
        assert schedule.audio.windows() == []
    schedule.audio.decoded(first, pcm_of(first))
    assert ranges(list(schedule.audio.sendable())) == [(60, 250, True)]
    (newest,) = schedule.audio.windows()
    assert (newest.full_seq, newest.values[0, 0]) == (8, 8.0)


def test_what_would_be_late_is_not_decoded_and_its_changes_are_reported() -> None:
    schedule = Schedule()
    schedule.sent()
    schedule.timeline.place_canvas(60, canvas(2, 5))
    (replacement,) = schedule.audio.windows()
    schedule.at(0.3).playhead.ack(Ack(playhead_sample=249))
    (due,) = schedule.at(0.3).audio.windows()
    assert schedule.audio.is_pending(replacement)
    assert schedule.audio.is_pending(due)
    end = due.end_sample
    schedule.at(0.8).audio.skip_missing(schedule.at(0.8).playhead.ack(Ack(playhead_sample=end + 10)))
    (next_,) = schedule.at(0.8).audio.windows()
    assert not schedule.audio.is_pending(replacement)
    assert not schedule.audio.is_pending(due)
    assert next_.start_sample >= schedule.at(0.8).playhead.reach
    sent = list(schedule.at(0.8).audio.sendable())
    assert ranges(sent) == []
    assert [item.seq for item in sent if isinstance(item, Applied)] == [5]
    assert schedule.playhead.underruns == 1


@pytest.mark.parametrize("align", [2, 4])
def test_windows_are_whole_groups_of_the_canvas_wherever_it_is_played(align: int) -> None:
    schedule, random = Schedule(model=replace(MODEL, align_frames=align, margin_frames=align)), np.random.default_rng(1)
    seen, sent = set[int](), 0
    for step in range(60):
        schedule.playhead.ack(Ack(playhead_sample=max(0, schedule.audio.requested_until - 2 * RATE // 10)))
        if step % 5 == 4:
            band = sorted(random.choice(FRAMES, 2, replace=False).tolist())
            frame = -(-schedule.audio.requested_until // HOP)
            schedule.timeline.move(frame * HOP, frame, int(random.integers(*band)), (band[0], band[1]))
        for window in schedule.at(step / 10).audio.windows():
            played = [int(frame) for frame in window.values[:, 1]]
            first = window.trim_begin // HOP
            # The old audio goes on for the length of a fade.
            placed = [schedule.timeline.at(window.start_sample - late) for late in (FADE, 0)]
            at_start = [
                each for each in placed if each and each.canvas_frame_at(window.start_sample // HOP) == played[first]
            ]
            here = at_start[0]
            # Frames are in the groups of the canvas within the pass that is decoded.
            assert (played[first] - first) % align == len(played) % align == 0
            assert first >= align or window.start_frame <= 0
            assert len(played) - -(-window.trim_end // HOP) >= align
            last = -(-window.trim_end // HOP)
            assert played[first:last] == list(range(played[first], played[first] + last - first)) or (
                here.band is not None and (here.band[1] - here.band[0]) % align == 0
            )
            seen.add(played[first] % align)
            sent += 1
            schedule.audio.decoded(window, pcm_of(window))
        list(schedule.audio.sendable())
    assert sent > 20
    assert len(seen) == align
