"""What a store of sources does, wherever their bytes are."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from helpers.sources import C, read, store_of
from numpy.typing import NDArray

from runtime.audio.formats import latents_bytes
from runtime.base.errors import RequestError, SourceNotFoundError
from server.service import source_store as store
from server.service.source import Source, SourceFiles, owner_of

OpenFiles = Callable[[], SourceFiles]


def size_bytes(sources: list[Source]) -> int:
    return sum(source.size_bytes for source in sources)


def test_the_id_is_the_hash_of_the_bytes_and_the_same_bytes_are_stored_once(open_files: OpenFiles) -> None:
    files = open_files()
    sources = store_of(files)
    source, is_new = sources.add(b"abcd" * 10)
    assert (source.id, is_new) == (hashlib.sha256(b"abcd" * 10).hexdigest(), True)
    assert (source.size_bytes, source.milliseconds, source.kind) == (40, 400, "audio")
    assert sources.add(b"abcd" * 10) == (source, False)
    assert sources.all() == [source]
    assert sources.data(source.id) == files.read(source) == b"abcd" * 10


def test_latents_are_those_of_the_bytes_and_cannot_be_changed(open_files: OpenFiles) -> None:
    sources = store_of(open_files())
    source, _ = sources.add(b"abcd" * 10)
    latents = sources.latents(source.id)
    assert np.array_equal(latents, read(b"abcd" * 10))
    with pytest.raises(ValueError, match="read-only"):
        latents[0] = 1.0


def test_latents_files_are_of_their_own_kind(open_files: OpenFiles) -> None:
    data = latents_bytes(np.zeros((5, C), np.float32), {})
    with_latents = store_of(open_files(), 10_000, read=lambda _: np.zeros((5, C), np.float32))
    assert with_latents.add(data)[0].kind == "latents"


def test_files_are_read_one_at_a_time_and_not_again_while_they_are_cached(open_files: OpenFiles) -> None:
    running, most, num_reads = 0, 0, 0
    both = threading.Barrier(2)

    def count(data: bytes) -> NDArray[np.float32]:
        nonlocal running, most, num_reads
        running, num_reads = running + 1, num_reads + 1
        most = max(most, running)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)
        running -= 1
        return read(data)

    sources = store_of(open_files(), read=count)
    threads = [threading.Thread(target=sources.add, args=(data * 10,)) for data in (b"abcd", b"efgh")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, num_reads) == (1, 2)
    ids = [source.id for source in sources.all()]
    assert sources.are_cached(*ids, None)
    assert not sources.are_cached(ids[0], "0" * 64)


def test_what_cannot_be_read_is_not_stored(open_files: OpenFiles) -> None:
    sources = store_of(open_files())
    with pytest.raises(RequestError, match="empty"):
        sources.add(b"")
    assert sources.all() == []


@pytest.mark.parametrize("source_id", ["", "0" * 64, "../secret", "..", "/etc/passwd", "a\0b"])
def test_an_unknown_id_is_refused_and_names_its_field(open_files: OpenFiles, source_id: str) -> None:
    sources = store_of(open_files())
    for call in (sources.get, sources.remove, sources.latents):
        with pytest.raises(SourceNotFoundError):
            call(source_id)
    with pytest.raises(SourceNotFoundError) as error:
        sources.latents(source_id, "target_id")
    assert error.value.field == "target_id"


def test_sources_used_least_recently_make_room(open_files: OpenFiles) -> None:
    evicted = []
    sources = store_of(open_files(), 100, on_evict=lambda: evicted.append(1))
    first, second, third = (sources.add(bytes([n]) * 40)[0] for n in range(3))
    assert (sources.all(), len(evicted), size_bytes(sources.all())) == ([third, second], 1, 80)
    held = sources.latents(second.id)
    fourth, _ = sources.add(b"x" * 60)
    assert sources.all() == [fourth, second]
    newest, _ = sources.add(b"y" * 100)
    assert (sources.all(), len(evicted)) == ([newest], 4)
    assert np.array_equal(held, read(bytes([1]) * 40))
    with pytest.raises(SourceNotFoundError):
        sources.latents(first.id)


def test_a_client_that_uploads_much_takes_no_place_of_others(open_files: OpenFiles) -> None:
    files = open_files()
    sources = store_of(files, 1000)
    others = [sources.add(bytes([n]) * 40, f"client {n}")[0] for n in range(5)]
    for number in range(100):
        sources.add(b"%d" % number * 30, "attacker")
    found = sources.all()
    assert set(others) < set(found)
    assert {source.owner for source in found} == {source.owner for source in others} | {owner_of("attacker")}
    again = store_of(files, 400)
    again.add(b"new" * 10, "new")
    assert set(others) < set(again.all()), "whose they are is known after a restart"


def test_a_deleted_source_is_gone_and_work_that_uses_it_keeps_its_latents(open_files: OpenFiles) -> None:
    files = open_files()
    sources = store_of(files)
    source, _ = sources.add(b"abcd" * 10)
    held = sources.latents(source.id)
    sources.remove(source.id)
    assert (sources.all(), files.read(source), len(held)) == ([], b"", 10)


def test_the_cache_is_bounded(open_files: OpenFiles) -> None:
    num_reads = []

    def counted(data: bytes) -> NDArray[np.float32]:
        num_reads.append(1)
        return read(data)

    sources = store_of(open_files(), 10_000, read=counted, cache_bytes=3 * 80)
    ids = [sources.add(bytes([n]) * 40)[0].id for n in range(5)]
    assert len(num_reads) == 5
    for source_id in (ids[4], ids[3], ids[2]):
        sources.latents(source_id)
    assert len(num_reads) == 5
    sources.latents(ids[0])
    assert len(num_reads) == 6
    assert [sources.are_cached(source_id) for source_id in ids] == [True, False, True, True, False]
    assert sources.are_cached(None, ids[0])
    assert sources.are_cached()
    assert not sources.are_cached(ids[0], ids[4], None)
    sources.remove(ids[0])
    assert not sources.are_cached(ids[0])


def test_sources_are_so_many_at_most_and_one_that_is_gone_already_is_not_counted(
    open_files: OpenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_SOURCES", 3)
    evicted: list[int] = []
    files = open_files()
    sources = store_of(files, 1000, on_evict=lambda: evicted.append(1))
    added = [sources.add(bytes([n]) * 40)[0] for n in range(3)]
    assert (len(sources.all()), evicted) == (3, [])
    added.append(sources.add(b"x" * 40)[0])
    assert (sources.all(), evicted) == ([added[3], added[2], added[1]], [1])
    with monkeypatch.context() as patched:
        remove = files.remove
        patched.setattr(files, "remove", lambda source: (remove(source), False)[1])  # another server was faster
        added.append(sources.add(b"y" * 40)[0])
    assert (sources.all(), evicted) == ([added[4], added[3], added[2]], [1])


def test_threads_share_a_store(open_files: OpenFiles) -> None:
    files = open_files()
    sources = store_of(files, 200)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            data = bytes([int(random.integers(12))]) * 40
            try:
                source, _ = sources.add(data)
                assert np.array_equal(sources.latents(source.id), read(data))
            except SourceNotFoundError:
                continue
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert size_bytes(sources.all()) <= 200
    assert all(files.read(source) for source in sources.all())
