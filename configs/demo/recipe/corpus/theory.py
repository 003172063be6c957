"""Music theory of the corpus: modes, scales, chords, progressions and voice leading."""

from functools import lru_cache
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
    "harmonic minor": (0, 2, 3, 5, 7, 8, 11),
    "pentatonic": (0, 2, 4, 7, 9),
    "minor pentatonic": (0, 3, 5, 7, 10),
    "blues": (0, 3, 5, 6, 7, 10),
}

BRIGHT_MODES: Final = ("major", "lydian", "pentatonic")
DARK_MODES: Final = ("minor", "phrygian", "harmonic minor")

# Scales of fewer than seven notes have no stacked thirds: the chord on each degree, in semitones above the tonic.
_CHORDS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "pentatonic": ((0, 4, 7, 9), (2, 7, 9, 0), (4, 7, 0, 9), (7, 2, 9, 0), (9, 0, 4, 7)),
    "minor pentatonic": ((0, 3, 7, 10), (3, 7, 10, 0), (5, 10, 0, 3), (7, 10, 0, 3), (10, 3, 5, 0)),
    "blues": ((0, 3, 7, 10), (3, 7, 10, 0), (5, 10, 0, 3), (6, 10, 3, 0), (7, 10, 0, 3), (10, 3, 5, 0)),
}
_THIRDS: Final[dict[int, tuple[int, ...]]] = {2: (0, 4), 3: (0, 2, 4), 4: (0, 2, 4, 6), 5: (0, 2, 6, 8)}

Progression = tuple[int, ...]

# One scale degree for each bar (0 = tonic); every progression starts on the tonic.
PROGRESSIONS: Final[dict[str, tuple[Progression, ...]]] = {
    "major": ((0, 4, 5, 3), (0, 3, 0, 4), (0, 0, 3, 4), (0, 5, 3, 4), (0, 3, 1, 4), (0, 3, 5, 4)),
    "minor": ((0, 5, 0, 6), (0, 3, 0, 6), (0, 0, 5, 6), (0, 6, 5, 0), (0, 3, 5, 0), (0, 5, 3, 4)),
    "dorian": ((0, 3, 0, 3), (0, 6, 3, 0), (0, 0, 3, 6), (0, 3, 0, 6)),
    "mixolydian": ((0, 6, 3, 0), (0, 3, 0, 6), (0, 3, 0, 3), (0, 0, 6, 3)),
    "lydian": ((0, 1, 0, 0), (0, 1, 0, 5), (0, 0, 1, 0), (0, 5, 1, 0)),
    "phrygian": ((0, 1, 0, 6), (0, 1, 0, 1), (0, 6, 1, 0), (0, 0, 5, 1)),
    "harmonic minor": ((0, 3, 4, 0), (0, 5, 3, 4), (0, 4, 0, 3), (0, 5, 4, 0)),
    "pentatonic": ((0, 4, 0, 3), (0, 3, 0, 1), (0, 0, 4, 3), (0, 3, 4, 0)),
    "minor pentatonic": ((0, 4, 0, 3), (0, 1, 0, 2), (0, 2, 4, 0), (0, 0, 2, 4)),
    "blues": ((0, 1, 2, 0), (0, 2, 0, 4), (0, 0, 2, 4), (0, 2, 0, 5)),
}
# The degree that leads home at the end of a phrase.
LEADING_DEGREES: Final[dict[str, int]] = {
    "major": 4, "minor": 3, "dorian": 3, "mixolydian": 3, "lydian": 1, "phrygian": 1, "harmonic minor": 4,
    "pentatonic": 3, "minor pentatonic": 3, "blues": 4,
}  # fmt: skip

