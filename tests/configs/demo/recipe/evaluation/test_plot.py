"""The picture of the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.latents import HOP_SAMPLES, FloatArray, latents_from_levels

pytestmark = pytest.mark.export

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
