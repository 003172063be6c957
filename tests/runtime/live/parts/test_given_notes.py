"""Notes that a client plays, in a simulated session: where they are hints, what of them is heard, what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.live_simulation import FRAME_RATE, HOP, MODEL, RATE, new_session
from helpers.note_simulation import NOTED_PLAN, SILENCE, SPEC, NoteSimulation, noted
from helpers.simulated_form import FRAMES_PER_BAR

from runtime.base.errors import NoNotesError, RequestError
from runtime.config.notes import NoteLayerSpec
from runtime.live.parts.given_notes import GivenNotes, bar_at, echoed
from runtime.live.playback.bars import Bar
from runtime.live.protocol.actions import NoteFacts
from runtime.live.protocol.messages import LivePrompt, NoteItem, PlayNotes, Reset, SetPlan, SetPrompts
from runtime.live.protocol.server_messages import Applied
from runtime.live.storage.document import StoredNotes
from runtime.music.tracker import FrameNote

BAR_S = FRAMES_PER_BAR / FRAME_RATE


def play(simulation: NoteSimulation, seq: int, *items: dict[str, Any], **members: Any) -> None:
    simulation.handle(PlayNotes(seq=seq, items=[NoteItem(**item) for item in items], **members))


def planned(seconds: float = 3.0, **opened: Any) -> NoteSimulation:
    return noted(seconds, mode="extend", plan=True, **opened)


def heard_s(simulation: NoteSimulation) -> float:
    return simulation.playhead / RATE


def bar_of(simulation: NoteSimulation) -> int:
    """The number of the bar that is played; canvas and play axis begin together, sections are whole bars."""
    return int(heard_s(simulation) / BAR_S)


def played(simulation: NoteSimulation, first: int, last: int) -> list[FrameNote]:
    return [note for note in simulation.offline if first <= note.start_frame < last and note.layer == "bass"]


def test_notes_at_their_times_are_played() -> None:
    simulation = planned()
    at = 5.0
    play(simulation, 1, {"pitch": 38, "velocity": 90, "seconds": 0.2}, mode="at", at=at, exact=True, layer="bass")
    simulation.run(4.0)
    start = round(at * FRAME_RATE)
    assert FrameNote("bass", 38, 90, start, 5) in simulation.offline
    applied = simulation.applied(1)
    assert applied.first_sample <= start * HOP
    assert {told.at_sample for told in simulation.of(Applied)} == {None}, "it says when a change begins"


def test_what_is_played_soon_cannot_be_changed() -> None:
    simulation = planned()
    with pytest.raises(RequestError, match="too early") as error:
        play(simulation, 1, {"pitch": 38}, mode="at", at=heard_s(simulation))
    assert error.value.field == "at"
    earliest = float(error.value.fix.split()[0])
    assert 0.1 < earliest - heard_s(simulation) < 0.5
    play(simulation, 1, {"pitch": 38}, mode="at", at=earliest + 0.01)


def test_a_bar_that_was_played_comes_back_a_bar_later() -> None:
    simulation = planned()
    bar, places, keys = bar_of(simulation) + 1, (0, 3, 6), (38, 40, 38)  # of the sixteenths
    items = [
        {"pitch": key, "start_s": place * BAR_S / 16 + 0.011, "seconds": 0.08}
        for place, key in zip(places, keys, strict=True)
    ]
    simulation.run((bar + 7 / 16) * BAR_S - heard_s(simulation) - 0.30)
    play(simulation, 1, *items, at=bar * BAR_S, layer="bass", exact=True)
    simulation.run(2.5 * BAR_S + 0.5)
    first = (bar + 1) * FRAMES_PER_BAR
    found = [(note.start_frame - first, note.key) for note in played(simulation, first, first + FRAMES_PER_BAR)]
    assert found == [(round(place * FRAMES_PER_BAR / 16), key) for place, key in zip(places, keys, strict=True)]


@pytest.mark.parametrize("bars", [1, 2])
def test_every_note_comes_back_in_the_bar_that_it_was_played_for(bars: int) -> None:
    """Four bars, each note sent when its key is let go; those of the next bar are played while they come back."""
    simulation = planned()
    simulation.generation_s = 0.05
    for seq in range(8):  # bars are shorter than what generations are taken for at first
        simulation.set(seq + 1, guidance=2.0 + seq)
        simulation.run(0.3)
    first, sixteenth = bar_of(simulation) + 1, BAR_S / 16
    expected = []
    for seq, (bar, place) in enumerate([(bar, place) for bar in range(4) for place in (0, 3, 6, 9, 12, 15)], 10):
        start_s = (first + bar) * BAR_S + place * sixteenth
        key = 38 if seq % 2 else 40
        simulation.run(start_s + sixteenth - heard_s(simulation))
        play(simulation, seq, {"pitch": key, "seconds": sixteenth}, at=start_s + 0.01, layer="bass", bars=bars)
        expected.append((round((first + bar + bars) * FRAMES_PER_BAR + place * FRAMES_PER_BAR / 16), key))
    simulation.run((2 + bars) * BAR_S)
    start, end = (first + bars) * FRAMES_PER_BAR, (first + bars + 4) * FRAMES_PER_BAR
    assert [(note.start_frame, note.key) for note in played(simulation, start, end)] == expected


def test_what_is_played_too_late_comes_back_a_pass_later() -> None:
    simulation = planned()
    bar = bar_of(simulation) + 1
    simulation.run((bar + 1) * BAR_S - heard_s(simulation) - 0.05)  # just before the bar ends
    play(simulation, 1, {"pitch": 40, "seconds": 0.2}, at=bar * BAR_S, layer="bass", exact=True)
    simulation.run(3 * BAR_S)
    late = (bar + 2) * FRAMES_PER_BAR
    assert [(note.start_frame, note.key) for note in played(simulation, late, late + FRAMES_PER_BAR)] == [(late, 40)]


def test_a_bar_waits_for_more_until_it_closes() -> None:
    simulation = planned()
    jobs = len(simulation.jobs)
    bar = bar_of(simulation) + 1
    play(simulation, 1, {"pitch": 40}, at=bar * BAR_S, layer="bass", bars=4)
    simulation.run(0.3)
    assert not any(job.phrases for job in simulation.jobs[jobs:])
    assert not any(told.seq == 1 for told in simulation.of(Applied))
    simulation.run(5 * BAR_S)
    assert any(job.phrases for job in simulation.jobs[jobs:])
    assert simulation.applied(1) is not None


def test_a_bar_closes_early_enough_for_a_generation() -> None:
    simulation = NoteSimulation(new_session(model=NOTED_PLAN, mode="extend", plan=True), generation_s=0.6)
    simulation.run(6.0)
    play(simulation, 1, {"pitch": 40}, at=bar_of(simulation) * BAR_S, layer="bass", bars=4)
    notes = simulation.session.core.references.notes
    first = notes.next_bar_frame
    while notes.is_waiting:
        simulation.run(0.02)
    assert first / FRAME_RATE - heard_s(simulation) > 0.6


def test_what_is_played_while_a_plan_is_made_anew_does_not_wait_for_it() -> None:
    simulation = planned()
    simulation.plan_s = 1.0
    plan = simulation.session.plan
    simulation.handle(SetPrompts(seq=1, items=[LivePrompt(text="calm")]))
    known = plan.end
    while plan.end >= known or simulation.flights:
        simulation.step()
    jobs = len(simulation.jobs)
    play(simulation, 2, {"pitch": 40}, mode="at", at=heard_s(simulation) + 1.0, layer="bass")
    simulation.run(0.05)
    assert any(job.phrases for job in simulation.jobs[jobs:])


def test_what_is_played_behind_all_that_is_known_does_not_begin_a_generation_without_hints() -> None:
    simulation = planned(6.0)
    simulation.plan_s = 100.0
    plan = simulation.session.plan
    while simulation.jobs[-1].segment.start_frame + 2 * 64 <= plan.end or simulation.flights:
        simulation.step()
    play(simulation, 1, {"pitch": 40}, mode="at", at=heard_s(simulation) + 60.0, layer="bass")
    jobs, known = len(simulation.jobs), simulation.jobs[-1].segment.start_frame + 64
    while len(simulation.jobs) == jobs:
        simulation.step()
    # It waits for the plan as long as what is known lasts.
    assert known / FRAME_RATE - heard_s(simulation) < 1.0


def test_a_chord_is_held_from_the_next_bar_until_it_is_released() -> None:
    simulation = planned()
    play(simulation, 1, {"pitch": 62}, {"pitch": 52}, mode="hold", layer="bass", exact=True)
    simulation.run(6 * BAR_S)
    starts = range(10 * FRAMES_PER_BAR, 12 * FRAMES_PER_BAR, FRAMES_PER_BAR)
    for start in starts:
        keys = {note.key for note in played(simulation, start, start + FRAMES_PER_BAR)}
        assert keys == {38, 40}
    play(simulation, 2, mode="hold")
    simulation.run(6 * BAR_S)
    assert simulation.jobs[-1].phrases == ()


def test_sections_that_lack_the_layer_say_it_where_it_plays() -> None:
    simulation = planned()
    play(simulation, 1, {"pitch": 38}, {"pitch": 38, "start_s": 3.0}, mode="at", at=5.0, layer="bass")
    jobs = len(simulation.jobs)
    simulation.run(4.0)
    played_frames = (round(5.0 * FRAME_RATE), round(8.0 * FRAME_RATE))
    named = 0
    for job in simulation.jobs[jobs:]:
        for section in job.sections:
            start, end = (job.segment.start_frame + frame for frame in (section.start_frame, section.end_frame))
            is_played = any(start < frame + 12 and end > frame for frame in played_frames)
            named += "bass" in section.others
            assert is_played or "bass" not in section.others
    assert named


def test_notes_are_kept_with_the_session() -> None:
    simulation = planned()
    play(simulation, 1, {"pitch": 40, "seconds": 0.2}, mode="at", at=7.0, layer="bass", exact=True)
    bar = bar_of(simulation) + 1
    play(simulation, 2, {"pitch": 38}, at=bar * BAR_S, layer="bass", bars=2, exact=True)
    play(simulation, 3, {"pitch": 36}, mode="hold", layer="bass")
    before = simulation.session.core.references.notes
    stored = before.stored()
    simulation.restart()
    after = simulation.session.core.references.notes
    assert after.stored() == stored
    simulation.run(5.0)
    assert any(note.start_frame == round(7.0 * FRAME_RATE) and note.key == 40 for note in simulation.offline)


def test_what_is_stored_and_the_model_does_not_have_is_left_out() -> None:
    simulation = planned()
    notes = simulation.session.core.references.notes
    known, unknown = (36, 100, 0, 5), (37, 100, 5, 5)
    chord = (0, [36], 100, "bass", True)
    others = [(1, [60], 100, "harp", True), (2, [61], 100, "bass", True)]
    given = [(layer, 0, 10, True, False, [known, unknown]) for layer in ("bass", "harp")]
    notes.restore(StoredNotes(given=given, held=[chord, *others]))
    assert notes.stored() == StoredNotes(given=[("bass", 0, 10, True, False, [known])], held=[chord])
    simulation.handle(Reset(seq=1))
    simulation.run(2.0)


def test_a_loop_plays_notes_where_they_were_played_until_they_are_removed() -> None:
    simulation = noted(2.0)
    frames = 64
    play(simulation, 1, {"pitch": 40, "seconds": 0.2}, at=1.0, layer="bass", exact=True)
    simulation.run(6.0)
    starts = [note.start_frame for note in simulation.offline if note.key == 40 and note.layer == "bass"]
    passes = [start for start in starts if start % frames == 25 and start > 50]
    assert passes == list(range(25 + frames, passes[-1] + 1, frames))
    assert len(passes) >= 2
    play(simulation, 2, layer="bass")
    simulation.run(0.5)
    assert simulation.jobs[-1].phrases == ()


@pytest.mark.parametrize(
    ("frame", "quantize", "expected"),
    [(25.6, True, 25), (25.6, False, 26), (59.6, True, 0), (59.6, False, 0), (6.0, True, 6), (13.2, True, 14)],
)
def test_an_echo_in_a_loop_of_bars_lies_on_their_sixteenths(frame: float, quantize: bool, expected: int) -> None:
    """Three bars of 20 frames: a sixteenth is 1.25 of them. Behind the last one the loop begins again."""
    simulation = noted(2.0, controls={"bpm": 300.0})
    play(simulation, 1, {"pitch": 40, "seconds": 0.2}, at=frame / FRAME_RATE, layer="bass", quantize=quantize)
    simulation.run(1.0)
    ((_, start, end, notes),) = simulation.jobs[-1].phrases
    assert (start, end) == (expected, expected + 5)
    assert [(note.start_frame, note.num_frames) for note in notes] == [(expected, 5)]


def test_notes_of_a_loop_are_bounded_and_removing_some_makes_room() -> None:
    simulation = noted(1.0)
    items = [{"pitch": 38}] * 256
    for seq in range(1, 17):
        play(simulation, seq, *items, layer="bass" if seq > 1 else "drums")
    with pytest.raises(RequestError, match="4096 notes are in the loop") as error:
        play(simulation, 17, {"pitch": 38}, layer="bass")
    assert error.value.fix == "remove those of a layer: send none of it"
    play(simulation, 17, layer="drums")
    play(simulation, 18, {"pitch": 38}, layer="bass")


def test_what_has_no_effect_is_refused() -> None:
    simulation = noted(1.0, mode="extend")
    plain, key = NoteSimulation(new_session(model=MODEL)), {"pitch": 38}
    for refusing, items, members, match in (
        (simulation, [key], {"mode": "echo"}, "^mode: "),
        (simulation, [key], {"mode": "hold"}, "^mode: "),
        (simulation, [key], {"mode": "at", "at": 9.0, "layer": "flute"}, "no layer 'flute'"),
        (simulation, [{"pitch": 37}], {"mode": "at", "at": 9.0, "layer": "bass"}, r"items\.0\.pitch"),
        (simulation, [], {"mode": "at", "at": 9.0}, "no notes"),
        (noted(1.0), [key], {"mode": "hold"}, "hold"),
    ):
        with pytest.raises(RequestError, match=match):
            play(refusing, 1, *items, **members)
    with pytest.raises(NoNotesError):
        play(plain, 1, key, mode="at", at=9.0)


def test_what_was_not_played_yet_is_no_echo_and_pending_notes_are_bounded() -> None:
    simulation = planned()
    with pytest.raises(RequestError, match=r"items\.0: that is not played yet"):
        play(simulation, 1, {"pitch": 38}, at=1e6, layer="bass")
    simulation.run(20.0)
    with pytest.raises(RequestError, match="too long ago"):
        play(simulation, 1, {"pitch": 38}, at=0.0, layer="bass")
    now_s, items = heard_s(simulation), [{"pitch": 38}] * 256
    for seq in range(1, 17):
        play(simulation, seq, *items, at=now_s, layer="bass", bars=8, quantize=False)
    with pytest.raises(RequestError, match="4096 notes are not played yet"):
        play(simulation, 17, {"pitch": 38}, at=now_s, layer="bass", bars=8)


def test_a_reset_forgets_what_was_played() -> None:
    simulation = planned()
    play(simulation, 1, {"pitch": 38}, mode="hold", layer="bass")
    simulation.handle(Reset(seq=2))
    simulation.run(1.0)
    assert simulation.jobs[-1].phrases == ()


def test_after_a_reset_bars_are_known_once_the_plan_has_its_place() -> None:
    simulation = planned()
    simulation.handle(Reset(seq=1))
    plan = simulation.session.plan
    while not plan.sections:
        simulation.run(0.01)
    assert plan.origin is None
    with pytest.raises(RequestError, match="the session has no bars"):
        play(simulation, 2, {"pitch": 38}, at=heard_s(simulation), layer="bass")
    while plan.origin is None:
        simulation.run(0.01)
    play(simulation, 2, {"pitch": 38}, mode="hold", layer="bass")


def test_an_edit_of_the_plan_leaves_notes_where_they_are() -> None:
    simulation = planned()
    play(simulation, 1, {"pitch": 40, "seconds": 0.2}, mode="at", at=8.0, layer="bass", exact=True)
    section = next(each for each in simulation.session.plan.sections if each.start_frame > 6 * FRAME_RATE)  # type: ignore[union-attr]
    simulation.handle(SetPlan(seq=2, start_s=section.start_frame / FRAME_RATE, sections=[]))
    simulation.run(7.0)
    assert any(note.start_frame == round(8.0 * FRAME_RATE) and note.key == 40 for note in simulation.offline)


@pytest.mark.parametrize(
    ("frame", "quantize", "expected"),
    [
        (0.0, True, (1, 0.0)),
        (10.2, True, (1, 10.0)),
        (15.9, True, (2, 0.0)),  # just before the bar: of that bar
        (10.2, False, (1, 10.2)),
        (40.0, True, (3, 8.0)),
        (70.0, True, (5, 6.0)),  # behind the last one that is known
    ],
)
def test_a_place_in_a_bar_stays_where_it_is_in_another(
    frame: float, quantize: bool, expected: tuple[int, float]
) -> None:
    bars = [Bar(0.0, 16.0, 16), Bar(16.0, 32.0, 16), Bar(32.0, 48.0, 16)]
    assert echoed(bars, frame, 1, quantize=quantize) == pytest.approx(expected)
    assert bar_at(bars, 4) == Bar(64.0, 80.0, 16)
    with pytest.raises(RequestError, match="too long ago"):
        echoed(bars, -1.0, 1, quantize=True)


BARS = [Bar(float(start), start + 16.0, 16) for start in range(0, 80, 16)]


def given() -> GivenNotes:
    """Of a model with two pitched layers, at 10 frames a second."""
    layers = (
        NoteLayerSpec(name="bass", channels=(0, 1), keys=(36, 40)),
        NoteLayerSpec(name="pad", channels=(2, 3, 4), keys=(60, 64, 67)),
    )
    return GivenNotes(NoteFacts(SPEC.model_copy(update={"layers": layers}), SILENCE), 10.0)


def test_what_is_held_needs_a_layer_that_the_model_has() -> None:
    with pytest.raises(RequestError, match="the model has no layer flute") as error:
        hold(given(), 16, 60, layer="flute")
    assert (error.value.field, error.value.fix) == ("layer", "one of bass, pad")
    drums = SPEC.model_copy(update={"layers": SPEC.layers[1:]})
    with pytest.raises(RequestError, match="the model has no layer pad or bass"):
        hold(GivenNotes(NoteFacts(drums, SILENCE), 10.0), 16, 60)


def hold(notes: GivenNotes, from_frame: int, *pitches: int, **members: Any) -> None:
    items = [NoteItem(pitch=pitch, velocity=50 + number) for number, pitch in enumerate(pitches)]
    notes.hold(PlayNotes(seq=1, mode="hold", items=items, **members), from_frame)


def starts(notes: GivenNotes, start: int, frames: int) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Layer and start of each phrase of these frames -> key and start of its notes."""
    phrases, _ = notes.phrases(start, frames, BARS)
    return {phrase[:2]: [(note.key, note.start_frame) for note in phrase.notes] for phrase in phrases}


