"""Spectrogram and piano roll of a few prompts, as one picture for the README."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from engine_build.demo_model.evaluation.player import Player
from engine_build.demo_model.latents import FIRST_PITCH, FRAME_RATE_HZ, SAMPLE_RATE_HZ, FloatArray, levels_from_latents

PROMPTS: Final = (
    "slow minor pads with bass and drums in A",
    "energetic arpeggios, bass and beat in D dorian at 120 bpm",
    "calm major chords and melody in F",
)
SEED: Final = 7
_SIZE_INCHES: Final = (11.0, 5.6)
_DOTS_PER_INCH: Final = 96


def plot(player: Player, file: Path, prompts: Sequence[str] = PROMPTS) -> None:
    """Generate the prompts and write a PNG: a column per prompt, the audio's spectrogram above its piano roll."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(prompts), figsize=_SIZE_INCHES, sharex="col", sharey="row", layout="constrained"
    )
    for column, (prompt, latents) in enumerate(zip(prompts, player.play(prompts, SEED), strict=True)):
        axes[0, column].set_title(prompt, fontsize=8)
        _spectrogram(axes[0, column], player.decode(latents))
        _roll(axes[1, column], levels_from_latents(latents))
    axes[0, 0].set_ylabel("frequency, Hz")
    axes[1, 0].set_ylabel("MIDI pitch, drums on top")
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
    axis.set_xlabel("seconds")
