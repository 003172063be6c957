"""The melody: motifs repeated and varied over the phrases, an arc of contour, phrase ends on chord tones and rests."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from configs.demo.recipe.corpus.form import PHRASE_BARS, Bar, Note, accents, grid_of
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.theory import scale_pitches
from configs.demo.recipe.instruments import REGISTERS
from configs.demo.recipe.latents import FIRST_PITCH

# By meter and density; `x` is a note, `-` holds it, `.` is a rest.
_RHYTHMS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "4/4": (
        ("x-------x-------", "x-----------....", "x-------....x---", "x-----x---------"),
        ("x---x---x-------", "x-----x-x---x---", "x---x-x-x---....", "....x-x-x---x---", "x-x-x---x---x---"),
        ("x-x-x-x-x---x-x-", "x--x--x-x-x-x---", "x-x---x-x-x-....", "..x-x-x-x-x-x---", "x---x-x-x-x-x---"),
    ),
    "3/4": (
        ("x-----------", "x-------x---", "x-------...."),
        ("x---x---x---", "x-------x-x-", "x---x-x-x---", "x-x-x---x---"),
        ("x-x-x-x-x-x-", "x---x-x-x-x-", "x-x-x---x-x-"),
    ),
    "6/8": (
        ("x-----------", "x-----x-----"),
        ("x---x-x-----", "x-----x---x-", "x---x-x---x-"),
        ("x-x-x-x---x-", "x-x-x-x-x-x-", "x---x-x-x-x-"),
    ),
}
_CADENCES: Final[dict[str, tuple[str, ...]]] = {
    "4/4": ("x-----------....", "x---x-------....", "x-x-x-x-----...."),
    "3/4": ("x-------....", "x---x---....", "x-x-x---...."),
    "6/8": ("x-----......", "x---x-......", "x-x-x-......"),
}
# Where in the register the bars of a phrase begin.
_ARCS: Final = ((0.35, 0.5, 0.75, 0.45), (0.6, 0.75, 0.5, 0.3), (0.45, 0.6, 0.65, 0.35), (0.3, 0.45, 0.6, 0.7))
# Steps in the scale from note to note of a motif: runs, arches, turns, leaps that are filled in; also upside down.
_SHAPES: Final = (
    (1, 1, 1, -1, -1), (1, 1, -1, -1, 1), (2, -1, 2, -1, -1), (3, -1, -1, -1, 1), (1, -1, 2, -1, -1), (0, 1, 1, -2, 1),
    (2, 2, -1, -1, -1), (4, -1, -1, -2, 1), (1, -1, -1, 1, 2),
)  # fmt: skip
_CLOSING_MOVES: Final = ((-1, -1, 1, -1), (1, 1, -1, -1), (-1, -1, -1, 1))
_ANCHOR_STEPS: Final = {"4/4": 8, "3/4": 12, "6/8": 6}  # chord tones stand where these begin


class MotifNote(NamedTuple):
    """A note of a motif: its step in the bar, the step after its last, and how far it moves in the scale."""

    step: int
    end: int
    move: int


Motif = tuple[MotifNote, ...]


def write_melody(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    """A tune: bars 1 and 3 of a phrase share a motif, bar 2 answers, bar 4 closes; phrase B has motifs of its own.

    Over the tonic a bar begins on it, and a phrase ends on it.
    """
    grid, weights = grid_of(song), accents(song.meter)
    scale = scale_pitches(song.root, song.mode, *REGISTERS["melody"])
    phrases = {name: _Phrase(song, rng) for name in "AB"}
    for bar in bars:
        position = _nearest(scale, bar.triad, phrases[bar.phrase].first_position(bar, len(scale)))
        motif = (MotifNote(0, len(weights), 0),) if bar.is_final else phrases[bar.phrase].motif(bar)
        for index, (step, end, move) in enumerate(motif):
            before, position = position, _moved(position, move if index else 0, len(scale))
            is_home = index == len(motif) - 1 if bar.position == PHRASE_BARS - 1 else index == 0
            if is_home and bar.triad[0] == song.root:
                position = _nearest(scale, bar.triad[:1], position)
            elif step % _ANCHOR_STEPS[song.meter] == 0 or index == len(motif) - 1:
                position = _nearest(scale, bar.triad, position, other_than=before if index and move else -1)
            velocity = bar.velocity * max(weights[step], 0.7)
            start = bar.start_beat + grid[step]
            length = (grid[end] - grid[step]) * (0.55, 0.92, 1.0)[song.articulation]
            yield Note(scale[position] - FIRST_PITCH, start, start + length, velocity, song.instruments["melody"])


class _Phrase:
    """The material of one kind of phrase: a call, an answer and a close for each density, and an arc."""

    def __init__(self, song: Song, rng: np.random.Generator) -> None:
        self._is_riff = song.rule.is_riff
        self._lift = {"verse": -0.15, "chorus": 0.15}.get(song.section or "", 0.0)
        self._arc = _ARCS[int(rng.integers(len(_ARCS)))]
        choices, shapes = rng.integers(60, size=2), rng.integers(2 * len(_SHAPES), size=2)
        moves = [[(-1) ** int(shape % 2) * step for step in _SHAPES[shape // 2]] for shape in shapes]
        self._motifs = [
            [_motif(options[choice % len(options)], moves[index]) for index, choice in enumerate(choices)]
            for options in _RHYTHMS[song.meter]
        ]
        closing = _CLOSING_MOVES[int(rng.integers(len(_CLOSING_MOVES)))]
        self._closes = [_motif(pattern, closing) for pattern in _CADENCES[song.meter]]

    def motif(self, bar: Bar) -> Motif:
        if bar.position == PHRASE_BARS - 1:
            return self._closes[bar.density]
        call, answer = self._motifs[bar.density]
        return call if self._is_riff or bar.position != 1 else answer

    def first_position(self, bar: Bar, scale_size: int) -> int:
        """The scale step that a bar begins near; every other phrase lies a step higher in its third bar."""
        varied = 0.12 if bar.phrase_index % 2 and bar.position == 2 else 0.0
        share = 0.4 if self._is_riff else self._arc[bar.position]
        return round(min(max(share + varied + self._lift, 0.0), 1.0) * (scale_size - 1))


def _motif(pattern: str, moves: Sequence[int]) -> Motif:
    """The notes of a rhythm, moved as listed after the first, again from the front where it has more notes."""
    notes = re.finditer("x-*", pattern)
    return tuple(MotifNote(*note.span(), moves[(index - 1) % len(moves)]) for index, note in enumerate(notes))


def _moved(position: int, move: int, scale_size: int) -> int:
    """A position after a move, turned back where it would leave the scale."""
    target = position + move if 0 <= position + move < scale_size else position - move
    return min(max(target, 0), scale_size - 1)


def _nearest(scale: tuple[int, ...], chord: tuple[int, ...], position: int, other_than: int = -1) -> int:
    """Index of the scale pitch nearest to `position` that belongs to the chord; the lower one of two."""
    tones = [index for index, pitch in enumerate(scale) if pitch % 12 in chord and index != other_than]
    return min(tones, key=lambda index: (abs(index - position), index))
