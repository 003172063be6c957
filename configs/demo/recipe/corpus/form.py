"""The form of a song: its bars with harmony, density and dynamics, and where in time the steps of a bar are."""

from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from configs.demo.recipe.corpus.genres import METER_GROOVES, STEPS_PER_BEAT, Groove
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.theory import (
    GENRE_PROGRESSIONS,
    LEADING_DEGREES,
    PROGRESSIONS,
    chord_pitch_classes,
    lead_voices,
    num_clashes,
)
from configs.demo.recipe.instruments import REGISTERS

PHRASE_BARS: Final = 4
FORM: Final = "AABA"  # one letter for each phrase

_LOUDNESS_VELOCITY: Final = (0.55, 0.75, 0.95)
_PHRASE_SWELL: Final = (0.94, 0.98, 1.0, 0.96)
_WEIGHTS: Final = {"X": 1.0, "O": 1.0, "x": 0.75, "o": 0.42}
_LEAST_DENSITY: Final = {"X": 0, "O": 0, "x": 1, "o": 2}


class Note(NamedTuple):
    """One note: its channel, start and end in beats of the song, velocity, and the name of its envelope."""

    channel: int
    start_beat: float
    end_beat: float
    velocity: float
    envelope: str


class Hit(NamedTuple):
    """A pattern's hit: its first step, the step after its last, its weight, and the pattern's letter."""

    step: int
    end: int
    weight: float
    letter: str


@dataclass(frozen=True)
class Bar:
    """One bar: its place, harmony and dynamics.

    start_beat: counted from the song's start. chord, triad: pitch classes, root first. voicing: MIDI pitches.
    next_root: pitch class of the next bar's root. phrase: "A" or "B". phrase_index: of its phrase in the song.
    position: its place in the phrase. is_final: whether the piece ends with it, on one stroke.
    """

    index: int
    start_beat: int
    chord: tuple[int, ...]
    triad: tuple[int, ...]
    voicing: tuple[int, ...]
    next_root: int
    phrase: str
    phrase_index: int
    position: int
    density: int
    velocity: float
    is_final: bool


def bars_of(song: Song, num_bars: int, *, ends: bool = False) -> list[Bar]:
    """The first bars of a song; ends: the last one is its end, on the tonic, and the bar before leads there."""
    degrees = degrees_of(song, num_bars + 1)
    if ends and num_bars > 1:
        degrees[-3:] = [LEADING_DEGREES[song.mode], 0, 0]
    chords = [chord_pitch_classes(song.root, song.mode, degree, song.rule.chord_size) for degree in degrees]
    triads = [chord_pitch_classes(song.root, song.mode, degree, 3) for degree in degrees]
    bars: list[Bar] = []
    voicing: tuple[int, ...] = ()
    for index in range(num_bars):
        chord, previous = chords[index], voicing
        voicing = lead_voices(chord, previous, *REGISTERS["pad"])
        if num_clashes(voicing):
            chord, voicing = triads[index], lead_voices(triads[index], previous, *REGISTERS["pad"])
        phrase_index, position = divmod(index, PHRASE_BARS)
        density, velocity = _dynamics(song, index)
        bars.append(
            Bar(
                index=index,
                start_beat=index * song.beats_per_bar,
                chord=chord,
                triad=triads[index],
                voicing=voicing,
                next_root=chords[index + 1][0],
                phrase=FORM[phrase_index % len(FORM)],
                phrase_index=phrase_index,
                position=position,
                density=density,
                velocity=velocity,
                is_final=ends and index == num_bars - 1,
            )
        )
    return bars


