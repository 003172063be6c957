"""Uploaded sources by the hash of their bytes, as many as fit; decoded latents in memory."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from runtime.audio.formats import Latents, is_latents_file
from runtime.errors import SourceNotFoundError
from server.config import MIB
from server.sources.source import Source, SourceFiles

MAX_SOURCES = 10_000
CACHE_BYTES = 64 * MIB
logger = logging.getLogger("tickrt.server")


class SourceStore:
    """Sources in `files`, `limit_bytes` at most. Any thread may call.

    A source that does not fit takes the place of those used least recently; work that uses one at that time keeps
    its latents. `read` turns a file's bytes into latents `[T, C]` and raises RequestError; `frame_rate_hz` is theirs.
    `on_evict` is called for every source that made room. Methods raise StoreUnavailableError where several servers
    share the files, which are away.
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

    def add(self, data: bytes) -> tuple[Source, bool]:
        """The source of these bytes, and whether it is new. Raises RequestError, StoreError where the disk is full."""
        source_id = hashlib.sha256(data).hexdigest()
        if (known := self._files.find(source_id)) is not None:
            return known, False
        latents = self.read(data)
        kind = "latents" if is_latents_file(data) else "audio"
        source = Source(source_id, round(1000 * len(latents) / self._frame_rate_hz), kind, len(data))
        self._files.add(source, data)
        self._make_room(source)
        self._keep(source_id, latents)
        return source, True

    def latents(self, source_id: str, field: str = "id") -> Latents:
        """Latents `[T, C]` float32 of a source, read-only. Raises SourceNotFoundError, naming `field`; RequestError."""
        source = self.get(source_id, field)
        with self._lock:
            if source_id in self._cache:
                self._cache.move_to_end(source_id)
                return self._cache[source_id]
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
        """Delete what was used least recently until the rest fits, but not the newest."""
        sources = [source for source in self._files.all() if source.id != newest.id]
        used_bytes, number = newest.size_bytes + sum(source.size_bytes for source in sources), 1 + len(sources)
        for oldest in sources:
            if used_bytes <= self._limit_bytes and number <= MAX_SOURCES:
                break
            used_bytes, number = used_bytes - oldest.size_bytes, number - 1
            if self._delete(oldest):
                self._on_evict()

    def _checked_bytes(self, source: Source, field: str) -> bytes:
        """The bytes of a source, which is removed where its id is not their hash. Raises SourceNotFoundError."""
        data = self._files.read(source)
        if hashlib.sha256(data).hexdigest() == source.id:
            return data
        self.get(source.id, field)  # not damaged: removed meanwhile
        logger.warning("source %s is damaged and was removed", source.id)
        self._delete(source)
        raise SourceNotFoundError("the source's file was damaged", field=field, fix="upload it to /v1/sources again")

    def _delete(self, source: Source) -> bool:
        with self._lock:
            self._cache.pop(source.id, None)
        return self._files.remove(source)

    def _keep(self, source_id: str, latents: Latents) -> Latents:
        """Cache latents, in place of those used least recently."""
        latents.flags.writeable = False
        with self._lock:
            self._cache[source_id] = latents
            self._cache.move_to_end(source_id)
            while len(self._cache) > 1 and sum(kept.nbytes for kept in self._cache.values()) > self._cache_bytes:
                self._cache.popitem(last=False)
        return latents
