"""Sessions that play by a plan: what is heard of it, edits, other prompts, resets, restarts, failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, FRAME, FRAME_RATE, HINT, HOP, NUMBER, PLANNING, Simulation, new_session
from helpers.simulated_form import FRAMES_PER_BAR, FRAMES_PER_CODE, SimulatedForm

from runtime.base.errors import EngineError, RequestError
from runtime.live.hosting.work import make_part
from runtime.live.parts.song import MAX_EDITS, MAX_WAIT_S, SETTLE_S, STEP_S, SongMaker
from runtime.live.playback.playhead import SessionClock
from runtime.live.protocol import messages
from runtime.live.protocol.actions import SongBeginning
from runtime.live.protocol.messages import GetPlan, NewSection, SetPlan
from runtime.live.protocol.server_messages import Plan, Problem
from runtime.live.session.live_session import LiveSession
from runtime.music.sections import section_prompts
from runtime.requests.options import GenerationOptions

BREAK = NewSection(kind="break", layers=["drums", "bass"], bars=1)
TOO_MANY = list(range(20))  # for a bar


def planned_session(seconds: float = 0.0, **changes: Any) -> Simulation:
    """A session that plays by a plan, and has for some time."""
    simulation = Simulation(new_session(mode="extend", plan=True), **changes)
    if seconds:
        simulation.run(seconds)
    return simulation


def maker(simulation: Simulation) -> SongMaker:
    return simulation.session.generations.mode.song.maker


def change_prompt(simulation: Simulation, seq: int = 1, text: str = "calm") -> None:
    simulation.handle(messages.SetPrompts(seq=seq, items=[messages.LivePrompt(text=text)]))


def stored(simulation: Simulation) -> Any:
    """The song as the session's document has it."""
    return simulation.session.snapshot(simulation.now_s).meta["generations"]["plan"]


def told(simulation: Simulation) -> Plan:
    """The newest plan that the client got."""
    return simulation.of(Plan)[-1]


def heard_hints(simulation: Simulation) -> dict[int, float]:
    """Canvas frame -> the hint that it was generated with, of all that was heard."""
    frames = simulation.heard[::HOP][:, [FRAME, HINT]]
    assert not np.isnan(frames).any()
    return {int(frame): hint for frame, hint in frames.tolist()}


def of_form(simulation: Simulation, frames: int, **options: Any) -> list[float]:
    """The hints of the session's first plan."""
    form = SimulatedForm(SongBeginning(GenerationOptions(**{"prompt": "", **options}), 1))
    return [float(hint) for hint in form.hints(0, frames)[:, 0]]


def earliest_s(simulation: Simulation, **members: Any) -> float:
    """The earliest time of an edit, as the refusal of one that is too early says."""
    with pytest.raises(RequestError, match=r"still be changed") as caught:
        simulation.handle(SetPlan(seq=10_000, start_s=0.0, **members))
    assert caught.value.field == "start_s"
    return float(caught.value.fix.split()[-2])


@pytest.mark.parametrize(("frames", "duration_s"), [(50, 6.0), (51, 9.0), (100, 9.0)])
def test_the_slowest_of_its_last_steps_says_how_long_hints_take(frames: int, duration_s: float) -> None:
    clock, begin = SessionClock(0.0), SongBeginning(GenerationOptions(prompt=""), 1)
    song, form = SongMaker(PLANNING, clock, frames), SimulatedForm(begin)
    song.restart(begin.options, begin.seed, 0)
    assert song.duration_s() == 0.0
    for seconds in (1.0, 3.0, 2.0):
        work = song.work(0, song.outline.end)
        clock.now_s += seconds
        song.made(work.number, make_part(form, work))  # type: ignore[arg-type]
        assert work.frames == 50
    # One step more than the frames take: what is being made comes first.
    assert song.duration_s() == duration_s


@pytest.mark.parametrize("plan_s", [0.005, 0.3])
def test_generations_follow_the_plan_which_is_ahead_of_them(plan_s: float) -> None:
    simulation = planned_session(20.0, plan_s=plan_s)
    hints = heard_hints(simulation)
    assert [hints[frame] for frame in range(len(hints))] == of_form(simulation, len(hints))
    assert simulation.session.playhead.underruns == 0
    canvas_end = max(job.segment.start_frame + job.segment.frames for job in simulation.jobs)
    assert simulation.session.plan.end >= canvas_end + 64


