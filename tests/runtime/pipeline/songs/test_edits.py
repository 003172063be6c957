"""Edits: what is before them stays, what is behind them is made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.songs import GRID, SPEC, items, sections

from runtime.base.errors import RequestError
from runtime.music.sections import Song
from runtime.pipeline.songs.edits import code_at, continued, cut, kept, section_at, with_codes, with_items

PLAN = sections("verse 2", "chorus 1", "verse 4", made=60)


def test_sections_follow_in_bars_and_in_frames() -> None:
    assert [(each.index, each.first_bar, each.start_frame, each.end_frame) for each in PLAN] == [
        (0, 0, 0, 100),
        (1, 2, 100, 150),
        (2, 3, 150, 350),
    ]
    assert [number for each in PLAN for number in each.span] == list(range(350 // 3))
    other = Song((8, 13), (), GRID.at(96, 3))
    more = with_items(SPEC, other, items("break 1"), PLAN)
    assert more[:3] == PLAN
    assert (more[3].index, more[3].first_bar) == (3, 0)


def test_a_song_begins_with_a_section_where_those_before_it_are_forgotten() -> None:
    assert continued(PLAN[2], PLAN[:2]) is continued(PLAN[0], []) is PLAN[0].song
    for before in ([], PLAN[:1]):
        (*_, moved) = with_items(SPEC, continued(PLAN[2], before), items("break 1"), before)
        assert (moved.first_bar, moved.start_frame, moved.end_frame) == (0, 150, 200)


def test_a_section_is_found_by_its_first_frame() -> None:
    assert section_at(PLAN, 100) is PLAN[1]
    with pytest.raises(RequestError, match="no section begins at frame 101, expected one of 0, 100, 150"):
        section_at(PLAN, 101)
    with pytest.raises(RequestError, match="none is planned yet"):
        section_at([], 0)


def test_a_code_is_found_by_its_first_frame() -> None:
    assert (code_at(PLAN, 3, 3), code_at(PLAN[1:], 99, 3), code_at([], 0, 3)) == (1, 33, 0)
    for found, frame in ((PLAN, 4), (PLAN[1:], 96)):
        with pytest.raises(RequestError, match=f"begin at frame {frame}, expected a multiple of 3 from"):
            code_at(found, frame, 3)


def test_codes_take_the_place_of_those_from_one_on() -> None:
    changed = with_codes(PLAN, 31, [7, 7, 7, 8], made=60, num_codes=25)
    assert changed[0] is not PLAN[0]
    assert changed[0].codes == [*PLAN[0].codes[:31], 7, 7]
    assert changed[1].codes == [7, 8]
    assert changed[2].codes == []
    kept = with_codes(PLAN, 33, [], made=60, num_codes=25)
    assert (kept[0], kept[1].codes) == (PLAN[0], [])


@pytest.mark.parametrize(
    ("first", "codes", "expected"),
    [
        (3, [4, 25], "code 25 is unknown, the model has 0 to 24"),
        (61, [4], "got codes 61 to 61, expected them to begin at 60"),
        (60, [4] * 57, "before 116"),
    ],
)
def test_codes_that_do_not_fit_are_refused(first: int, codes: list[int], expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        with_codes(PLAN, first, codes, made=60, num_codes=25)


@pytest.mark.parametrize(("frame", "bars"), [(0, 0), (1, 1), (50, 1), (51, 2), (99, 2)])
def test_a_section_is_cut_where_a_bar_begins(frame: int, bars: int) -> None:
    shorter = cut(PLAN[0], frame)
    assert (shorter.bars, shorter.end_frame) == (bars, 50 * bars)
    assert shorter.codes == PLAN[0].codes[: 50 * bars // 3]
    assert len(PLAN[0].codes) == 33


def test_the_last_sections_and_what_may_be_recalled_are_kept() -> None:
    """The first of a kind is; what is long past, of a kind that came before, is not."""
    plan = sections(*["verse 2", "chorus 2", *["verse 2"] * 12])
    assert [each.index for each in kept(plan, plan[-1], plan[-1].end_frame)] == [0, 1, *range(6, 14)]
    assert [each.index for each in kept(plan, plan[-1], plan[2].start_frame)] == [0, 1, *range(2, 14)]
    other = Song((8, 13), (), GRID.at(96, 3))
    (newest,) = with_items(SPEC, other, items("break 1"), [])
    assert kept(plan, replace(newest, index=14), plan[-1].end_frame) == plan[7:]
