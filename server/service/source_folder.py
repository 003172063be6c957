"""Sources as files of a folder, named by the hash of their bytes; the time of a file is that of its last use."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.base.errors import ConfigError
from runtime.base.files import read_stored, set_aside, unavailable_now
from runtime.live.storage.sqlite_store import make_private
from server.service.source import Source
from server.service.temporary_folder import TemporaryFolder

PART_SUFFIX = ".part"


class SourceFolder:
    """Sources in `folder` (None: a temporary one, until `close`), which belongs to one server.

    Raises ConfigError for a folder that cannot be used.
    """

    def __init__(self, folder: Path | None) -> None:
        self._temporary = TemporaryFolder("sources") if folder is None else None
        self.path = self._temporary.path if self._temporary else folder or Path()
        self._lock = threading.Lock()
        try:
            _prepare(self.path)
            self._sources = _sources_in(self.path)
        except OSError as error:
            what = f"sources cannot be stored in {self.path}: {error.strerror}"
            raise ConfigError(what, fix="set [server] state to a writable folder") from None

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
                with suppress(OSError):  # the time is lost, no source
                    os.utime(self.path / source.name)
            return source

    def read(self, source: Source) -> bytes:
        """The bytes of a source's file; b"" where there is none. Raises StoreUnavailableError."""
        return read_stored(self.path / source.name, "the source") or b""

    def set_aside(self, source: Source) -> str:
        """Rename a damaged file; its new name, "" where there is none or it is not damaged. StoreUnavailableError."""
        with self._lock, unavailable_now("the source cannot be set aside"):
            data = self.read(source)
            if source.has(data):
                return ""
            kept = set_aside(self.path / source.name)
            self._sources.pop(source.id, None)
            return kept.name if kept.exists() else ""

    def add(self, source: Source, data: bytes) -> None:
        """Write a source's file, whole or not at all. Raises StoreUnavailableError."""
        with unavailable_now("the source cannot be stored", fix="see that the server's disk works and has free space"):
            part = self._write(data)
            with self._lock, _removed_after_errors(part):
                part.replace(self.path / source.name)
                self._sources[source.id] = source
                self._sources.move_to_end(source.id)

    def remove(self, source: Source) -> bool:
        """Delete a source and its file; whether it was there. Raises StoreUnavailableError."""
        with self._lock, unavailable_now("the source cannot be deleted"):
            (self.path / source.name).unlink(missing_ok=True)
            return self._sources.pop(source.id, None) is not None

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._temporary is not None:
            self._temporary.close()

    def _write(self, data: bytes) -> Path:
        """A new file with these bytes. Raises OSError."""
        file = tempfile.NamedTemporaryFile(dir=self.path, suffix=PART_SUFFIX, delete=False)  # noqa: SIM115
        with _removed_after_errors(Path(file.name)), file:
            file.write(data)
        return Path(file.name)


@contextmanager
def _removed_after_errors(part: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def _prepare(folder: Path) -> None:
    """Create the folder where it is missing. Raises OSError if files cannot be written there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(folder, *folder.iterdir())
    with tempfile.TemporaryFile(dir=folder):
        pass


def _sources_in(folder: Path) -> OrderedDict[str, Source]:
    """The sources of a folder by id, in the order of their last use; what an interrupted upload left is removed."""
    found = []
    for entry in os.scandir(folder):
        if not entry.is_file():  # a link to nothing, too
            continue
        if (source := Source.named(entry.name, entry.stat().st_size)) is not None:
            found.append((entry.stat().st_mtime_ns, source))
        elif entry.name.startswith(tempfile.gettempprefix()) and entry.name.endswith(PART_SUFFIX):
            Path(entry.path).unlink(missing_ok=True)
    return OrderedDict((source.id, source) for _, source in sorted(found, key=lambda item: item[0]))
