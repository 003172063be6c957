"""Uploaded sources by the hash of their bytes, as many as fit; their files; decoded latents in memory."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from runtime.audio.formats import is_latents_file
from runtime.base.errors import ConfigError, SourceNotFoundError
from runtime.base.files import losses, lost_audio, read_stored, set_aside, tell_lost_audio, unavailable_now
from runtime.config.codec import Latents
from runtime.live.storage.sqlite_store import make_private
from server.asgi.shares import Holding, Shares
from server.config import MIB
from server.service.temporary_folder import TemporaryFolder

NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,9})\.(audio|latents)(?:\.([0-9a-f]{8}))?(?:\.lost(\d{1,9}))?")
PART_SUFFIX = ".part"
MAX_SOURCES = 10_000
CACHE_BYTES = 64 * MIB
logger = logging.getLogger("tickrt.server")


@dataclass(frozen=True)
class Source:
    """One source. `id`: SHA-256 of its bytes, in hexadecimal. `kind`: audio or latents. `owner`: owner_of() its client,
    whose share it is part of; "" where that is not known. `lost_ms`: of its audio, what cannot be decoded.
    """

    id: str
    milliseconds: int
    kind: str
    size_bytes: int
    owner: str = ""
    lost_ms: int = 0

    @property
    def losses(self) -> list[str]:
        """What of it could not be decoded, as sentences."""
        return [lost_audio(self.lost_ms)] if self.lost_ms else []

    @property
    def name(self) -> str:
        """Everything but the size, as the name of its file."""
        owner, lost = f".{self.owner}" if self.owner else "", f".lost{self.lost_ms}" if self.lost_ms else ""
        return f"{self.id}.{self.milliseconds}.{self.kind}{owner}{lost}"

    def has(self, data: bytes) -> bool:
        """Whether bytes are those of this source."""
        return hashlib.sha256(data).hexdigest() == self.id

    @classmethod
    def named(cls, name: str, size_bytes: int) -> Self | None:
        """The source of a name; None for the name of something else."""
        match = NAME.fullmatch(name)
        if match is None:
            return None
        return cls(match[1], int(match[2]), match[3], size_bytes, match[4] or "", int(match[5] or 0))


def owner_of(client: str) -> str:
    """A client as the names of its sources have it."""
    return hashlib.sha256(client.encode()).hexdigest()[:8] if client else ""


class SourceFiles(Protocol):
    """The bytes of sources, in the order of their last use. Any thread may call; every method raises StoreError."""

    def all(self) -> list[Source]:
        """Every source, the one used last at the end."""

    def find(self, source_id: str) -> Source | None:
        """One source, which counts as used now; None where there is none of this id."""

    def read(self, source: Source) -> bytes:
        """The bytes of a source; b"" where they are gone."""

    def set_aside(self, source: Source) -> str:
        """Where the bytes of a source are kept from now on, which is none any more; "" where it has none, or its own.

        They are read once more: another thread may have done so, or brought the right ones, meanwhile.
        """

    def add(self, source: Source, data: bytes) -> None:
        """Keep a source's bytes; it counts as used now."""

    def remove(self, source: Source) -> bool:
        """Delete a source; whether it was there."""

    def close(self) -> None:
        """Release what is open."""


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


