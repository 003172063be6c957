"""Chords, arpeggios and bass: each follows the bars' harmony in its genre's rhythm."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.form import Bar, Hit, Note, accents, grid_of, groove_of, hits_of
from configs.demo.recipe.corpus.genres import STEPS_PER_BEAT
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.theory import chord_pitches, scale_pitch_classes
from configs.demo.recipe.instruments import REGISTERS
from configs.demo.recipe.latents import FIRST_PITCH

_STACCATO_SHARE: Final = 0.5
_STACCATO_REST_BEATS: Final = 0.5
_BASS_LOW: Final = REGISTERS["bass"][0]
_HOLDING: Final = ("strings", "choir", "organ")
_UPPER_VOICES: Final = 0.85  # of a chord's level: its root is heard as such


def write_pad(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    """Chords, voice-led, in the rhythm of the groove; long ones are struck again in dense songs.

    They are held from one to the next in sparse and legato songs, and where the instrument is one that holds.
    """
    grid, options = grid_of(song), groove_of(song).chords
    pattern = options[int(rng.integers(len(options)))]
    holds = song.articulation > 0 and (song.instruments["pad"] in _HOLDING or song.articulation == 2)
    for bar in bars:
        hits = hits_of(pattern, bar.density)
        if bar.is_final or holds or (song.articulation > 0 and bar.density == 0):
            hits = held(hits[:1] if bar.is_final else hits, len(grid) - 1)
        for hit in _split(hits, 8) if bar.density == 2 and not bar.is_final else hits:
            start, end = _span(song, bar, hit, grid)
            for pitch in bar.voicing:
                weight = hit.weight * (1.0 if pitch % 12 == bar.chord[0] else _UPPER_VOICES)
                yield Note(pitch - FIRST_PITCH, start, end, bar.velocity * weight, song.instruments["pad"])


def write_arp(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    """Broken chords: one shape for phrases A, another for B, in quarters, eighths or sixteenths."""
    grid, weights, shapes = grid_of(song), accents(song.meter), song.rule.arp
    first = int(rng.integers(len(shapes)))
    drawn = {"A": shapes[first], "B": shapes[(first + 1) % len(shapes)]}
    for bar in bars:
        pitches = _from_the_root(bar.chord if len(bar.chord) > 2 else bar.triad)
        shape, size = drawn[bar.phrase], len(weights) if bar.is_final else _arp_step(song, bar.density)
        for count, step in enumerate(range(0, len(weights), size)):
            pitch = pitches[min(int(shape[count % len(shape)]), len(pitches) - 1)]
            hit = Hit(step, step + size, weights[step], "x")
            start, end = _span(song, bar, hit, grid)
            yield Note(pitch - FIRST_PITCH, start, end, bar.velocity * hit.weight, song.instruments["arp"])


def _from_the_root(chord: tuple[int, ...]) -> list[int]:
    """The chord's pitches in the register, from the root on; what lies above the register is an octave lower."""
    low, high = REGISTERS["arp"]
    pitches, root = chord_pitches(chord, low, high), low + (chord[0] - low) % 12
    return [*(p for p in pitches if p >= root), *(p for p in pitches if p < root)]


def _arp_step(song: Song, density: int) -> int:
    """Steps from note to note."""
    if song.meter == "6/8":
        return (6, 2, 2 if song.bpm > 80 else 1)[density]
    return (4, 2, 2 if song.bpm > 132 else 1)[density]


def write_bass(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    """Roots, fifths, thirds and steps to the next root, in the rhythm of the groove."""
    grid, options, weights = grid_of(song), groove_of(song).bass, accents(song.meter)
    pattern = options[int(rng.integers(len(options)))]
    classes = scale_pitch_classes(song.root, song.mode)
    for bar in bars:
        hits = hits_of(pattern, bar.density)
        if bar.is_final:
            hits = (Hit(0, len(weights), 1.0, "R"),)
        for hit in _split(hits, 6) if bar.density == 2 and not bar.is_final else hits:
            start, end = _span(song, bar, hit, grid)
            channel = (_bass_pitch_class(hit.letter.upper(), bar, classes) - _BASS_LOW) % 12
            velocity = bar.velocity * hit.weight * max(weights[hit.step], 0.85)
            yield Note(_BASS_LOW - FIRST_PITCH + channel, start, end, velocity, song.instruments["bass"])


def _bass_pitch_class(letter: str, bar: Bar, classes: tuple[int, ...]) -> int:
    """The pitch class of a bass pattern's letter."""
    if letter == "A":
        return min((c for c in classes if c != bar.next_root), key=lambda c: _distance(c, bar.next_root))
    return bar.triad["RTF".index(letter)]


def _distance(pitch_class: int, other: int) -> int:
    """Semitones between two pitch classes, the shorter way."""
    return min((pitch_class - other) % 12, (other - pitch_class) % 12)


def held(hits: Sequence[Hit], num_steps: int) -> tuple[Hit, ...]:
    """Hits that last until the next one; the first begins with the bar, the last ends with it."""
    ends = [*(hit.step for hit in hits[1:]), num_steps]
    starts = [0, *(hit.step for hit in hits[1:])]
    return tuple(hit._replace(step=start, end=end) for hit, start, end in zip(hits, starts, ends, strict=True))


def _split(hits: tuple[Hit, ...], steps: int) -> Iterator[Hit]:
    """Hits with every one of at least `steps` steps struck again, softer, at its half."""
    for hit in hits:
        half = (hit.end - hit.step) // 4 * 2
        if hit.end - hit.step < steps:
            yield hit
        else:
            yield hit._replace(end=hit.step + half)
            yield hit._replace(step=hit.step + half, weight=0.8 * hit.weight)


def _span(song: Song, bar: Bar, hit: Hit, grid: tuple[float, ...]) -> tuple[float, float]:
    """Start and end of a hit in beats of the song; staccato ones are shorter, long ones end a little earlier."""
    start, end = grid[hit.step], grid[hit.end]
    if song.articulation == 0:
        shorter = start + max(_STACCATO_SHARE * (end - start), 0.5 / STEPS_PER_BEAT[song.meter])
        end = max(shorter, end - _STACCATO_REST_BEATS)
    return bar.start_beat + start, bar.start_beat + end
