"""Files that are kept: missing, unreadable now and damaged are three things.

Nothing is removed or replaced because it cannot be read. What was read whole and is damaged is renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.base.errors import StoreUnavailableError


@contextmanager
def unavailable_now(what: str, fix: str = "") -> Iterator[None]:
    """Raise StoreUnavailableError for what the operating system refuses: it says nothing about what is stored."""
    try:
        yield
    except OSError as error:
        fix = fix or "try again; see that the disk works and that files can be opened (ulimit -n)"
        raise StoreUnavailableError(f"{what}: {error.strerror or error}", fix=fix) from error


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Raise StoreUnavailableError where a file cannot be read now. FileNotFoundError stays what it is."""
    missing = None
    with unavailable_now(f"{name} cannot be read now"):
        try:
            yield
        except FileNotFoundError as error:
            missing = error
    if missing is not None:
        raise missing


def read_stored(path: Path, name: str = "") -> bytes | None:
    """A file's bytes; None where there is no file. name: in errors, if not the path. Raises StoreUnavailableError."""
    try:
        with reading(name or path):
            return path.read_bytes()
    except FileNotFoundError:
        return None


def set_aside(path: Path, parts: Sequence[str] = ("",), mark: str = "damaged") -> Path:
    """Rename a damaged file, and those beside it whose names have a suffix of `parts`; returns its new path.

    The name is the next free number, because a time stamp repeats where the clock goes backwards. Raises OSError.
    """
    number, names = 1, os.listdir(path.parent)
    while any(name.startswith(f"{path.name}.{mark}-{number}") for name in names):
        number += 1
    kept = path.with_name(f"{path.name}.{mark}-{number}")
    for part in parts:
        with suppress(FileNotFoundError):
            path.with_name(path.name + part).rename(kept.with_name(kept.name + part))
    return kept
