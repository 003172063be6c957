"""Notes of the demo's latents are those that the corpus wrote."""

from __future__ import annotations

from helpers.paths import ROOT

from configs.demo.recipe.corpus.batches import draw_songs
from configs.demo.recipe.evaluation.notes import FIRST_SEED, matched, note_figures
from configs.demo.recipe.instruments import LAYERS
from runtime.config.bundle import load_bundle


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
