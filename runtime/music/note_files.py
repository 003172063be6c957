"""Files with notes to play: MIDI, or JSON as in an HTTP request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runtime.base.errors import RequestError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.midi_events import MAGIC
from runtime.base.untrusted import plain_utf8
from runtime.config.notes import NotesSpec
from runtime.music.midi_file import notes_of_midi


def read_notes(path: Path, spec: NotesSpec) -> Any:
    """Values of the option `notes`, those of JSON not validated yet. Raises RequestError, FileError."""
    data = read_file(path, MAX_JSON_BYTES)
    try:
        values = from_json(plain_utf8(data), allow_inf_nan=False)
    except ValueError as error:
        if MAGIC in data:
            return notes_of_midi(data, spec)
        raise RequestError(f"{path} is neither MIDI nor JSON: {error}", field="notes") from error
    return values["notes"] if isinstance(values, dict) and "notes" in values else values
