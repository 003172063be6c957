"""Files with notes to play: MIDI, or JSON as in an HTTP request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runtime.config.notes import NotesSpec
from runtime.errors import FileError, RequestError
from runtime.notes.midi_file import MAGIC, notes_of_midi


def read_notes(path: Path, spec: NotesSpec) -> Any:
    """Values of the option `notes`, those of JSON not validated yet. Raises RequestError, FileError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    if data.startswith(MAGIC):
        return notes_of_midi(data, spec)
    try:
        values = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"{path} is neither MIDI nor JSON: {error}", field="notes") from error
    return values["notes"] if isinstance(values, dict) and "notes" in values else values
