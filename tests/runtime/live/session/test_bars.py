"""Sessions and the beat: loops of bars, changes at a bar, a clock that is followed, in simulated time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_simulation import (
    FRAME,
    GUIDANCE,
    HINT,
    HOP,
    LENGTHS,
    MODEL,
    NUMBER,
    RATE,
    Simulation,
    new_session,
    playing,
)
from helpers.simulated_form import BPM, FRAMES_PER_BAR

from runtime.base.errors import RequestError
from runtime.live.protocol.messages import LivePrompt, client_message
from runtime.live.protocol.server_messages import Applied, Beat, State
from runtime.live.session.live_session import LiveSession
from runtime.live.session.transport import MAX_WAITING
from runtime.live.storage.store import SessionSnapshot

BARS = {"bpm": 300.0}  # 20 frames each
CANVAS = LENGTHS[-1]
LONG = replace(MODEL, loop_lengths=(*LENGTHS, 3 * CANVAS // 2, 2 * CANVAS))
FRAMES_PER_S = MODEL.frame_rate_hz


def send(simulation: Simulation, latents: Any = None, **members: Any) -> int:
    """Send a message; returns the sample that it begins at, as it is answered."""
    simulation.handle(client_message(members), latents)
    sample = next(each.at_sample for each in simulation.of(Applied) if each.seq == members["seq"])
    assert sample is not None
    return sample


def heard(simulation: Simulation, channel: int) -> list[float]:
    """What each frame plays."""
    return [float(value) for value in simulation.heard[HOP // 2 :: HOP, channel]]


def beat(simulation: Simulation) -> Beat:
    """The newest one that is known."""
    found = simulation.of(State)[-1].beat
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("opened", "frames"),
    [
        ({"bars": 4, "controls": BARS}, 80),
        ({"bars": 6, "prompts": [LivePrompt(text="techno, 300 bpm")]}, 120),
        ({"controls": BARS, "seconds": 5.0}, 120),
        ({"controls": {**BARS, "loop_bars": 0}, "seconds": 5.0}, 128),
    ],
)
def test_a_loop_of_many_bars_is_longer_than_the_canvas_and_goes_on_after_a_restart(
    opened: dict[str, Any], frames: int
) -> None:
    session = new_session(model=LONG, **opened)
    assert session.attach("token", 0.0, keep_s=60.0).lengths_s == [n / FRAMES_PER_S for n in LONG.loop_lengths]
    simulation = Simulation(session)
    simulation.run(12.0)
    found = heard(simulation, FRAME)
    assert found[frames : frames + 100] == found[:100]
    assert len(set(found[:frames])) == frames
    snapshot = session.snapshot(simulation.now_s)
    restored = LiveSession.restore(SessionSnapshot(json.loads(json.dumps(snapshot.meta)), snapshot.pieces), LONG, 0.0)
    assert restored.snapshot(0.0).meta["frames"] == snapshot.meta["frames"] > CANVAS


def test_what_is_continued_is_no_longer_than_the_canvas() -> None:
    session = new_session(model=LONG, mode="extend")
    assert session.attach("token", 0.0, keep_s=60.0).lengths_s[-1] == CANVAS / FRAMES_PER_S
    with pytest.raises(RequestError, match="a canvas is at most"):
        new_session(model=LONG, mode="extend", seconds=5.0)


@pytest.mark.parametrize(
    ("opened", "frames"),
    [
        ({"controls": BARS}, 60),
        ({"prompts": [LivePrompt(text="techno, 290 bpm")]}, 62),
        ({"prompts": [LivePrompt(text="techno, 290 bpm")], "bars": 2}, 41),
        ({"controls": {**BARS, "loop_bars": 0}}, CANVAS),
        ({"prompts": [LivePrompt(text="techno")]}, CANVAS),
        ({"controls": {**BARS, "time_signature": 3}}, 60),
    ],
)
def test_a_loop_is_a_number_of_bars_where_it_has_a_tempo(opened: dict[str, Any], frames: int) -> None:
    simulation = playing(6.0, **opened)
    found = heard(simulation, FRAME)
    assert found == [frame % frames for frame in range(len(found))]
    assert simulation.session.values()["band"] is None


def test_the_length_in_bars_changes_while_it_plays() -> None:
    simulation = playing(2.0, controls=BARS)
    simulation.set(1, loop_bars=1)
    simulation.run(3.0)
    assert heard(simulation, FRAME)[-40:] == [(frame + heard(simulation, FRAME)[-40]) % 20 for frame in range(40)]
    assert [job.loop_frames for job in simulation.jobs] == [60, 20]
    simulation.set(2, loop_bars=0)
    simulation.run(6.0)
    assert max(heard(simulation, FRAME)[-CANVAS:]) == CANVAS - 1


def test_a_loop_is_generated_as_a_circle_unless_that_is_turned_off() -> None:
    simulation = playing(2.0, controls=BARS)
    simulation.set(1, loop_mode="plain")
    simulation.run(1.0)
    simulation.set(2, loop_mode="circular")
    simulation.run(1.0)
    assert [job.loop_frames for job in simulation.jobs] == [60, None, 60]
    assert [job.loop_frames for job in playing(1.0).jobs] == [CANVAS]
    assert {job.loop_frames for job in playing(1.0, mode="extend").jobs} == {None}


def test_another_tempo_goes_on_at_the_same_place_of_its_bar() -> None:
    simulation = playing(2.0, controls=BARS)
    simulation.set(1, bpm=250.0)  # bars of 24 frames, of which two fit
    simulation.run(4.0)
    frames, numbers = heard(simulation, FRAME), heard(simulation, NUMBER)
    first = numbers.index(1.0)
    assert frames[first] / 24 % 1 == pytest.approx(first / 20 % 1, abs=1 / 24)
    assert max(frames[-48:]) == 47
    newest = beat(simulation)
    assert (newest.bpm, newest.beats) == (250.0, 4)


def test_bars_that_are_refused() -> None:
    for opened, match in (
        ({"bars": 2}, "needs a tempo"),
        ({"bars": 4, "controls": BARS}, "3 bars of 4 beats fit"),
        ({"bars": 4, "mode": "extend"}, "no loop"),
    ):
        with pytest.raises(RequestError, match=match) as error:
            new_session(**opened)
        assert error.value.field == "bars"
    simulation = playing(controls=BARS)
    with pytest.raises(RequestError, match="fit") as error:
        simulation.set(1, loop_bars=4)
    assert error.value.field == "values.loop_bars"
    simulation.set(1, loop_bars=1, bpm=100.0)


def test_the_state_has_the_newest_bar_line_that_was_sent() -> None:
    simulation = playing(3.0, controls=BARS)
    states, bar = [each for each in simulation.of(State) if each.beat is not None], 20 * HOP
    for state in states:
        assert state.beat.sample == state.sent_until_sample // bar * bar
        assert state.beat.bar == state.beat.sample // bar % 3
        assert state.beat.phase == pytest.approx(state.playhead_sample / bar % 1)
    assert len(states) > 5


def test_a_beat_that_changes_is_told_at_once() -> None:
    simulation = playing(2.0, controls=BARS)
    simulation.set(1, bpm=250.0)
    simulation.run(0.16)
    assert beat(simulation).bpm == 250.0


def test_a_beat_that_goes_on_is_not_told_again_with_every_change() -> None:
    simulation = playing(2.05, controls=BARS)
    send(simulation, type="clock", seq=1, bpm=300.0, sample=80)  # bars that do not begin with those of the axis
    simulation.run(2.0)
    before, placed = len(simulation.of(State)), simulation.session.core.timeline.version
    for seq in range(2, 12):
        simulation.set(seq, guidance=float(seq))
        simulation.run(0.1)
    assert simulation.session.core.timeline.version > placed + 2
    assert len(simulation.of(State)) - before <= 5


def test_controls_change_at_a_bar() -> None:
    simulation = playing(2.05, controls=BARS)
    sample = send(simulation, type="set", seq=1, values={"guidance": 5.0}, at="bar")
    assert sample % (20 * HOP) == 0
    simulation.run(3.0)
    guidance = heard(simulation, GUIDANCE)
    assert guidance.index(5.0) == sample // HOP
    later = send(simulation, type="set", seq=2, values={"guidance": 6.0}, at={"bars": 3})
    first = send(simulation, type="set", seq=3, values={"shift": 2.0}, at="bar")
    assert later - first == 2 * 20 * HOP


def test_prompts_change_at_a_bar_also_after_a_restart() -> None:
    simulation = playing(2.05, controls=BARS, prompts=[LivePrompt(text="a")])
    sample = send(simulation, type="prompts", seq=1, items=[{"text": "b"}], at={"bars": 4})
    simulation.run(0.1)
    assert len(simulation.jobs) == 1
    simulation.restart()
    simulation.run(6.0)
    numbers = heard(simulation, NUMBER)
    first = next(index for index, number in enumerate(numbers) if number > 0)
    assert first == sample // HOP
    assert [item.text for item in simulation.jobs[-1].options.prompt] == ["b"]  # type: ignore[union-attr]
    assert simulation.applied(1) is not None


def test_a_later_change_does_not_wait_for_one_at_a_later_bar() -> None:
    simulation = playing(2.05, controls=BARS, prompts=[LivePrompt(text="a")])
    sample = send(simulation, type="prompts", seq=1, items=[{"text": "b"}], at={"bars": 8})
    simulation.set(2, guidance=7.0)
    simulation.run(1.0)
    assert simulation.playhead < sample
    assert heard(simulation, GUIDANCE)[-1] == 7.0
    applied = simulation.applied(1)
    assert applied is None


def test_a_structure_begins_at_a_bar() -> None:
    simulation = playing(2.05, controls=BARS)
    hints = np.full((CANVAS, 5), 9.0, np.float32)
    sample = send(simulation, hints, type="structure", seq=1, id="x", strength=1.0, at="bar")
    simulation.run(3.0)
    assert heard(simulation, HINT).index(9.0) == sample // HOP
    with pytest.raises(RequestError, match="no source"):
        send(simulation, type="structure", seq=2, id="y", at="bar")


def test_band_and_position_change_at_a_bar_and_other_changes_keep_that() -> None:
    simulation = playing(2.05, controls=BARS)
    banded = send(simulation, type="band", seq=1, start_s=0.8, end_s=1.6, at="bar")
    simulation.set(2, shift=2.0)  # its canvas comes before
    simulation.run(2.0)
    frames = heard(simulation, FRAME)
    assert frames[banded // HOP] == 20
    assert max(frames[banded // HOP :]) == 39
    sought = send(simulation, type="seek", seq=3, to_s=1.0, at="bar")
    simulation.run(2.0)
    assert heard(simulation, FRAME)[sought // HOP] == 25
    send(simulation, type="band", seq=4, start_s=None, end_s=None, at="bar")
    simulation.run(4.0)
    assert max(heard(simulation, FRAME)[-60:]) == 59


def test_a_plan_has_bars_at_which_prompts_change() -> None:
    simulation = playing(3.0, mode="extend", plan=True, prompts=[LivePrompt(text="a")])
    newest = beat(simulation)
    assert newest.bpm == BPM
    sample = send(simulation, type="prompts", seq=1, items=[{"text": "b"}], at="bar")
    assert sample % (FRAMES_PER_BAR * HOP) == 0
    simulation.run(4.0)
    change = simulation.session.plan
    assert sample // HOP in [section.start_frame for section in change.sections]
    changed = [job for job in simulation.jobs if job.options.prompt[0].text == "b"]  # type: ignore[union-attr]
    assert changed


@pytest.mark.parametrize("opened", [{}, {"mode": "extend"}])
def test_without_a_beat_a_bar_is_refused_and_nothing_changes(opened: dict[str, Any]) -> None:
    simulation = playing(1.0, **opened)
    for members in (
        {"type": "set", "values": {"guidance": 5.0}, "at": "bar"},
        {"type": "prompts", "items": [], "at": {"bars": 2}},
        {"type": "clock", "bpm": 120.0, "sample": 0},
        {"type": "clock", "bpm": 120.0},
    ):
        with pytest.raises(RequestError, match="no beat is known"):
            simulation.handle(client_message({"seq": 1, **members}))
    assert simulation.of(State)[-1].beat is None
    with pytest.raises(RequestError, match='seconds, "bar"'):
        client_message({"type": "seek", "to_s": 0.0, "at": "beat"})


def test_a_clock_is_followed_from_the_next_bar_on() -> None:
    simulation = playing(2.05, controls=BARS)
    sample = send(simulation, type="clock", seq=1, bpm=290.0, sample=2 * RATE)
    simulation.run(4.0)
    newest = beat(simulation)
    assert newest.bpm == pytest.approx(290.0, abs=0.4)
    beat_samples = 60 / 290 * RATE
    assert abs((newest.sample - 2 * RATE + beat_samples / 2) % beat_samples - beat_samples / 2) < 40
    assert 0 < sample / RATE - 2.05 < 2 * 0.8
    simulation.handle(client_message({"type": "clock", "seq": 2, "bpm": 290.0, "sample": newest.sample}))
    assert not [each for each in simulation.of(Applied) if each.seq == 2 and each.at_sample]


def test_only_the_phase_of_a_clock_is_followed_where_the_tempo_is_the_same() -> None:
    simulation = playing(2.05, controls=BARS)
    sample = send(simulation, type="clock", seq=1, bpm=300.0, sample=80)
    assert sample % 200 == 80
    simulation.run(2.0)
    newest = beat(simulation)
    assert newest.sample % 200 == 80
    assert len(simulation.jobs) == 1


def test_of_a_clock_that_does_not_say_where_its_beats_are_the_tempo_alone_is_followed() -> None:
    simulation = playing(2.05, controls=BARS)
    before = beat(simulation)
    bar = before.beats * 60 / before.bpm * RATE
    sample = send(simulation, type="clock", seq=1, bpm=290.0)
    assert (sample - before.sample + bar / 2) % bar - bar / 2 == pytest.approx(0, abs=1)
    simulation.run(3.0)
    newest = beat(simulation)
    assert newest.bpm == pytest.approx(290.0, abs=0.4)
    simulation.handle(client_message({"type": "clock", "seq": 2, "bpm": 290.0}))
    simulation.run(1.0)
    assert {each.at_sample for each in simulation.of(Applied) if each.seq == 2} == {None}


@pytest.mark.parametrize("members", [{"type": "seek", "to_s": 0.0}, {"type": "set", "values": {"shift": 2.0}}])
def test_changes_that_wait_are_bounded(members: dict[str, Any]) -> None:
    simulation = playing(2.0, controls=BARS)
    for seq in range(1, MAX_WAITING + 1):
        assert send(simulation, seq=seq, at=100.0 + seq, **members)
    for refused in (members, {"type": "prompts", "items": []}, {"type": "band", "start_s": 0.0, "end_s": 0.4}):
        with pytest.raises(RequestError, match=f"{MAX_WAITING} changes wait") as error:
            send(simulation, seq=MAX_WAITING + 1, at=50.0, **refused)
        assert error.value.field == "at"
    with pytest.raises(RequestError, match="changes wait"):
        send(simulation, type="clock", seq=MAX_WAITING + 1, bpm=130.0, sample=0)
    simulation.set(MAX_WAITING + 1, guidance=5.0)
    simulation.run(2.0)
    assert heard(simulation, GUIDANCE)[-1] == 5.0
