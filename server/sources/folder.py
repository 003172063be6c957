"""Sources as files of a folder, named by the hash of their bytes; the time of a file is that of its last use."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from runtime.errors import ConfigError, StoreUnavailableError
from runtime.sessions.storage.sqlite_store import make_private
from server.sources.source import Source
from server.sources.temporary_folder import TemporaryFolder

PART_SUFFIX = ".part"


class SourceFolder:
    """Sources in `folder` (None: a temporary one, until `close`), which belongs to one server.

    Raises ConfigError for a folder that cannot be used.
    """

    def __init__(self, folder: Path | None) -> None:
        self._temporary = TemporaryFolder("sources") if folder is None else None
        self.path = self._temporary.path if self._temporary else _usable(folder or Path())
        self._lock = threading.Lock()
        self._sources = _sources_in(self.path)

    def all(self) -> list[Source]:
        """Every source, the one used last at the end."""
        with self._lock:
            return list(self._sources.values())

    def find(self, source_id: str) -> Source | None:
        """One source, which counts as used now; the file's time keeps that for the next start."""
        with self._lock:
            source = self._sources.get(source_id)
            if source is not None:
                self._sources.move_to_end(source_id)
                with suppress(FileNotFoundError):
                    os.utime(self.path / source.name)
            return source

    def read(self, source: Source) -> bytes:
        """The bytes of a source's file; b"" where it cannot be read."""
        try:
            return (self.path / source.name).read_bytes()
        except OSError:
            return b""

    def add(self, source: Source, data: bytes) -> None:
        """Write a source's file, whole or not at all. Raises StoreUnavailableError."""
        part = self._write(data)
        with self._lock:
            part.replace(self.path / source.name)
            self._sources[source.id] = source
            self._sources.move_to_end(source.id)

    def remove(self, source: Source) -> bool:
        """Delete a source and its file; whether it was there."""
        with self._lock:
            (self.path / source.name).unlink(missing_ok=True)
            return self._sources.pop(source.id, None) is not None

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._temporary is not None:
            self._temporary.close()

    def _write(self, data: bytes) -> Path:
        """A new file with these bytes. Raises StoreUnavailableError."""
        path = None
        try:
            with tempfile.NamedTemporaryFile(dir=self.path, suffix=PART_SUFFIX, delete=False) as file:
                path = Path(file.name)
                file.write(data)
            return path
        except OSError as error:
            if path is not None:
                path.unlink()
            what = f"the source cannot be stored: {error.strerror}"
            raise StoreUnavailableError(what, fix="free disk space on the server") from None


def _usable(folder: Path) -> Path:
    """`folder`, created where it is missing. Raises ConfigError if files cannot be written there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(folder, *folder.iterdir())
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ConfigError(
            f"sources cannot be stored in {folder}: {error.strerror}", fix="set [server] state to a writable folder"
        ) from None


def _sources_in(folder: Path) -> OrderedDict[str, Source]:
    """The sources of a folder by id, in the order of their last use; what an interrupted upload left is removed."""
    found = []
    for entry in os.scandir(folder):
        if (source := Source.named(entry.name, entry.stat().st_size)) is not None:
            found.append((entry.stat().st_mtime_ns, source))
        elif entry.name.endswith(PART_SUFFIX):
            Path(entry.path).unlink()
    return OrderedDict((source.id, source) for _, source in sorted(found, key=lambda item: item[0]))
