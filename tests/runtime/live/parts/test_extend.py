"""Generations without an end: appends, refreshes after a change, what was heard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, HOP, MODEL, RATE, Simulation, new_session
from helpers.note_simulation import NOTED, PLUCKED, SHAPED, SILENCE, noted
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.extend import ExtendGenerations
from runtime.live.playback.canvas import Piece, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import LiveModel
from runtime.live.protocol.messages import Ack, LivePrompt, Reset, SetPrompts
from runtime.music.envelopes import level_curve


class Extension:
    """Generations of 64 frames, whose latents are the number of the generation."""

    def __init__(self, model: LiveModel = MODEL) -> None:
        self.clock = SessionClock(0.0)
        self.controls = ControlState(model, self.clock, {}, [], "velocity", 1)
        self.playhead, self.timeline = Playhead(self.clock, RATE), Timeline()
        self.playhead.attach()
        self.playhead.sent_until = 10**9
        self.generations = ExtendGenerations(model, 64, 2, self.controls, self.timeline, self.playhead)
        self.generations.times.newest_s.append(0.1)
        self.playhead.sent_until = 0
        self.count = 0
        self.generate()
        self.playhead.sent_until = 10**9

    def play_to(self, sample: int) -> float:
        """The client is at a sample; returns the time, at real speed."""
        now_s = sample / RATE
        self.at(now_s).playhead.ack(Ack(playhead_sample=sample))
        self.generations.note()
        return now_s

    def at(self, now_s: float) -> Self:
        self.clock.now_s = now_s
        return self

    def generate(self) -> bool:
        """Start and finish a generation."""
        job = self.generations.start("s")
        self.count += 1
        return self.generations.finish(job.id, np.full((64, CHANNELS), self.count, np.float32))

    def finish(self, latents: NDArray[np.float32]) -> bool:
        """Start a generation and finish it with these latents, behind those that it keeps."""
        job = self.generations.start("s")
        if job.tail is not None:
            latents = np.concatenate((job.tail, latents[len(job.tail) :]))
        return self.generations.finish(job.id, latents)

    def numbers(self) -> list[tuple[int, int]]:
        """(first frame, number of the generation) of each part."""
        return [(part.start, int(part.piece.latents[0, 0])) for part in self.timeline.canvas.parts]


def test_the_end_is_continued_when_half_a_canvas_is_left() -> None:
    extension = Extension()
    now_s = extension.play_to(31 * HOP)
    assert (extension.generations.wanted_s(), extension.generations.is_ending) == (None, False)
    now_s = extension.play_to(33 * HOP)
    assert (extension.generations.wanted_s(), extension.generations.is_ending) == (now_s, True)
    job = extension.generations.start("s")
    assert (job.segment.start_frame, job.segment.keep_frames, job.is_refresh) == (48, 16, False)
    assert job.tail is not None
    assert len(job.tail) == 16


def test_a_change_generates_again_from_where_it_can_be_heard() -> None:
    extension = Extension()
    now_s = extension.play_to(20 * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    cut = -(-round((now_s + 0.06 + 0.11) * RATE) // HOP)
    assert job.is_refresh
    assert job.segment.start_frame + job.segment.keep_frames in (cut - 1, cut)


def test_what_was_heard_stays_when_a_refresh_is_late() -> None:
    extension = Extension()
    extension.play_to(20 * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    late_s = extension.play_to(35 * HOP)
    extension.at(late_s).generations.finish(job.id, np.full((64, CHANNELS), 2, np.float32))
    assert extension.numbers() == [(0, 1), (37, 2)]


def test_a_refresh_that_is_heard_nowhere_is_made_again() -> None:
    extension = Extension()
    extension.play_to(33 * HOP)
    extension.generate()
    extension.play_to(34 * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    extension.generations.played_frame = 100
    assert not extension.generations.finish(job.id, np.zeros((64, CHANNELS), np.float32))
    assert extension.generations.wanted_s() is not None


def test_a_refresh_takes_the_place_of_an_append_but_of_no_refresh() -> None:
    extension = Extension()
    extension.play_to(40 * HOP)
    append = extension.generations.start("s")
    assert extension.generations.cancelled() == []
    extension.controls.change({"shift": 2.0}, 1)
    assert extension.generations.cancelled() == [append.id]
    extension.generations.start("s")
    extension.controls.change({"shift": 3.0}, 2)
    assert extension.generations.cancelled() == []
    assert extension.generations.wanted_s() is None


def test_a_failed_append_does_not_generate_the_future_again() -> None:
    extension = Extension()
    extension.play_to(40 * HOP)
    extension.generations.fail(extension.generations.start("s").id)
    later_s = extension.play_to(60 * HOP)
    assert not extension.at(later_s + 1.0).generations.start("s").is_refresh


def test_heard_frames_of_a_band_stay() -> None:
    extension = Extension()
    extension.play_to(10 * HOP)
    extension.timeline.move(10 * HOP, 10, 10, (8, 12))
    extension.play_to(30 * HOP)
    assert extension.generations.played_frame == 12
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    assert job.segment.start_frame + job.segment.keep_frames == 12


def test_a_write_must_lie_in_what_is_known() -> None:
    extension = Extension()
    extension.play_to(10 * HOP)
    assert extension.generations.region(25, 10) == 25
    with pytest.raises(RequestError, match=r"known from 0\.00 to 2\.56 s"):
        extension.generations.region(60, 10)
    extension.generations.write(5, Piece("w", np.full((20, CHANNELS), 9, np.float32)), 1)
    assert extension.numbers() == [(0, 1), (12, 9), (25, 1)]


def test_latents_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.live.parts.extend.HISTORY_S", 60.0)
    extension = Extension()
    for frame in range(40, 60 * 25 + 500, 40):
        extension.play_to(frame * HOP)
        if extension.generations.wanted_s() is not None:
            extension.generate()
    canvas = extension.timeline.canvas
    assert canvas.start > 0
    assert 60 * 25 - 200 < canvas.end - canvas.start < 60 * 25 + 200


def test_a_change_for_after_the_known_end_leaves_no_hole_before_it() -> None:
    extension = Extension()
    extension.play_to(40 * HOP)
    extension.controls.schedule(70 * HOP, {"shift": 2.0}, 1)
    extension.controls.begin_scheduled(71 * HOP, extension.playhead)
    assert extension.generate()
    assert extension.numbers() == [(0, 1), (64, 2)]
    here = extension.timeline.at(60 * HOP)
    assert here is not None
    assert here.canvas.end == 112


def test_an_append_that_comes_late_is_heard_where_the_audio_ends() -> None:
    extension = Extension()
    extension.play_to(61 * HOP)
    extension.playhead.sent_until = 62 * HOP
    extension.generate()
    here = extension.timeline.at(extension.playhead.sent_until)
    assert here is not None
    assert here.canvas.end == 112


def test_after_a_reset_a_generation_continues_nothing_and_is_heard_from_its_beginning() -> None:
    extension = Extension()
    now_s = extension.play_to(40 * HOP)
    append = extension.generations.start("s")
    assert extension.generations.reset() == [append.id]
    job = extension.generations.start("s")
    assert (job.segment.keep_frames, job.tail) == (0, None)
    rows = np.repeat(np.arange(64, dtype=np.float32)[:, None], CHANNELS, axis=1)
    assert extension.at(now_s + 0.3).generations.finish(job.id, rows)
    (_, part) = extension.timeline.canvas.parts
    assert (part.row, part.end - part.start) == (0, 64)
    played_frame = part.start

    now_s = extension.play_to((played_frame + 4) * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    assert job.segment.start_frame == played_frame
    assert 0 < job.segment.keep_frames < 16


def test_what_a_reset_begins_is_begun_again_where_it_failed_or_was_stopped() -> None:
    extension = Extension()
    now_s = extension.play_to(20 * HOP)
    extension.generations.reset()
    job = extension.generations.start("s")
    extension.generations.fail(job.id)
    job = extension.at(now_s + 2.0).generations.start("s")
    assert job.segment.keep_frames == 0
    assert extension.generations.reset() == [job.id]
    assert extension.at(now_s + 2.0).generations.start("s").segment.keep_frames == 0


def test_without_a_planner_what_follows_has_the_hints_of_its_first_bars() -> None:
    """Bars of 24 frames, of which the canvas has two; another prompt has those of its own."""
    simulation = noted(6.0, mode="extend", prompts=[LivePrompt(text="a, 250 bpm")])
    first, *others = simulation.jobs
    heard = simulation.heard[::HOP][:48]
    assert first.hints is None
    assert len(others) >= 2
    for job in others:
        assert job.hints is not None
        places = (job.segment.start_frame + np.arange(job.segment.frames)) % 48
        expected = 0.7 * (heard[places] - SILENCE) + SILENCE
        np.testing.assert_allclose(job.hints, expected, atol=1e-5)
    count = len(simulation.jobs)
    simulation.handle(SetPrompts(seq=1, items=[LivePrompt(text="b, 300 bpm")]))
    simulation.run(6.0)
    new = simulation.jobs[count:]
    changed = next(job for job in new if job.full_seq == 1)
    assert changed.hints is None
    cut = changed.segment.start_frame + changed.segment.keep_frames
    last = simulation.jobs[-1]
    assert last.hints is not None
    known = simulation.heard[::HOP][cut : cut + 40]  # two bars of 20 frames
    places = (last.segment.start_frame - cut + np.arange(last.segment.frames)) % 40
    np.testing.assert_allclose(last.hints, 0.7 * (known[places] - SILENCE) + SILENCE, atol=1e-5)
    simulation.handle(Reset(seq=2))
    simulation.run(1.0)
    assert next(job for job in simulation.jobs if job.full_seq == 2).hints is None


@pytest.mark.parametrize("opened", [{"prompts": [LivePrompt(text="a")]}, {"model": MODEL, "controls": {"bpm": 250.0}}])
def test_music_without_a_tempo_or_without_notes_repeats_nothing(opened: dict[str, Any]) -> None:
    simulation = Simulation(new_session(**{"mode": "extend", "model": NOTED, **opened}))
    simulation.run(5.0)
    assert len(simulation.jobs) >= 2
    assert [job.hints for job in simulation.jobs] == [None] * len(simulation.jobs)


def test_generations_are_in_the_groups_of_the_canvas() -> None:
    model = replace(MODEL, align_frames=4, margin_frames=4)
    simulation = Simulation(new_session(model=model, mode="extend"))
    for seq, seconds in enumerate((0.7, 1.33, 0.41, 2.07, 0.9), start=1):
        simulation.run(seconds)
        if seq == 3:
            simulation.handle(Reset(seq=seq))
        else:
            simulation.handle(SetPrompts(seq=seq, items=[LivePrompt(text=f"{seq}")]))
    simulation.run(3.0)
    refreshed = [job.segment for job in simulation.jobs if job.segment.keep_frames]
    assert len(refreshed) > 3
    assert {(segment.start_frame + segment.keep_frames) % 4 for segment in refreshed} > {0}  # cuts are anywhere
    assert all(segment.start_frame % 4 == 0 for segment in refreshed)
    parts = simulation.session._timeline.canvas.parts
    assert len({part.piece.name for part in parts}) > 2
    assert all((part.start - part.row) % 4 == 0 for part in parts)
    assert not np.isnan(simulation.heard).any()


def test_notes_have_their_envelopes_across_generations() -> None:
    """A note that is held over the join, and over a change, falls on: it is not struck there."""
    extension, held = Extension(SHAPED), np.tile(SILENCE, (64, 1))
    held[50:, 1] += 2 * 0.8
    extension.timeline.placements.clear()
    assert extension.finish(held)
    extension.play_to(33 * HOP)
    held[:] = SILENCE
    held[:40, 1] += 2 * 0.8
    assert extension.finish(held)
    canvas = extension.timeline.canvas
    made = (canvas.rows(range(50, 88)) - SILENCE)[:, 1] / 2
    np.testing.assert_allclose(made[:30], 0.8 * level_curve(PLUCKED, 31)[:30], atol=1e-5)
    assert np.diff(made).max() < 1e-6
