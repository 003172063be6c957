"""Plans that fit a length."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers.songs import SPEC as SHORT_SPEC
from helpers.songs import items

from runtime.music.sections import Item
from runtime.pipeline.songs.fitting import fitted

SPEC = SHORT_SPEC.model_copy(update={"bar_markers": SHORT_SPEC.bar_markers.model_copy(update={"count": 8})})
SONG = items("break 2 bass", "verse 4", "chorus 4", "verse 4", "chorus 4", "outro 2")


def shown(found: Sequence[tuple[Item, int]]) -> str:
    """Kind and bars of sections."""
    return ", ".join(f"{SPEC.kind.value(item[0])} {bars}" for item, bars in found)


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
    found = fitted(SPEC, SONG, bars, most)
    assert shown(found) == expected
    assert sum(num_bars for _, num_bars in found) >= bars
    assert {(kind, layers) for (kind, layers, _), _ in found} <= {(kind, layers) for kind, layers, _ in SONG}


def test_every_length_has_a_whole_last_section_and_no_odd_one_before_it() -> None:
    """A bar or two may follow those of the last one: its notes ring out in them."""
    for bars in range(10, 27):
        found = fitted(SPEC, SONG, bars, None if bars > 16 else 4)
        assert sum(num_bars for _, num_bars in found) == bars
        assert all(num_bars % 2 == 0 for _, num_bars in found[:-1])
        assert 4 <= found[-1][1] <= 6


def test_a_section_that_is_planned_with_an_odd_number_of_bars_keeps_them() -> None:
    song = items("verse 1", "chorus 4", "outro 4")
    assert shown(fitted(SPEC, song, 9, None)) == "verse 1, chorus 4, outro 4"


def test_no_section_has_more_bars_than_there_are_markers() -> None:
    song = items("chorus 4", "outro 4")
    assert shown(fitted(SHORT_SPEC, song, 7, None)) == "chorus 4, outro 3"


def test_no_more_is_left_out_than_the_length_allows() -> None:
    assert shown(fitted(SPEC, items("verse 4", "chorus 4", "outro 2"), 11, 1)) == "verse 4, chorus 2, outro 5"


def test_a_song_is_never_an_ending_alone() -> None:
    """Also where the ending has as many layers, and the length has room for one: with bars of up to 8."""
    bars = SPEC.bars.model_copy(update={"values": (*SPEC.bars.values, "8")})
    spec = SPEC.model_copy(update={"bars": bars})
    longest = bars.token("8")
    song = [(kind, layers, longest) for kind, layers, _ in items("verse 4", "outro 4")]
    assert shown(fitted(spec, song, 8, 1)) == "verse 8"
    assert shown(fitted(spec, song, 8, 2)) == "verse 4, outro 4"


def test_no_section_is_left_out_that_alone_has_a_layer() -> None:
    song = items("break 2 drums", "verse 4 bass", "verse 4 bass", "chorus 4 bass")
    assert shown(fitted(SPEC, song, 4, 2)) == "break 2, verse 2"


def test_sections_of_the_main_kinds_are_left_out_last() -> None:
    song, spec = items("break 4", "chorus 2", "outro 4"), SPEC.model_copy(update={"main": ("chorus",)})
    assert shown(fitted(spec, song, 8, 2)) == "chorus 4, outro 4"
    assert shown(fitted(SPEC, song, 8, 2)) == "break 4, outro 4"


def test_what_begins_a_song_becomes_no_longer_than_the_model_says() -> None:
    song, spec = items("break 2", "verse 1", "outro 4"), SPEC.model_copy(update={"beginning": "break"})
    assert shown(fitted(spec, song, 9, None)) == "break 4, verse 1, outro 4"
    assert shown(fitted(spec.model_copy(update={"beginning_bars": 2}), song, 8, None)) == "break 2, verse 1, outro 5"


def test_sections_that_are_given_stay() -> None:
    song = items("break 2 bass", "verse 4", "chorus 4", "verse 4", "outro 2")
    assert shown(fitted(SPEC, song, 8, 2)) == "verse 4, outro 4"
    assert shown(fitted(SPEC, song, 8, 2, 1)) == "break 4, outro 4"
    assert shown(fitted(SPEC, song, 8, 1, 2)) == "break 4, verse 4"
