"""Uploaded sources: files in a folder, named by the hash of their bytes; decoded latents in memory."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runtime.audio.formats import Latents, is_latents_file
from runtime.errors import ConfigError, SourceNotFoundError, StoreError
from server.config import MIB

MAX_SOURCES = 10_000
CACHE_BYTES = 64 * MIB
FILE_NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,9})\.(audio|latents)")
PART_SUFFIX = ".part"
logger = logging.getLogger("tickrt.server")


@dataclass(frozen=True)
class Source:
    """One source. `id`: SHA-256 of its bytes, in hexadecimal. `kind`: audio or latents."""

    id: str
    milliseconds: int
    kind: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The name of its file, which has everything but the size."""
        return f"{self.id}.{self.milliseconds}.{self.kind}"


class SourceStore:
    """Sources in `folder` (None: a temporary one, until `close`), `limit_bytes` at most. Any thread may call.

    A source that does not fit takes the place of those used least recently; work that uses one at that time keeps
    its latents. `read` turns a file's bytes into latents `[T, C]` and raises RequestError; `frame_rate_hz` is theirs.
    `on_evict` is called for every source that made room. Raises ConfigError for a folder that cannot be used.
    """

    def __init__(
        self,
        folder: Path | None,
        limit_bytes: int,
        read: Callable[[bytes], Latents],
        frame_rate_hz: float,
        *,
        on_evict: Callable[[], None] = lambda: None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tickrt-sources-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else _usable(folder or Path())
        self._limit_bytes, self._cache_bytes = limit_bytes, cache_bytes
        self._read, self._frame_rate_hz, self._on_evict = read, frame_rate_hz, on_evict
        self._lock, self._read_lock = threading.Lock(), threading.Lock()
        self._cache: OrderedDict[str, Latents] = OrderedDict()
        self._sources = _files_in(self.folder)

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def size_bytes(self) -> int:
        """The size of all sources."""
        with self._lock:
            return sum(source.size_bytes for source in self._sources.values())

    def all(self) -> list[Source]:
        """Every source, the one used last first."""
        with self._lock:
            return list(reversed(self._sources.values()))

    def get(self, source_id: str) -> Source:
        """One source. Raises SourceNotFoundError."""
        with self._lock:
            return self._get(source_id, "")

    def add(self, data: bytes) -> tuple[Source, bool]:
        """The source of these bytes, and whether it is new. Raises RequestError, StoreError where the disk is full."""
        source_id = hashlib.sha256(data).hexdigest()
        with self._lock:
            if source_id in self._sources:
                return self._use(self._sources[source_id]), False
        latents = self.read(data)
        kind = "latents" if is_latents_file(data) else "audio"
        source = Source(source_id, round(1000 * len(latents) / self._frame_rate_hz), kind, len(data))
        part = self._write(data)
        with self._lock:
            self._make_room(source)
            part.replace(self.folder / source.file_name)
            self._sources[source_id] = source
            self._keep(source_id, latents)
        return source, True

    def latents(self, source_id: str, field: str = "id") -> Latents:
        """Latents `[T, C]` float32 of a source, read-only. Raises SourceNotFoundError, naming `field`; RequestError."""
        with self._lock:
            source = self._use(self._get(source_id, field))
            if source_id in self._cache:
                self._cache.move_to_end(source_id)
                return self._cache[source_id]
        latents = self.read(self._checked_bytes(source, field))
        with self._lock:
            return self._keep(source_id, latents)

    def data(self, source_id: str, field: str = "id") -> bytes:
        """The bytes of a source. Raises SourceNotFoundError, naming `field`."""
        with self._lock:
            source = self._use(self._get(source_id, field))
        return self._checked_bytes(source, field)

    def read(self, data: bytes) -> Latents:
        """Latents `[T, C]` of a file's bytes, which are not kept. One file at a time. Raises RequestError."""
        with self._read_lock:
            return self._read(data)

    def are_cached(self, *source_ids: str | None) -> bool:
        """Whether latents() has these without reading a file."""
        with self._lock:
            return all(source_id is None or source_id in self._cache for source_id in source_ids)

    def remove(self, source_id: str) -> None:
        """Delete a source; work that uses it goes on. Raises SourceNotFoundError."""
        with self._lock:
            self._delete(self._get(source_id, ""))

    def _get(self, source_id: str, field: str) -> Source:
        if source_id not in self._sources:
            raise SourceNotFoundError("there is no source with this id", field=field, fix="upload it to /v1/sources")
        return self._sources[source_id]

    def _use(self, source: Source) -> Source:
        """Record the use; the file's time keeps it for the next start."""
        self._sources.move_to_end(source.id)
        with suppress(FileNotFoundError):
            os.utime(self.folder / source.file_name)
        return source

    def _make_room(self, new: Source) -> None:
        used_bytes = sum(source.size_bytes for source in self._sources.values())
        while self._sources and (used_bytes + new.size_bytes > self._limit_bytes or len(self._sources) >= MAX_SOURCES):
            oldest = next(iter(self._sources.values()))
            self._delete(oldest)
            used_bytes -= oldest.size_bytes
            self._on_evict()

    def _write(self, data: bytes) -> Path:
        """A new file with these bytes. Raises StoreError."""
        path = None
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=PART_SUFFIX, delete=False) as file:
                path = Path(file.name)
                file.write(data)
            return path
        except OSError as error:
            if path is not None:
                path.unlink()
            raise StoreError(f"the source cannot be stored: {error.strerror}", fix="free disk space") from None

    def _checked_bytes(self, source: Source, field: str) -> bytes:
        """The bytes of a source's file, if they are those that its id is the hash of; else it is removed."""
        try:
            data = (self.folder / source.file_name).read_bytes()
        except OSError:
            data = b""
        if hashlib.sha256(data).hexdigest() == source.id:
            return data
        logger.warning("source %s is damaged and was removed", source.id)
        with self._lock:
            if source.id in self._sources:
                self._delete(source)
        raise SourceNotFoundError("the source's file was damaged", field=field, fix="upload it to /v1/sources again")

    def _delete(self, source: Source) -> None:
        del self._sources[source.id]
        self._cache.pop(source.id, None)
        (self.folder / source.file_name).unlink(missing_ok=True)

    def _keep(self, source_id: str, latents: Latents) -> Latents:
        """Cache latents, in place of those used least recently."""
        latents.flags.writeable = False
        self._cache[source_id] = latents
        self._cache.move_to_end(source_id)
        while len(self._cache) > 1 and sum(kept.nbytes for kept in self._cache.values()) > self._cache_bytes:
            self._cache.popitem(last=False)
        return latents


def _usable(folder: Path) -> Path:
    """`folder`, created where it is missing. Raises ConfigError if files cannot be written there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ConfigError(
            f"sources cannot be stored in {folder}: {error.strerror}", fix="set [server] state to a writable folder"
        ) from None


def _files_in(folder: Path) -> OrderedDict[str, Source]:
    """The sources of a folder by id, in the order of their last use; what an interrupted upload left is removed."""
    found = []
    for entry in os.scandir(folder):
        if match := FILE_NAME.fullmatch(entry.name):
            source_id, milliseconds, kind = match.groups()
            status = entry.stat()
            found.append((status.st_mtime_ns, Source(source_id, int(milliseconds), kind, status.st_size)))
        elif entry.name.endswith(PART_SUFFIX):
            Path(entry.path).unlink()
    return OrderedDict((source.id, source) for _, source in sorted(found, key=lambda item: item[0]))