class SourceStore:
    """Sources in `files`, `limit_bytes` at most. Any thread may call.

    A source that does not fit takes the place of those used least recently, of its client's where those are more than
    few, else of the client's that has most; work that uses one at that time keeps its latents. `read` turns a file's
    bytes into latents `[T, C]` and raises RequestError; `frame_rate_hz` is theirs. `on_evict` is called for every
    source that made room. Methods raise StoreUnavailableError where the files cannot be read or written now.
    """

    def __init__(
        self,
        files: SourceFiles,
        limit_bytes: int,
        read: Callable[[bytes], Latents],
        frame_rate_hz: float,
        *,
        on_evict: Callable[[], None] = lambda: None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._files = files
        self._limit_bytes, self._cache_bytes = limit_bytes, cache_bytes
        self._read, self._frame_rate_hz, self._on_evict = read, frame_rate_hz, on_evict
        self._lock, self._read_lock = threading.Lock(), threading.Lock()
        self._cache: OrderedDict[str, Latents] = OrderedDict()

    def close(self) -> None:
        """Release the files."""
        self._files.close()

    def all(self) -> list[Source]:
        """Every source, the one used last first."""
        return self._files.all()[::-1]

    def get(self, source_id: str, field: str = "") -> Source:
        """One source, which counts as used now. Raises SourceNotFoundError, naming `field`."""
        source = self._files.find(source_id)
        if source is None:
            raise SourceNotFoundError("there is no source with this id", field=field, fix="upload it to /v1/sources")
        return source

    def add(self, data: bytes, client: str = "") -> tuple[Source, bool]:
        """The source of these bytes, and whether it is new. Raises RequestError, StoreError where the disk is full."""
        source_id = hashlib.sha256(data).hexdigest()
        if (known := self._files.find(source_id)) is not None:
            return known, False
        with losses() as lost:
            latents = self.read(data)
        kind, milliseconds = "latents" if is_latents_file(data) else "audio", 1000 * len(latents) / self._frame_rate_hz
        source = Source(source_id, round(milliseconds), kind, len(data), owner_of(client), lost.audio_ms)
        self._files.add(source, data)
        self._make_room(source)
        self._keep(source_id, latents)
        return source, True

    def latents(self, source_id: str, field: str = "id") -> Latents:
        """Latents `[T, C]` float32 of a source, read-only; what is not in them is told to losses().

        Raises SourceNotFoundError, naming `field`; RequestError.
        """
        source = self.get(source_id, field)
        tell_lost_audio(source.lost_ms)
        with self._lock:
            if source_id in self._cache:
                self._cache.move_to_end(source_id)
                return self._cache[source_id]
        with losses():  # as told above
            return self._keep(source_id, self.read(self._checked_bytes(source, field)))

    def data(self, source_id: str, field: str = "id") -> bytes:
        """The bytes of a source. Raises SourceNotFoundError, naming `field`."""
        return self._checked_bytes(self.get(source_id, field), field)

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
        self._delete(self.get(source_id))

    def _make_room(self, newest: Source) -> None:
        """Delete until the rest fits, but not the newest: a client's own before those of others, as Shares do."""
        space = Shares("keeps bytes of sources", max(self._limit_bytes, newest.size_bytes), 0)
        places = Shares("keeps sources", MAX_SOURCES, 0)
        for source in [*(other for other in self._files.all() if other.id != newest.id), newest]:
            held: list[Holding] = []
            evict = None if source is newest else partial(self._evict, source, held)
            held += space.take(source.owner, source.size_bytes, evict), places.take(source.owner, 1, evict)

    def _evict(self, source: Source, held: list[Holding]) -> None:
        for holding in held:
            holding.release()
        if self._delete(source):
            self._on_evict()

    def _checked_bytes(self, source: Source, field: str) -> bytes:
        """The bytes of a source, which are set aside where its id is not their hash. Raises SourceNotFoundError."""
        data = self._files.read(source)
        if source.has(data):
            return data
        self.get(source.id, field)  # not damaged: removed meanwhile
        kept = self._files.set_aside(source)
        logger.warning("source %s is damaged; %s", source.id, f"it is kept as {kept}" if kept else "its bytes are gone")
        self._forget(source)
        raise SourceNotFoundError("the source's file was damaged", field=field, fix="upload it to /v1/sources again")

    def _delete(self, source: Source) -> bool:
        self._forget(source)
        return self._files.remove(source)

    def _forget(self, source: Source) -> None:
        with self._lock:
            self._cache.pop(source.id, None)

    def _keep(self, source_id: str, latents: Latents) -> Latents:
        """Cache latents, in place of those used least recently."""
        latents.flags.writeable = False
        with self._lock:
            self._cache[source_id] = latents
            self._cache.move_to_end(source_id)
            while len(self._cache) > 1 and sum(kept.nbytes for kept in self._cache.values()) > self._cache_bytes:
                self._cache.popitem(last=False)
        return latents
