"""Files with notes: MIDI or JSON, and what is neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.midi_files import NOTE, midi_file

from runtime.base.errors import FileError, RequestError
from runtime.config.notes import NoteLayerSpec, NotesSpec
from runtime.music.note_files import read_notes

SPEC = NotesSpec(scale=1.0, on=0.12, off=0.06, layers=(NoteLayerSpec(name="bass", channels=(0,), keys=(40,)),))


def test_notes_of_midi_and_of_json(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(midi_file(NOTE))
    notes = read_notes(path, SPEC)
    assert [(note["pitch"], note["seconds"]) for note in notes] == [(40, 0.1)]
    for values in (notes, {"notes": notes}):
        path.write_text(json.dumps(values))
        assert read_notes(path, SPEC) == notes


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b"MThd" + b"\xff" * 99])
def test_what_is_neither_is_an_error_of_the_notes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(RequestError) as error:
        read_notes(path, SPEC)
    assert error.value.field == "notes"


def test_what_has_no_end_is_no_file() -> None:
    with pytest.raises(FileError, match="/dev/zero cannot be read: it is a device"):
        read_notes(Path("/dev/zero"), SPEC)
