"""What a heard key is to the asked one."""

import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.corpus.theory import MODES, NOTE_NAMES
from configs.demo.recipe.evaluation.tonic import PIECES, relation, tonic_figures


def test_there_are_pieces_of_several_modes() -> None:
    assert len(PIECES) == 24
    assert {mode for _, _, mode in PIECES} <= set(MODES)
    assert {name for _, name, _ in PIECES} <= set(NOTE_NAMES)


@pytest.mark.parametrize(
    ("asked", "found", "expected"),
    [
        ((2, "major"), (2, "major"), "exact"),
        ((2, "major"), (2, "minor"), "exact"),
        ((2, "major"), (11, "minor"), "relative"),
        ((9, "minor"), (0, "major"), "relative"),
        ((2, "dorian"), (9, "minor"), "relative"),
        ((2, "dorian"), (7, "major"), "other"),
        ((7, "pentatonic"), (4, "minor"), "relative"),
        ((9, "blues"), (0, "major"), "relative"),
        ((2, "major"), (9, "major"), "other"),
    ],
)
def test_keys_of_the_same_notes_are_relative(asked: tuple[int, str], found: tuple[int, str], expected: str) -> None:
    assert relation(*asked, *found) == expected


def test_shares_are_of_all_pieces() -> None:
    figures = tonic_figures([{"is": kind} for kind in ("exact", "exact", "relative", "other")])
    assert figures == {"tonic_exact": 0.5, "tonic_relative": 0.25, "tonic_other": 0.25}
