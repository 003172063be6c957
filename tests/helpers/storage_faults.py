"""Faults of the operating system: the n-th call that names something below a folder is refused, or all from it on.

Python tells its audit hooks of every file that is opened, listed, renamed or removed, and of every database, before it
does so; what a hook raises is raised in place of the call. Reads, `os.stat` and statements of SQLite are not told, and
are wrapped here.
"""

from __future__ import annotations

import errno
import io
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ERRNOS = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EACCES, errno.ESTALE)
EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.chmod"}
SQLITE_CODES = {
    errno.EMFILE: sqlite3.SQLITE_CANTOPEN,
    errno.EIO: sqlite3.SQLITE_IOERR,
    errno.EACCES: sqlite3.SQLITE_BUSY,
}


class Faults:
    """Counts the calls below `folder`, and refuses number `first`, or all from there on (`stay`)."""

    def __init__(self, folder: Path, first: int, code: int, *, stay: bool) -> None:
        self._folder, self._first, self._code, self._stay = str(folder), first, code, stay
        self.num_calls = 0
        self.refused: list[str] = []

    def check(self, what: str, path: object) -> None:
        """Raises OSError where the call is one of those that are refused."""
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if not name.startswith(self._folder):
            return
        self.num_calls += 1
        if self.num_calls == self._first or (self._stay and self.num_calls > self._first):
            self.refused.append(f"{what} {name.removeprefix(self._folder)}")
            raise OSError(self._code, os.strerror(self._code), name)

    def check_statement(self, path: str) -> None:
        """The same for a statement of SQLite."""
        try:
            self.check("statement", path)
        except OSError:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = SQLITE_CODES.get(self._code, sqlite3.SQLITE_IOERR)
            raise error from None


_active: Faults | None = None
_is_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is not None and event in EVENTS:
        _active.check(event, arguments[0])


@contextmanager
def faults(folder: Path, first: int, code: int, *, stay: bool = False) -> Iterator[Faults]:
    """The faults inside of the block, in all threads."""
    global _active, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hook)  # it cannot be removed
        _is_hooked = True
    found = Faults(folder, first, code, stay=stay)
    with ExitStack() as stack:
        for module, name, make in ((io, "open", _faulty_open), (os, "stat", _faulty_stat)):
            stack.enter_context(patch.object(module, name, make(getattr(module, name), found)))
        stack.enter_context(patch("builtins.open", io.open))
        stack.enter_context(patch("sqlite3.connect", _faulty_connect(sqlite3.connect, found)))
        _active = found
        try:
            yield found
        finally:
            _active = None


class _FaultyFile(io.FileIO):
    """A file whose reads may be refused."""

    faults: Faults

    def readinto(self, buffer: Any) -> int | None:
        self.faults.check("read", self.name)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.faults.check("read", self.name)
        return super().readall()


def _faulty_open(real: Callable[..., Any], found: Faults) -> Callable[..., Any]:
    def faulty(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **options: Any) -> Any:
        if isinstance(file, int) or mode not in ("r", "rb") or options.get("opener"):
            return real(file, mode, buffering, *text, **options)
        raw = _FaultyFile(file)
        raw.faults = found
        binary = io.BufferedReader(raw)
        return binary if mode == "rb" else io.TextIOWrapper(binary, *text, **options)

    return faulty


def _faulty_stat(real: Callable[..., Any], found: Faults) -> Callable[..., Any]:
    def faulty(path: Any, *arguments: Any, **options: Any) -> Any:
        found.check("stat", path)
        return real(path, *arguments, **options)

    return faulty


def _faulty_connect(real: Callable[..., Any], found: Faults) -> Callable[..., Any]:
    def faulty(path: Any, *arguments: Any, **options: Any) -> Any:
        class Connection(sqlite3.Connection):
            def execute(self, *statement: Any) -> sqlite3.Cursor:
                found.check_statement(str(path))
                return super().execute(*statement)

        found.check_statement(str(path))
        return real(path, *arguments, factory=Connection, **options)

    return faulty
