"""Generations of both modes: when they start, what they are made with, and where their latents go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_parts import Extension, Loop
from helpers.live_simulation import CHANNELS, HOP, MODEL, RATE, Simulation, new_session
from helpers.note_simulation import NOTED, PLUCKED, SHAPED, SILENCE, noted

from runtime.base.errors import RequestError
from runtime.live.parts.pieces import Pieces
from runtime.live.parts.running import ESTIMATE_START_S
from runtime.live.playback.canvas import Piece, PlacedSource
from runtime.live.playback.playhead import REACH_S
from runtime.live.protocol.messages import Ack, LivePrompt, Reset, SetPrompts
from runtime.music.envelopes import level_curve
from runtime.requests.timesteps import noise


def test_the_estimate_is_a_high_quantile_of_the_newest() -> None:
    times = Loop().flights.times
    assert times.estimate_s == ESTIMATE_START_S
    times.newest_s.extend([9.0, *[0.1] * 7, 0.2])
    assert times.estimate_s == pytest.approx(0.22)


def test_the_host_knows_how_long_a_generation_took_where_the_session_s_time_is_no_clock() -> None:
    loop = Loop()
    job = loop.at(1.0).generations.start("s")
    loop.at(7.0).generations.finish(job.id, loop.latents(0), 0.2)
    assert loop.flights.times.estimate_s == pytest.approx(0.22)


def test_a_failure_is_tried_again_after_longer_and_longer_times() -> None:
    loop = Loop()
    now_s = 0.0
    for wait_s in (1.0, 2.0, 4.0):
        assert loop.at(now_s).flights.fail(loop.at(now_s).generations.start("s").id)
        loop.at(now_s + wait_s).playhead.ack(Ack(playhead_sample=0))
        assert loop.at(now_s + wait_s - 0.01).generations.wanted_s() is None
        assert loop.at(now_s).generations.due_s == now_s + wait_s
        now_s += wait_s
        assert loop.at(now_s).generations.wanted_s() == now_s
    assert not loop.at(now_s).flights.fail("unknown")
    for _ in range(1100):  # many hours
        assert loop.at(now_s).flights.fail(loop.at(now_s).generations.start("s").id)
    assert loop.at(now_s).generations.due_s == now_s + 30.0


def test_step_controls_reach_generations_in_flight_at_most_every_20_ms() -> None:
    loop = Loop()
    job = loop.at(0.0).generations.start("s")
    assert loop.at(0.0).flights.update() is None
    loop.at(0.0).controls.change({"guidance": 5.0}, 1)
    update = loop.at(0.0).flights.update()
    assert (update.job_ids, update.patch, update.seq) == ((job.id,), {"guidance": 5.0}, 1)
    loop.at(0.01).controls.change({"guidance": None, "x0_strength": 0.5}, 2)
    assert loop.at(0.01).flights.update() is None
    assert loop.at(0.01).generations.due_s == pytest.approx(0.03)
    later = loop.at(0.02).flights.update()
    assert later.patch == {"guidance": 3.0}
    loop.flights.step_applied(2, [job.id])
    assert loop.flights.running[0].basis.first_seq == 2
    assert loop.flights.running[0].basis.full_seq == 0


def test_a_glide_is_followed_every_20_ms_to_its_end() -> None:
    loop = Loop.played()
    assert loop.at(5.0).generations.due_s == math.inf
    loop.at(5.0).controls.change({"guidance": 5.0}, 1, ramp_s=1.0)
    assert loop.at(5.5).generations.due_s == pytest.approx(5.52)
    assert loop.at(6.0).generations.due_s == math.inf


def test_changes_of_nothing_raise_the_seq_of_what_is_there() -> None:
    loop = Loop.played()
    loop.at(0.1).controls.change({"guidance": 3.0}, 4)
    loop.at(0.1).generations.settle()
    assert loop.timeline.canvas.parts[0].full_seq == 4
    loop.at(0.1).controls.change({"guidance": 4.0}, 5)
    loop.at(0.1).generations.settle()
    assert loop.timeline.canvas.parts[0].full_seq == 4


def test_a_change_of_nothing_counts_for_generations_in_flight_that_no_update_has_reached() -> None:
    loop = Loop()
    first = loop.at(0.0).generations.start("s")
    loop.at(0.0).controls.change({"guidance": 5.0}, 1)
    loop.at(0.0).flights.update()
    loop.at(0.1).generations.start("s")
    loop.at(0.1).controls.change({"guidance": 5.0}, 2)
    loop.at(0.1).generations.settle()
    mixed, other = (running.basis for running in loop.flights.running)
    assert loop.flights.running[0].job is first
    assert (mixed.full_seq, other.full_seq, other.first_seq) == (0, 2, 2)


def test_a_write_stops_generations_that_do_not_know_of_it() -> None:
    loop = Loop.played()
    loop.at(0.1).controls.change({"shift": 2.0}, 1)
    job = loop.at(0.1).generations.start("s")
    loop.controls.accept(2)
    assert loop.at(0.1).write(2, 3, [1, 1]) == [job.id]
    assert not loop.at(0.2).generations.finish(job.id, loop.latents(0))
    assert loop.at(0.2).generations.wanted_s() is not None


def test_the_end_is_continued_when_half_a_canvas_is_left() -> None:
    extension = Extension()
    now_s = extension.play_to(31 * HOP)
    assert (extension.generations.wanted_s(), extension.mode.is_ending) == (None, False)
    now_s = extension.play_to(33 * HOP)
    assert (extension.generations.wanted_s(), extension.mode.is_ending) == (now_s, True)
    job = extension.generations.start("s")
    assert (job.segment.start_frame, job.segment.keep_frames, job.is_refresh) == (48, 16, False)
    assert len(job.tail) == 16


def test_a_change_generates_again_from_where_it_can_be_heard() -> None:
    extension = Extension()
    now_s = extension.play_to(20 * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    cut = -(-round((now_s + REACH_S + 0.11) * RATE) // HOP)
    assert job.is_refresh
    assert job.segment.start_frame + job.segment.keep_frames in (cut - 1, cut)


def test_what_was_heard_stays_when_a_refresh_is_late() -> None:
    extension = Extension()
    extension.play_to(20 * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    late_s = extension.play_to(35 * HOP)
    extension.at(late_s).generations.finish(job.id, extension.latents(2))
    assert extension.numbers() == [(0, 1), (36, 2)]


def test_a_refresh_that_is_heard_nowhere_is_made_again() -> None:
    extension = Extension()
    extension.play_to(33 * HOP)
    extension.generate()
    extension.play_to(34 * HOP)
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    extension.mode.cut.played_frame = 100
    assert not extension.generations.finish(job.id, extension.latents(0))
    assert extension.generations.wanted_s() is not None


def test_a_refresh_takes_the_place_of_an_append_but_of_no_refresh() -> None:
    extension = Extension()
    extension.play_to(40 * HOP)
    append = extension.generations.start("s")
    assert extension.cancelled() == []
    extension.controls.change({"shift": 2.0}, 1)
    assert extension.cancelled() == [append.id]
    extension.generations.start("s")
    extension.controls.change({"shift": 3.0}, 2)
    assert extension.cancelled() == []
    assert extension.generations.wanted_s() is None


def test_a_failed_append_does_not_generate_the_future_again() -> None:
    extension = Extension()
    extension.play_to(40 * HOP)
    extension.flights.fail(extension.generations.start("s").id)
    later_s = extension.play_to(60 * HOP)
    assert not extension.at(later_s + 1.0).generations.start("s").is_refresh


def test_heard_frames_of_a_band_stay() -> None:
    extension = Extension()
    extension.play_to(10 * HOP)
    extension.timeline.move(10 * HOP, 10, 10, (8, 12))
    extension.play_to(30 * HOP)
    assert extension.mode.cut.played_frame == 12
    extension.controls.change({"shift": 2.0}, 1)
    job = extension.generations.start("s")
    assert job.segment.start_frame + job.segment.keep_frames == 12


def test_a_write_must_lie_in_what_is_known() -> None:
    extension = Extension()
    extension.play_to(10 * HOP)
    assert extension.mode.region(25, 10) == 25
    with pytest.raises(RequestError, match=r"known from 0\.00 to 2\.56 s"):
        extension.mode.region(60, 10)
    extension.write(1, 5, [9] * 20)
    assert extension.numbers() == [(0, 1), (11, 9), (25, 1)]


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
    assert here.canvas.end == 112


def test_after_a_reset_a_generation_continues_nothing_and_is_heard_from_its_beginning() -> None:
    extension = Extension()
    now_s = extension.play_to(40 * HOP)
    append = extension.generations.start("s")
    assert extension.handle(Reset(seq=1)) == [append.id]
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


def test_without_a_planner_what_follows_has_the_hints_of_its_first_bars() -> None:
    """Bars of 24 frames, of which the canvas has two; another prompt has those of its own."""
    simulation = noted(6.0, mode="extend", prompts=[LivePrompt(text="a, 250 bpm")])
    first, *others = simulation.jobs
    heard = simulation.heard[::HOP][:48]
    assert first.hints is None
    assert len(others) >= 2
    for job in others:
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
    parts = simulation.session.core.timeline.canvas.parts
    assert len({part.piece.name for part in parts}) > 2
    assert all((part.start - part.row) % 4 == 0 for part in parts)
    assert not np.isnan(simulation.heard).any()


def test_notes_have_their_envelopes_across_generations() -> None:
    """A note that is held over the join, and over a change, falls on: it is not struck there."""
    extension, held = Extension(SHAPED), np.tile(SILENCE, (64, 1))
    held[50:, 1] += 2 * 0.8
    extension.timeline.placements.clear()
    assert extension.generate(held)
    extension.play_to(33 * HOP)
    held[:] = SILENCE
    held[:40, 1] += 2 * 0.8
    assert extension.generate(held)
    canvas = extension.timeline.canvas
    made = (canvas.rows(range(50, 88)) - SILENCE)[:, 1] / 2
    np.testing.assert_allclose(made[:30], 0.8 * level_curve(PLUCKED, 31)[:30], atol=1e-5)
    assert np.diff(made).max() < 1e-6


def test_an_older_generation_that_finishes_later_is_dropped() -> None:
    loop = Loop()
    older = loop.at(0.0).generations.start("s")
    newer = loop.at(0.1).generations.start("s")
    assert loop.at(0.2).generations.finish(newer.id, loop.latents(1))
    assert not loop.at(0.3).generations.finish(older.id, loop.latents(0))
    assert loop.timeline.canvas.rows([0])[0, 0] == 1.0


def test_generations_in_flight_are_spread_over_the_time_of_one() -> None:
    loop = Loop(slots=2, variation=0.2)
    loop.flights.times.newest_s.append(1.0)
    loop.at(0.0).generations.start("s")
    assert loop.at(0.5).generations.wanted_s() is None
    assert loop.at(0.5).generations.due_s == pytest.approx(0.55)
    assert loop.at(0.55).generations.wanted_s() == 0.55
    loop.at(0.55).generations.start("s")
    assert loop.at(3.0).generations.wanted_s() is None


def test_noise_goes_on_after_a_restore_and_begins_again_with_another_seed() -> None:
    loop = Loop.played(variation=0.5)
    stored = replace(loop.generations.stored(Pieces()), noise=(1, 7, "n"))
    loop.generations.restore(stored, Pieces({"n": noise(16, CHANNELS, 99)}))
    loop.at(0.1).generate()
    assert loop.mode.placed_noise.index == 8
    loop.at(0.2).controls.change({"seed": 5, "variation": 0.0}, 1)
    assert loop.at(0.2).generations.start("s").noise is None


def test_a_write_wraps_and_must_fit() -> None:
    loop = Loop()
    with pytest.raises(RequestError, match="no canvas yet"):
        loop.mode.region(0, 1)
    loop.at(0.0).generate()
    with pytest.raises(RequestError, match="the canvas has 16"):
        loop.mode.region(0, 17)
    loop.at(0.1).write(1, 15 + 16, [1, 2, 3])
    assert loop.timeline.canvas.rows([15, 0, 1, 2])[:, 0].tolist() == [1.0, 2.0, 3.0, 1.0]
    assert loop.core.references.source is not None


def drafted(loop: Loop, now_s: float = 1.0, *, may_draft: bool = True) -> bool:
    """Whether the next generation has only the last steps."""
    assert loop.at(now_s).generations.wanted_s() == now_s
    return loop.at(now_s).generations.start("s", may_draft=may_draft).options.denoise == 0.5


def test_a_step_control_is_heard_in_a_draft_first_and_complete_after_it() -> None:
    loop = Loop(steps=7)
    loop.at(0.0).generate(loop.latents(2.0))
    loop.at(1.0).controls.change({"guidance": 5.0}, 1)
    assert loop.at(1.0).generations.wanted_s() == 1.0
    draft = loop.at(1.0).generations.start("s")
    assert (draft.options.denoise, draft.options.steps, draft.options.guidance) == (0.5, 3, 5.0)
    assert np.array_equal(draft.source, np.full((16, CHANNELS), 2.0, np.float32))
    assert loop.at(1.1).generations.finish(draft.id, loop.latents(1))
    (part,) = loop.timeline.canvas.parts
    assert (part.first_seq, part.full_seq) == (1, 0)
    assert loop.at(1.1).generations.wanted_s() == 1.1
    complete = loop.at(1.1).generations.start("s")
    assert (complete.options.denoise, complete.options.steps, complete.source) == (None, 7, None)
    assert loop.at(1.3).generations.finish(complete.id, loop.latents(0))
    (part,) = loop.timeline.canvas.parts
    assert (part.first_seq, part.full_seq) == (1, 1)
    assert loop.at(1.4).generations.wanted_s() is None
    assert list(loop.flights.times.newest_s) == pytest.approx([0.0, 0.2])


def test_a_draft_of_what_follows_a_structure_is_a_cover_as_the_complete_one() -> None:
    loop = Loop(structure_strength=0.5)
    piece = Piece("structure", np.arange(6.0)[:, None] + np.zeros((6, CHANNELS), np.float32))
    loop.core.references.put("structure", PlacedSource("a", None, piece))
    loop.at(0.0).generate()
    loop.at(1.0).controls.change({"guidance": 5.0}, 1)
    assert loop.at(1.0).generations.wanted_s() == 1.0
    draft = loop.at(1.0).generations.start("s")
    assert (draft.options.task, draft.options.denoise, draft.options.structure_strength) == ("cover", 0.5, 0.5)
    assert draft.hints[:, 0].tolist() == [*range(6), *range(6), *range(4)]


def test_there_is_no_draft_where_more_has_changed_or_ticks_are_busy() -> None:
    for name, value in (("guidance", 5.0), ("shift", 2.0), ("steps", 1), ("seed", 5), ("variation", 0.5)):
        loop = Loop.played()
        loop.at(1.0).controls.change({"guidance": 4.0, name: value}, 1)
        assert drafted(loop) == (name == "guidance")
    loop = Loop.played()
    loop.at(1.0).controls.change({"guidance": 5.0}, 1)
    assert not drafted(loop, may_draft=False)
    loop.at(2.0).controls.change({"guidance": 6.0}, 2)
    assert not drafted(loop, 2.0)
    written = Loop.played()
    written.at(0.5).write(1, 0, [0, 0, 0])
    written.at(1.0).controls.change({"guidance": 5.0}, 2)
    assert not drafted(written)


@pytest.mark.parametrize(
    ("frames", "expected"), [((13, 14, 15, 0, 1, 2), (13, 14, 15, 0, 1, 2)), (range(16), range(16))]
)
def test_notes_have_their_envelopes_over_the_seam(frames: Sequence[int], expected: Sequence[int]) -> None:
    """A note over the seam falls on; one that is held all the time is struck with the first bar."""
    loop, levels = Loop(model=SHAPED), np.zeros((16, CHANNELS), np.float32)
    loop.controls.change({"bpm": 93.75}, 1)  # a beat of 16 frames
    levels[list(frames), 1] = 0.8
    job = loop.at(0.0).generations.start("s")
    assert loop.generations.finish(job.id, SILENCE + 2 * levels)
    made = (loop.timeline.canvas.rows(expected) - SILENCE)[:, 1] / 2
    np.testing.assert_allclose(made, 0.8 * level_curve(PLUCKED, len(expected) + 1)[:-1], atol=1e-5)


def test_a_write_does_not_hide_a_change_that_no_generation_has() -> None:
    loop = Loop.played()
    loop.at(0.1).controls.change({"shift": 2.0}, 1)
    assert loop.at(0.1).write(2, 3, [1]) == []
    assert loop.at(0.2).generations.wanted_s() is not None


def test_a_generation_whose_step_controls_went_and_came_back_has_not_what_holds_now() -> None:
    loop = Loop()
    loop.at(0.0).generations.start("s")
    for now_s, guidance in ((0.1, 5.0), (0.2, 3.0)):
        loop.at(now_s).controls.change({"guidance": guidance}, round(10 * now_s))
        loop.at(now_s).flights.update()
    loop.at(0.3).generations.start("s")
    loop.at(0.3).controls.change({"guidance": 3.0}, 3)
    loop.at(0.3).generations.settle()
    assert [running.basis.full_seq for running in loop.flights.running] == [0, 3]
