"""Pictures of generated music."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.latents import CHANNELS, HOP_SAMPLES, SAMPLE_RATE_HZ, FloatArray, latents_from_levels
from runtime.music.sections import SongSection

pytest.importorskip("matplotlib")


class SongPlayer:
    """A player of written songs, whose audio is noise."""

    def play(self, prompts: Sequence[str], seed: int) -> FloatArray:
        songs = [draw_song(np.random.default_rng(seed + index)) for index in range(len(prompts))]
        return np.stack([latents_from_levels(render(song, 64, song.layers)) for song in songs])

    def decode(self, latents: FloatArray) -> FloatArray:
        return np.random.default_rng(0).standard_normal((len(latents) * HOP_SAMPLES, 2)).astype(np.float32)


def test_a_png_is_written(tmp_path: Path) -> None:
    from configs.demo.recipe.evaluation.plot import plot

    file = tmp_path / "samples.png"
    plot(SongPlayer(), file, ["one", "two", "three", "four"], columns=2)  # type: ignore[arg-type]
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 10_000


@pytest.mark.parametrize("frames", [2, 64, 4500])
def test_a_piece_of_any_length_has_a_picture(tmp_path: Path, frames: int) -> None:
    from configs.demo.recipe.evaluation.plot import draw_piece

    latents = latents_from_levels(np.full((frames, CHANNELS), 0.5))
    audio = np.zeros((frames * HOP_SAMPLES, 2), np.float32)
    sections = [SongSection(0, "verse", ("pad", "drums"), 8, 0, frames, None)]
    draw_piece(tmp_path / "piece.png", "a title", audio, latents, sections)
    assert (tmp_path / "piece.png").read_bytes().startswith(b"\x89PNG")


def test_a_waveform_keeps_the_peaks_of_long_audio() -> None:
    from configs.demo.recipe.evaluation.plot import waveform

    mono = np.zeros(1_000_000, np.float32)
    mono[500_001] = 0.9
    low, high = waveform(mono)
    assert len(low) == len(high) == 1600
    assert (high.max(), int(high.argmax())) == (np.float32(0.9), 800)
    assert low.min() == 0.0


def test_the_spectra_of_a_tone_peak_at_its_frequency_and_level() -> None:
    from configs.demo.recipe.evaluation.plot import spectra_db

    frequency_hz = 93 * SAMPLE_RATE_HZ / 4096
    mono = 0.1 * np.sin(2 * np.pi * frequency_hz * np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ)
    power = spectra_db(mono.astype(np.float32))
    assert np.all(power.argmax(axis=1) == 93)
    assert power.max(axis=1) == pytest.approx(-20.0, abs=0.1)
