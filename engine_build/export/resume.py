"""The folder in which an export works: complete steps stay for the next run; the bundle appears at the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import filelock
from pydantic_core import from_json

from runtime.base.errors import BuildError
from runtime.base.files import read_stored, reading
from runtime.engines.manifest import write_atomically

RECORD_SUFFIX: Final = ".step.json"


@contextmanager
def working_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """A locked folder beside `folder`, renamed to it at the end; an older `folder` is replaced.

    After a failure it stays where it has a complete step; `force` removes it first. Raises BuildError where another
    export works in it.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "old"))
    try:
        with filelock.FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0):
            _put_back(folder, old)
            if force:
                shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(exist_ok=True)
            try:
                yield partial
                _replace(folder, partial, old)
            finally:
                with suppress(OSError):  # what cannot be listed stays
                    if not any(name.endswith(RECORD_SUFFIX) for name in os.listdir(partial)):
                        shutil.rmtree(partial, ignore_errors=True)
    except filelock.Timeout:
        raise BuildError(f"another export is writing {folder}", fix="wait until it is done") from None


class Steps:
    """Runs the steps of an export in their order; those that an earlier run completed with the same key are not run.

    A step's key is a hash of the export's key and of all results before it. From the first step on that has to run,
    everything in the folder is made anew.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._key = key
        self._files: set[str] = set()
        self.complete: list[str] = []

    def run(self, name: str, export: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The step's result, plain JSON values, and whether it was run; its files are in the folder.

        Raises StoreUnavailableError where it cannot be told whether an earlier run has completed it.
        """
        record_file = self._folder / f"{name.replace(' ', '_')}{RECORD_SUFFIX}"
        self._key = _digest(self._key, name)
        record = self._complete_record(record_file)
        is_new = record is None
        if record is None:
            self._remove_others()
            result = export()
            sizes = {file.name: file.stat().st_size for file in self._others()}
            record = {"key": self._key, "files": sizes, "result": result}
            write_atomically(record_file, json.dumps(record).encode())
        self._files |= {record_file.name, *record["files"]}
        self._key = _digest(self._key, json.dumps(record["result"], sort_keys=True))
        self.complete.append(name)
        result = json.loads(json.dumps(record["result"]))
        return result, is_new

    def close(self, *kept: str) -> None:
        """Remove the records, and what no step of this run has written; files `kept` stay."""
        self._files = {name for name in self._files if not name.endswith(RECORD_SUFFIX)} | set(kept)
        self._remove_others()

    def _complete_record(self, file: Path) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = from_json(read_stored(file) or b"")
            with reading(file):
                sizes = {name: (self._folder / name).stat().st_size for name in record["files"]}
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return record if record["key"] == self._key and record["files"] == sizes else None

    def _others(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.name not in self._files]

    def _remove_others(self) -> None:
        for file in self._others():
            file.unlink()


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _replace(folder: Path, partial: Path, old: Path) -> None:
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        partial.rename(folder)
    except BaseException:
        _put_back(folder, old)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _put_back(folder: Path, old: Path) -> None:
    """Undo an interrupted _replace."""
    if not folder.exists():
        with suppress(FileNotFoundError):
            old.rename(folder)