def test_what_is_kept_of_a_plan_does_not_grow() -> None:
    simulation, sizes = planned_session(), []
    for _ in range(6):
        simulation.run(10.0)
        sizes.append((len(stored(simulation)["values"]["sections"]), len(stored(simulation)["hints"])))
    assert max(sizes[3:]) <= max(sizes[:3])


@pytest.mark.parametrize(
    "members",
    [
        {"sections": [BREAK, BREAK]},
        {"codes": [1, 2, 3, 4, 5]},
        {"sections": []},
        {"sections": [BREAK, BREAK], "codes": [1, 2, 3, 4]},
    ],
)
@pytest.mark.parametrize(("generation_s", "plan_s"), [(0.03, 0.02), (0.14, 0.2), (0.4, 0.02)])
def test_an_edit_at_the_earliest_time_is_heard_in_full(
    members: dict[str, Any], generation_s: float, plan_s: float
) -> None:
    simulation = planned_session(4.0, generation_s=generation_s, plan_s=plan_s)
    start_s = earliest_s(simulation, **members)
    before = told(simulation)
    simulation.handle(SetPlan(seq=1, start_s=start_s, **members))
    simulation.run(1.0)
    after, first = told(simulation), round(start_s * FRAME_RATE)
    expected = {frame: simulation.planned(frame) for frame in range(first, simulation.session.plan.end)}
    simulation.run(start_s + 3.0 - simulation.now_s)
    hints = heard_hints(simulation)
    edited = [frame for frame in expected if frame in hints]
    assert len(edited) > 2 * FRAME_RATE
    assert all(hints[frame] == expected[frame] for frame in edited)
    assert simulation.applied(1) is not None
    kept = [section for section in before.sections if after.sections[0].start_s <= section.start_s < start_s - 0.2]
    if "sections" in members:
        assert after.sections[: len(kept)] == kept
    if "codes" in members:
        last = first // FRAMES_PER_CODE * FRAMES_PER_CODE + FRAMES_PER_CODE - 1
        codes = members["codes"]
        assert [expected[last + FRAMES_PER_CODE * index] for index in range(len(codes))] == codes
    if members.get("sections"):
        breaks = [section for section in after.sections if start_s - 0.01 < section.start_s < start_s + 0.9]
        assert [(section.kind, section.bars) for section in breaks] == [("break", 1), ("break", 1)]


def test_what_is_known_before_an_edit_stays() -> None:
    simulation = planned_session(4.0, generation_s=0.03, plan_s=0.02)
    end = max(job.segment.start_frame + job.segment.frames for job in simulation.jobs)
    earliest = round(earliest_s(simulation, codes=[1]) * FRAME_RATE)
    first = earliest + (end - earliest) // 2 // FRAMES_PER_CODE * FRAMES_PER_CODE
    assert earliest + FRAMES_PER_CODE <= first < end
    num_jobs = len(simulation.jobs)
    simulation.handle(SetPlan(seq=1, start_s=first / FRAME_RATE, codes=[1]))
    simulation.run(1.0)
    segment = simulation.jobs[num_jobs].segment
    assert segment.start_frame + segment.keep_frames == first


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"sections": [BREAK.model_copy(update={"kind": "drop"})]}, "verse, chorus, break"),
        ({"sections": [BREAK.model_copy(update={"layers": ["flute"]})]}, "drums"),
        ({"sections": [BREAK.model_copy(update={"bars": 3})]}, "1, 2, 4"),
        ({"codes": [0, 5000]}, "4999"),
        ({"sections": [BREAK], "later_s": 0.04}, "not the start of a section"),
        ({"codes": [0], "later_s": 0.04}, "not the start of a code"),
    ],
)
def test_a_refused_edit_changes_nothing(members: dict[str, Any], what: str) -> None:
    simulation = planned_session(4.0)
    later_s = members.pop("later_s", 0.0)
    start_s = earliest_s(simulation, **members)
    before = (simulation.session.plan.published, simulation.session.plan.end, len(simulation.jobs))
    with pytest.raises(RequestError, match=what):
        simulation.handle(SetPlan(seq=1, start_s=start_s + 3.6 + later_s if later_s else start_s, **members))
    assert (simulation.session.plan.published, simulation.session.plan.end, len(simulation.jobs)) == before
    simulation.set(1, guidance=4.0)


