"""The folder that engines are written to: one build at a time, whole engines only, nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine_build.build.rebuild_check import Decision, leftovers
from runtime.engines.manifest import MANIFEST_SUFFIX, Manifest, publish, read_manifest
from runtime.errors import BuildError, EngineError

PARTIAL_SUFFIX = ".partial"


def publish_engine(partial: Path, folder: Path, manifest: Manifest) -> None:
    """Give a whole engine its place in `folder`: data, engine, manifest. Interrupted in between, none of them stays."""
    names = [*manifest.data_files, manifest.engine_file, f"{manifest.name}{MANIFEST_SUFFIX}"]
    try:
        for name in names:
            publish(partial / name, folder / name)
    except BaseException:
        for name in names:
            (folder / name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def partial_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder for one engine that is not whole yet; gone at the end, whatever happened. Raises BuildError."""
    partial = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=PARTIAL_SUFFIX, dir=folder))
    try:
        yield partial
    except OSError as error:
        raise BuildError(f"engine {name!r} cannot be written to {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, held against a second build; what a killed one left is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BuildError(f"cannot use {folder} for engines: {error.strerror}") from error
    try:
        _lock(descriptor, folder)
        remove_partials(folder)
        try:
            yield
        finally:  # an interrupt may fall between a folder's making and its with block
            remove_partials(folder)
    finally:
        os.close(descriptor)


def remove_partials(folder: Path) -> None:
    """Take away what is not whole. Only for whoever holds the folder."""
    for left in folder.glob(f"*{PARTIAL_SUFFIX}"):
        shutil.rmtree(left, ignore_errors=True)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BuildError(f"another build is at work in {folder}", fix="wait until it is done") from None


def remove_leftovers(folder: Path, decisions: list[Decision]) -> Iterator[str]:
    """Take away engines that the deployment no longer has; gives their names."""
    for path in leftovers(folder, decisions):
        with contextlib.suppress(EngineError):
            manifest = read_manifest(path)
            for file in (manifest.engine_file, *manifest.data_files):
                (folder / Path(file).name).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        yield path.name.removesuffix(MANIFEST_SUFFIX)
