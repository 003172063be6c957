"""Plans with sections, by a tiny planner with random weights in a running loop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.lock_check import lock_checked
from helpers.songs import sections

from runtime.base.errors import GenerationCancelledError, RequestError, TickError
from runtime.config.notes import NotesSpec
from runtime.music.sections import CodedSection, SectionRequest, SongState
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.pages import CLEAR_LEAD, OPENINGS, Opening, Openings, judge_opening
from runtime.pipeline.songs.plan import KEPT_S, SongPlan
from runtime.pipeline.songs.planner import Planner, SequenceOrder, SequenceRun
from runtime.requests.options import parse_options
from runtime.tick.language.constraints import FormConstraint

RATE_HZ, SIZE = 25, 3


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(planner={"capacity": 1024, "plan": True})) as opened:
        yield opened


CheckedPlan = lock_checked(SongPlan, "_song", "_sections", "_task")


def planner_of(pipeline: Pipeline, **changes: Any) -> Planner:
    """Its planner, by other values of [planner.plan]."""
    assert pipeline.planner is not None
    planner = copy(pipeline.planner)
    assert planner.spec.plan is not None
    plan = planner.spec.plan.model_copy(update=changes)
    planner.spec = planner.spec.model_copy(update={"plan": plan})
    return planner


def plan_of(
    pipeline: Pipeline,
    total_frames: int | None = None,
    seed: int = 1,
    state: SongState | None = None,
    planner: Planner | None = None,
    openings: Openings = OPENINGS,
    **options: Any,
) -> SongPlan:
    parsed = parse_options({"prompt": "calm", **options})
    planner = planner or planner_of(pipeline)
    return CheckedPlan(planner, parsed, seed, total_frames, state=state, openings=openings)


def starts(plan: SongPlan) -> list[int]:
    return [section.start_frame for section in plan.sections]


def test_a_plan_of_known_length_fits_it_and_is_the_same_for_a_seed(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, 400, bpm=120)
    assert (plan.sections, plan.header, plan.summary) == ((), {}, {})
    codes = plan.finish()
    found = plan.sections
    assert len(codes) == -(-400 // SIZE)
    assert starts(plan) == [0, *[section.end_frame for section in found[:-1]]]
    assert found[-1].end_frame == 400
    assert [code for section in found for code in section.codes or ()] == codes
    assert plan.header["bpm"] == 120
    assert plan.summary["codes"] == codes
    assert plan.summary["sections"][-1]["end_s"] == 16.0
    assert plan_of(pipeline, 400, bpm=120).finish() == codes
    assert plan_of(pipeline, 400, bpm=120, seed=2).finish() != codes


@pytest.mark.parametrize(
    ("frames", "bpm", "why"),
    [(400, 60, "4 bars: two sections take 6"), (400, 96, None), (500, 96, None), (300, 60, None)],
)
def test_a_plan_of_16_s_has_two_sections_or_says_why_not(
    pipeline: Pipeline, frames: int, bpm: int, why: str | None
) -> None:
    plan = plan_of(pipeline, frames, bpm=bpm, time_signature=4)
    plan.plan_sections()
    assert plan.summary.get("one_section") == why
    assert (len(plan.sections) > 1) == (bpm == 96)


def test_without_an_end_more_sections_are_planned_without_codes(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=4)
    plan.plan_sections(9)
    sections = plan.sections
    assert len(sections) >= 9
    assert all(section.codes is None for section in sections)
    assert [before.end_frame for before in sections[:-1]] == [section.start_frame for section in sections[1:]]
    plan.plan_sections(9)
    assert plan.sections == sections


def test_sections_are_as_loud_as_their_kind(pipeline: Pipeline) -> None:
    assert plan_of(pipeline, 400, bpm=120).levels == ()
    plan = plan_of(pipeline, 400, bpm=120, planner=planner_of(pipeline, dynamics={"verse": (-3.0, -2.0)}))
    plan.plan_sections()
    by_kind = {"verse": (-3.0, -2.0)}
    assert plan.levels == tuple(
        (each.start_frame, each.end_frame, *by_kind.get(each.kind, (0.0, 0.0))) for each in plan.sections
    )
    assert plan.levels[-1].end_frame == 400


@pytest.mark.parametrize(("prompt", "sign"), [("calm, louder and louder", 1), ("calm, quieter and quieter", -1)])
def test_a_song_that_rises_does_so_to_its_end(pipeline: Pipeline, prompt: str, sign: int) -> None:
    planner = planner_of(pipeline, dynamics={"verse": (-3.0, -3.0)})
    plan = plan_of(pipeline, 400, bpm=120, prompt=prompt, planner=planner)
    plan.plan_sections()
    ends = [level for each in plan.levels for level in (each.first_db, each.last_db)]
    assert sign * (ends[-1] - ends[0]) >= 9.0
    assert all(sign * (each.last_db - each.first_db) > 0.0 for each in plan.levels)


def test_all_sections_of_a_plan_of_known_length_are_kept(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, round(1.5 * KEPT_S * RATE_HZ))
    plan.plan_sections()
    planned = starts(plan)
    plan.hints(round(1.4 * KEPT_S * RATE_HZ), 10)
    assert starts(plan) == planned
    assert planned[0] == plan.summary["sections"][0]["start_s"] == 0


def test_hints_are_those_of_the_codes_however_they_are_asked_for(pipeline: Pipeline) -> None:
    assert pipeline.structure is not None
    plan = plan_of(pipeline, 150)
    pieces = [plan.hints(start, min(40, 150 - start)) for start in range(0, 150, 40)]
    whole = pipeline.structure.hints_of_codes(plan.finish())
    assert np.array_equal(np.concatenate(pieces), whole)
    assert np.array_equal(plan.hints(31, 7), whole[31:38])


def test_tags_say_the_kinds_of_sections(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, 300, lyrics="[break] [drop]\n[verse]", bpm=120)
    plan.hints(0, 1)
    assert [section.kind for section in plan.sections][:3] == ["break", "chorus", "verse"][: len(plan.sections)]
    endless = plan_of(pipeline, lyrics="[verse] [drop] [break]", seed=3)
    endless.hints(0, 1)
    assert [section.kind for section in endless.sections[:3]] == ["verse", "chorus", "break"]


def test_without_an_end_it_goes_on_and_keeps_what_may_be_heard_or_recalled(pipeline: Pipeline) -> None:
    plan, step = plan_of(pipeline, bpm=144), 50
    sizes = []
    for start in range(0, 80 * RATE_HZ, step):
        assert len(plan.hints(start, step)) == step
        sizes.append(len(plan.state().codes))
        assert plan.sections[-1].codes is None, "sections are planned ahead"
    found = plan.sections
    assert found[0].start_frame > 0
    assert found[0].end_frame > 80 * RATE_HZ - step - KEPT_S * RATE_HZ
    assert [section.index for section in found] == list(range(found[0].index, found[-1].index + 1))
    assert all(section.kind != "outro" for section in found)
    assert max(sizes) < (KEPT_S + 25) * RATE_HZ / SIZE
    with pytest.raises(TickError, match="are forgotten"):
        plan.hints(0, 10 * RATE_HZ)


def test_a_restored_plan_goes_on_with_the_same_codes(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=4)
    plan.hints(0, 100)
    state = plan.state()
    expected = plan.hints(100, 300)
    restored = plan_of(pipeline, seed=4, state=state._replace(values=json.loads(json.dumps(state.values))))
    assert restored.sections[0].start_frame == 0
    assert np.array_equal(restored.hints(100, 300), expected)
    assert restored.header == plan.header


def test_sections_have_a_temperature_of_their_own_where_none_is_given(pipeline: Pipeline) -> None:
    def planned(seed: int, **options: Any) -> tuple[Any, list[int]]:
        plan = plan_of(pipeline, 300, seed=seed, planner=planner_of(pipeline, temperature=1e-4), **options)
        codes = plan.finish()
        return [(section.kind, section.layers, section.bars) for section in plan.sections], codes

    (first, codes), (second, others) = planned(1), planned(2)
    assert first == second, "the likeliest sections"
    assert codes != others, "codes are drawn as before"
    assert planned(1, plan_temperature=1.5)[0] != planned(2, plan_temperature=1.5)[0]


class Scripted:
    """Draws openings: the tonics of those that are drawn lead by so much, and so many of their layers are still."""

    def __init__(
        self, pipeline: Pipeline, num: int, leads: Sequence[float], still: Sequence[int] = (), seconds: float = 15.0
    ) -> None:
        self.opened: list[list[int]] = []
        self._leads, self._still = iter(leads), chain(still, repeat(0))
        self.values: dict[str, Any] = {
            "planner": planner_of(pipeline, openings=num),
            "openings": Openings(seconds, self._judge),
        }

    def _judge(self, planner: Planner, section: CodedSection, codes: Sequence[int]) -> Opening:
        self.opened.append(list(codes))
        lead = next(self._leads)
        return Opening(lead >= CLEAR_LEAD, -next(self._still), lead)


def test_the_first_opening_whose_tonic_is_clear_is_played(pipeline: Pipeline) -> None:
    alone = plan_of(pipeline, 120, lyrics="[verse]").finish()
    script = Scripted(pipeline, 3, [0.09, -0.1, 0.1] + 9 * [1.0])
    codes, opened = plan_of(pipeline, 120, lyrics="[verse]", **script.values).finish(), script.opened
    assert codes[: len(opened[0])] != alone[: len(opened[0])]
    assert opened[0] == alone[: len(opened[0])], "the first draw is the only one without openings"
    assert codes[: len(opened[2]) - 1] == opened[2][:-1]


@pytest.mark.parametrize(
    ("leads", "still", "played"),
    [
        ([0.5, 0.2, 0.9], [1, 0, 0], 1),
        ([0.5, 0.2, 0.9], [2, 1, 3], 1),
        ([0.5, 0.2, 0.9], [1, 1, 1], 2),
        ([0.5, -0.2, 0.05], [1, 0, 0], 0),
        ([-0.5, 0.05, 0.02], [0, 1, 0], 2),
        ([-0.5, -0.1, -0.2], [0, 0, 0], 1),
    ],
)
def test_of_openings_the_clearest_that_moves_is_played(
    pipeline: Pipeline, leads: list[float], still: list[int], played: int
) -> None:
    script = Scripted(pipeline, 3, leads + 9 * [1.0], still)
    codes, opened = plan_of(pipeline, 120, lyrics="[verse]", **script.values).finish(), script.opened
    assert codes[: len(opened[played]) - 1] == opened[played][:-1]
    assert all(opened[played] != other for place, other in enumerate(opened[:3]) if place != played)


def test_the_notes_of_an_opening_are_judged(pipeline: Pipeline) -> None:
    """By the tonic that the header names and by whether they change: one note held, and one then another."""
    (section,) = sections("verse 4")
    piano = {"name": "piano", "channels": (0, 1), "keys": (48, 55)}
    notes = NotesSpec(scale=6.0, on=0.1, off=0.05, layers=(piano,))
    bundle = pipeline.bundle.model_copy(update={"notes": notes})
    half, judged = round(5 * bundle.latents.frame_rate_hz), []
    for keys in ((0, 0), (0, 1), (1, 1)):
        hints = bundle.silence(2 * half)
        for place, channel in enumerate(keys):
            hints[half * place : half * (place + 1), channel] += notes.scale * (1.0 - 0.6 * channel)
        planner: Any = SimpleNamespace(
            bundle=bundle,
            structure=SimpleNamespace(hints_of_codes=lambda codes, hints=hints: hints),
            spec=SimpleNamespace(plan=SimpleNamespace(tonic=lambda header: 0)),
        )
        judged.append(judge_opening(planner, section, [0]))
    assert [each.moving for each in judged] == [-1, 0, -1]
    assert [each.is_clear for each in judged] == [each.lead >= CLEAR_LEAD for each in judged] == [True, True, False]
    assert [each.is_good for each in judged] == [False, True, False]


def test_a_clear_opening_is_the_one_of_a_plan_that_draws_once(pipeline: Pipeline) -> None:
    alone = plan_of(pipeline, 400, bpm=120).finish()
    script = Scripted(pipeline, 3, 99 * [0.1])
    plan = plan_of(pipeline, 400, bpm=120, **script.values)
    assert plan.finish() == alone
    kinds = [section.kind for section in plan.sections]
    assert 1 <= len(script.opened) <= len(set(kinds)), "sections that recall others are drawn once"


def test_a_plan_that_is_restored_within_a_drawn_opening_goes_on_with_it(pipeline: Pipeline) -> None:
    script = Scripted(pipeline, 2, [-1.0, 0.5] + 99 * [1.0])
    plan = plan_of(pipeline, seed=4, **script.values)
    plan.hints(0, SIZE)
    state = plan.state()
    expected = plan.hints(0, 150)
    restored = plan_of(pipeline, seed=4, state=state, **script.values)
    assert np.array_equal(restored.hints(0, 150), expected)


def test_what_follows_an_opening_does_not_depend_on_which_draw_it_is(pipeline: Pipeline) -> None:
    """A chosen opening goes on in the sequence that drew it; from its codes another one goes on with the same."""
    script = Scripted(pipeline, 3, [-1.0, -1.0, 0.5] + 99 * [1.0], seconds=2.0)
    expected = plan_of(pipeline, seed=4, **script.values).codes(0, 30)
    assert expected[: len(script.opened[2])] == script.opened[2]
    other = plan_of(pipeline, seed=4)  # none is drawn again
    other.plan_sections()
    other.replace(0, codes=script.opened[2])
    assert other.codes(0, 30) == expected


def test_changes_that_follow_each_other_soon_draw_one_opening(pipeline: Pipeline) -> None:
    script = Scripted(pipeline, 3, 999 * [-1.0], seconds=6.0)
    plan, rate_hz = plan_of(pipeline, seed=4, bpm=120, **script.values), pipeline.bundle.latents.frame_rate_hz
    counts = []
    for at_s, prompt in ((4.0, "fast"), (8.0, "slow"), (30.0, "calm")):
        frame = round(at_s * rate_hz)
        plan.hints(0, frame)
        script.opened.clear()
        plan.change(parse_options({"prompt": prompt, "bpm": 120}), frame)
        plan.hints(frame, 75)
        counts.append(len(script.opened))
    assert counts[1] == 0
    assert min(counts[0], counts[2]) >= 3, "the first one, and the one that comes long after another"
    restored = plan_of(pipeline, seed=4, bpm=120, state=plan.state(), **script.values)
    assert restored.state().values == plan.state().values


def test_a_plan_that_is_changed_draws_no_more_openings_of_what_it_was(pipeline: Pipeline) -> None:
    drawn: list[CodedSection] = []

    def judge(planner: Planner, section: CodedSection, codes: Sequence[int]) -> Opening:
        drawn.append(section)
        if len(drawn) == 1:
            plan.replace(0, [SectionRequest("break", ("bass",), 2)])
            return Opening(False, 0, -1.0)
        return Opening(True, 0, 1.0)

    plan = plan_of(pipeline, seed=4, planner=planner_of(pipeline, openings=9), openings=Openings(judge=judge))
    plan.hints(0, 100)
    assert plan.sections[0].kind == "break"
    assert len(drawn) == len({id(section) for section in drawn}) >= 2, "one opening of each section"


def test_sections_are_replaced_from_a_start_on(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=6)
    before = plan.hints(0, 200)
    at = plan.sections[-1].start_frame
    plan.replace(at, [SectionRequest("break", ("bass",), 2), SectionRequest("verse", ("drums",), 1)])
    found = [section for section in plan.sections if section.start_frame >= at]
    assert [(section.kind, section.layers, section.bars) for section in found] == [
        ("break", ("bass",), 2),
        ("verse", ("drums",), 1),
    ]
    plan.hints(at, found[-1].end_frame - at + 1)
    assert len(plan.sections) > len(found), "what follows goes on by itself"
    assert np.array_equal(plan.hints(0, min(200, at // 30 * 30)), before[: at // 30 * 30])
    with pytest.raises(RequestError, match=f"no section begins at frame {at + 1}"):
        plan.replace(at + 1, [])
    known = starts(plan)
    with pytest.raises(RequestError, match="kind is 'solo'"):
        plan.replace(at, [SectionRequest("solo", ("bass",), 2)])
    assert starts(plan) == known
    plan.replace(at, [])
    assert all(start < at for start in starts(plan))


def test_where_all_sections_are_removed_the_song_begins_with_others(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=4, bpm=120)
    plan.hints(0, 20)
    header = plan.header
    plan.replace(0, sections=())
    assert (plan.sections, plan.header) == ((), header)
    plan.hints(0, 20)
    assert (starts(plan)[0], plan.header) == (0, header)


def test_codes_are_replaced_and_what_follows_goes_on(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=6)
    codes = plan.codes(0, 40)
    wanted = [(code + 1) % 25 for code in codes[10:14]]
    plan.replace(30, codes=wanted)
    assert plan.codes(0, 14) == [*codes[:10], *wanted]
    assert plan.codes(14, 30) != codes[14:30]
    for frame, expected in ((31, "expected a multiple of 3"), (30_000, "got codes 10000 to 10000")):
        with pytest.raises(RequestError, match=expected):
            plan.replace(frame, codes=[1])


def test_a_section_is_replaced_with_its_codes(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=6)
    plan.hints(0, 200)
    second, codes = plan.sections[1], plan.codes(0, 60)
    first = second.start_frame // SIZE
    wanted = [(code + 1) % 25 for code in codes[first : first + 5]]
    wanted[0] = 0  # sounds both layers
    plan.replace(second.start_frame, [SectionRequest("break", ("bass",), 2)], wanted)
    assert plan.codes(0, first + 5) == [*codes[:first], *wanted]
    assert (plan.sections[1].layers, plan.sections[1].others) == (("bass",), ("drums",))
    assert all(section.others == () for section in plan.sections if section.index != 1), "made codes are silent"
    assert (plan.sections[1].kind, plan.sections[1].start_frame) == ("break", second.start_frame)
    known = plan.sections
    with pytest.raises(RequestError, match="code 25 is unknown"):
        plan.replace(second.start_frame, [SectionRequest("verse", ("drums",), 1)], [25])
    assert plan.sections == known


def test_another_tempo_begins_with_a_bar_and_keeps_the_kind(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=8, bpm=120)
    before = plan.hints(0, 60)
    playing = next(section for section in plan.sections if section.end_frame > 40)
    bar_frames = (playing.end_frame - playing.start_frame) / playing.bars
    plan.change(parse_options({"prompt": "wild", "bpm": 97}), 40)
    plan.hints(60, 200)
    bars = [frame for frame in starts(plan) if frame >= 40]
    meter = {"4/4": 4, "3/4": 3}
    changed = next(section for section in plan.sections if section.start_frame == bars[0])
    assert changed.kind == playing.kind
    assert abs((changed.start_frame - playing.start_frame) / bar_frames % 1 - 0.5) > 0.45, "the beat goes on"
    assert plan.header["bpm"] == 97
    length = changed.bars * meter[plan.header["meter"]] * 60 / 97 * RATE_HZ
    assert abs(changed.end_frame - changed.start_frame - length) <= 1
    assert np.array_equal(plan.hints(0, 30), before[:30])


def test_an_edit_and_another_prompt_begin_where_the_edited_section_did(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=8, bpm=120)
    plan.hints(0, 30)
    plan.change(parse_options({"prompt": "wild", "bpm": 120}), 18)
    plan.replace(0, [])
    plan.change(parse_options({"prompt": "calm", "bpm": 97}), 24)
    assert len(plan.hints(0, 60)) == 60
    assert starts(plan)[0] == 0


def test_the_oldest_section_that_is_shown_is_replaced_in_its_place(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=3)
    for start in range(0, 90 * RATE_HZ, 250):
        plan.hints(start, 250)
    oldest = plan.sections[0]
    assert oldest.start_frame > 0
    plan.replace(oldest.start_frame, [SectionRequest("break", ("bass",), 2)])
    assert (plan.sections[0].kind, plan.sections[0].start_frame) == ("break", oldest.start_frame)
    later = oldest.end_frame + 10 * RATE_HZ
    assert len(plan.hints(later, 50)) == 50
    assert starts(plan) == [plan.sections[0].start_frame, *[section.end_frame for section in plan.sections[:-1]]]


@pytest.mark.parametrize("is_first", [True, False])
def test_sections_that_were_being_planned_before_another_tempo_are_not_taken(
    pipeline: Pipeline, is_first: bool
) -> None:
    """The tempo changes while the first, or a later, page of sections is written."""
    planner, changed = planner_of(pipeline), list[int]()
    start, is_armed = planner.start, [is_first]

    def started(order: SequenceOrder, *args: Any) -> SequenceRun:
        run = start(order, *args)
        if is_armed[0] and not changed and isinstance(order.constraint, FormConstraint):
            run.wait(order.max_tokens)
            changed.append(plan.sections[-1].index if plan.sections else -1)
            plan.change(parse_options({"prompt": "calm", "bpm": 180}), 0)
        return run

    planner.start = started  # type: ignore[method-assign]
    plan = plan_of(pipeline, seed=9, planner=planner)
    if not is_first:
        plan.hints(0, 1)
        is_armed[0] = True
    while not changed:
        plan.hints(plan.sections[-1].start_frame + 1 if plan.sections else 0, 1)
    plan.hints(0, 1)
    assert plan.header["bpm"] == 180
    assert (changed[0] == -1) == is_first


def test_who_waits_takes_up_an_edit_and_an_end(pipeline: Pipeline) -> None:
    plan = plan_of(pipeline, seed=9)
    plan.hints(0, 1)
    ended = list[TickError]()

    def wait() -> None:
        try:
            plan.hints(0, 100_000)
        except TickError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    last = plan.sections[-1].start_frame
    plan.replace(last, [SectionRequest("break", ("bass",), 4)])
    assert any(section.kind == "break" and section.start_frame == last for section in plan.sections)
    plan.close()
    thread.join(60)
    assert [type(error) for error in ended] == [GenerationCancelledError]
