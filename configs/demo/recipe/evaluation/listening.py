"""Detectors of librosa on audio f32 `[samples, 2]` at 48 kHz, beside our own: tempo, tonic, drums, bass, gaps, onsets.

What they find in songs of the corpus bounds every figure: the tempo is found in 97 % of the songs where it is looked
for near the true one, in none where it is looked for 7 % beside it; without that in 85 %, octaves allowed. Drums and
bass, where they decide, are right in 99 %, the key profile's tonic in 60 %. Needs librosa (the extra `recipe`).
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

import librosa
import numpy as np
import numpy.typing as npt

from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray

Values = npt.NDArray[np.float64]

RATE_HZ: Final = 22_050
TEMPO_TOLERANCE: Final = 0.04
QUIET_DB: Final = -45.0
ONSET_TOLERANCE_S: Final = 0.05
STRENGTH_HZ: Final = 100
_ONSET_HOP: Final = 256
_LEVEL_HOP: Final = 1200  # 25 ms
# A tempo that is looked for near another one: how far from it, in octaves (the standard deviation of a prior).
_NEAR_OCTAVES: Final = 0.2
_SIZE, _HOP, _KERNEL = 2048, 1024, (17, 31)  # as long and as high as librosa's default at half its hop
# Power of the percussive part above 4 kHz, of the harmonic part from 58 to 127 Hz, in dB of all power: a layer sounds
# above the higher level and is silent below the lower one; between them audio cannot tell.
_HISS_HZ: Final = 4000.0
_DRUMS_DB: Final = (-29.0, -21.5)
_BASS_HZ: Final = (58.0, 127.0)
_BASS_DB: Final = (-25.0, -12.0)

# How well each pitch class above the tonic fits (Krumhansl & Kessler, 1982).
KEY_PROFILES: Final[Mapping[str, tuple[float, ...]]] = {
    "major": (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88),
    "minor": (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17),
}


def mono(audio: FloatArray) -> FloatArray:
    """The mean of the channels at `RATE_HZ`."""
    return np.asarray(librosa.resample(audio.mean(axis=1), orig_sr=SAMPLE_RATE_HZ, target_sr=RATE_HZ), np.float32)


def onset_strength(audio: FloatArray) -> Values:
    """How much begins, `[frames]`, `STRENGTH_HZ` a second."""
    hop = round(RATE_HZ / STRENGTH_HZ)
    return np.asarray(librosa.onset.onset_strength(y=mono(audio), sr=RATE_HZ, hop_length=hop), np.float64)


def tempo_bpm(audio: FloatArray, near_bpm: float | None = None) -> float:
    """The tempo of the beats that librosa tracks, by their mean distance; 0.0 where it finds fewer than four.

    near_bpm: the tempo to look around, as a listener does who was told it; None: as librosa's default, around 120 bpm.
    """
    strength = librosa.onset.onset_strength(y=mono(audio), sr=RATE_HZ, hop_length=_ONSET_HOP)
    grid: dict[str, Any] = {"onset_envelope": strength, "sr": RATE_HZ, "hop_length": _ONSET_HOP}
    near: dict[str, Any] = {"start_bpm": near_bpm, "std_bpm": _NEAR_OCTAVES} if near_bpm else {}
    found = float(np.atleast_1d(librosa.feature.tempo(**grid, **near))[0])
    _, beats_s = librosa.beat.beat_track(**grid, bpm=found, units="time")
    if len(beats_s) < 4:
        return 0.0
    return float(60.0 / np.polyfit(np.arange(len(beats_s)), beats_s, 1)[0])


def octave_in(bpm: float, low_bpm: float, high_bpm: float) -> float:
    """The octave at which a tempo lies in a range: 1, 0.5 or 2; 0 for none."""
    low_bpm, high_bpm = low_bpm * (1 - TEMPO_TOLERANCE), high_bpm * (1 + TEMPO_TOLERANCE)
    return next((octave for octave in (1.0, 0.5, 2.0) if low_bpm <= octave * bpm <= high_bpm), 0.0)


def key_of(audio: FloatArray) -> tuple[int, str]:
    """Tonic (0 = C) and "major" or "minor": the key profile that the chroma's mean correlates with best."""
    chroma = librosa.feature.chroma_cqt(y=mono(audio), sr=RATE_HZ, fmin=librosa.midi_to_hz(36), n_octaves=5)
    return key_of_chroma(chroma.mean(axis=1))