def test_a_chord_is_struck_with_every_bar_and_its_lowest_pitch_every_second_beat() -> None:
    notes = given()
    hold(notes, 16, 67, 60, 64, 60, exact=True)
    phrases, exact = notes.phrases(0, 48, BARS)
    assert exact == phrases
    assert {note.velocity for phrase in phrases for note in phrase.notes} == {53}
    assert starts(notes, 0, 48) == {
        ("pad", 16): [(60, 16), (64, 16), (67, 16)],
        ("bass", 16): [(36, 16), (36, 24)],
        ("pad", 32): [(60, 32), (64, 32), (67, 32)],
        ("bass", 32): [(36, 32), (36, 40)],
    }
    assert [note.num_frames for phrase in phrases[:2] for note in phrase.notes] == [16, 16, 16, 8, 8]
    assert starts(notes, 16, 16).keys() == {("pad", 0), ("bass", 0)}  # No bar that only touches them.
    assert starts(notes, 31, 2).keys() == {("pad", -15), ("bass", -15), ("pad", 1), ("bass", 1)}


def test_one_chord_follows_another_from_its_bar_on_and_none_ends_it() -> None:
    notes = given()
    hold(notes, 16, 40, layer="bass")
    hold(notes, 64, 40, layer="bass")
    hold(notes, 32, 36, layer="bass")  # in place of those that were to follow
    hold(notes, 48)
    assert starts(notes, 0, 80) == {("bass", 16): [(40, 16)], ("bass", 32): [(36, 32)]}
    for frame in (32, 47):
        notes.forget(frame)
        assert starts(notes, 0, 80) == {("bass", 32): [(36, 32)]}
    notes.forget(48)
    assert starts(notes, 0, 80) == {}


