"""Plans that fit a length."""

from __future__ import annotations

import pytest
from helpers.songs import SPEC, items, kinds

from runtime.pipeline.form.fitting import bars_of, fitted

SONG = items("break 2 bass", "verse 4", "chorus 4", "verse 4", "chorus 4", "outro 2")


@pytest.mark.parametrize(
    ("bars", "most", "expected"),
    [
        (20, None, "break 2, verse 4, chorus 4, verse 4, chorus 4, outro 2"),
        (19, None, "break 2, verse 4, chorus 4, verse 4, chorus 4, outro 2"),
        (17, 6, "break 2, verse 4, chorus 4, verse 4, chorus 2, outro 2"),
        (10, 4, "break 2, verse 4, chorus 2, outro 2"),
        (8, 3, "verse 4, chorus 2, outro 2"),
        (7, 2, "verse 4, chorus 4"),
        (3, 1, "verse 4"),
        (1, 1, "verse 4"),
    ],
)
def test_repeats_are_left_out_then_what_is_short(bars: int, most: int | None, expected: str) -> None:
    found = fitted(SPEC, SONG, bars, most)
    assert ", ".join(kinds(found)) == expected
    assert sum(bars_of(SPEC, item) for item in found) >= bars
    assert {(kind, layers) for kind, layers, _ in found} <= {(kind, layers) for kind, layers, _ in SONG}


def test_no_more_is_left_out_than_the_length_allows() -> None:
    assert kinds(fitted(SPEC, items("verse 4", "chorus 4", "outro 2"), 11, 1)) == ["verse 4", "chorus 4", "outro 4"]


def test_no_section_is_left_out_that_alone_has_a_layer() -> None:
    song = items("break 2 drums", "verse 4 bass", "verse 4 bass", "chorus 4 bass")
    assert kinds(fitted(SPEC, song, 4, 2)) == ["break 2", "verse 4"]
