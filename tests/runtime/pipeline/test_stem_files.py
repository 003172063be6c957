"""Stems as files: what they say of themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from runtime.audio.metadata import GenerationMetadata
from runtime.config.codec import Latents, Pcm
from runtime.music.score import Score
from runtime.pipeline.stem_files import StemFiles, stems_bytes


@dataclass
class Stems:
    """Two layers, of which one has a peak."""

    peak: float
    sample_rate_hz: int = 8000
    total_samples: int = 200
    num_stems: int = 3
    has_notes: bool = True
    has_exact_stems: bool = True
    is_estimated: bool = False

    def metadata(self) -> GenerationMetadata:
        return GenerationMetadata(model="a", model_version="1", options={"seed": 1})

    def score(self, latents: Latents) -> Score:
        return Score((), 0.025, 0.04)

    def stems(self, latents: Latents, tracks: Mapping[str, Latents] | None = None) -> Iterator[dict[str, Pcm]]:
        bass, drums = np.full((100, 1), -0.3, np.float32), np.full((100, 1), 0.5, np.float32)
        yield {"mix": bass + drums, "bass": bass, "drums": drums}
        drums[7] = self.peak
        yield {"mix": bass + drums, "bass": bass, "drums": drums}


@pytest.mark.parametrize(("peak", "is_exact"), [(0.9, True), (-0.7, True), (1.2, False), (-1.2, False)])
def test_what_is_clipped_is_not_exact(peak: float, is_exact: bool) -> None:
    files = StemFiles(Stems(peak), np.zeros((1, 1), np.float32), "wav").finish()
    assert list(files) == ["mix.wav", "bass.wav", "drums.wav", "notes.mid", "options.json"]
    said = json.loads(files["options.json"])
    assert (said["exact"], said["estimated"], said["options"]) == (is_exact, False, {"seed": 1})


def test_the_archive_is_counted_twice() -> None:
    """Its files, and all of them together."""
    assert stems_bytes(Stems(0.9), channels=1) == 2 * 3 * 3 * 200
