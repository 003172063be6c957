"""Sections in tokens: headers, recalls, and what a page has before its codes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.songs import GRID, SONG, SPEC, sections

from runtime.base.errors import RequestError
from runtime.music.sections import (
    SectionRequest,
    Song,
    given_header,
    header_options,
    header_values,
    item_of,
    last_bar,
    plan_prompt,
    recalled_frames,
    recalled_section,
    section_prompt,
    song_of,
)


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