def test_prompts_say_which_layers_sound_in_each_section() -> None:
    simulation = planned_session()
    change_prompt(simulation)
    simulation.run(3.0)
    start_s = earliest_s(simulation, sections=[BREAK])
    bass = NewSection(kind="break", layers=["bass"], bars=4)
    simulation.handle(SetPlan(seq=2, start_s=start_s, sections=[bass]))
    simulation.run(start_s + 1.0 - simulation.now_s)
    first = round(start_s * FRAME_RATE)
    job = [job for job in simulation.jobs if job.segment.start_frame < first < job.segment.start_frame + 64][-1]
    row = first - job.segment.start_frame
    prompts = section_prompts(simulation.session.plan.facts.spec, job.options.prompt, job.sections, 0, 64)
    weights = {item.text: item.weight[row - 1 : row + 1] for item in prompts}
    assert weights == {"calm, drums": [1.0, 0.0], "calm, no drums": [0.0, 1.0]}


def test_a_restored_plan_knows_what_codes_sound_beside_the_layers_of_a_section() -> None:
    simulation = planned_session(3.0)
    plan = simulation.session.plan
    plan.sections = tuple(replace(each, others=("bass",)) for each in plan.sections)
    session, now_s = simulation.session, simulation.now_s
    restored = LiveSession.restore(session.snapshot(now_s), session.model, now_s).plan
    assert restored.sections == plan.sections


def test_another_prompt_or_tempo_plans_anew_what_is_not_heard() -> None:
    simulation = planned_session(4.0)
    for seq in (1, 2):
        at = simulation.playhead
        before, sections = heard_hints(simulation), told(simulation).sections
        if seq == 1:
            change_prompt(simulation)
        else:
            simulation.set(2, bpm=90)
        simulation.run(0.8)
        after = told(simulation).sections
        line = simulation.session.transport.lines.at(at)
        (heard,) = (each for each in after if each.start_s <= at / HOP / FRAME_RATE < each.end_s)
        assert heard.first_bar <= line.bar < heard.first_bar + heard.bars, "it is numbered as the beat is"
        simulation.run(2.0)
        hints, frame = heard_hints(simulation), at // HOP
        assert all(hints[frame] == hint for frame, hint in before.items())
        newest = max(hints)
        assert hints[newest] == simulation.planned(newest)
        assert simulation.planned(newest) != of_form(simulation, newest + 1)[newest]
        here = next(section for section in sections if section.end_s * FRAME_RATE > frame + 10)
        assert here.kind in [section.kind for section in after if section.start_s == here.start_s]


def test_right_after_another_prompt_no_more_is_planned_than_the_next_generation_needs() -> None:
    simulation = planned_session()
    plan, timeline = simulation.session.plan, simulation.session.core.timeline

    def generations_ahead() -> float:
        return (plan.end - timeline.canvas.end) / 64

    simulation.run(4.0)
    assert generations_ahead() >= 1.5
    for seq in range(1, 5):
        change_prompt(simulation, seq, f"calm {seq}")
        simulation.run(2.0)
        assert generations_ahead() <= 1.0 + STEP_S * FRAME_RATE / 64
    assert simulation.session.playhead.underruns == 0
    simulation.run(SETTLE_S + 2.0)
    assert generations_ahead() >= 1.5


def test_a_reset_begins_a_new_plan() -> None:
    simulation = planned_session(4.0)
    simulation.handle(messages.Reset(seq=1))
    simulation.run(3.0)
    origin = simulation.session.plan.origin
    assert origin > 4.0 * FRAME_RATE
    (first,) = (section for section in told(simulation).sections if section.index == 0)
    assert first.start_s == origin / FRAME_RATE
    numbers = simulation.heard[::HOP, NUMBER].astype(int).tolist()
    (beginning,) = (number for number, job in enumerate(simulation.jobs) if not job.segment.keep_frames and number)
    count = numbers.count(beginning)
    hints = simulation.jobs[beginning].hints
    assert hints[:count, 0].tolist() == [simulation.planned(origin + row) for row in range(count)]
    assert hints[:count, 0].tolist() != of_form(simulation, count)


