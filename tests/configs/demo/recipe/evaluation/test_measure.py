"""The detectors, on songs whose truth is known: what they say of the corpus is the ceiling of every evaluation."""

import numpy as np
import pytest

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import Song, draw_song
from configs.demo.recipe.evaluation.measure import difference, in_key_energy, is_tempo, layers_present, tempo_bpm
from configs.demo.recipe.latents import CHANNELS, FIRST_PITCH, FloatArray

NUM_SONGS = 60

Corpus = list[tuple[Song, FloatArray]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    songs = [draw_song(np.random.default_rng([21, index])) for index in range(NUM_SONGS)]
    return [(song, render(song, 256, song.layers)) for song in songs]


def test_layers_are_found_exactly(corpus: Corpus) -> None:
    assert all(layers_present(levels) == song.layers for song, levels in corpus)


def test_tempo_is_found_in_every_meter(corpus: Corpus) -> None:
    assert np.mean([is_tempo(levels, song.bpm, song.meter) for song, levels in corpus]) > 0.98


def test_tempo_is_found_at_any_phase(corpus: Corpus) -> None:
    found = [is_tempo(render(song, 300, song.layers)[37:293], song.bpm, song.meter) for song, _ in corpus[:30]]
    assert np.mean(found) > 0.95


@pytest.mark.parametrize("factor", [0.93, 1.07])
def test_a_wrong_tempo_is_not_accepted(corpus: Corpus, factor: float) -> None:
    assert not any(is_tempo(levels, factor * song.bpm, song.meter) for song, levels in corpus[:30])


def test_the_tempo_of_a_metronome() -> None:
    levels = np.zeros((256, CHANNELS), np.float32)
    levels[np.round(np.arange(0, 255, 1500 / 97)).astype(int), 52] = 1.0
    assert tempo_bpm(levels, 90.0, "4/4") == pytest.approx(97.0, rel=0.01)


def test_the_corpus_is_in_key(corpus: Corpus) -> None:
    assert all(in_key_energy(levels, song.root, song.mode) > 0.999 for song, levels in corpus)


def test_half_of_the_energy_out_of_key_is_half() -> None:
    levels = np.zeros((10, CHANNELS), np.float32)
    levels[:, [60 - FIRST_PITCH, 61 - FIRST_PITCH]] = 0.5
    assert in_key_energy(levels, 0, "major") == pytest.approx(0.5)
    assert in_key_energy(np.zeros_like(levels), 0, "major") == 1.0
    assert in_key_energy(0.2 * levels, 0, "major") == 1.0, "what does not sound is in no other key"


def test_difference_is_a_distance() -> None:
    first, second = np.zeros((4, CHANNELS), np.float32), np.zeros((4, CHANNELS), np.float32)
    first[0, 0] = second[1, 1] = 1.0
    assert difference(first, first) == 0.0
    assert difference(first, second) == pytest.approx(1.0)