def key_of_chroma(chroma: npt.ArrayLike) -> tuple[int, str]:
    """The same of a chroma `[12]`, 0 = C."""
    fits = [
        (float(np.corrcoef(np.asarray(chroma), np.roll(profile, tonic))[0, 1]), tonic, mode)
        for mode, profile in KEY_PROFILES.items()
        for tonic in range(12)
    ]
    return max(fits)[1:]


def heard_layers(audio: FloatArray) -> dict[str, bool | None]:
    """Whether drums and bass sound, None where audio cannot tell: kicks sound in the band of the bass."""
    spectrum = np.abs(librosa.stft(mono(audio), n_fft=_SIZE, hop_length=_HOP))
    harmonic, percussive = librosa.decompose.hpss(spectrum, kernel_size=_KERNEL)
    frequencies = librosa.fft_frequencies(sr=RATE_HZ, n_fft=_SIZE)
    is_bass = (frequencies > _BASS_HZ[0]) & (frequencies < _BASS_HZ[1])
    total = _power(spectrum)
    drums = _decided(_power(percussive[frequencies > _HISS_HZ]) / total, _DRUMS_DB)
    bass = _decided(_power(harmonic[is_bass]) / total, _BASS_DB)
    return {"drums": drums, "bass": None if bass and drums is not False else bass}


def _power(spectrum: npt.NDArray[Any]) -> float:
    return float(np.square(spectrum, dtype=np.float64).sum()) + 1e-12


def _decided(share: float, bounds_db: tuple[float, float]) -> bool | None:
    level_db = 10 * np.log10(share)
    if bounds_db[0] < level_db < bounds_db[1]:
        return None
    return bool(level_db >= bounds_db[1])


def levels_db(audio: FloatArray) -> Values:
    """Root mean square of pieces of 50 ms, one each 25 ms, in dB of full scale."""
    power = np.square(audio, dtype=np.float64).mean(axis=1)
    rms = librosa.feature.rms(y=np.sqrt(power), frame_length=2 * _LEVEL_HOP, hop_length=_LEVEL_HOP, center=False)[0]
    return np.asarray(20 * np.log10(np.maximum(rms, 1e-6)), np.float64)


def gaps(audio: FloatArray) -> tuple[float, float]:
    """The share of the time that is quieter than `QUIET_DB`, and the longest time in one piece, in seconds."""
    is_quiet = levels_db(audio) < QUIET_DB
    runs = [len(list(run)) for quiet, run in groupby(is_quiet) if quiet]
    return float(is_quiet.mean()), max(runs, default=0) * _LEVEL_HOP / SAMPLE_RATE_HZ


def onset_times_s(audio: FloatArray) -> Values:
    """Onsets as librosa finds them."""
    return np.asarray(librosa.onset.onset_detect(y=mono(audio), sr=RATE_HZ, hop_length=_ONSET_HOP, units="time"))


def match_f1(found_s: npt.ArrayLike, true_s: npt.ArrayLike, tolerance_s: float = ONSET_TOLERANCE_S) -> float:
    """F1 of times, each matched with one other at most, at most `tolerance_s` away; 1.0 where there are none."""
    found, true = np.sort(np.asarray(found_s, np.float64)), np.sort(np.asarray(true_s, np.float64))
    first = second = matched = 0
    while first < len(found) and second < len(true):
        distance = found[first] - true[second]
        if abs(distance) <= tolerance_s + 1e-9:
            matched, first, second = matched + 1, first + 1, second + 1
        elif distance < 0:
            first += 1
        else:
            second += 1
    count = len(found) + len(true)
    return 2 * matched / count if count else 1.0


def mel_distance_db(audio: FloatArray, other: FloatArray) -> float:
    """Mean difference of two log-mel spectrograms of equal length, with 80 dB below the louder one's peak as floor."""
    first, second = (librosa.feature.melspectrogram(y=mono(one), sr=RATE_HZ) for one in (audio, other))
    peak = max(float(first.max()), float(second.max()), 1e-12)
    return float(np.abs(librosa.power_to_db(first, ref=peak) - librosa.power_to_db(second, ref=peak)).mean())
