"""Files that a caller names: opened without waiting, regular files only, and read up to a limit."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from runtime.errors import FileError
from runtime.failures import native_call
from runtime.folders import expanded

MAX_JSON_BYTES = 16 * 2**20
MAX_ARRAY_BYTES = 2**30
# A pipe that nothing writes to would be waited for.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


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
