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

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.music.score import Instrument, Marker, Note
from runtime.music.tracker import FrameNote, NoteTracker, score_of

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
