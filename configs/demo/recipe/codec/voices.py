"""How every instrument sounds: amplitudes of its partials, brightness, attack, vibrato. Pure numpy.

A partial's amplitude at level l is `l (soft + l loud)`: a loud note is brighter than a soft one, and a decaying note
loses its high partials first.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

# Overtones of a free bar (glockenspiel, music box), of which all but the first are no harmonics.
BAR_RATIOS: Final = (2.756, 5.404, 8.933)


@dataclass(frozen=True)
class Voice:
    """One instrument.

    The amplitude of harmonic h at f Hz is `h ** -slope`, or `partials[h - 1]` where they are given, times the comb of
    the point where a string is struck or plucked (share of its length), `even` for even h, the body's resonances
    (centre and width in Hz, gain) over `floor`, and a low pass of second order at `cutoff_hz`. `bar`: amplitudes of
    BAR_RATIOS. A soft note has a low pass of first order at `dark_hz` besides. attack: share of a rise that happens
    within 4 ms, the rest takes 40 ms. ensemble: amplitude of the detuned copies. vibrato_cents: the melody layer's.
    """

    slope: float = 1.0
    partials: tuple[float, ...] = ()
    bar: tuple[float, ...] = ()
    pluck: float | None = None
    even: float = 1.0
    body: tuple[tuple[float, float, float], ...] = ()
    floor: float = 1.0
    cutoff_hz: float = 20_000.0
    dark_hz: float = 20_000.0
    attack: float = 1.0
    ensemble: float = 0.0
    vibrato_cents: float = 0.0


_VIOLIN_BODY: Final = ((480.0, 150.0, 0.7), (1100.0, 350.0, 0.6), (2800.0, 900.0, 1.0))
_GUITAR_BODY: Final = ((105.0, 30.0, 0.8), (205.0, 50.0, 0.8), (420.0, 120.0, 0.5), (2600.0, 900.0, 0.5))

VOICES: Final[dict[str, Voice]] = {
    "electric bass": Voice(slope=0.9, pluck=0.18, cutoff_hz=2400, dark_hz=900),
    "upright bass": Voice(
        slope=1.0, pluck=0.3, body=((110, 50, 1.0), (230, 70, 0.7), (700, 250, 0.4)), floor=0.5, cutoff_hz=1800,
        dark_hz=1100, attack=0.8,
    ),
    "synth bass": Voice(slope=1.0, even=0.8, body=((900, 160, 1.3),), cutoff_hz=2100, dark_hz=600),
    "sub bass": Voice(partials=(1.0, 0.45, 0.25, 0.14, 0.08, 0.05, 0.03), attack=0.6),
    "piano": Voice(slope=1.4, pluck=0.125, cutoff_hz=8800, dark_hz=1600, ensemble=0.07),
    "electric piano": Voice(partials=(1.0, 0.32, 0.1, 0.05, 0.02, 0.02, 0.08, 0.03), dark_hz=1400, ensemble=0.1),
    "organ": Voice(partials=(1.0, 0.85, 0.6, 0.45, 0.05, 0.28, 0.02, 0.3), attack=0.8, ensemble=0.3),
    "strings": Voice(
        slope=0.85, body=_VIOLIN_BODY, floor=0.5, cutoff_hz=8800, dark_hz=5000, attack=0.0, ensemble=0.9
    ),
    "choir": Voice(
        slope=0.9, body=((720, 110, 1.7), (1150, 130, 1.2), (2700, 220, 0.6), (3400, 260, 0.4)), floor=0.08,
        cutoff_hz=7700, attack=0.0, ensemble=0.8,
    ),
    "synth": Voice(slope=1.0, even=0.9, cutoff_hz=9600, dark_hz=2400, attack=0.9, ensemble=0.4, vibrato_cents=5),
    "brass": Voice(slope=0.7, body=((1200, 550, 1.0),), floor=0.25, cutoff_hz=6400, dark_hz=1400, attack=0.25,
                   ensemble=0.3),
    "guitar": Voice(slope=1.0, pluck=0.21, body=_GUITAR_BODY, floor=0.6, cutoff_hz=8800, dark_hz=2200),
    "harp": Voice(slope=1.3, pluck=0.38, cutoff_hz=7200, dark_hz=1800),
    "bells": Voice(partials=(1.0, 0.06, 0.03), bar=(0.5, 0.28, 0.12), dark_hz=6000, ensemble=0.08),
    "marimba": Voice(partials=(1.0, 0.02, 0.02, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1), dark_hz=1800),
    "pizzicato": Voice(slope=1.1, pluck=0.3, body=_VIOLIN_BODY, floor=0.5, cutoff_hz=5100, dark_hz=1400),
    "flute": Voice(partials=(1.0, 0.32, 0.14, 0.05, 0.025, 0.012, 0.006), dark_hz=3600, attack=0.3, vibrato_cents=9),
    "violin": Voice(
        slope=0.75, body=_VIOLIN_BODY, floor=0.45, cutoff_hz=11_000, dark_hz=6000, attack=0.25, vibrato_cents=18
    ),
    "trumpet": Voice(
        slope=0.45, body=((1500, 800, 0.6),), floor=0.8, cutoff_hz=5100, dark_hz=2800, attack=0.5, vibrato_cents=5
    ),
    "saxophone": Voice(
        slope=0.7, even=0.7, body=((750, 250, 0.7), (1500, 400, 0.6), (2900, 600, 0.5)), floor=0.5, cutoff_hz=8000,
        dark_hz=3000, attack=0.4, vibrato_cents=12,
    ),
    "whistle": Voice(partials=(1.0, 0.025, 0.02), attack=0.2, vibrato_cents=11),
}  # fmt: skip

# Where an instrument sounds otherwise in one layer.
_VARIANTS: Final[dict[tuple[str, str], Voice]] = {
    ("pad", "synth"): Voice(slope=1.0, cutoff_hz=5600, dark_hz=3000, attack=0.3, ensemble=0.9),
}


def voice_of(layer: str, instrument: str) -> Voice:
    """The voice of a layer's instrument."""
    return _VARIANTS.get((layer, instrument), VOICES[instrument])