def degrees_of(song: Song, num_bars: int) -> list[int]:
    """The scale degree of each bar's chord: phrases A and B have their own progression.

    The first A and B stay open; the second and the last A go home, over the degree that leads there.
    """
    rng = np.random.default_rng([song.seed, 0])
    options = GENRE_PROGRESSIONS.get(song.rule.progressions, {}).get(song.mode, PROGRESSIONS[song.mode])
    drawn = {name: options[int(rng.integers(len(options)))] for name in "AB"}
    if len(drawn["A"]) > PHRASE_BARS:
        return [drawn["A"][index % len(drawn["A"])] for index in range(num_bars)]
    second, leading = drawn["A"][1], LEADING_DEGREES[song.mode]
    closed = (0, second if second != leading else 0, leading, 0)
    phrases = [drawn["A"], closed, drawn["B"], closed]
    return [phrases[index // PHRASE_BARS % len(FORM)][index % PHRASE_BARS] for index in range(num_bars)]


def _dynamics(song: Song, index: int) -> tuple[int, float]:
    """Density 0..2 and velocity of a bar: the song's, as its section and the phrase change them."""
    density, factor = song.density, 1.0
    if song.section == "intro":
        density, factor = max(0, min(density, density - 2 + index // 4)), min(1.0, 0.7 + 0.04 * index)
    elif song.section == "verse":
        factor = 0.85
    elif song.section == "chorus":
        density, factor = min(2, density + 1), 1.05
    elif song.section == "break":
        density, factor = 0, 0.8
    elif song.section == "build":
        density, factor = min(2, max(0, density - 1 + index % 8 // 3)), 0.65 + 0.05 * (index % 8)
    elif song.section == "outro":
        density, factor = max(0, density - 1 - index // 8), max(0.6, 1.0 - 0.04 * index)
    velocity = _LOUDNESS_VELOCITY[song.loudness] * _PHRASE_SWELL[index % PHRASE_BARS] * factor
    return density, min(1.0, velocity)


def groove_of(song: Song) -> Groove:
    """The genre's groove, or that of the song's meter where it is not the genre's."""
    return song.rule.groove if song.meter == song.rule.meter else METER_GROOVES[song.meter]


@cache
def step_beats(meter: str, beats_per_bar: int, swing: float, shuffle: float) -> tuple[float, ...]:
    """The beat in the bar of each step, swung in 4/4 and 3/4; one more for the bar's end."""
    if meter == "6/8":
        return tuple(step / STEPS_PER_BEAT[meter] for step in range(beats_per_bar * STEPS_PER_BEAT[meter] + 1))
    beat = (0.0, swing * shuffle, swing, swing + (1.0 - swing) * shuffle)
    return (*(index + part for index in range(beats_per_bar) for part in beat), float(beats_per_bar))


def grid_of(song: Song) -> tuple[float, ...]:
    """The beat in the bar of each step of a song."""
    return step_beats(song.meter, song.beats_per_bar, song.rule.swing, song.rule.shuffle)


@cache
def hits_of(pattern: str, density: int) -> tuple[Hit, ...]:
    """The hits of a pattern that a density keeps; one that falls out leaves its time to a hit held up to it."""
    hits: list[Hit] = []
    for step, letter in enumerate(pattern):
        if letter in "-.":
            continue
        end = step + 1
        while end < len(pattern) and pattern[end] == "-":
            end += 1
        least, weight = _LEAST_DENSITY.get(letter), _WEIGHTS.get(letter)
        if least is None or weight is None:  # a bass pattern's letter
            least, weight = (0, 1.0) if letter.isupper() else (1, 0.8)
        if density >= least:
            hits.append(Hit(step, end, weight, letter))
        elif hits and hits[-1].end == step and pattern[step - 1] == "-":
            hits[-1] = hits[-1]._replace(end=end)
    return tuple(hits)


@cache
def accents(meter: str) -> tuple[float, ...]:
    """Metric weight of each step: downbeat, beat, its half or thirds, the steps between."""
    per_beat, num_steps = STEPS_PER_BEAT[meter], {"4/4": 16, "3/4": 12, "6/8": 12}[meter]
    weights = [0.9 if step % per_beat == 0 else 0.72 if step % 2 == 0 else 0.58 for step in range(num_steps)]
    return (1.0, *weights[1:])
