"""Edits: what is before them stays, what is behind them is made anew; and plans that fit a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.songs import GRID, SPEC, items, sections

from runtime.base.errors import RequestError
from runtime.music.sections import Item, Song
from runtime.pipeline.songs.edits import code_at, continued, cut, kept, section_at, with_codes, with_items
from runtime.pipeline.songs.fitting import fitted

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


LONG_SPEC = SPEC.model_copy(update={"bar_markers": SPEC.bar_markers.model_copy(update={"count": 8})})
SONG = items("break 2 bass", "verse 4", "chorus 4", "verse 4", "chorus 4", "outro 2")


def shown(found: Sequence[tuple[Item, int]]) -> str:
    """Kind and bars of sections."""
    return ", ".join(f"{LONG_SPEC.kind.value(item[0])} {bars}" for item, bars in found)


@pytest.mark.parametrize(
    ("bars", "most", "expected"),
    [
        (20, None, "break 2, verse 4, chorus 4, verse 4, chorus 2, outro 4"),
        (19, None, "break 2, verse 4, chorus 4, verse 2, chorus 2, outro 5"),
        (16, 6, "break 2, verse 4, chorus 2, verse 2, chorus 2, outro 4"),
        (10, 4, "break 2, verse 2, chorus 2, outro 4"),
        (8, 3, "verse 2, chorus 2, outro 4"),
        (8, 2, "verse 4, outro 4"),
        (7, 2, "verse 2, chorus 5"),
        (6, 2, "verse 4, chorus 2"),
        (4, 1, "verse 4"),
        (1, 1, "verse 1"),
    ],
)
def test_repeats_are_left_out_then_what_is_short(bars: int, most: int | None, expected: str) -> None:
    """The last one is whole, and has 4 bars where it ends the song; a song below 8 bars has no end."""
    found = fitted(LONG_SPEC, SONG, bars, most)
    assert shown(found) == expected
    assert sum(num_bars for _, num_bars in found) >= bars
    assert {(kind, layers) for (kind, layers, _), _ in found} <= {(kind, layers) for kind, layers, _ in SONG}


def test_every_length_has_a_whole_last_section_and_no_odd_one_before_it() -> None:
    """A bar or two may follow those of the last one: its notes ring out in them."""
    for bars in range(10, 27):
        found = fitted(LONG_SPEC, SONG, bars, None if bars > 16 else 4)
        assert sum(num_bars for _, num_bars in found) == bars
        assert all(num_bars % 2 == 0 for _, num_bars in found[:-1])
        assert 4 <= found[-1][1] <= 6


def test_a_section_that_is_planned_with_an_odd_number_of_bars_keeps_them() -> None:
    song = items("verse 1", "chorus 4", "outro 4")
    assert shown(fitted(LONG_SPEC, song, 9, None)) == "verse 1, chorus 4, outro 4"


def test_no_section_has_more_bars_than_there_are_markers() -> None:
    song = items("chorus 4", "outro 4")
    assert shown(fitted(SPEC, song, 7, None)) == "chorus 4, outro 3"


def test_no_more_is_left_out_than_the_length_allows() -> None:
    assert shown(fitted(LONG_SPEC, items("verse 4", "chorus 4", "outro 2"), 11, 1)) == "verse 4, chorus 2, outro 5"


def test_a_song_is_never_an_ending_alone() -> None:
    """Also where the ending has as many layers, and the length has room for one: with bars of up to 8."""
    bars = LONG_SPEC.bars.model_copy(update={"values": (*LONG_SPEC.bars.values, "8")})
    spec = LONG_SPEC.model_copy(update={"bars": bars})
    longest = bars.token("8")
    song = [(kind, layers, longest) for kind, layers, _ in items("verse 4", "outro 4")]
    assert shown(fitted(spec, song, 8, 1)) == "verse 8"
    assert shown(fitted(spec, song, 8, 2)) == "verse 4, outro 4"


def test_no_section_is_left_out_that_alone_has_a_layer() -> None:
    song = items("break 2 drums", "verse 4 bass", "verse 4 bass", "chorus 4 bass")
    assert shown(fitted(LONG_SPEC, song, 4, 2)) == "break 2, verse 2"


def test_sections_of_the_main_kinds_are_left_out_last() -> None:
    song, spec = items("break 4", "chorus 2", "outro 4"), LONG_SPEC.model_copy(update={"main": ("chorus",)})
    assert shown(fitted(spec, song, 8, 2)) == "chorus 4, outro 4"
    assert shown(fitted(LONG_SPEC, song, 8, 2)) == "break 4, outro 4"


def test_what_begins_a_song_becomes_no_longer_than_the_model_says() -> None:
    song, spec = items("break 2", "verse 1", "outro 4"), LONG_SPEC.model_copy(update={"beginning": "break"})
    assert shown(fitted(spec, song, 9, None)) == "break 4, verse 1, outro 4"
    assert shown(fitted(spec.model_copy(update={"beginning_bars": 2}), song, 8, None)) == "break 2, verse 1, outro 5"


def test_sections_that_are_given_stay() -> None:
    song = items("break 2 bass", "verse 4", "chorus 4", "verse 4", "outro 2")
    assert shown(fitted(LONG_SPEC, song, 8, 2)) == "verse 4, outro 4"
    assert shown(fitted(LONG_SPEC, song, 8, 2, 1)) == "break 4, outro 4"
    assert shown(fitted(LONG_SPEC, song, 8, 1, 2)) == "break 4, verse 4"
