"""Mel bands of tones."""

from __future__ import annotations

import numpy as np

from engine_build.reports.mel_bands import HOP, NUM_MELS, SAMPLE_RATE_HZ, mel_bands


def test_mel_bands_are_in_the_order_of_frequencies() -> None:
    times_s = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    tones = [np.sin(2 * np.pi * hz * times_s).astype(np.float32) for hz in (100.0, 500.0, 2000.0, 9000.0)]
    found = [mel_bands(np.stack([tone, tone], axis=1)) for tone in tones]
    assert {bands.shape[1] for bands in found} == {NUM_MELS}
    assert len(found[0]) == (SAMPLE_RATE_HZ - 2048) // HOP + 1
    loudest = [int(bands.mean(axis=0).argmax()) for bands in found]
    assert loudest == sorted(set(loudest))