# What a genre's harmony is where it differs from its mode's.
GENRE_PROGRESSIONS: Final[dict[str, dict[str, tuple[Progression, ...]]]] = {
    "jazz": {
        "major": ((0, 5, 1, 4), (0, 3, 1, 4), (0, 0, 1, 4)),
        "minor": ((0, 3, 0, 4), (0, 5, 3, 4), (0, 0, 3, 4)),
        "dorian": ((0, 3, 0, 3), (0, 0, 1, 3)),
    },
    "drone": {
        "major": ((0, 0, 3, 0), (0, 0, 0, 4)),
        "minor": ((0, 0, 5, 0), (0, 0, 0, 6)),
        "lydian": ((0, 0, 1, 0), (0, 0, 0, 1)),
        "dorian": ((0, 0, 3, 0), (0, 0, 0, 3)),
        "phrygian": ((0, 0, 1, 0), (0, 0, 0, 1)),
    },
    "blues": {
        "blues": ((0, 0, 0, 0, 2, 2, 0, 0, 4, 2, 0, 0),),
        "mixolydian": ((0, 0, 0, 0, 3, 3, 0, 0, 4, 3, 0, 4), (0, 3, 0, 0, 3, 3, 0, 0, 4, 3, 0, 4)),
        "dorian": ((0, 0, 0, 0, 3, 3, 0, 0, 4, 3, 0, 4),),
        "minor pentatonic": ((0, 0, 0, 0, 2, 2, 0, 0, 4, 2, 0, 0),),
    },
    "classical": {
        "major": ((0, 3, 4, 0), (0, 4, 0, 3), (0, 3, 1, 4), (0, 4, 5, 2, 3, 0, 3, 4)),
        "minor": ((0, 3, 6, 0), (0, 5, 3, 4)),
        "harmonic minor": ((0, 4, 0, 3), (0, 3, 4, 0), (0, 5, 3, 4)),
    },
    "folk": {
        "major": ((0, 3, 0, 4), (0, 0, 3, 4), (0, 4, 3, 0)),
        "mixolydian": ((0, 6, 0, 3), (0, 3, 0, 6)),
        "dorian": ((0, 6, 0, 3), (0, 3, 0, 6)),
    },
}


def scale_pitch_classes(root: int, mode: str) -> tuple[int, ...]:
    """The pitch classes (0 = C) of `mode` on `root`, in scale order."""
    return tuple((root + step) % 12 for step in MODES[mode])


@lru_cache(4096)
def scale_pitches(root: int, mode: str, low: int, high: int) -> tuple[int, ...]:
    """All MIDI pitches of the scale in `low..high`, ascending, both ends included."""
    classes = set(scale_pitch_classes(root, mode))
    return tuple(pitch for pitch in range(low, high + 1) if pitch % 12 in classes)


def chord_pitch_classes(root: int, mode: str, degree: int, size: int) -> tuple[int, ...]:
    """Pitch classes of the chord on a scale degree, root first.

    `size` 2 is root and fifth, 3 a triad, 4 a seventh, 5 a ninth without its fifth, or a seventh where the ninth would
    lie a semitone from the third. The tonic is a triad at most: a seventh or a ninth points elsewhere. All belong
    to the scale.
    """
    if mode in _CHORDS:
        chord = _CHORDS[mode][degree]
        return tuple((root + step) % 12 for step in (chord[::2] if size == 2 else chord[:size]))
    classes = scale_pitch_classes(root, mode)
    third, ninth = classes[(degree + 2) % 7], classes[(degree + 8) % 7]
    if degree == 0 and size > 3:
        size = 3
    thirds = _THIRDS[4 if size == 5 and (third - ninth) % 12 == 1 else size]
    return tuple(classes[(degree + step) % 7] for step in thirds)


def chord_pitches(classes: tuple[int, ...], low: int, high: int) -> tuple[int, ...]:
    """All MIDI pitches in `low..high` that belong to a chord, ascending."""
    return tuple(pitch for pitch in range(low, high + 1) if pitch % 12 in classes)


@lru_cache(65536)
def lead_voices(classes: tuple[int, ...], previous: tuple[int, ...], low: int, high: int) -> tuple[int, ...]:
    """The voicing of a chord in `low..high` that moves least from the previous voicing, ascending.

    Every pitch class sounds once, with no semitone between neighbours where possible. With no previous voicing
    the one nearest the middle of the register is taken.
    """
    options = [[pitch for pitch in range(low, high + 1) if pitch % 12 == pitch_class] for pitch_class in classes]
    voicings = [tuple(sorted(voicing)) for voicing in product(*options)]
    target = previous or ((low + high) // 2,) * len(classes)
    return min(voicings, key=lambda voicing: (num_clashes(voicing), _movement(voicing, target), voicing))


def num_clashes(voicing: tuple[int, ...]) -> int:
    """How many neighbours of a voicing are only a semitone apart."""
    return sum(upper - lower == 1 for lower, upper in pairwise(voicing))


def _movement(voicing: tuple[int, ...], target: tuple[int, ...]) -> int:
    """Semitones from each voice to the nearest voice of the target, summed."""
    return sum(min(abs(pitch - other) for other in target) for pitch in voicing)
