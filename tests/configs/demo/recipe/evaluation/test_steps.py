"""Distances between solutions, on levels that are written here."""

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.evaluation import steps
from configs.demo.recipe.evaluation.player import Piece
from configs.demo.recipe.latents import CHANNELS, HOP_SAMPLES, FloatArray, latents_from_levels

FRAMES = 128


def beats(moved: int = 0) -> FloatArray:
    """A note every 12 frames; every second one comes `moved` frames late."""
    levels = np.zeros((FRAMES, CHANNELS), np.float32)
    for number, start in enumerate(range(12, FRAMES - 12, 12)):
        first = start + moved * (number % 2)
        levels[first : first + 4, 20] = 0.8
    return levels


class LatePlayer:
    """With few steps half of its notes are two frames late; noise where they sound."""

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        late = [0 if piece.options["steps"] >= 100 else 2 for piece in pieces]
        return [latents_from_levels(beats(each)) for each in late]

    def decode(self, latents: FloatArray) -> FloatArray:
        noise = np.random.default_rng(0).standard_normal((len(latents) * HOP_SAMPLES, 2)).astype(np.float32)
        return noise * np.repeat(latents[:, 20:21] + 0.25, HOP_SAMPLES, axis=0) * 0.05


def test_notes_match_within_a_frame() -> None:
    assert steps.note_f1(beats(), beats()) == 1.0
    assert steps.note_f1(beats(), beats(1)) == 1.0
    assert steps.note_f1(beats(), beats(2)) == pytest.approx(5 / 9, abs=0.01)
    assert steps.note_f1(np.zeros_like(beats()), beats()) == 0.0
    assert steps.note_f1(np.roll(beats(), 1, axis=1), beats()) == 0.0


def test_figures_tell_few_steps_from_many() -> None:
    figures = steps.measure(LatePlayer()).figures  # type: ignore[arg-type]
    assert figures["steps_100_onset_f1"] == figures["steps_100_note_f1"] == 1.0
    assert figures["steps_100_mel_db"] == 0.0
    assert figures["steps_8_onset_f1"] < 0.8
    assert figures["steps_8_note_f1"] < 0.6
    assert figures["steps_8_mel_db"] > 1.0
