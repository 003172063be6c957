"""Energy of audio f32 `[samples, channels]` at 48 kHz in bands as the ear hears them."""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

SAMPLE_RATE_HZ: Final = 48_000
SIZE: Final = 2048
HOP: Final = 960
NUM_MELS: Final = 40


def mel_bands(audio: FloatArray) -> Values:
    """Energy `[frames, NUM_MELS]`, 50 frames a second."""
    bands: Values = spectrogram(audio, SIZE, HOP) @ _mel_weights() / SIZE
    return bands


@cache
def _mel_weights() -> Values:
    """Triangles `[bins, NUM_MELS]` at equal distances in mel from 40 Hz to 12 kHz (O'Shaughnessy's formula)."""
    low_mel, high_mel = 2595 * np.log10(1 + np.array([40.0, 12_000.0]) / 700)
    edges = 700 * (10 ** (np.linspace(float(low_mel), float(high_mel), NUM_MELS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(SIZE, 1 / SAMPLE_RATE_HZ)[:, None]
    low, peak, high = edges[:-2], edges[1:-1], edges[2:]
    triangles: Values = np.maximum(
        0.0, np.minimum((frequencies - low) / (peak - low), (high - frequencies) / (high - peak))
    )
    return triangles


def spectrogram(audio: FloatArray, size: int, hop: int) -> Values:
    """Power `[frames, size // 2 + 1]` of the mono mix, Hann window."""
    mono = np.pad(audio.mean(axis=1, dtype=np.float64), (0, max(0, size - len(audio))))
    frames = np.lib.stride_tricks.sliding_window_view(mono, size)[::hop] * np.hanning(size)
    power: Values = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    return power
