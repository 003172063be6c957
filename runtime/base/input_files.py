"""Files that a caller names: opened without waiting, regular files only, and read up to a limit.

What is left out of files that are damaged is told in the block that has asked by losses().
"""

from __future__ import annotations

import errno
import io
import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import FileError, native_call
from runtime.base.folders import expanded

MAX_JSON_BYTES = 16 * 2**20
MAX_ARRAY_BYTES = 2**30
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


def read_matrix(path: Path) -> NDArray[np.float32]:
    """float32 `[rows, columns]` of a .npy file. Raises FileError where the file cannot be read, or is none of these."""
    data, what = read_file(path, MAX_ARRAY_BYTES), f"{path!s:.200} does not hold float32 [rows, columns]"
    fix = "numpy.save(FILE, array)"
    if not data.startswith(np.lib.format.MAGIC_PREFIX):
        raise FileError(f"{what}: it is no .npy file", fix=fix)
    with native_call(f"{what}: its header", fix=fix, kind=FileError):
        array: NDArray[np.float32] = np.load(io.BytesIO(data), allow_pickle=False)
    if array.dtype != np.float32 or array.ndim != 2:
        raise FileError(f"{what}: it has {array.dtype} {list(array.shape)}", fix=fix)
    return array
