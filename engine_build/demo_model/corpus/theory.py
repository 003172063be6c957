"""Music theory of the corpus: modes, scales, chords and voice leading."""

from itertools import pairwise, product
from typing import Final

NOTE_NAMES: Final = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")

MODES: Final[dict[str, tuple[int, ...]]] = {
    "major": (0, 2, 4, 5, 7, 9, 11),
    "minor": (0, 2, 3, 5, 7, 8, 10),
    "dorian": (0, 2, 3, 5, 7, 9, 10),
    "mixolydian": (0, 2, 4, 5, 7, 9, 10),
    "lydian": (0, 2, 4, 6, 7, 9, 11),
    "phrygian": (0, 1, 3, 5, 7, 8, 10),
}

BRIGHT_MODES: Final = ("major", "lydian")
DARK_MODES: Final = ("minor", "phrygian")

# Four bars, one scale degree each (0 = tonic); every progression starts on the tonic.
PROGRESSIONS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "major": ((0, 4, 5, 3), (0, 5, 3, 4), (0, 3, 4, 3), (0, 2, 3, 4), (0, 3, 1, 4), (0, 5, 1, 4)),
    "minor": ((0, 5, 2, 6), (0, 3, 5, 6), (0, 6, 5, 6), (0, 2, 6, 3), (0, 5, 3, 4), (0, 3, 6, 2)),
    "dorian": ((0, 3, 0, 3), (0, 6, 3, 0), (0, 2, 3, 6), (0, 1, 2, 3)),
    "mixolydian": ((0, 6, 3, 0), (0, 3, 6, 3), (0, 6, 0, 3), (0, 4, 6, 3)),
    "lydian": ((0, 1, 0, 4), (0, 1, 4, 0), (0, 4, 1, 0), (0, 1, 5, 4)),
    "phrygian": ((0, 1, 0, 6), (0, 1, 2, 1), (0, 6, 1, 0), (0, 5, 1, 0)),
}


def scale_pitch_classes(root: int, mode: str) -> tuple[int, ...]:
    """The seven pitch classes (0 = C) of `mode` on `root`, in scale order."""
    return tuple((root + step) % 12 for step in MODES[mode])


def scale_pitches(root: int, mode: str, low: int, high: int) -> tuple[int, ...]:
    """All MIDI pitches of the scale in `low..high`, ascending, both ends included."""
    classes = set(scale_pitch_classes(root, mode))
    return tuple(pitch for pitch in range(low, high + 1) if pitch % 12 in classes)


def chord_pitch_classes(root: int, mode: str, degree: int, size: int) -> tuple[int, ...]:
    """Pitch classes of the chord of stacked thirds on a scale degree, root first; `size` 3 is a triad, 4 a seventh."""
    classes = scale_pitch_classes(root, mode)
    return tuple(classes[(degree + 2 * third) % 7] for third in range(size))


def chord_pitches(classes: tuple[int, ...], low: int, high: int) -> tuple[int, ...]:
    """All MIDI pitches in `low..high` that belong to a chord, ascending."""
    return tuple(pitch for pitch in range(low, high + 1) if pitch % 12 in classes)


def lead_voices(classes: tuple[int, ...], previous: tuple[int, ...], low: int, high: int) -> tuple[int, ...]:
    """The voicing of a chord in `low..high` that moves least from the previous voicing, ascending.

    Every pitch class sounds once, with no semitone between neighbours where possible. With no previous voicing
    the one nearest the middle of the register is taken.
    """
    options = [[pitch for pitch in range(low, high + 1) if pitch % 12 == pitch_class] for pitch_class in classes]
    voicings = [tuple(sorted(voicing)) for voicing in product(*options)]
    target = previous or ((low + high) // 2,) * len(classes)
    return min(voicings, key=lambda voicing: (_clashes(voicing), _movement(voicing, target), voicing))


def _clashes(voicing: tuple[int, ...]) -> int:
    """How many neighbours are only a semitone apart."""
    return sum(upper - lower == 1 for lower, upper in pairwise(voicing))


def _movement(voicing: tuple[int, ...], target: tuple[int, ...]) -> int:
    """Semitones from each voice to the nearest voice of the target, summed."""
    return sum(min(abs(pitch - other) for other in target) for pitch in voicing)