def test_another_prompt_changes_a_plan_at_a_bar_wherever_that_plan_begins() -> None:
    simulation = planned_session(4.0)
    simulation.handle(messages.Reset(seq=1))
    simulation.run(3.0)
    plan, song = simulation.session.plan, maker(simulation)
    assert plan.origin
    bar = 11 * FRAMES_PER_BAR
    for frame, changed in ((bar, bar), (bar + 1, bar + 1 + -(bar + 1) % FRAMES_PER_CODE)):
        song.follow(GenerationOptions(prompt=f"from {frame}"), plan.origin + frame)
        work = song.work(plan.origin, plan.origin + frame)
        assert work.change.from_frame == changed
        song.stop()


def test_a_source_plays_without_a_plan_and_after_it_another_begins() -> None:
    simulation = planned_session(3.0)
    count = len(simulation.jobs)
    simulation.handle(messages.SetSource(seq=1, id="x"), np.zeros((7, CHANNELS), np.float32))
    simulation.run(0.2)
    assert len(simulation.jobs) > count, "with a source, nothing waits for hints"
    assert (told(simulation).header, told(simulation).sections) == ({}, []), "what is played has no sections"
    simulation.run(2.8)
    assert simulation.jobs[-1].hints is None
    with pytest.raises(RequestError, match="no plan yet"):
        simulation.handle(SetPlan(seq=2, start_s=9.0, sections=[]))
    simulation.handle(messages.SetSource(seq=2, id=None))
    simulation.run(4.0)
    hints, newest = heard_hints(simulation), max(heard_hints(simulation))
    assert hints[newest] == simulation.planned(newest)
    assert simulation.session.playhead.underruns == 0


def test_after_a_restart_the_same_codes_follow_also_those_of_an_edit_that_was_not_made_yet() -> None:
    alone, restarted = planned_session(), planned_session()
    for simulation in (alone, restarted):
        simulation.run(3.0)
        start_s = earliest_s(simulation, sections=[BREAK])
        simulation.handle(SetPlan(seq=1, start_s=start_s, sections=[BREAK]))
        if simulation is restarted:
            simulation.session.detach(simulation.now_s)
            simulation.restart()
        simulation.run(12.0)
    expected, found = heard_hints(alone), heard_hints(restarted)
    common = sorted(expected.keys() & found.keys())
    assert len(common) > 10 * FRAME_RATE
    assert [found[frame] for frame in common] == [expected[frame] for frame in common]
    assert told(restarted).sections[-1].index > 10


def test_a_plan_that_failed_for_long_begins_where_it_can_be_heard() -> None:
    simulation = planned_session(plan_s=0.5)
    while simulation.now_s < 20.0:
        SimulatedForm.fails_next = True
        simulation.run(0.1)
    SimulatedForm.fails_next = False
    simulation.run(10.0)
    assert not simulation.session.plan.is_known
    simulation.run(8.0)
    found = heard_hints(simulation)
    assert found[max(found)] == simulation.planned(max(found))
    assert simulation.session.playhead.underruns == 0


def test_a_plan_that_fails_for_many_hours_is_still_tried_again() -> None:
    song = maker(planned_session())
    for _ in range(1100):
        work = song.work(0, 0)
        assert song.failed(work.number, EngineError("failed"), is_attached=True)
        assert song.work(0, 0) is None
        song.clock.now_s += 30.0


def test_of_prompts_that_change_while_the_plan_fails_the_newest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, hints_of = planned_session(), SimulatedForm.hints

    def hints(form: SimulatedForm, start_frame: int, frames: int) -> Any:
        if 4.0 < simulation.now_s < 8.0:
            raise EngineError("failed")
        return hints_of(form, start_frame, frames)

    monkeypatch.setattr(SimulatedForm, "hints", hints)
    simulation.run(4.0)
    for seq in range(1, 31):
        change_prompt(simulation, seq, f"calm {seq}")
        simulation.run(0.1)
        assert len(stored(simulation)["values"]["changes"]) <= 1
    simulation.run(8.0)
    values = stored(simulation)["values"]
    assert values["changes"] == []
    assert "calm 30" in str(values["options"]["prompt"])
    assert len(values["state"][0]["options"]) == 2, "the first prompt's plan, then that of the last"
    found = heard_hints(simulation)
    assert found[max(found)] == simulation.planned(max(found))


