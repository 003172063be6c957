"""Notes of the demo's latents are those that the corpus wrote; notes that are given to it are played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.paths import ROOT

pytest.importorskip("librosa")
pytest.importorskip("pretty_midi")

from configs.demo.recipe.corpus.batches import draw_songs
from configs.demo.recipe.evaluation.notes import (
    FIRST_SEED,
    echo_row,
    given_row,
    matched,
    melody,
    melody_f1,
    note_figures,
)
from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.instruments import LAYERS
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.pipeline.pipeline import open_pipeline


def test_the_corpus_notes_are_found_with_their_instruments() -> None:
    figures, rows = note_figures(load_bundle(ROOT / "configs" / "demo"), draw_songs(6, FIRST_SEED + 1))
    assert [row["layer"] for row in rows] == list(LAYERS)
    assert figures["notes_f1"] >= 0.98
    assert all(figures[f"notes_f1_{layer}"] >= 0.97 for layer in LAYERS), figures
    assert figures["notes_quantized_p95_ms"] <= 16
    assert figures["notes_instruments"] == 1.0


def test_an_onset_matches_once_within_the_tolerance() -> None:
    assert matched({40: [0.0, 0.05, 1.0]}, {40: [0.03, 1.05], 41: [1.0]}) == [(0.0, 0.03)]
    assert matched({40: [0.5]}, {}) == []


@pytest.fixture(scope="module")
def player(built_demo: Deployment) -> Iterator[Player]:
    with open_pipeline(built_demo) as pipeline:
        yield Player(pipeline)


def test_notes_that_are_given_are_played_with_a_bass_in_their_key(player: Player) -> None:
    planned = given_row(player, num_melodies=4, plan=True)
    assert planned["F1"] >= 0.7
    assert planned["bass in key"] >= 0.9
    assert given_row(player, num_melodies=2, plan=True, notes_exact=True)["F1"] >= 0.97


def test_a_bar_that_is_played_to_a_live_session_comes_back_a_bar_later(player: Player) -> None:
    assert echo_row(player, 0, exact=True)["F1"] >= 0.9
    assert echo_row(player, 0, exact=False)["F1"] >= 0.5


def test_melodies_are_compared_by_pitch_and_onset() -> None:
    notes = melody(0)
    assert melody_f1(notes, notes) == 1.0
    assert melody_f1(notes, [note._replace(start_s=note.start_s + 0.07) for note in notes]) == 0.0
    assert melody_f1(notes, [note._replace(pitch=note.pitch + 12) for note in notes]) == 0.0
    assert melody_f1(notes[:10], notes[:20]) == pytest.approx(2 / 3)
