"""Notes of levels that are written by hand: where they begin and end, how loud they are, in pieces of any length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_bundle
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.notes import NotesSpec
from runtime.music.score import Instrument, Marker, Note
from runtime.music.tracker import FrameNote, NoteTracker, score_of, still_layers, tonic_lead

SPEC = TinySpec(notes=True)
SCALE = 0.5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("tiny"), SPEC))


def latents_of(bundle: Bundle, levels: dict[int, Sequence[float]], frames: int = 16) -> np.ndarray:
    """Latents whose channels have these levels from frame 0 on, silence elsewhere."""
    found = np.zeros((frames, SPEC.channels), np.float32)
    for channel, values in levels.items():
        found[: len(values), channel] = values
    return found * np.float32(SCALE) + bundle.silence(frames)


def tracked(bundle: Bundle, levels: dict[int, Sequence[float]]) -> list[FrameNote]:
    assert bundle.notes is not None
    tracker = NoteTracker(bundle.notes, bundle.silence(1)[0])
    return [*tracker.track(latents_of(bundle, levels)), *tracker.sounding()]


def test_a_note_lasts_from_above_on_to_below_off(bundle: Bundle) -> None:
    assert tracked(bundle, {1: [0, 0, 0.8, 0.7, 0.4, 0.1, 0.07, 0.05]}) == [FrameNote("bass", 40, 102, 2, 5)]


def test_silence_and_what_stays_below_on_is_no_note(bundle: Bundle) -> None:
    assert tracked(bundle, {}) == []
    assert tracked(bundle, {0: [0.11] * 16}) == []


def test_velocity_is_the_highest_level_of_the_first_five_frames(bundle: Bundle) -> None:
    assert [note.velocity for note in tracked(bundle, {0: [0.2, 0.3, 0.4, 0.5, 0.6, 1.0]})] == [76]
    assert [note.velocity for note in tracked(bundle, {0: [2.0, 2.0]})] == [127]


def test_a_slow_attack_begins_with_its_rise(bundle: Bundle) -> None:
    assert [note.start_frame for note in tracked(bundle, {0: [0, 0, 0.1, 0.2, 0.4, 0.5]})] == [2]
    # Two frames before it is loud enough, at most.
    assert [note.start_frame for note in tracked(bundle, {0: [0.01, 0.02, 0.03, 0.05, 0.1, 0.2]})] == [3]


def test_a_sudden_attack_begins_where_it_is_loud_and_not_with_what_stirs_before(bundle: Bundle) -> None:
    assert [note.start_frame for note in tracked(bundle, {0: [0.0, 0.003, 0.01, 0.9, 0.8]})] == [3]
    assert [note.start_frame for note in tracked(bundle, {0: [0.9, 0.2, 0.21, 0.9, 0.8]})] == [0, 3]


@pytest.mark.parametrize(
    ("again", "starts"),
    [
        ([0.9, 0.8, 0.2, 0.9, 0.8], [0, 3]),  # a dip
        ([0.3, 0.18, 0.08, 0.1, 0.19, 0.25, 0.3], [0, 3]),  # a soft one, which rises slowly
        ([0.9, 0.8, 0.7, 0.9, 0.8], [0]),  # tremolo
        ([0.9, 0.7, 0.5, 0.4, 0.45, 0.4], [0]),  # a little more
        ([0.2, 0.4, 0.6, 0.8, 0.9], [0]),  # a rise alone
    ],
)
def test_a_key_is_struck_again_where_its_level_recovers(bundle: Bundle, again: list[float], starts: list[int]) -> None:
    notes = tracked(bundle, {2: again})
    assert [note.start_frame for note in notes] == starts
    assert all(note.start_frame + note.num_frames in (*starts, len(again)) for note in notes)


def test_one_frame_is_a_note_of_percussion_alone(bundle: Bundle) -> None:
    assert tracked(bundle, {0: [0.9], 3: [0.9]}) == [FrameNote("drums", 36, 114, 0, 1)]


def test_what_sounds_at_the_end_is_told_apart(bundle: Bundle) -> None:
    assert bundle.notes is not None
    tracker = NoteTracker(bundle.notes, bundle.silence(1)[0])
    assert tracker.track(latents_of(bundle, {0: [0.5] * 4}, 4)) == []
    assert tracker.sounding() == [FrameNote("bass", 36, 64, 0, 4)]
    assert tracker.track(latents_of(bundle, {}, 4)) == [FrameNote("bass", 36, 64, 0, 4)]
    assert tracker.sounding() == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_pieces_of_any_length_give_the_same_notes(bundle: Bundle, seed: int, cuts: list[int]) -> None:
    assert bundle.notes is not None
    latents = np.random.default_rng(seed).uniform(-0.2, 0.9, (60, SPEC.channels)).astype(np.float32)
    whole, parts = (NoteTracker(bundle.notes, bundle.silence(1)[0]) for _ in range(2))
    found = [note for piece in np.split(latents, sorted(cuts)) for note in parts.track(piece)]
    assert found == whole.track(latents)
    assert parts.sounding() == whole.sounding()
    by_key: dict[tuple[str, int], list[FrameNote]] = {}
    for note in sorted([*found, *parts.sounding()], key=lambda note: note.start_frame):
        by_key.setdefault((note.layer, note.key), []).append(note)
    for notes in by_key.values():  # No two notes of a key overlap.
        assert all(a.start_frame + a.num_frames <= b.start_frame for a, b in pairwise(notes))


def test_a_score_has_seconds_markers_and_the_nearest_instrument(bundle: Bundle) -> None:
    latents = latents_of(bundle, {0: [0.5] * 8, 4: [0, 0, 0.9, 0.3], 5: [0.8] * 8 + [0.0] * 8})
    said = {"bpm": 120.0, "time_signature": None, "key": ""}
    score = score_of(bundle, latents, said, [{"start_s": 0.2, "kind": "verse", "bars": 4}])
    assert score.notes == [Note("bass", 36, 64, 0.0, pytest.approx(0.32)), Note("drums", 38, 114, 0.08, 0.08)]
    assert score.seconds == pytest.approx(16 * 0.04)
    assert [(part.layer, part.is_percussion, part.instrument) for part in score.parts] == [
        ("bass", False, Instrument("upright bass", 32)),
        ("drums", True, None),
    ]
    assert (score.bpm, score.time_signature, score.key) == (120.0, None, None)
    assert score.sections == (Marker(0.2, "verse"),)


def test_a_model_without_notes_is_refused(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path))
    with pytest.raises(RequestError, match=r"no \[notes\]"):
        score_of(bundle, bundle.silence(4), {})


TONES_SCALE, SILENCE = 6.0, np.full(28, -0.5, np.float32)
# Two octaves from C3 on in channels 1 to 24; drums in 25 to 27, whose keys would be a chord of F sharp.
TONES = NotesSpec(
    scale=TONES_SCALE,
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
    latents[:, 25:] += drums * TONES_SCALE
    for place, chord in enumerate(chords):
        for semitone in chord:
            latents[10 * place : 10 * place + 10, 1 + semitone] += level * TONES_SCALE
    return latents


C, F, G, AM, DM = (0, 4, 7), (5, 9, 12), (7, 11, 14), (9, 12, 16), (2, 5, 9)


def leads(latents: NDArray[np.float32]) -> list[float]:
    return [tonic_lead(TONES, SILENCE, latents, tonic) for tonic in range(12)]


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
    latents[:, 2] -= TONES_SCALE  # C sharp
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
        found = still_layers(TONES, SILENCE, latents, 10.0)
        assert found == still


def test_a_held_chord_that_fades_or_trembles_is_still() -> None:
    loudness = np.linspace(1.0, 0.4, 8) + 0.05 * np.random.default_rng(0).random(8)
    latents = np.concatenate([played(C, level=0.8 * each) for each in loudness])
    assert still_layers(TONES, SILENCE, latents, 10.0) == ["piano"]
