"""Output files: their format by suffix, and files that replace an older one once they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from runtime.audio.formats import FORMATS, format_name
from runtime.base.errors import FileError, RequestError
from runtime.base.folders import expanded

SUFFIXES = (*(item.suffix for item in FORMATS.values()), ".opus", ".raw")


def format_of(path: Path, format: str | None = None) -> str:
    """The format to write: `format` if given, else the one of the suffix. Raises RequestError."""
    found = str(format_name(path.suffix if format is None else format))
    if found in FORMATS:
        return found
    if format is not None:
        raise RequestError(f"expected one of {', '.join(FORMATS)}, got {format!r}", field="format")
    fix = f"end it in one of {' '.join(SUFFIXES)}, or name the format"
    raise RequestError(f"the suffix of {str(path)!r} is not that of a format", fix=fix)


@contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` when the block ends; where it fails, `path` stays as it was.

    Raises FileError where it cannot be written.
    """
    path = expanded(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder, expected a file's name")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
