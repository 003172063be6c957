"""TensorRT's timing cache on disk: one file per version and device, locked, written atomically."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import filelock

from runtime.engines.manifest import write_atomically
from runtime.errors import BuildError

TIMING_CACHE_FOLDER = "timing-cache"
TIMING_CACHE_SUFFIX = ".timing"
DAMAGED_SUFFIX = ".damaged"


def cache_path(folder: Path, version: str, gpu: str, compute_capability: str) -> Path:
    """The cache file of one TensorRT version on one GPU model."""
    device = re.sub(r"[^A-Za-z0-9]+", "-", gpu).strip("-").lower()
    return folder / f"tensorrt-{version}-{device}-cc{compute_capability}{TIMING_CACHE_SUFFIX}"


def read_cache(path: Path) -> bytes:
    """The serialized cache; empty where there is no file. Raises BuildError."""
    try:
        with _locked(path):
            return path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise BuildError(f"the timing cache {path} cannot be read: {error.strerror}", fix=f"rm {path}") from error


@contextlib.contextmanager
def updating(path: Path) -> Iterator[tuple[bytes, list[bytes]]]:
    """Lock the file; yields its content and a list, whose last item replaces the content. Raises BuildError."""
    try:
        with _locked(path):
            replacement: list[bytes] = []
            yield path.read_bytes() if path.is_file() else b"", replacement
            if replacement:
                write_atomically(path, replacement[-1])
    except OSError as error:
        raise BuildError(f"the timing cache {path} cannot be written: {error.strerror}", fix=f"rm {path}") from error


def set_aside(path: Path) -> Path:
    """Rename a damaged cache file, so that the next build starts a new one; returns the new path."""
    aside = path.with_name(f"{path.name}{DAMAGED_SUFFIX}")
    with contextlib.suppress(FileNotFoundError):
        path.replace(aside)
    return aside


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock against other builds. The lock is a separate file: the cache file itself is replaced, not rewritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Until other builds on this machine have merged their times; not while they measure.
    with filelock.FileLock(path.with_name(f"{path.name}.lock")):
        yield
