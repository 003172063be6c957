"""Snapshots of live sessions in a store that survives the process: format, checksums, one writer thread.

A store never delays a caller: `save` returns at once, and the writer thread writes the newest snapshot of each session.
An error of the storage is logged once; sessions keep playing, and what waits is written once the storage works again.
An error of one session stops none of the others.
Nothing in a store depends on the wall clock: the sessions found at a start are kept for `session_keep_s` of the running
time of the server.

A session belongs to the server that took it last. Taking increments its epoch, and what a server that holds an older
epoch writes does not count: it learns that it has lost the session (`on_lost`). So a server that was frozen or cut off
cannot overwrite what its successor has stored.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from runtime.base.errors import EntryUnavailableError, StoreError, StoreUnavailableError
from runtime.base.threads import Watched, Workers
from runtime.base.untrusted import one_line

STORE_FORMAT = 2
DIGEST_BYTES = hashlib.sha256().digest_size
DOCUMENT = "document"
MAX_REASON_CHARACTERS = 200
RETRY_S = 5.0  # Between two attempts while the storage fails.
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
    """Storage of an epoch, one document and named pieces of bytes per session. Used by the store's writer thread only.

    on_lost: called, in any thread, with a session that this server held and another one has taken. Every method raises
    StoreError where the storage fails, EntryUnavailableError where it fails for one session.
    StoreError where the storage fails. threads: of its own.
    """

    on_lost: Callable[[str], None]
    threads: tuple[Watched, ...]

    def ids(self) -> list[str]:
        """The stored sessions that belong to this server, but those set aside."""

    def names(self, session_id: str) -> set[str]:
        """The names of a session's stored pieces."""

    def write(self, session_id: str, document: bytes, new: Mapping[str, bytes], unused: set[str]) -> None:
        """In one transaction: replace the document, add the pieces `new`, delete the pieces `unused`.

        A session that is not stored yet is this server's. Nothing is written where another server has taken it.
        """

    def read(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """A session's document and pieces; None where there is no document."""

    def take(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """In one transaction: increment the session's epoch, which this server holds then, and read it."""

    def release(self, session_id: str) -> None:
        """The session is not this server's any more; it stays stored as long as one without a server."""

    def set_aside(self, session_id: str) -> None:
        """Keep a session out of `ids`, until it is written again; it can be read and taken."""

    def delete(self, session_id: str) -> None:
        """Delete a session's document and pieces, if there are any and no other server has taken it."""

    def close(self) -> None:
        """Release the storage."""


Read = Callable[[str], tuple[bytes, dict[str, bytes]] | None]


class SessionStore:
    """Snapshots of sessions in a backend, which `open_backend` opens in the writer thread.

    retry_s: between two attempts while the storage fails. Raises what `open_backend` raises.
    """

    def __init__(self, open_backend: Callable[[], StoreBackend], retry_s: float = RETRY_S) -> None:
        self._retry_s, self._rests_until_s = retry_s, 0.0
        self._failure: str | None = None
        self._pending: dict[str, SessionSnapshot | None] = {}
        self._unstorable: set[str] = set()
        self._lock = threading.Lock()
        self._writer = Workers(1, "session-store")
        try:
            # SQLite connections belong to the thread that opens them
            self._backend = self._writer.submit(open_backend).result()
        except BaseException:
            self._writer.shutdown()
            raise

    @property
    def failure(self) -> str | None:
        """Why snapshots are not stored; None while they are."""
        return self._failure

    @property
    def threads(self) -> tuple[Watched, ...]:
        """That write and renew what is stored."""
        return (self._writer, *self._backend.threads)

    def on_lost(self, call: Callable[[str], None]) -> None:
        """Call with each session that this server held and another one has taken, in any thread."""
        self._backend.on_lost = call

    def save(self, session_id: str, snapshot: SessionSnapshot) -> None:
        """Store `snapshot` soon; it replaces one of the same session that is still waiting."""
        self._enqueue(session_id, snapshot)

    def delete(self, session_id: str) -> None:
        """Delete a session soon."""
        self._enqueue(session_id, None)

    def release(self, session_id: str, then: Callable[[bool], None]) -> None:
        """Give a session up after the saves that wait: another server may go on with it.

        then: called with whether all is stored, in the writer thread.
        """
        released = self._writer.submit(self._backend.release, session_id)
        released.add_done_callback(lambda _: then(self._failure is None and session_id not in self._unstorable))

    def load(self, session_id: str) -> SessionSnapshot | None:
        """The last snapshot; None where there is none or it is damaged (logged). Waits for saves that are under way.

        The session stays whose it is. Raises StoreUnavailableError.
        """
        return self._read(self._backend.read, session_id)

    def take(self, session_id: str) -> SessionSnapshot | None:
        """As `load`; the session is this server's from now on, and saves of the one that had it do not count."""
        return self._read(self._backend.take, session_id)

    def _read(self, read: Read, session_id: str) -> SessionSnapshot | None:
        try:
            stored = self._writer.submit(read, session_id).result()  # after the writes that wait; blocks the caller
        except StoreError as error:
            raise StoreUnavailableError(error.what, fix=error.fix) from error
        if stored is None:
            return None
        try:
            return decode_snapshot(*stored)
        except StoreError as error:
            logger.error("session %s cannot be resumed: %s", session_id, error.what)
            return None

    def ids(self) -> list[str]:
        """The stored sessions that this server holds, or that no other one can have, but those set aside.

        Raises StoreError.
        """
        return self._writer.submit(self._backend.ids).result()

    def set_aside(self, session_id: str) -> None:
        """Keep a session that could not be restored out of `ids`, until it is saved again: its client may resume it.

        Raises StoreError.
        """
        self._writer.submit(self._backend.set_aside, session_id).result()

    def flush(self) -> None:
        """Wait until everything that was saved before is stored, or the storage fails."""
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
            is_enqueued = session_id in self._pending and self._failure is None
            self._pending[session_id] = snapshot
        if not is_enqueued and not self._is_resting:
            self._submit(session_id)

    def _submit(self, session_id: str) -> None:
        self._writer.submit(self._write_next, session_id).add_done_callback(self._note_outcome)

    @property
    def _is_resting(self) -> bool:
        """Whether the storage has failed so recently that it is not tried again yet."""
        return self._failure is not None and time.monotonic() < self._rests_until_s

    def _write_next(self, session_id: str) -> bool:
        """Write what waits of a session, if anything does; whether the storage has been written."""
        with self._lock:
            if session_id not in self._pending or self._is_resting:
                return False
            snapshot = self._pending.pop(session_id)
        try:
            self._write(session_id, snapshot)
        except BaseException as error:
            if _is_of_one_session(error):
                self._note_unstorable(session_id)
                return False
            with self._lock:
                self._pending.setdefault(session_id, snapshot)
            raise
        self._unstorable.discard(session_id)
        return True

    def _write(self, session_id: str, snapshot: SessionSnapshot | None) -> None:
        if snapshot is None:
            self._backend.delete(session_id)
            return
        stored = self._backend.names(session_id)
        document = encode_document(snapshot)
        new = {name: encode_piece(name, array) for name, array in snapshot.pieces.items() if name not in stored}
        self._backend.write(session_id, document, new, stored - snapshot.pieces.keys())

    def _note_unstorable(self, session_id: str) -> None:
        """The storage works, and stores the others; this session's next save is tried again. Handles an exception."""
        if session_id not in self._unstorable:
            logger.exception("session %s cannot be stored", session_id)
        self._unstorable.add(session_id)

    def _note_outcome(self, write: Future[bool]) -> None:
        error, before = write.exception(), self._failure
        if error is not None:
            self._rests_until_s = time.monotonic() + self._retry_s
            self._failure = error.what if isinstance(error, StoreError) else repr(error)
            if before is None:
                logger.error("live sessions keep playing but are no longer stored: %s", self._failure)
        elif before is not None and write.result():
            self._failure = None
            logger.warning("live sessions are stored again")
            with self._lock:
                waiting = list(self._pending)
            for session_id in waiting:
                self._submit(session_id)


def _is_of_one_session(error: BaseException) -> bool:
    """Whether the storage may work for other sessions all the same."""
    is_of_storage = isinstance(error, StoreError | OSError | MemoryError)
    return isinstance(error, EntryUnavailableError) or not is_of_storage


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
    body = _unseal(DOCUMENT, document)
    try:
        content = _Document.model_validate(from_json(body, allow_inf_nan=False))
    except ValueError as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise StoreError(f"{DOCUMENT} is damaged: {one_line(what, MAX_REASON_CHARACTERS)}") from None
    if missing := set(content.pieces) - pieces.keys():
        raise StoreError(f"pieces are missing: {', '.join(sorted(missing))}")
    return SessionSnapshot(content.meta, {name: _decode_piece(name, pieces[name]) for name in content.pieces})


class _Document(BaseModel):
    meta: dict[str, Any]
    pieces: list[str]


def _decode_piece(name: str, data: bytes) -> NDArray[Any]:
    """The array, which cannot be written. No memory is taken before its size is known to be that of the data."""
    body = _unseal(f"piece/{name}", data)
    file = io.BytesIO(body)
    try:
        np.lib.format.read_magic(file)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        array: NDArray[Any] = np.frombuffer(body, dtype, offset=file.tell())
        return array.reshape(shape, order="F" if is_fortran else "C")
    except ValueError as error:
        raise StoreError(f"piece {name} is damaged: {error}") from None


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
