"""Loudness of PCM after ITU-R BS.1770-4: K-weighted energy of blocks, gated."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Pcm

STEP_S = 0.1
STEPS_PER_BLOCK = 4
# LUFS of a mean square of 1 after weighting; blocks below the absolute gate, or this far below the mean, do not count.
OFFSET_LUFS, ABSOLUTE_GATE_LUFS, RELATIVE_GATE_LU = -0.691, -70.0, 10.0

Energies = NDArray[np.float64]


def block_energies(pcm: Pcm, sample_rate_hz: int) -> Energies:
    """The K-weighted energy of blocks of 400 ms, one each 100 ms, of `[N, channels]`; of a shorter N, of one block.

    All channels count alike. The weighting is applied to the spectrum of each 100 ms.
    """
    step = round(STEP_S * sample_rate_hz)
    num_steps = len(pcm) // step
    if num_steps == 0:
        return np.empty(0)
    spectrum = np.fft.rfft(pcm[: num_steps * step].reshape(num_steps, step, -1), axis=1)
    parts = spectrum.view(spectrum.real.dtype).reshape(num_steps, -1)
    energies = np.square(parts, dtype=np.float64) @ np.repeat(_weights(step, sample_rate_hz), 2 * pcm.shape[1])
    size = min(STEPS_PER_BLOCK, num_steps)
    blocks: Energies = np.convolve(energies, np.full(size, 1 / size), "valid")
    return blocks


def loudness_lufs(energies: Energies) -> float | None:
    """The integrated loudness of blocks; None where all are below the absolute gate, as in silence."""
    loud = energies[energies > _energy(ABSOLUTE_GATE_LUFS)]
    if not len(loud):
        return None
    gated = loud[loud > loud.mean() * 10 ** (-RELATIVE_GATE_LU / 10)]
    return float(OFFSET_LUFS + 10 * np.log10(gated.mean()))


def _energy(lufs: float) -> float:
    return float(10 ** ((lufs - OFFSET_LUFS) / 10))


@cache
def _weights(size: int, sample_rate_hz: int) -> NDArray[np.float64]:
    """`[size // 2 + 1]`: what each bin of a real FFT of `size` samples adds to the mean square (BS.1770-4, annex 1).

    The standard's two filters, a high shelf and a high-pass, are given for 48 kHz; their analogue prototypes give those
    of other rates (De Man, "Evaluation of implementations of the EBU R128 loudness measurement", AES 145, 2018).
    """
    power = np.ones(size // 2 + 1)
    for frequency_hz, quality, gains in (
        (1681.974450955533, 0.7071752369554196, (1.0, 1.258720930232562, 1.584864701130855)),
        (38.13547087602444, 0.5003270373238773, (0.0, 0.0, 1.004994996665527)),
    ):
        low, band, high = gains
        k = np.tan(np.pi * frequency_hz / sample_rate_hz)
        # s of the bilinear transform, relative to the filter's frequency.
        s = 1j * np.tan(np.pi * np.arange(size // 2 + 1) / size) / k
        power *= np.abs((high * s**2 + band / quality * s + low) / (s**2 + s / quality + 1)) ** 2
    power[1 : (size + 1) // 2] *= 2
    return power / size**2