def test_so_many_edits_may_wait() -> None:
    simulation = planned_session(4.0)
    start_s, simulation.plan_s = earliest_s(simulation, codes=[1]), 2.0
    for seq in range(1, MAX_EDITS + 1):
        simulation.handle(SetPlan(seq=seq, start_s=start_s, codes=[seq]))
    with pytest.raises(RequestError, match=f"{MAX_EDITS} edits are not made yet"):
        simulation.handle(SetPlan(seq=MAX_EDITS + 1, start_s=start_s, codes=[1]))
    simulation.plan_s = 0.02
    simulation.run(8.0)
    simulation.handle(SetPlan(seq=MAX_EDITS + 1, start_s=earliest_s(simulation, sections=[]), sections=[]))


def test_music_goes_on_where_the_plan_fails_and_follows_it_again() -> None:
    simulation = planned_session()
    SimulatedForm.fails_next = True
    simulation.run(8.0)
    assert simulation.jobs[0].hints is None
    assert simulation.session.playhead.underruns == 0
    assert [problem.detail for problem in simulation.of(Problem)] == ["failed"]
    hints = heard_hints(simulation)
    assert hints[0] == -1.0
    assert hints[max(hints)] == simulation.planned(max(hints))


def test_a_planner_that_is_too_slow_does_not_stop_the_music() -> None:
    simulation = planned_session(2.0)
    simulation.plan_s = 30.0
    simulation.run(30.0)
    assert simulation.session.playhead.underruns == 0


@pytest.mark.parametrize("plan_s", [0.3, 0.6, 1.0])
def test_what_changes_while_a_plan_is_made_anew_does_not_wait_for_it(plan_s: float) -> None:
    simulation = planned_session(8.0, plan_s=plan_s)
    change_prompt(simulation)
    plan = simulation.session.plan
    known = plan.end
    while plan.end >= known or simulation.flights:
        simulation.step()
    changed_s = simulation.now_s
    simulation.set(2, guidance=5.0)
    while simulation.applied(2) is None:
        simulation.step()
    assert simulation.now_s - changed_s < simulation.generation_s + 0.02
    incomplete = simulation.jobs[-1]
    assert len(incomplete.hints) < incomplete.segment.frames
    simulation.run(8.0)
    hints = heard_hints(simulation)
    assert simulation.session.playhead.underruns == 0
    assert -1.0 not in hints.values()
    assert hints[max(hints)] == simulation.planned(max(hints))


def test_a_session_whose_time_stands_still_waits_for_its_plan() -> None:
    simulation = planned_session()
    simulation.session.wait_for_plan()
    simulation.run(2.0)
    simulation.plan_s = 12.0
    simulation.run(20.0)
    assert all(job.hints is not None and len(job.hints) == 64 for job in simulation.jobs)


def test_the_plan_is_told_at_the_beginning_of_a_connection_and_where_it_is_asked_for() -> None:
    simulation = planned_session(2.0)
    simulation.session.detach(simulation.now_s)
    simulation.messages.clear()
    simulation.connect()
    simulation.run(0.1)
    assert told(simulation).header == {"bpm": 100}
    simulation.messages.clear()
    simulation.handle(GetPlan())
    assert told(simulation).sections


def test_who_has_a_plan() -> None:
    assert new_session(mode="extend").plan is None
    with pytest.raises(RequestError, match=r"loop has no plan"):
        new_session(mode="loop", plan=True)
    for message in (GetPlan(), SetPlan(seq=1, start_s=0.0, sections=[])):
        with pytest.raises(RequestError, match="has no plan"):
            new_session(mode="extend").handle(message, 0.0)
    choices = new_session(mode="extend", plan=True).attach("t", 0.0, keep_s=1.0).plan
    assert (choices.kinds, choices.layers, choices.bars) == (["verse", "chorus", "break"], ["drums", "bass"], [1, 2, 4])


