"""Writing in the background: newest first, nothing waits, an error ends persistence once; checksums of every part."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
from helpers.lock_check import lock_checked
from helpers.store_contract import assert_same, snapshot

from runtime.base.errors import ConfigError, EntryUnavailableError, StoreError
from runtime.live.storage.store import (
    STORE_FORMAT,
    SessionSnapshot,
    SessionStore,
    decode_snapshot,
    encode_document,
    encode_piece,
)

TIMEOUT_S = 60.0
CheckedStore = lock_checked(SessionStore, "_pending")


class MemoryBackend:
    """A backend in memory that waits for `gate` before it writes, and then raises `error` if there is one."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[bytes, dict[str, bytes]]] = {}
        self.writes: list[str] = []
        self.attempts: list[str] = []
        self.error: Exception | None = None
        self.errors: dict[str, BaseException] = {}
        self.on_lost: Callable[[str], None] = lambda session_id: None
        self.gate = threading.Event()
        self.is_writing = threading.Event()
        self.is_closed = False
        self.gate.set()

    def ids(self) -> list[str]:
        return sorted(self.stored)

    def names(self, session_id: str) -> set[str]:
        return set(self.stored.get(session_id, (b"", {}))[1])

    def write(self, session_id: str, document: bytes, new: Mapping[str, bytes], unused: set[str]) -> None:
        self.attempts.append(session_id)
        self.is_writing.set()
        assert self.gate.wait(TIMEOUT_S)
        if error := self.error or self.errors.get(session_id):
            raise error
        kept = self.stored.get(session_id, (b"", {}))[1]
        self.writes.append(session_id)
        self.stored[session_id] = document, {name: kept[name] for name in kept.keys() - unused} | dict(new)

    def read(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        return self.stored.get(session_id)

    take = read

    def release(self, session_id: str) -> None:
        pass

    def delete(self, session_id: str) -> None:
        if error := self.error or self.errors.get(session_id):
            raise error
        self.stored.pop(session_id, None)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def store(backend: MemoryBackend) -> Iterator[SessionStore]:
    with CheckedStore(lambda: backend) as store:
        yield store
        backend.gate.set()
    assert backend.is_closed


def test_save_does_not_wait_for_the_storage_and_the_newest_of_each_session_wins(
    backend: MemoryBackend, store: SessionStore
) -> None:
    backend.gate.clear()
    store.save("first", snapshot())
    assert backend.is_writing.wait(TIMEOUT_S)
    for number in range(100):
        store.save("a", snapshot(number))
        store.save("b", snapshot(-number))
    backend.gate.set()
    assert_same(store.load("a"), snapshot(99))
    assert_same(store.load("b"), snapshot(-99))
    assert backend.writes == ["first", "a", "b"]


def test_a_session_deleted_while_its_save_waits_is_not_written(backend: MemoryBackend, store: SessionStore) -> None:
    backend.gate.clear()
    store.save("first", snapshot())
    assert backend.is_writing.wait(TIMEOUT_S)
    store.save("a", snapshot())
    store.delete("a")
    backend.gate.set()
    store.flush()
    assert store.ids() == ["first"]


@pytest.mark.parametrize("error", [StoreError("disk is full", fix="free some"), MemoryError("no memory")])
def test_the_first_error_ends_persistence_with_one_log_line(
    error: Exception, backend: MemoryBackend, store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save("a", snapshot(1))
    store.flush()
    backend.error = error
    for number in range(5):
        store.save("a", snapshot(number))
        store.flush()
    backend.error = None
    store.save("a", snapshot(9))
    assert store.failure in ("disk is full", "MemoryError('no memory')")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert store.failure in caplog.text
    assert_same(store.load("a"), snapshot(1))


def test_what_waits_as_the_storage_fails_is_not_tried_until_it_has_rested(
    backend: MemoryBackend, store: SessionStore
) -> None:
    backend.gate.clear()
    store.save("a", snapshot())
    assert backend.is_writing.wait(TIMEOUT_S)
    store.save("b", snapshot())
    store.save("c", snapshot())
    backend.error = StoreError("disk is full", fix="free some")
    backend.gate.set()
    store.flush()
    assert backend.attempts == ["a"]


def test_a_session_that_cannot_be_stored_is_reported_once_and_the_others_are_stored(
    store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        store.save("bad", SessionSnapshot({"time_s": float("nan")}, {}))
        store.save("good", snapshot(number))
        store.flush()
    assert store.failure is None
    assert_same(store.load("good"), snapshot(2))
    assert [record.getMessage() for record in caplog.records] == ["session bad cannot be stored"]


def test_what_was_not_stored_while_the_storage_failed_is_stored_once_it_works_again(
    backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckedStore(lambda: backend, retry_s=0.0) as store:
        for name in "abc":
            store.save(name, snapshot(1))
        store.flush()
        backend.error = StoreError("gone")
        for number in (2, 3):
            store.save("a", snapshot(number))
            store.flush()
        store.delete("b")
        store.save("c", snapshot(4))
        store.flush()
        assert store.failure == "gone"
        backend.error = None
        store.save("c", snapshot(5))
        store.flush()
        store.flush()
        assert store.failure is None
        assert store.ids() == ["a", "c"]
        assert_same(store.load("a"), snapshot(3))
        assert_same(store.load("c"), snapshot(5))
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]


@pytest.mark.parametrize("error", [EntryUnavailableError("WRONGTYPE"), KeyError("a"), SystemExit()])
def test_what_fails_of_one_session_stops_no_other(
    error: BaseException, backend: MemoryBackend, store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    backend.errors["bad"] = error
    for number in range(3):
        store.save("bad", snapshot(number))
        store.save("good", snapshot(number))
        store.flush()
        assert_same(store.load("good"), snapshot(number))
    are_stored: list[bool] = []
    for name in ("bad", "good"):
        store.release(name, are_stored.append)
    store.delete("bad")
    store.flush()
    assert (store.failure, are_stored) == (None, [False, True])
    assert [record.getMessage() for record in caplog.records] == ["session bad cannot be stored"]
    backend.errors.clear()
    store.save("bad", snapshot(4))
    assert_same(store.load("bad"), snapshot(4))
    store.release("bad", are_stored.append)
    store.flush()
    assert are_stored == [False, True, True]


def test_a_session_is_not_stored_where_the_storage_fails_as_it_is_released(
    backend: MemoryBackend, store: SessionStore
) -> None:
    backend.error = StoreError("gone")
    are_stored: list[bool] = []
    store.save("a", snapshot(1))
    store.release("a", are_stored.append)
    store.flush()
    assert are_stored == [False]


def test_the_format_is_that_of_stores_that_there_are() -> None:
    assert STORE_FORMAT == 2, "another one needs a conversion, and stores that older servers refuse"


def test_an_error_of_opening_is_raised_and_leaves_no_thread() -> None:
    def refuse() -> MemoryBackend:
        raise ConfigError("in use by another server")

    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="in use"):
        SessionStore(refuse)
    assert not set(threading.enumerate()) - before


def test_arrays_that_are_read_back_cannot_be_written(store: SessionStore) -> None:
    store.save("a", snapshot(0, canvas=1.0))
    loaded = store.load("a")
    with pytest.raises(ValueError, match="read-only"):
        loaded.pieces["canvas"][0] = 0


SAVED = SessionSnapshot({"k": 1}, {"canvas/1": np.arange(6.0), "noise": np.zeros((2, 3), np.float32)})
DOCUMENT = encode_document(SAVED)
PIECES = {name: encode_piece(name, array) for name, array in SAVED.pieces.items()}


@pytest.mark.parametrize("at", [0, 31, 32, 40, -1])
def test_a_flipped_bit_is_found_wherever_it_is(at: int) -> None:
    with pytest.raises(StoreError, match="document is damaged"):
        decode_snapshot(flipped(DOCUMENT, at), PIECES)
    with pytest.raises(StoreError, match="canvas/1 is damaged"):
        decode_snapshot(DOCUMENT, {**PIECES, "canvas/1": flipped(PIECES["canvas/1"], at)})


@pytest.mark.parametrize("size", [0, 10, 32, 60])
def test_a_cut_piece_is_found(size: int) -> None:
    with pytest.raises(StoreError, match="noise is damaged"):
        decode_snapshot(DOCUMENT, {**PIECES, "noise": PIECES["noise"][:size]})


def test_a_piece_under_another_ones_name_and_a_missing_piece_are_found() -> None:
    with pytest.raises(StoreError, match="noise is damaged"):
        decode_snapshot(DOCUMENT, {**PIECES, "noise": PIECES["canvas/1"]})
    with pytest.raises(StoreError, match=r"missing: canvas/1, noise"):
        decode_snapshot(DOCUMENT, {})


def test_a_damaged_session_is_reported_and_not_resumed(
    backend: MemoryBackend, store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    backend.stored["a"] = flipped(DOCUMENT, 50), PIECES
    backend.stored["b"] = DOCUMENT, PIECES
    assert store.load("a") is None
    assert "session a cannot be resumed: document is damaged" in caplog.text
    assert_same(store.load("b"), SAVED)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)
