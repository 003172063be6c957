"""Levels over the pad, by levels that are given."""

import pytest
from helpers.paths import ROOT

from configs.demo.recipe.evaluation.blends import PLACES, PRESETS, blend_figures, corner_mean_db, place_row, weights_of


def test_presets_are_those_of_the_page() -> None:
    page = (ROOT / "server" / "live" / "page" / "presets.js").read_text(encoding="utf-8")
    for name, preset in PRESETS.items():
        assert all(f'"{text}"' in page for text in (name, *preset.prompts))


def test_weights_are_bilinear() -> None:
    assert [weights_of(*PLACES[corner]).index(1.0) for corner in "ABCD"] == [0, 1, 2, 3]
    assert weights_of(*PLACES["A+B"]) == (0.5, 0.5, 0.0, 0.0)
    assert weights_of(*PLACES["centre"]) == (0.25,) * 4


def test_corners_are_averaged_by_energy() -> None:
    levels = {"A": -20.0, "B": -20.0, "C": -10.0, "D": -120.0}
    assert corner_mean_db(levels, "A") == pytest.approx(-20.0)
    assert corner_mean_db(levels, "A+B") == pytest.approx(-20.0)
    assert corner_mean_db(levels, "C+D") == pytest.approx(-13.01, abs=0.01)


def test_a_quiet_centre_is_what_deviates() -> None:
    levels = dict.fromkeys(PLACES, -17.0) | {"centre": -23.0, "A+B": -16.0}
    figures = blend_figures([place_row("one", place, levels, levels) for place in PLACES])
    assert figures["rms_deviation_db"] == figures["lufs_deviation_db"] == pytest.approx(-6.0)
    assert (figures["centre_db"], figures["a_and_b_db"]) == (pytest.approx(-6.0), pytest.approx(1.0))