def test_an_edit_behind_a_change_of_prompt_is_refused_at_once_or_made() -> None:
    simulation = planned_session(4.0)
    simulation.plan_s = 1.0
    announced = [section.start_s for section in told(simulation).sections]
    change_prompt(simulation)
    for members in ({"sections": [BREAK]}, {"codes": [1]}, {"sections": [BREAK], "codes": [1]}):
        with pytest.raises(RequestError, match="planned anew") as caught:
            simulation.handle(SetPlan(seq=2, start_s=announced[-1], **members))
        assert (caught.value.field, caught.value.fix) == ("start_s", "wait for the message plan")
    simulation.run(1.5)
    simulation.plan_s = 0.05
    simulation.run(8.0)
    start_s = told(simulation).sections[-1].start_s
    simulation.handle(SetPlan(seq=2, start_s=start_s, sections=[BREAK]))
    simulation.run(1.0)
    assert (start_s, "break", 1) in [(each.start_s, each.kind, each.bars) for each in told(simulation).sections]
    assert not simulation.of(Problem)


@pytest.mark.parametrize("is_asked", [True, False])
def test_an_edit_right_after_a_change_of_prompt_is_not_lost(is_asked: bool) -> None:
    """Also where the change waits: for a step that is being made, or while the session is paused."""
    simulation = planned_session(4.0)
    simulation.plan_s = 1.0 if is_asked else 0.05
    if is_asked:
        change_prompt(simulation)
        simulation.run(0.05)
    else:
        simulation.handle(messages.Pause())
    simulation.set(3, bpm=90.0)
    last = told(simulation).sections[-1].start_s
    with pytest.raises(RequestError, match="planned anew"):
        simulation.handle(SetPlan(seq=4, start_s=last, sections=[BREAK]))
    simulation.handle(messages.Play())
    simulation.plan_s = 0.05
    simulation.run(8.0)
    start_s = told(simulation).sections[-1].start_s
    simulation.handle(SetPlan(seq=4, start_s=start_s, sections=[BREAK]))
    simulation.run(1.0)
    assert (start_s, "break", 1) in [(each.start_s, each.kind, each.bars) for each in told(simulation).sections]


