"""The tonic of latents: chords of a key, with and without what sounds in no key."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.config.notes import NotesSpec
from runtime.music.tonic import still_layers, tonic_lead

SCALE, SILENCE = 6.0, np.full(28, -0.5, np.float32)
# Two octaves from C3 on in channels 1 to 24; drums in 25 to 27, whose keys would be a chord of F sharp.
SPEC = NotesSpec(
    scale=SCALE,
    on=0.1,
    off=0.05,
    layers=(
        {"name": "piano", "channels": tuple(range(1, 25)), "keys": tuple(range(48, 72))},
        {"name": "drums", "channels": (25, 26, 27), "keys": (42, 46, 49), "is_percussion": True},
    ),
)


def played(*chords: tuple[int, ...], level: float = 0.8, drums: float = 0.0) -> NDArray[np.float32]:
    """Latents `[10 * len(chords), 28]` of chords in semitones above C3."""
    latents = np.tile(SILENCE, (10 * len(chords), 1))
    latents[:, 25:] += drums * SCALE
    for place, chord in enumerate(chords):
        for semitone in chord:
            latents[10 * place : 10 * place + 10, 1 + semitone] += level * SCALE
    return latents


C, F, G, AM, DM = (0, 4, 7), (5, 9, 12), (7, 11, 14), (9, 12, 16), (2, 5, 9)


def leads(latents: NDArray[np.float32]) -> list[float]:
    return [tonic_lead(SPEC, SILENCE, latents, tonic) for tonic in range(12)]


@pytest.mark.parametrize(
    ("chords", "tonic"),
    [
        ((C, F, G, C), 0),
        ((AM, DM, (4, 8, 11), AM), 9),
        (tuple(tuple(note + 2 for note in chord) for chord in (C, F, G, C)), 2),
    ],
)
def test_one_tonic_leads(chords: tuple[tuple[int, ...], ...], tonic: int) -> None:
    found = leads(played(*chords))
    assert [place for place, lead in enumerate(found) if lead > 0] == [tonic]
    assert found[tonic] == pytest.approx(-max(lead for place, lead in enumerate(found) if place != tonic))


def test_loud_notes_count_more_and_percussion_nothing() -> None:
    latents = played(C, F, G, C)
    assert leads(played(C, F, G, C, drums=1.0)) == pytest.approx(leads(latents))
    assert leads(np.concatenate([latents, played(G, level=0.02)])) == pytest.approx(leads(latents), abs=0.02)
    assert leads(np.concatenate([latents, played(*8 * [G])]))[0] < 0


def test_levels_below_silence_count_nothing_and_silence_has_no_tonic() -> None:
    latents = played(C, F, G, C)
    latents[:, 2] -= SCALE  # C sharp
    assert leads(latents) == pytest.approx(leads(played(C, F, G, C)))
    assert leads(np.tile(SILENCE, (20, 1))) == [0.0] * 12


@pytest.mark.parametrize(
    ("chords", "still"),
    [
        (8 * (C,), ["piano"]),
        ((*4 * (C,), *4 * (F,)), []),
        ((*7 * (C,), AM), []),
        ((), []),
        (3 * (C,), []),
        (4 * (C,), ["piano"]),
    ],
)
def test_a_layer_that_holds_its_keys_is_still(chords: tuple[tuple[int, ...], ...], still: list[str]) -> None:
    """Each chord is a second, as loud as it may be; fewer than four are not judged, and drums never are."""
    for level in (0.2, 0.8):
        silent = np.tile(SILENCE, (20, 1))
        latents = np.concatenate([silent, played(*chords, level=level, drums=1.0) if chords else silent, silent])
        found = still_layers(SPEC, SILENCE, latents, 10.0)
        assert found == still


def test_a_held_chord_that_fades_or_trembles_is_still() -> None:
    loudness = np.linspace(1.0, 0.4, 8) + 0.05 * np.random.default_rng(0).random(8)
    latents = np.concatenate([played(C, level=0.8 * each) for each in loudness])
    assert still_layers(SPEC, SILENCE, latents, 10.0) == ["piano"]
