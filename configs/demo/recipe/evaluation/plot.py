"""Spectrogram and piano roll of a few prompts, as one picture for the README."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.latents import FIRST_PITCH, FRAME_RATE_HZ, SAMPLE_RATE_HZ, FloatArray, levels_from_latents

PROMPTS: Final = (
    "lo-fi in D minor at 78 bpm",
    "jazz with piano chords, upright bass and saxophone melody in B flat",
    "techno in A minor at 130 bpm",
    "waltz with strings chords and violin melody in G major",
    "ambient choir pads in E lydian",
    "funk, electric bass and guitar arpeggios at 104 bpm",
    "bossa nova in F major",
    "ballad, piano chords and flute melody at 66 bpm",
    "trance arpeggios, bass and drums in F sharp minor at 138 bpm",
    "marimba arpeggios and whistle melody, playful",
    "rock in E minor at 140 bpm",
    "bells, harp arpeggios and soft strings pads",
)
SEED: Final = 7
COLUMNS: Final = 4
_SIZE_INCHES: Final = (2.9, 2.6)
_DOTS_PER_INCH: Final = 72


def plot(player: Player, file: Path, prompts: Sequence[str] = PROMPTS, columns: int = COLUMNS) -> None:
    """Generate the prompts and write a PNG: of each the audio's spectrogram above its piano roll."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(prompts) // columns)
    width, height = _SIZE_INCHES
    figure, axes = pyplot.subplots(
        2 * rows, columns, figsize=(columns * width, rows * height), sharex="col", squeeze=False, layout="constrained"
    )
    for index, (prompt, latents) in enumerate(zip(prompts, player.play(prompts, SEED), strict=True)):
        above, below = axes[2 * (index // columns) : 2 * (index // columns) + 2, index % columns]
        above.set_title(prompt, fontsize=7)
        _spectrogram(above, player.decode(latents))
        _roll(below, levels_from_latents(latents))
    for axis in axes.flat:
        axis.tick_params(labelsize=6)
    figure.supylabel("frequency in Hz above, MIDI pitch with drums and timbres on top below", fontsize=7)
    figure.supxlabel("seconds", fontsize=7)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def _spectrogram(axis: Any, audio: FloatArray) -> None:
    """Power in decibels over 0 to 8 kHz of the mono mix of audio f32 `[samples, 2]`."""
    axis.specgram(
        audio.mean(axis=1) + np.float32(1e-7),
        NFFT=4096,
        Fs=SAMPLE_RATE_HZ,
        noverlap=3072,
        scale_by_freq=False,
        vmin=-90.0,
        vmax=-25.0,
        cmap="magma",
    )
    axis.set_ylim(0.0, 8000.0)


def _roll(axis: Any, levels: FloatArray) -> None:
    """Levels f32 `[T, C]` as a picture, time to the right, pitch upwards."""
    extent = (0.0, len(levels) / FRAME_RATE_HZ, FIRST_PITCH - 0.5, FIRST_PITCH + levels.shape[1] - 0.5)
    axis.imshow(levels.T, origin="lower", aspect="auto", extent=extent, vmin=0.0, vmax=1.0, cmap="magma")
