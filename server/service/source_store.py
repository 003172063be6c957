"""Uploaded sources by the hash of their bytes, as many as fit; decoded latents in memory."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from runtime.audio.formats import is_latents_file
from runtime.base.errors import SourceNotFoundError
from runtime.base.files import losses, tell_lost_audio
from runtime.config.codec import Latents
from server.asgi.shares import Holding, Shares
from server.config import MIB
from server.service.source import Source, SourceFiles, owner_of

MAX_SOURCES = 10_000
CACHE_BYTES = 64 * MIB
logger = logging.getLogger("tickrt.server")


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
