"""Output files: their format by suffix, and files that replace an older one once they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from runtime.audio.formats import FORMATS
from runtime.errors import FileError, RequestError

FORMAT_BY_SUFFIX = {item.suffix: item.name for item in FORMATS.values()} | {".opus": "ogg", ".raw": "pcm"}


def format_of(path: Path, format: str | None = None) -> str:
    """The format to write: `format` if given, else the one of the suffix. Raises RequestError."""
    if format is not None:
        if format not in FORMATS:
            raise RequestError(f"expected one of {', '.join(FORMATS)}, got {format!r}", field="format")
        return format
    if path.suffix.lower() not in FORMAT_BY_SUFFIX:
        known = " ".join(FORMAT_BY_SUFFIX)
        raise RequestError(
            f"the suffix of {str(path)!r} is not that of a format", fix=f"end it in one of {known}, or name the format"
        )
    return FORMAT_BY_SUFFIX[path.suffix.lower()]


@contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` when the block ends; where it fails, `path` stays as it was.

    Raises FileError where it cannot be written.
    """
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
