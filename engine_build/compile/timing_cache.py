"""TensorRT's timing cache on disk: one file per version and device, locked, written atomically."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import filelock

from runtime.base.errors import BuildError
from runtime.base.stored_files import read_stored
from runtime.engines.manifest import write_atomically

TIMING_CACHE_FOLDER = "timing-cache"
TIMING_CACHE_SUFFIX = ".timing"


def cache_path(folder: Path, version: str, gpu: str, compute_capability: str) -> Path:
    """The cache file of one TensorRT version on one GPU model."""
    device = re.sub(r"[^A-Za-z0-9]+", "-", gpu).strip("-").lower()
    return folder / f"tensorrt-{version}-{device}-cc{compute_capability}{TIMING_CACHE_SUFFIX}"


def read_cache(path: Path) -> bytes:
    """The serialized cache; empty where there is no file. Raises BuildError, StoreUnavailableError."""
    with _locked(path):
        return read_stored(path) or b""


@contextlib.contextmanager
def updating(path: Path) -> Iterator[tuple[bytes, list[bytes]]]:
    """Lock the file; yields its content and a list, whose last item replaces the content.

    Raises BuildError, StoreUnavailableError.
    """
    with _locked(path):
        replacement: list[bytes] = []
        yield read_stored(path) or b"", replacement
        if replacement:
            write_atomically(path, replacement[-1])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock against other builds. The lock is a separate file: the cache file itself is replaced, not rewritten."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Until other builds on this machine have merged their times; not while they measure.
        with filelock.FileLock(path.with_name(f"{path.name}.lock")):
            yield
    except OSError as error:
        what = f"the timing cache {path} cannot be read or written: {error.strerror}"
        raise BuildError(what, fix="see that its folder can be written; or timing_cache = false in [build]") from error
