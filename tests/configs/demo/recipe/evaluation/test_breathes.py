"""Levels of held notes, hammers and silence, on notes that are written by hand."""

from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

from configs.demo.recipe.corpus.envelopes import CURVES, ENVELOPE_INDEX
from configs.demo.recipe.evaluation.breathes import (
    Breath,
    breath,
    breath_row,
    breathes_figures,
    corpus_level,
    given_notes,
    is_near,
    joined,
)
from configs.demo.recipe.instruments import keys_of, pitch_channels
from configs.demo.recipe.latents import CHANNELS, SILENCE, FloatArray
from runtime.config.bundle import load_bundle
from runtime.config.notes import NotesSpec

BUNDLE = load_bundle(ROOT / Path("configs/demo"))
SILENT = np.full(CHANNELS, SILENCE, np.float32)
C2 = pitch_channels("bass").start


@pytest.fixture
def spec() -> NotesSpec:
    assert BUNDLE.notes is not None
    return BUNDLE.notes


def levels_with(curve: FloatArray) -> FloatArray:
    levels = np.zeros((80, CHANNELS), np.float32)
    levels[5 : 5 + len(curve), C2] = curve
    return levels


@pytest.mark.parametrize("name", ["piano", "upright bass", "violin", "choir"])
def test_a_note_of_the_corpus_has_its_level(spec: NotesSpec, name: str) -> None:
    found = breath(spec, "bass", levels_with(0.9 * CURVES[ENVELOPE_INDEX[name]][:60]), SILENT)
    assert len(found.held) == 1
    assert is_near(found.held[0], corpus_level(name))
    assert found.hammers == 0
    assert breath(spec, "pad", levels_with(CURVES[0][:60]), SILENT) == Breath((), 0, 0.0)


def test_rises_in_held_notes_are_hammers_and_strokes_are_not(spec: NotesSpec) -> None:
    flat = np.full(60, 0.8, np.float32)
    flat[30] = 0.7
    flat[45:48] = 0.3
    found = breath(spec, "bass", levels_with(flat), SILENT)
    assert found.hammers == 1
    assert found.held == (pytest.approx(0.7 / 0.8, abs=0.15),)
    assert not is_near(found.held[0], corpus_level("upright bass"))


def test_silence_counts_where_the_plan_sounds(spec: NotesSpec) -> None:
    hints, levels = levels_with(np.full(60, 0.6, np.float32)), levels_with(np.full(10, 0.6, np.float32))
    assert breath(spec, "bass", levels, SILENT, hints).silent_s == pytest.approx(50 / 25)
    assert breath(spec, "bass", hints, SILENT, hints).silent_s == 0.0


def test_figures_are_shares_of_instruments() -> None:
    piano, bass = ("pad", "piano"), ("bass", "upright bass")
    good, bad = Breath((0.39,) * 3, 1, 8.0, 0.5), Breath((0.9,) * 3, 3, 8.0, 0.2)
    found = breathes_figures({"planned": {piano: good, bass: bad}, "played": {piano: Breath((0.9,), 0, 0.0)}})
    assert found["breathes_planned"] == 0.5
    assert found["breathes_planned_hammers"] == 0.25
    assert found["breathes_silence_s_max"] == 0.5
    assert found["breathes_played"] == 1.0, "one note tells nothing"
    row = breath_row(piano, {"planned": joined([good, bad])})
    assert (row["planned"], row["planned notes"], row["silence s"]) == (0.645, 6, 0.5)


def test_given_notes_fit_their_layer() -> None:
    notes = given_notes("melody", 3)
    assert len({note["pitch"] for note in notes}) == len(notes) == 3
    assert all(note["pitch"] in keys_of("melody") for note in notes)
