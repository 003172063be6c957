"""Tests that every session store passes. Test modules import them and define the fixture `opened`: a function that
opens one more store of the same storage, as a server does after a restart.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from runtime.live.storage.store import (
    DOCUMENT,
    SessionSnapshot,
    SessionStore,
    _seal,
    encode_document,
)

Opened = Callable[[], SessionStore]
DTYPES = st.sampled_from([np.dtype(name) for name in ("<f4", ">f4", "f8", "i8", "u1", "?")])
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
META = st.dictionaries(
    st.text(), st.text() | st.integers() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
)
SNAPSHOTS = st.builds(SessionSnapshot, META, st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4))


def snapshot(number: int = 0, **pieces: float) -> SessionSnapshot:
    return SessionSnapshot({"k": number}, {name: np.full((2, 3), value, np.float32) for name, value in pieces.items()})


def assert_same(one: SessionSnapshot | None, other: SessionSnapshot | None) -> None:
    assert one is not None
    assert other is not None
    assert one.meta == other.meta
    assert one.pieces.keys() == other.pieces.keys()
    for name, array in one.pieces.items():
        np.testing.assert_array_equal(array, other.pieces[name])
        assert (array.dtype, array.shape) == (other.pieces[name].dtype, other.pieces[name].shape)


def test_a_snapshot_is_read_back_after_a_restart(opened: Opened) -> None:
    saved = snapshot(1, **{"canvas/1": 1.0, "noise/1": 2.0})
    with opened() as store:
        store.save("a", saved)
    with opened() as store:
        assert_same(store.load("a"), saved)


def test_a_session_set_aside_is_kept_and_comes_back_with_its_next_snapshot(opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(1))
        store.flush()
        store.set_aside("a")
        assert "a" not in store.ids()
    with opened() as store:
        assert "a" not in store.ids()
        assert_same(store.take("a"), snapshot(1))
        store.save("a", snapshot(2))
        store.flush()
        assert store.ids() == ["a"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(saved=SNAPSHOTS, session_id=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_any_values_shapes_and_names_are_read_back(opened: Opened, saved: SessionSnapshot, session_id: str) -> None:
    with opened() as store:
        store.save(session_id, saved)
        assert_same(store.load(session_id), saved)
        store.delete(session_id)
        assert store.load(session_id) is None


def test_a_save_replaces_the_snapshot_and_deletes_the_pieces_it_no_longer_names(opened: Opened) -> None:
    with opened() as store:
        for number in range(4):
            saved = snapshot(number, **{"source": 1.0, f"canvas/{number}": number})
            store.save("a", saved)
            store.flush()
        assert_same(store.load("a"), saved)


def test_a_piece_that_is_stored_already_is_not_written_again(opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(0, source=1.0))
        store.flush()
        store.save("a", snapshot(1, source=2.0))
        assert_same(store.load("a"), snapshot(1, source=1.0))


def test_sessions_do_not_touch_each_other(opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(1, canvas=1.0))
        store.save("b", snapshot(2, canvas=2.0))
        store.delete("a")
        assert store.ids() == ["b"]
        assert store.load("a") is None
        assert_same(store.load("b"), snapshot(2, canvas=2.0))


def test_a_taken_session_is_read_written_and_deleted_by_the_server_that_took_it(opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(1, canvas=1.0))
    for number in (2, 3):
        with opened() as store:
            assert_same(store.take("a"), snapshot(number - 1, canvas=1.0))
            store.save("a", snapshot(number, canvas=1.0))
    with opened() as store:
        assert store.take("unknown") is None
        assert store.take("a") is not None
        store.delete("a")
        store.flush()
        assert store.load("a") is None


def test_a_session_that_is_not_taken_is_neither_written_nor_deleted(opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(1, canvas=1.0))
    with opened() as store:
        store.save("a", snapshot(2))
        store.delete("a")
        store.flush()
        assert_same(store.load("a"), snapshot(1, canvas=1.0))
        assert store.failure is None


def test_a_released_session_is_not_written_any_more(opened: Opened) -> None:
    with opened() as store:
        are_stored: list[bool] = []
        store.save("a", snapshot(1))
        store.release("a", are_stored.append)
        store.flush()
        assert are_stored == [True]
        store.save("a", snapshot(2))
        assert_same(store.load("a"), snapshot(1))


def assert_taken_from(old: SessionStore, new: SessionStore) -> None:
    """Both think that a session is theirs: what the one says that had it before does not count, and it learns of it."""
    lost: list[str] = []
    old.on_lost(lost.append)
    old.save("a", snapshot(1, canvas=1.0))
    old.flush()
    assert_same(new.take("a"), snapshot(1, canvas=1.0))
    new.save("a", snapshot(2, canvas=1.0, noise=2.0))
    new.flush()
    for number in (3, 4):
        old.save("a", snapshot(number, canvas=3.0))
        old.flush()
    old.delete("a")
    old.save("b", snapshot(5))
    old.flush()
    assert_same(new.load("a"), snapshot(2, canvas=1.0, noise=2.0))
    assert_same(old.load("b"), snapshot(5))
    assert lost == ["a"]


def test_a_session_that_was_deleted_can_be_stored_again(opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(0, canvas=1.0))
        store.delete("a")
        store.save("a", snapshot(1, canvas=2.0))
        assert_same(store.load("a"), snapshot(1, canvas=2.0))


@pytest.mark.parametrize(
    "document",
    [b"[]", b"null", b"", b"\xff", b'{"meta": [], "pieces": []}', b'{"meta": {}, "pieces": {}}', b"[" * 100_000],
)
def test_a_sealed_document_that_is_none_is_reported_and_the_others_are_read(
    opened: Opened, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as store:
        store.save("good", snapshot(1))
        store.flush()
        store._writer.submit(store._backend.write, "bad", _seal(DOCUMENT, document), {}, set()).result()
        assert store.load("bad") is None
        assert store.take("bad") is None
        assert "session bad cannot be resumed: document is damaged" in caplog.text
        assert_same(store.load("good"), snapshot(1))


def test_a_sealed_piece_that_is_no_array_is_reported(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    document = encode_document(snapshot(1, canvas=1.0))
    with opened() as store:
        for number, body in enumerate((b"", b"no array", huge.getvalue())):
            pieces = {"canvas": _seal("piece/canvas", body)}
            store._writer.submit(store._backend.write, f"s{number}", document, pieces, set()).result()
            assert store.load(f"s{number}") is None
            assert f"session s{number} cannot be resumed: piece canvas is damaged" in caplog.text


def test_an_unknown_session_is_none(opened: Opened) -> None:
    with opened() as store:
        assert store.load("unknown") is None
        assert store.ids() == []
        assert store.failure is None