def test_echoes_of_one_bar_and_layer_are_one_phrase_once_it_closes() -> None:
    notes = given()
    bar, later = BARS[1], BARS[3]
    for place, to in ((1, bar), (4, bar), (2, later)):
        notes.echo(FrameNote("bass", 36, 90, round(to.start) + place, 2), to, is_exact=False)
    notes.echo(FrameNote("pad", 60, 90, 20, 2), bar, is_exact=True)
    assert (notes.is_waiting, notes.next_bar_frame, notes.phrases(0, 80, BARS)) == (True, 16, ((), ()))
    assert notes.close(15.9) is None
    assert notes.close(16.0) == 16
    assert starts(notes, 0, 80) == {("bass", 16): [(36, 17), (36, 20)], ("pad", 16): [(60, 20)]}
    assert [phrase.layer for phrase in notes.phrases(0, 80, BARS)[1]] == ["pad"]
    assert (notes.is_waiting, notes.next_bar_frame) == (True, 48)
    notes.echo(FrameNote("bass", 40, 90, 18, 2), bar, is_exact=False, is_waiting=False)  # beside those that are there
    notes.remove("pad")
    assert notes.close(100.0) == 48
    assert not notes.is_waiting
    assert starts(notes, 16, 16) == {("bass", 0): [(36, 1), (36, 4), (40, 2)]}
    notes.forget(31)
    assert len(notes.phrases(0, 80, BARS)[0]) == 2
    notes.forget(32)
    assert starts(notes, 0, 80) == {("bass", 48): [(36, 50)]}
    notes.remove(None)
    assert starts(notes, 0, 80) == {}


def test_notes_at_their_times_are_a_phrase_of_each_layer() -> None:
    notes = given()
    played = [FrameNote("bass", 36, 90, 20, 2), FrameNote("pad", 60, 90, 12, 3), FrameNote("bass", 40, 90, 14, 10)]
    assert notes.add(played, is_exact=True) == 12
    assert [phrase[:3] for phrase in notes.phrases(0, 80, BARS)[0]] == [("bass", 14, 24), ("pad", 12, 15)]
    assert [phrase.layer for phrase in notes.phrases(0, 14, BARS)[0]] == ["pad"]
    assert [phrase.layer for phrase in notes.phrases(15, 9, BARS)[0]] == ["bass"]
    assert notes.phrases(24, 9, BARS) == ((), ())
