"""Notes as levels of keys: their curve, their keys, and what they leave of the latents that they are written into."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_bundle

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.notes import NoteLayerSpec, NotesSpec
from runtime.music.envelopes import PLAIN, level_curve
from runtime.music.note_levels import Phrase, key_of, note_levels, phrases_of, with_notes
from runtime.music.score import Note
from runtime.music.tracker import FrameNote, NoteTracker
from runtime.requests.option_types import NoteOptions

SPEC = NotesSpec(
    scale=6.0,
    on=0.12,
    off=0.06,
    layers=(
        NoteLayerSpec(name="bass", channels=tuple(range(12)), keys=tuple(range(36, 48))),
        NoteLayerSpec(name="melody", channels=tuple(range(12, 26)), keys=tuple(range(74, 88))),
        NoteLayerSpec(name="drums", channels=(26, 27, 28), keys=(36, 38, 42), is_percussion=True),
    ),
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("tiny"), TinySpec(notes=True)))


def test_a_note_ends_where_the_next_one_of_its_key_begins() -> None:
    layer = SPEC.layers[0]
    levels = note_levels(layer, [FrameNote("bass", 37, 127, 2, 9), FrameNote("bass", 37, 64, 6, 2)], 0, 12)
    assert np.flatnonzero(levels[:, 1]).tolist() == [2, 3, 4, 5, 6, 7]
    assert levels[6, 1] == pytest.approx(64 / 127)
    assert not levels[:, [0, 2]].any()
    # A piece of it is the same.
    np.testing.assert_array_equal(
        note_levels(layer, [FrameNote("bass", 37, 127, 2, 9)], 4, 3)[:, 1], level_curve(PLAIN, 9)[2:5]
    )


@pytest.mark.parametrize(
    ("layer", "pitch", "expected"),
    [
        (None, 40, ("bass", 40)),
        (None, 80, ("melody", 80)),
        (None, 30, ("bass", 42)),  # below all: by an octave
        (None, 60, ("bass", 36)),  # between two: by octaves into the nearest one
        (None, 100, ("melody", 76)),
        ("melody", 40, ("melody", 76)),
        ("bass", 127, ("bass", 43)),
        ("drums", 40, ("drums", 38)),
        ("drums", 57, ("drums", 42)),
    ],
)
def test_a_pitch_is_moved_by_octaves_into_its_layer(layer: str | None, pitch: int, expected: tuple[str, int]) -> None:
    found, key = key_of(SPEC, layer, pitch)
    assert (found.name, key) == expected


def test_a_layer_or_a_pitch_that_is_not_there_is_refused(bundle: Bundle) -> None:
    with pytest.raises(RequestError, match=r"notes\.1\.layer: there is no layer 'flute'") as error:
        phrases_of(SPEC, [note(40), note(40, layer="flute")], 25.0)
    assert error.value.fix == "one of bass, melody, drums"
    assert bundle.notes is not None
    with pytest.raises(RequestError, match=r"notes\.0\.pitch: .* no key of pitch 37"):
        phrases_of(bundle.notes, [note(37, layer="bass")], 25.0)


def note(pitch: int, start_s: float = 0.0, seconds: float = 0.2, layer: str | None = None) -> NoteOptions:
    return NoteOptions(pitch=pitch, start_s=start_s, seconds=seconds, layer=layer)


def test_onsets_are_at_the_nearest_frame_and_a_note_has_two_at_least() -> None:
    (phrase,) = phrases_of(SPEC, [note(40, 0.09, 0.01), note(41, 1.03, 0.2)], 25.0)
    assert [(each.start_frame, each.num_frames) for each in phrase.notes] == [(2, 2), (26, 5)]
    assert (phrase.start_frame, phrase.end_frame) == (2, 31)


def test_a_layer_has_only_its_notes_and_all_else_stays() -> None:
    rng = np.random.default_rng(0)
    latents, silence = rng.normal(size=(20, 32)).astype(np.float32), rng.normal(size=32).astype(np.float32)
    phrase = Phrase("melody", 4, 12, (FrameNote("melody", 75, 127, 6, 3),))
    made = with_notes(latents, [phrase], SPEC, silence)
    changed = made != latents
    assert np.flatnonzero(changed.any(axis=1)).tolist() == list(range(4, 12))
    assert np.flatnonzero(changed.any(axis=0)).tolist() == list(range(12, 26))
    levels = (made[4:12, 12:26] - silence[12:26]) / 6.0
    assert levels[:, 1] == pytest.approx([0, 0, 1.0, 0.92, 0.92 * 0.965 * 0.35, 0, 0, 0], abs=1e-6)
    assert np.abs(np.delete(levels, 1, axis=1)).max() < 1e-6
    # The same of a part that begins later, and half of it.
    np.testing.assert_allclose(with_notes(latents[5:], [phrase], SPEC, silence, 5), made[5:], rtol=1e-6)
    half = with_notes(latents, [phrase], SPEC, silence, share=np.full(20, 0.5, np.float32))
    np.testing.assert_allclose(half, (latents + made) / 2, rtol=1e-5, atol=1e-6)


def test_what_is_written_is_what_the_tracker_finds() -> None:
    notes = (FrameNote("melody", 75, 90, 3, 6), FrameNote("melody", 80, 60, 5, 4), FrameNote("melody", 75, 127, 12, 5))
    silence = np.zeros(32, np.float32)
    made = with_notes(np.zeros((24, 32), np.float32), [Phrase("melody", 3, 17, notes)], SPEC, silence)
    found = sorted(NoteTracker(SPEC, silence).track(made), key=lambda note: note.start_frame)
    assert found == list(notes)


def test_notes_of_a_score_are_taken_as_they_are() -> None:
    (phrase,) = phrases_of(SPEC, [Note("bass", 40, 100, 0.4, 0.2)], 25.0)
    assert phrase.notes == (FrameNote("bass", 40, 100, 10, 5),)
    assert phrase.moved(3) == Phrase("bass", 13, 18, (FrameNote("bass", 40, 100, 13, 5),))