def test_of_what_a_change_of_prompt_leaves_sections_can_be_edited_and_codes_up_to_it() -> None:
    simulation = planned_session(4.0)
    plan, song, form = simulation.session.plan, maker(simulation), simulation.form
    assert form is not None
    start, later = plan.sections[-2].start_frame, plan.sections[-1].start_frame
    song.follow(GenerationOptions(prompt="calm"), start + 20)
    for message in (
        SetPlan(seq=1, start_s=later / FRAME_RATE, sections=[BREAK]),
        SetPlan(seq=1, start_s=-(-start // 5) * 5 / FRAME_RATE, codes=[1, 2, 3, 4, 5]),
    ):
        with pytest.raises(RequestError):
            song.edit(message, 0)
    with pytest.raises(RequestError, match="still be changed") as caught:  # later is planned anew
        song.edit(SetPlan(seq=1, start_s=start / FRAME_RATE, sections=[BREAK]), start + 1)
    assert caught.value.fix == "wait for the next section"
    song.edit(SetPlan(seq=1, start_s=start / FRAME_RATE, sections=[BREAK]), 0)
    for _ in range(2):
        work = song.work(0, 0)
        song.made(work.number, make_part(form, work))
    assert not song.has_edits
    assert (start, "break", 1) in [(each.start_frame, each.kind, each.bars) for each in plan.sections]


def test_an_edit_that_is_being_made_can_be_edited_again_where_it_begins() -> None:
    simulation = planned_session(4.0)
    plan, song, form = simulation.session.plan, maker(simulation), simulation.form
    start, later = (section.start_frame for section in plan.sections[-2:])
    verse = NewSection(kind="verse", layers=["drums"], bars=2)
    song.edit(SetPlan(seq=1, start_s=start / FRAME_RATE, sections=[BREAK, BREAK]), 0)
    work = song.work(0, 0)
    song.edit(SetPlan(seq=2, start_s=start / FRAME_RATE, sections=[verse]), 0)
    with pytest.raises(RequestError, match="not the start of a section"):  # another one may begin there now
        song.edit(SetPlan(seq=3, start_s=later / FRAME_RATE, sections=[BREAK]), 0)
    while work is not None and song.has_edits:
        song.made(work.number, make_part(form, work))
        work = song.work(0, 0)
    assert (start, "verse", 2) in [(each.start_frame, each.kind, each.bars) for each in plan.sections]


def test_an_edit_that_is_refused_when_it_is_made_has_its_seq() -> None:
    simulation = planned_session(4.0)
    start_s = told(simulation).sections[-1].start_s
    for seq in (1, 2):  # The same once more: a problem for each.
        simulation.handle(SetPlan(seq=seq, start_s=start_s, sections=[BREAK], codes=TOO_MANY))
        simulation.run(1.5)
    refused = [(problem.seq, problem.field, problem.status) for problem in simulation.of(Problem)]
    assert refused == [(1, "codes", 422), (2, "codes", 422)]
    assert start_s in [section.start_s for section in told(simulation).sections]


def test_an_edit_in_place_of_one_that_waits_does_not_take_it_along_when_it_is_refused() -> None:
    simulation = planned_session(4.0)
    first, last = (section.start_s for section in told(simulation).sections[-2:])
    simulation.plan_s = 1.0
    for seq, start_s, codes in ((1, last, None), (2, first, None), (3, first, TOO_MANY)):
        simulation.handle(SetPlan(seq=seq, start_s=start_s, sections=[BREAK], codes=codes))
    simulation.run(5.0)
    assert [problem.seq for problem in simulation.of(Problem)] == [3]
    assert (first, "break", 1) in [(each.start_s, each.kind, each.bars) for each in told(simulation).sections]


def test_a_plan_is_not_made_without_a_client_and_goes_on_with_the_same_codes() -> None:
    alone, left = planned_session(plan_s=0.5), planned_session(plan_s=0.5)
    for simulation in (alone, left):
        simulation.run(4.25)
    made = left.session.plan.end
    left.session.detach(left.now_s)
    left.run(MAX_WAIT_S + 5.0)
    assert left.session.plan.end == made
    assert not maker(left).is_late
    left.connect()
    for simulation in (alone, left):
        simulation.run(4.0)
    end = min(left.session.plan.end, alone.session.plan.end)
    assert end > made
    frames = range(made - 50, end)
    assert [left.planned(frame) for frame in frames] == [alone.planned(frame) for frame in frames]


def test_a_client_that_was_away_is_told_which_edit_was_refused() -> None:
    simulation = planned_session(4.0)
    start_s = told(simulation).sections[-1].start_s
    simulation.handle(SetPlan(seq=1, start_s=start_s, sections=[BREAK], codes=TOO_MANY))
    simulation.session.detach(simulation.now_s)
    simulation.run(1.0)
    simulation.messages.clear()  # of a connection that is gone
    simulation.connect()
    simulation.run(3.0)
    assert [problem.seq for problem in simulation.of(Problem)] == [1]
    simulation.handle(SetPlan(seq=2, start_s=told(simulation).sections[-1].start_s, sections=[BREAK], codes=TOO_MANY))
    simulation.session.detach(simulation.now_s)
    simulation.restart()
    simulation.run(1.0)
    assert [problem.seq for problem in simulation.of(Problem)] == [1, 2]
    assert not maker(simulation).has_edits


def test_bars_begin_exactly_where_the_beat_does() -> None:
    simulation = planned_session()
    plan = simulation.session.plan
    simulation.run(1.0)
    first = plan.sections[0]
    length = 4 * 60.0 / 123.0 * FRAME_RATE
    ends = [round(length * bar) for bar in (1, 3, 6)]
    plan.sections = tuple(
        replace(
            first, bars=bars, start_frame=start, end_frame=end, bpm=123.0, first_bar=bar, offset=bar * length - start
        )
        for bars, bar, start, end in zip((2, 3), (1, 3), ends[:2], ends[1:], strict=True)
    )
    starts = [bar.start for bar in plan.bars]
    assert starts == pytest.approx([length * bar for bar in range(1, 6)], abs=1e-9)
    assert [bar.end for bar in plan.bars] == pytest.approx([*starts[1:], 6 * length], abs=1e-9)
    plan.sections = (replace(first, beats=0),)  # as a damaged document has it
    assert (plan.grids, plan.bars) == ([], ())


def test_a_bar_has_the_sixteenths_of_its_section() -> None:
    simulation = planned_session()
    plan = simulation.session.plan
    simulation.run(1.0)
    plan.sections = tuple(replace(plan.sections[0], sixteenths=sixteenths) for sixteenths in (16, 12, 0))
    plan.header = {**plan.header, "meter": "2/4"}  # of the newest song, and of sections that were stored without
    assert list(dict.fromkeys(bar.sixteenths for bar in plan.bars)) == [16, 12, 8]
