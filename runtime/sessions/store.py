"""Snapshots of live sessions in a store that survives the process: format, checksums, one writer thread.

A store never delays a caller: `save` returns at once, and the writer thread writes the newest snapshot of each session.
The first error of the storage ends persistence with one log line; sessions keep playing. Nothing in a store depends on
the wall clock: the sessions found at a start are kept for `session_keep_s` of the server's own running time.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from runtime.errors import StoreError

STORE_FORMAT = 1
DIGEST_BYTES = hashlib.sha256().digest_size
DOCUMENT = "document"
logger = logging.getLogger("tickrt.sessions")


@dataclass(frozen=True, eq=False)
class SessionSnapshot:
    """Everything a session needs to go on: `meta` (JSON values) and `pieces` (arrays of any shape and numeric dtype).

    A piece never changes under its name: a new content has a new name ("canvas/17"). A save therefore writes only the
    pieces that the store does not hold yet. The arrays belong to the session and are read by the writer thread.
    """

    meta: dict[str, Any]
    pieces: Mapping[str, NDArray[Any]]


class StoreBackend(Protocol):
    """Storage of one document and named pieces of bytes per session. Used by the store's writer thread only.

    Every method raises StoreError where the storage fails.
    """

    def ids(self) -> list[str]:
        """The stored sessions that belong to this server."""

    def names(self, session_id: str) -> set[str]:
        """The names of a session's stored pieces."""

    def write(self, session_id: str, document: bytes, new: Mapping[str, bytes], unused: set[str]) -> None:
        """In one transaction: replace the document, add the pieces `new`, delete the pieces `unused`."""

    def read(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """A session's document and pieces; None where there is no document."""

    def delete(self, session_id: str) -> None:
        """Delete a session's document and pieces, if there are any."""

    def close(self) -> None:
        """Release the storage."""


class SessionStore:
    """Snapshots of sessions in a backend, which `open_backend` opens in the writer thread.

    Raises what `open_backend` raises.
    """

    def __init__(self, open_backend: Callable[[], StoreBackend]) -> None:
        self._failure: str | None = None
        self._pending: dict[str, SessionSnapshot | None] = {}
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "session-store")
        try:
            self._backend = self._writer.submit(open_backend).result()
        except BaseException:
            self._writer.shutdown()
            raise

    @property
    def failure(self) -> str | None:
        """Why persistence has ended; None while snapshots are stored."""
        return self._failure

    def save(self, session_id: str, snapshot: SessionSnapshot) -> None:
        """Store `snapshot` soon; it replaces one of the same session that is still waiting."""
        self._enqueue(session_id, snapshot)

    def delete(self, session_id: str) -> None:
        """Delete a session soon."""
        self._enqueue(session_id, None)

    def load(self, session_id: str) -> SessionSnapshot | None:
        """The last snapshot; None where there is none or it is damaged (logged). Waits for saves that are under way.

        Raises StoreError.
        """
        stored = self._writer.submit(self._backend.read, session_id).result()
        if stored is None:
            return None
        try:
            return decode_snapshot(*stored)
        except StoreError as error:
            logger.error("session %s cannot be resumed: %s", session_id, error.what)
            return None

    def ids(self) -> list[str]:
        """The stored sessions that belong to this server: no other one can resume them. Raises StoreError."""
        return self._writer.submit(self._backend.ids).result()

    def flush(self) -> None:
        """Wait until everything that was saved before is stored, or persistence has ended."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Store what is waiting, and release the storage. Nothing may be called afterwards."""
        self._writer.submit(self._backend.close).result()
        self._writer.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _enqueue(self, session_id: str, snapshot: SessionSnapshot | None) -> None:
        with self._lock:
            if self._failure is not None:
                return
            is_waiting = session_id in self._pending
            self._pending[session_id] = snapshot
        if not is_waiting:
            self._writer.submit(self._write_next, session_id).add_done_callback(self._end_on_error)

    def _write_next(self, session_id: str) -> None:
        with self._lock:
            if session_id not in self._pending:
                return
            snapshot = self._pending.pop(session_id)
        if snapshot is None:
            self._backend.delete(session_id)
            return
        stored = self._backend.names(session_id)
        new = {name: encode_piece(name, array) for name, array in snapshot.pieces.items() if name not in stored}
        self._backend.write(session_id, encode_document(snapshot), new, stored - snapshot.pieces.keys())

    def _end_on_error(self, write: Future[None]) -> None:
        error = write.exception()
        if error is None or self._failure is not None:
            return
        with self._lock:
            self._failure = error.what if isinstance(error, StoreError) else repr(error)
            self._pending.clear()
        logger.error("live sessions keep playing but are no longer stored: %s", self._failure)


def encode_document(snapshot: SessionSnapshot) -> bytes:
    """The sealed JSON of a snapshot's meta and of the names of its pieces."""
    document = {"meta": snapshot.meta, "pieces": sorted(snapshot.pieces)}
    return _seal(DOCUMENT, json.dumps(document, allow_nan=False).encode())


def encode_piece(name: str, array: NDArray[Any]) -> bytes:
    """A sealed array in numpy's npy format."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return _seal(f"piece/{name}", file.getvalue())


def decode_snapshot(document: bytes, pieces: Mapping[str, bytes]) -> SessionSnapshot:
    """The snapshot of a document and its pieces. Raises StoreError where one is missing or damaged."""
    content = json.loads(_unseal(DOCUMENT, document))
    if missing := set(content["pieces"]) - pieces.keys():
        raise StoreError(f"pieces are missing: {', '.join(sorted(missing))}")
    return SessionSnapshot(content["meta"], {name: _decode_piece(name, pieces[name]) for name in content["pieces"]})


def _decode_piece(name: str, data: bytes) -> NDArray[Any]:
    file = io.BytesIO(_unseal(f"piece/{name}", data))
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    array.flags.writeable = False
    return array


def _seal(name: str, body: bytes) -> bytes:
    """`body` after a SHA-256 of it and of the name that it is stored under."""
    return _digest(name, body) + body


def _unseal(name: str, data: bytes) -> bytes:
    body = data[DIGEST_BYTES:]
    if data[:DIGEST_BYTES] != _digest(name, body):
        raise StoreError(f"{name} is damaged: its checksum differs")
    return body


def _digest(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + body).digest()
