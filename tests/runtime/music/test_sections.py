"""Sections in tokens: headers, recalls, and what a page has before its codes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.songs import GRID, SONG, SPEC, items, sections

from runtime.base.errors import RequestError
from runtime.config.plan_spec import PlanSpec
from runtime.music.sections import (
    SectionRequest,
    Song,
    SongSection,
    SongState,
    check_state,
    given_header,
    header_options,
    header_values,
    item_of,
    last_bar,
    packed,
    plan_prompt,
    recalled_frames,
    recalled_section,
    section_prompt,
    section_prompts,
    song_of,
    unpacked,
)
from runtime.pipeline.songs.edits import with_items
from runtime.requests.option_types import WeightedPrompt


def test_a_tempo_is_the_exact_one_or_the_middle_of_its_range() -> None:
    assert song_of(SPEC, (9, 13), (), 131, GRID) == Song((9, 13), (), GRID.at(131, 3))
    assert song_of(SPEC, (8, 12), (28,), None, GRID).rhythm.bpm == 108
    assert header_values(SPEC, song_of(SPEC, (9, 13), (), 131.5, GRID)) == {"bpm": 131.5, "meter": "3/4"}


def test_a_prompt_gives_the_header_what_it_says_once() -> None:
    assert given_header(SPEC, (13, 28, 200), None) == {1: 13}
    assert given_header(SPEC, (8, 9, 13), None) == {1: 13}
    assert given_header(SPEC, (8, 9), 143) == {0: 9}
    assert [given_header(SPEC, (), bpm)[0] for bpm in (30, 96, 144, 300)] == [8, 8, 10, 10]
    assert plan_prompt(SPEC, (28, 9, 28)) == (1, 9, 28, 2)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (SectionRequest("solo", ("drums",), 2), "kind is 'solo', expected one of verse, chorus, break, outro"),
        (SectionRequest("verse", (), 2), r"layers is \(\), expected some of bass, drums"),
        (SectionRequest("verse", ("drums", "harp"), 2), "layers"),
        (SectionRequest("verse", ("drums",), 3), "bars is 3, expected one of 1, 2, 4"),
    ],
)
def test_a_section_that_cannot_be_is_refused(request_: SectionRequest, expected: str) -> None:
    assert item_of(SPEC, SectionRequest("break", ("bass", "drums"), 4)) == (18, 22, 26)
    with pytest.raises(RequestError, match=expected):
        item_of(SPEC, request_)


def test_a_planned_section_tells_where_its_bars_are_exactly() -> None:
    song = Song((9, 12), (), GRID.at(124.3, 4))
    for section in sections("verse 2", "chorus 1", "verse 4", song=song):
        planned = section.planned(SPEC, None)
        exact = planned.first_bar * 4 * 60 / 124.3 * GRID.frame_rate_hz
        assert planned.start_frame + planned.offset == pytest.approx(exact, abs=1e-9)
        assert abs(planned.offset) <= 0.51
        assert (planned.bpm, planned.beats, planned.sixteenths) == (124.3, 4, 16)


def test_a_section_recalls_the_first_of_its_kind_or_of_its_material() -> None:
    found = sections("verse 2", "chorus 2", "break 1", "chorus 1", "outro 1")
    recalled = [recalled_section(SPEC, found, section) for section in found]
    assert recalled == [None, None, found[0], found[1], found[0]]
    other = sections("verse 2", song=Song((9, 12), (), GRID.at(96, 4)))
    assert recalled_section(SPEC, other, found[2]) is None


def test_what_is_recalled_begins_with_the_section_and_begins_again() -> None:
    first, _, longer = sections("verse 1", "chorus 1", "verse 2")
    frames = recalled_frames(first, longer)
    assert len(frames) == 3 * len(longer.span)
    start = 100 - 3 * longer.span.start  # frames of the first code that belong to the section before
    assert frames[start : start + 48].tolist() == list(range(48)), "the recalled codes end at frame 48 of 50"
    assert frames[start + 50 : start + 60].tolist() == list(range(10))
    assert frames.min() == 0
    assert np.all(frames < 3 * len(first.span))


def test_a_page_begins_with_the_song_and_the_last_bar_before() -> None:
    before, section = sections("verse 2", "chorus 1")
    assert section_prompt(SPEC, before, None, {}) == (1, 9, 12, 28, 4, 16, 22, 25)
    span = last_bar(before)
    assert span == range(16, 33)
    found = section_prompt(SPEC, section, before, dict.fromkeys(span, (260, 265)))
    assert found[:8] == (1, 9, 12, 28, 3, 33, GRID.clock_marker(16), 260)
    assert found[-4:] == (4, 17, 22, 24)
    assert len(found) == 5 + 3 * len(span) + 1 + 4


def test_a_planned_section_has_codes_once_there_are_all() -> None:
    section = sections("verse 2", made=20)[0]
    planned = section.planned(SPEC, None)
    assert (planned.index, planned.kind, planned.layers, planned.bars) == (0, "verse", ("drums", "bass"), 2)
    assert (planned.start_frame, planned.end_frame, planned.codes) == (0, 100, None)
    assert section.planned(SPEC, 60).codes == tuple(range(20))
    assert section.planned(SPEC, 60).end_frame == 60
    assert section.planned(SPEC, 61).codes is None
    assert SONG.rhythm.frame(2) == 100


def test_a_header_in_the_options_of_prompts() -> None:
    header = {"genre": "funk", "bpm": 112.5, "meter": "6/8", "key": "f#", "mode": "harmonic minor"}
    assert header_options(header) == {"bpm": 112.5, "time_signature": 6, "key": "F# harmonic minor"}
    assert header_options({"bpm": 100, "meter": "3/4", "key": "c"}) == {"bpm": 100, "time_signature": 3}
    assert header_options({}) == {}


WORDS = SPEC.model_copy(update={"layer_words": {"drums": ("drums", "no drums"), "bass": ("bass", "no bass")}})
FIRST, SECOND, THIRD = (
    section.planned(SPEC, None) for section in sections("verse 2", "break 1 bass", "chorus 1 drums bass")
)


def test_every_section_has_its_words_in_its_frames() -> None:
    found = section_prompts(WORDS, "calm", [FIRST, SECOND, THIRD], 90, 80)
    assert isinstance(found, list)
    assert [item.text for item in found] == ["calm, drums, bass", "calm, no drums, bass"]
    alike, alone = (np.array(item.weight) for item in found)
    assert np.flatnonzero(alone).tolist() == list(range(10, 60))
    assert np.array_equal(alike, 1 - alone), "sections with the same layers share a prompt"


@pytest.mark.parametrize(
    ("spec", "prompt", "found", "start", "said"),
    [
        (WORDS, "calm", [replace(SECOND, others=("drums",))], 100, "calm, drums, bass"),  # what given codes sound
        (WORDS, "calm", [SECOND], 100, "calm, no drums, bass"),
        (WORDS, "", [FIRST, SECOND], 0, "drums, bass"),
        (WORDS, "calm", [FIRST], 450, "calm, drums, bass"),  # also behind the last section
        (SPEC, "calm", [FIRST], 0, "calm"),
        (WORDS, "calm", [], 0, "calm"),
    ],
)
def test_one_prompt_stays_a_text(spec: PlanSpec, prompt: str, found: list[SongSection], start: int, said: str) -> None:
    assert section_prompts(spec, prompt, found, start, 50) == said


def test_what_an_ensemble_stands_for_is_in_the_prompt() -> None:
    named = WORDS.model_copy(update={"ensembles": {"string quartet": "strings, violin"}})
    assert section_prompts(named, "a String Quartet", [FIRST], 0, 9) == "a strings, violin, drums, bass"
    found = section_prompts(named, [WeightedPrompt(text="string quartet")], [FIRST, SECOND], 75, 51)
    assert [item.text for item in found if isinstance(item, WeightedPrompt)] == [
        "strings, violin, drums, bass",
        "strings, violin, no drums, bass",
    ]


def test_weights_of_prompts_are_kept() -> None:
    given = [WeightedPrompt(text="a", weight=[0.0, 1.0]), WeightedPrompt(text="b", weight=0.5, start=0.25)]
    found = section_prompts(WORDS, given, [FIRST, SECOND], 75, 51)
    assert isinstance(found, list)
    assert [item.text for item in found] == [
        "a, drums, bass",
        "a, no drums, bass",
        "b, drums, bass",
        "b, no drums, bass",
    ]
    weights = np.array([item.weight for item in found])
    assert np.allclose(weights[0] + weights[1], np.linspace(0, 1, 51))
    assert np.allclose(weights[2] + weights[3], 0.5)
    assert found[3].start == 0.25


def test_sections_and_songs_come_back_as_they_were() -> None:
    first = sections("verse 2", "chorus 1", made=40)
    song = Song((8, 13), (29,), replace(GRID.at(96.5, 3), first_frame=12.25))
    plan = with_items(SPEC, song, items("break 2"), first)
    state = packed(plan, song, more=[1])
    assert state.values["more"] == [1]
    assert state.codes.dtype == np.int64
    found, newest = unpacked(state._replace(values=json.loads(json.dumps(state.values))), GRID)
    assert [replace(each, codes=[]).planned(SPEC, None) for each in found] == [
        replace(each, codes=[]).planned(SPEC, None) for each in plan
    ]
    assert [each.codes for each in found] == [each.codes for each in plan]
    assert newest is found[2].song
    assert newest == song
    assert found[0].song is found[1].song
    assert unpacked(packed([], None), GRID) == ([], None)


def state() -> SongState:
    return packed(sections("verse 2", "chorus 1", made=40), SONG, kinds=[], first_frame=0.0, asked_frame=0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("songs",), [[1]]),
        (("songs", 0, 0, 0), 10**6),
        (("songs", 0, 0), [9]),
        (("songs", 0, 1), [0]),
        (("songs", 0, 2), 0.0),
        (("songs", 0, 3), 13),
        (("song",), 1),
        (("sections", 0), [0]),
        (("sections", 0, 1), 7),
        (("sections", 0, 2, 0), 0),
        (("sections", 1, 5), 1),
        (("sections", 1, 4), 1025),
        (("sections", 1, 4), -1),
        (("sections", 1, 3), 2**53 + 1),
        (("songs", 0, 2), 1000.5),
        (("first_frame",), 2.0**54),
        (("kinds",), [0]),
        (("first_frame",), "a"),
        (("asked_frame",), None),
    ],
)
def test_what_no_plan_goes_on_from_is_refused(place: tuple[Any, ...], value: Any) -> None:
    check_state(state(), SPEC, 25)
    longest = state().values | {
        "sections": [[*section[:4], 1024, section[5]] for section in state().values["sections"]]
    }
    check_state(state()._replace(values=longest), SPEC, 25)
    values = json.loads(json.dumps(state().values))
    parent = values
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    with pytest.raises(RequestError, match="the plan's state"):
        check_state(state()._replace(values=values), SPEC, 25)


def test_codes_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(RequestError, match="codes"):
        check_state(state(), SPEC, 24)
