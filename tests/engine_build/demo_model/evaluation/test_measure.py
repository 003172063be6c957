"""The detectors, on songs whose truth is known: what they say of the corpus is the ceiling of every evaluation."""

import numpy as np
import pytest

from engine_build.demo_model.corpus.songs import Song, draw_song, render
from engine_build.demo_model.evaluation.measure import difference, in_key_energy, is_tempo, layers_present, tempo_bpm
from engine_build.demo_model.latents import CHANNELS, FIRST_PITCH, FloatArray

NUM_SONGS = 120


@pytest.fixture(scope="module")
def corpus() -> list[tuple[Song, FloatArray]]:
    songs = [draw_song(np.random.default_rng([21, index])) for index in range(NUM_SONGS)]
    return [(song, render(song, 256)) for song in songs]


def test_layers_are_found_exactly(corpus: list[tuple[Song, FloatArray]]) -> None:
    assert all(layers_present(levels) == song.layers for song, levels in corpus)


def test_tempo_is_found(corpus: list[tuple[Song, FloatArray]]) -> None:
    assert np.mean([is_tempo(levels, song.bpm) for song, levels in corpus]) > 0.98


def test_tempo_is_found_at_any_phase(corpus: list[tuple[Song, FloatArray]]) -> None:
    found = [is_tempo(render(song, 300)[37 : 37 + 256], song.bpm) for song, _ in corpus[:40]]
    assert np.mean(found) > 0.95


def test_a_wrong_tempo_is_not_accepted(corpus: list[tuple[Song, FloatArray]]) -> None:
    assert not any(is_tempo(levels, 1.1 * tempo_bpm(levels)) for _, levels in corpus[:40])


def test_the_corpus_is_in_key(corpus: list[tuple[Song, FloatArray]]) -> None:
    assert all(in_key_energy(levels, song.root, song.mode) > 0.999 for song, levels in corpus)


def test_half_of_the_energy_out_of_key_is_half() -> None:
    levels = np.zeros((10, CHANNELS), np.float32)
    levels[:, [60 - FIRST_PITCH, 61 - FIRST_PITCH]] = 0.5
    assert in_key_energy(levels, 0, "major") == pytest.approx(0.5)
    assert in_key_energy(np.zeros_like(levels), 0, "major") == 1.0


def test_difference_is_a_distance() -> None:
    first, second = np.zeros((4, CHANNELS), np.float32), np.zeros((4, CHANNELS), np.float32)
    first[0, 0] = second[1, 1] = 1.0
    assert difference(first, first) == 0.0
    assert difference(first, second) == pytest.approx(1.0)
