"""MIDI files, as other programs read and play them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

pytest.importorskip("librosa")
pytest.importorskip("pretty_midi")

from configs.demo.recipe.corpus.batches import draw_songs
from configs.demo.recipe.corpus.rendering import notes_of, write_levels
from configs.demo.recipe.evaluation import midi
from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.evaluation.sound import onsets
from configs.demo.recipe.latents import CANVAS_FRAMES, FloatArray, latents_from_levels
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.music.midi_file import midi_bytes
from runtime.music.score import Score
from runtime.music.tracker import score_of
from runtime.pipeline.pipeline import open_pipeline

BUNDLE = load_bundle(ROOT / "configs" / "demo")


def song_latents() -> list[FloatArray]:
    """Of two songs of the corpus that have drums, a canvas of each."""
    found = []
    for song in draw_songs(24, midi.FIRST_SEED):
        notes = notes_of(song, CANVAS_FRAMES / song.frames_per_beat)
        if notes.get("drums"):
            found.append(latents_from_levels(write_levels(song, CANVAS_FRAMES, notes)))
    return [found[0], found[-1]]  # the next one has the same notes, with other instruments


def song_score(latents: FloatArray) -> Score:
    return score_of(BUNDLE, latents, {"bpm": 97.3})


@pytest.mark.parametrize("reader", midi.READERS)
def test_two_readers_find_the_notes_of_each_layer(reader: str) -> None:
    score, other = map(song_score, song_latents())
    assert len(score.notes) > 40
    assert midi.read_share(score, midi_bytes(score), reader) == 1.0
    assert midi.read_share(score, midi_bytes(other), reader) < 0.5
    first = score.parts[0]
    without = replace(score, parts=(replace(first, notes=first.notes[1:]), *score.parts[1:]))
    assert midi.read_share(score, midi_bytes(without), reader) < 1.0


def strength(frames: list[int]) -> midi.Values:
    """Onsets in some of 400 frames, each of which fades out."""
    onsets = np.zeros(400)
    onsets[frames] = 1.0
    return np.convolve(onsets, [1.0, 0.6, 0.3], "full")[:400]


def test_onsets_are_compared_at_the_lag_that_fits_best() -> None:
    frames = [50, 110, 190, 220, 330]
    early, late, other = (strength(each) for each in (frames, [frame + 4 for frame in frames], [80, 150, 260, 300]))
    assert midi.correlation(early, late) == (pytest.approx(1.0, abs=0.01), 4)
    assert midi.correlation(late, early) == (pytest.approx(1.0, abs=0.01), -4)
    assert midi.correlation(early, strength([frame + 9 for frame in frames]))[0] < 0.5
    assert midi.correlation(early, other)[0] < 0.3
    assert midi.correlation(early, np.zeros(400))[0] == 0.0


@pytest.fixture(scope="module")
def player(built_demo: Deployment) -> Iterator[Player]:
    with open_pipeline(built_demo) as pipeline:
        yield Player(pipeline)


def test_fluidsynth_plays_the_drums_where_ours_are(player: Player, tmp_path: Path) -> None:
    if missing := midi.missing_synthesizer():
        pytest.skip(missing)
    latents = song_latents()
    stems = [onsets(midi.stems_of(player, each)["drums"]) for each in latents]
    render = onsets(midi.rendered(song_score(latents[0]), "drums", tmp_path))
    assert midi.correlation(stems[0], render, 3)[0] >= 0.7
    assert midi.correlation(stems[1], render, 3)[0] <= 0.4


def test_without_fluidsynth_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "FluidSynth is not installed" in midi.missing_synthesizer()
