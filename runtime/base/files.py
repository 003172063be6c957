"""Files and folders of users: what lies in them, how they are read, and how they are kept where storage fails."""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from runtime.base.errors import ConfigError, FileError, StoreUnavailableError

# Names that begin with a point are hidden from people: ._x, .DS_Store, .git, .cache, .ipynb_checkpoints, .x.icloud.
# Then locks of Office, backups of editors, downloads that are not complete; folders' own files and waste.
_LEFT_BEHIND = re.compile(
    r"\..*|~\$.*|.*~|.*\.(part|partial|incomplete|crdownload|download|opdownload|aria2|tmp|temp|swp|bak)"
    r"|(eh)?thumbs\.db|desktop\.ini|icon\r|__macosx|__pycache__|@eadir|#recycle|\$recycle\.bin|lost\+found"
    r"|system volume information",
    re.IGNORECASE | re.DOTALL,
)


def is_left_behind(name: str) -> bool:
    """Whether a name is that of a file or folder which a program leaves beside those of people."""
    return _LEFT_BEHIND.fullmatch(name) is not None


def own_entries(folder: Path, suffix: str = "") -> list[Path]:
    """The files and folders with this suffix that people or we have put into a folder, by name. Raises OSError."""
    found = [path for path in folder.iterdir() if path.name.endswith(suffix) and not is_left_behind(path.name)]
    return sorted(found, key=lambda path: plain_name(path.name))


def plain_name(name: str) -> str:
    """A name in Unicode's composed form (NFC), as people type it; some file systems keep another one of "é"."""
    return unicodedata.normalize("NFC", name)


def expanded(path: Path) -> Path:
    """A path with the folder of a user in place of ~ or ~NAME at its beginning; as it is where there is none."""
    return Path(os.path.expanduser(path))


def user_folder(find: Callable[[], Path], fix: str) -> Path:
    """A folder of this user, of platformdirs. Raises ConfigError where the system knows no home folder."""
    try:
        return find()
    except RuntimeError:  # HOME is not set, and the user is not in the system's list, as in a container
        raise ConfigError("this user has no home folder: HOME is not set", fix=fix) from None


MAX_JSON_BYTES = 16 * 2**20
# A pipe that nothing writes to would be waited for.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Losses(list[str]):
    """What is left out of files, or mended in them, as sentences. audio_ms: how much of their audio that is."""

    audio_ms = 0


_LOSSES: ContextVar[Losses | None] = ContextVar("losses", default=None)


@contextmanager
def losses() -> Iterator[Losses]:
    """What is left out of audio and MIDI files that this context reads meanwhile."""
    token = _LOSSES.set(found := Losses())
    try:
        yield found
    finally:
        _LOSSES.reset(token)


def tell_loss(text: str) -> None:
    """Tell what is left out of the file that is read, or mended in it; again does nothing."""
    told = _LOSSES.get()
    if told is not None and text not in told:
        told.append(text)


def tell_lost_audio(milliseconds: int) -> None:
    """Tell how much of the audio that is read is left out, if any is."""
    if milliseconds and (told := _LOSSES.get()) is not None:
        told.audio_ms += milliseconds
        tell_loss(lost_audio(milliseconds))


def warn_of_losses(path: object, texts: Iterable[str]) -> None:
    """Warn a Python program of what is left out of a file."""
    for text in texts:
        warnings.warn(f"{path}: {text}", stacklevel=3)


def lost_audio(milliseconds: int) -> str:
    """The sentence for audio that cannot be decoded; the length is what is known to be missing."""
    return f"at least {milliseconds / 1000:.2f} s of the audio cannot be decoded and are left out"


def open_file(path: Path) -> BinaryIO:
    """A regular file, to read. Raises OSError, also for what is none: a folder, a device or a pipe."""
    try:
        descriptor = os.open(expanded(path), _FLAGS)
    except ValueError as error:  # a zero byte in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    found = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
    raise OSError(errno.EINVAL, f"it is {found}, expected a file", str(path))


def check_file(path: Path) -> None:
    """Raises FileError where open_file() would raise OSError."""
    try:
        open_file(path).close()
    except OSError as error:
        raise FileError(f"{path!s:.200} cannot be read: {error.strerror}") from error


def read_file(path: Path, limit_bytes: int) -> bytes:
    """The content of a regular file. Raises FileError where it cannot be read, or is longer than the limit."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(limit_bytes) if size <= limit_bytes else b""
    except OSError as error:
        raise FileError(f"{path!s:.200} cannot be read: {error.strerror}") from error
    if size > limit_bytes:
        raise FileError(f"{path!s:.200} has {size} bytes, at most {limit_bytes} are read")
    return data


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