def amplitudes(
    voice: Voice, gain: float, ratios: Float64Array, frequencies_hz: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """`soft` and `loud` of a note's partials `[K]`: multiples `ratios` of its pitch, `frequencies_hz`.

    Their sum, the note at level 1, has the loudness of a sine of amplitude `gain` at 1 kHz.
    """
    source = np.array([_source(voice, ratio) for ratio in ratios])
    resonances = (peak / (1.0 + ((frequencies_hz - centre) / width) ** 2) for centre, width, peak in voice.body)
    full = source * (voice.floor + sum(resonances)) / (1.0 + (frequencies_hz / voice.cutoff_hz) ** 2)
    full *= _tone(frequencies_hz)
    full *= gain / np.sqrt(np.sum((full * _ear(frequencies_hz)) ** 2))
    soft = full / np.sqrt(1.0 + (frequencies_hz / voice.dark_hz) ** 2)
    return soft, full - soft


def _source(voice: Voice, ratio: float) -> float:
    if ratio in BAR_RATIOS:
        index = BAR_RATIOS.index(ratio)
        return voice.bar[index] if voice.bar else 0.0
    harmonic = round(ratio)
    if voice.partials:
        return voice.partials[harmonic - 1] if harmonic <= len(voice.partials) else 0.0
    comb = 1.0 if voice.pluck is None else abs(np.sin(np.pi * harmonic * voice.pluck))
    return float(harmonic**-voice.slope * comb * (1.0 if harmonic % 2 else voice.even))


def _tone(frequencies_hz: Float64Array) -> Float64Array:
    """The mix's equalizer: less below 80 Hz, which small speakers lack, and up to 6 dB more above 2 kHz."""
    low = frequencies_hz**2 / (frequencies_hz**2 + 75.0**2)
    return np.asarray(low * np.sqrt((1.0 + (frequencies_hz / 1600.0) ** 2) / (1.0 + (frequencies_hz / 3200.0) ** 2)))


def _ear(frequencies_hz: Float64Array) -> Float64Array:
    """Weight of a frequency in loudness: about the K weighting of ITU-R BS.1770."""
    high = 1.0 + 0.58 / (1.0 + (1500.0 / frequencies_hz) ** 4)
    return frequencies_hz**2 / (frequencies_hz**2 + 60.0**2) * high
