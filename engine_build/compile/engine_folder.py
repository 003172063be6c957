"""The folder of a deployment's engines: one build at a time, complete engines only, no leftovers of failures.

TensorRT's timing cache lies beside it: one file per version and device, locked, written atomically.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from engine_build.compile.rebuild_check import RebuildDecision, unwanted_manifests
from runtime.base.errors import BuildError, EngineError
from runtime.base.files import own_entries, read_stored, unavailable_now
from runtime.engines.manifest import (
    MANIFEST_SUFFIX,
    Manifest,
    manifest_path,
    measurement_path,
    publish,
    read_manifest,
    write_atomically,
)
from runtime.engines.tensorrt.trials import trials_path

PARTIAL_SUFFIX = ".partial"
PROBE_BYTES = 2**20
BEFORE_SUFFIX = ".before"
LOCK_SUFFIX = ".lock"


TIMING_CACHE_FOLDER = "timing-cache"
TIMING_CACHE_SUFFIX = ".timing"


def publish_engine(partial: Path, folder: Path, manifest: Manifest) -> None:
    """Move a complete engine into `folder`: data, engine, manifest. Those before it come back where that fails.

    Files of the engine before it that this one does not have are removed.
    """
    names = [*manifest.data_files, manifest.engine_file, f"{manifest.name}{MANIFEST_SUFFIX}"]
    before = folder / f"{manifest.name}{BEFORE_SUFFIX}"
    before.mkdir()
    try:
        for name in {*names, *_files_of(folder, manifest.name)}:
            with contextlib.suppress(FileNotFoundError):
                (folder / name).rename(before / name)
        try:
            for name in names:
                publish(partial / name, folder / name)
            before.rename(partial / BEFORE_SUFFIX)
        except BaseException:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            raise
    except BaseException:
        _put_back(before)
        raise


def _files_of(folder: Path, name: str) -> list[str]:
    """The files of a built engine, as of its manifest; [] where that is missing or damaged."""
    with contextlib.suppress(EngineError):
        manifest = read_manifest(manifest_path(folder, name))
        return [Path(file).name for file in (manifest.engine_file, *manifest.data_files)]
    return []


def _put_back(before: Path) -> None:
    """Undo an interrupted publish_engine: the files before it come back."""
    for file in list(before.iterdir()):
        file.replace(before.parent / file.name)
    before.rmdir()


@contextlib.contextmanager
def partial_folder(folder: Path, name: str) -> Iterator[Path]:
    """A temporary folder for one engine that is not complete; always removed at the end. Raises BuildError."""
    partial = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=PARTIAL_SUFFIX, dir=folder))
    try:
        yield partial
    except OSError as error:
        fix = "free disk space there" if error.errno == errno.ENOSPC else ""
        raise BuildError(f"engine {name!r} cannot be written to {folder}: {error.strerror}", fix=fix) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def full_disk_as_oserror(engine: Path) -> Iterator[None]:
    """Raises OSError in place of a BuildError on a full disk, of which ONNX Runtime says that the graph is wrong.

    Where the block fails, the engine's incomplete files are made longer by PROBE_BYTES; they are removed then anyway.
    """
    try:
        yield
    except BuildError:
        for file in {engine, *engine.parent.iterdir()}:
            with file.open("ab") as opened:
                opened.write(bytes(PROBE_BYTES))
        raise


def lock_of(folder: Path) -> Path:
    """The lock file of an engine folder; it lies beside the folder, which holds nothing but engines."""
    return folder.with_name(folder.name + LOCK_SUFFIX)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder if needed and lock it against a second build; what a killed one has left is undone."""
    # Nothing waits: a second build is refused at once.
    lock = filelock.FileLock(lock_of(folder), timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise BuildError(f"another build is running in {folder}", fix="wait until it is done") from None
    except OSError as error:
        what = f"cannot use {folder} for engines: {error.strerror}"
        raise BuildError(what, fix="name another one: engines in [deployment], or TICKRT_CACHE") from error
    try:
        with unavailable_now(f"an engine in {folder} cannot be put back"):
            undo_interrupted(folder)
        yield
    finally:  # an interrupt may come between the creation of a partial folder and its with block
        with contextlib.suppress(OSError):  # the next build does it
            undo_interrupted(folder)
        lock.release()


def undo_interrupted(folder: Path) -> None:
    """Put replaced engines back, and remove incomplete ones. The caller holds the folder's lock. Raises OSError."""
    for before in own_entries(folder, BEFORE_SUFFIX):
        _put_back(before)
    for left in folder.glob(f"*{PARTIAL_SUFFIX}"):
        shutil.rmtree(left, ignore_errors=True)


def remove_unwanted(folder: Path, decisions: list[RebuildDecision]) -> Iterator[str]:
    """Remove engines that the deployment no longer has; yields their names."""
    for path in unwanted_manifests(folder, decisions):
        name = path.name.removesuffix(MANIFEST_SUFFIX)
        for file in _files_of(folder, name):
            (folder / file).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        for path in (measurement_path(folder, name), trials_path(folder, name)):
            path.unlink(missing_ok=True)
        yield name


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
