"""What a heard key is to the asked one."""

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.corpus.theory import MODES, NOTE_NAMES
from configs.demo.recipe.evaluation.tonic import PIECES, num_changes, relation, tonic_figures
from configs.demo.recipe.instruments import pitch_channels


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


def test_shares_are_of_all_pieces_and_of_those_that_have_a_layer() -> None:
    heard = (
        ("exact", "pad 0 bass 3", "pad"),
        ("exact", "pad 4", ""),
        ("relative", "", ""),
        ("other", "bass 0", "bass"),
    )
    figures = tonic_figures([{"is": kind, "changes": changes, "still": still} for kind, changes, still in heard])
    shares = {"tonic_exact": 0.5, "tonic_relative": 0.25, "tonic_other": 0.25}
    assert figures == {**shares, "tonic_still_pad": 0.5, "tonic_still_bass": 0.5}


def test_a_layer_moves_where_another_key_is_the_loudest() -> None:
    levels = np.zeros((40, 64), np.float32)
    first, second = pitch_channels("melody")[:2]
    levels[:10, first] = levels[20:, first] = 0.8
    levels[10:15, second] = 0.8
    levels[12, first] = 0.5
    assert (num_changes(levels, "melody"), num_changes(levels, "pad")) == (2, 0)
