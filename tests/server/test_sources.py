from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.audio.formats import latents_bytes
from runtime.errors import ConfigError, RequestError, SourceNotFoundError, StoreError
from server.sources import SourceStore

C = 2
Stores = Callable[..., SourceStore]


def read(data: bytes) -> NDArray[np.float32]:
    """One frame per four bytes, each with the byte's value."""
    if not data:
        raise RequestError("is empty", field="source")
    return np.repeat(np.frombuffer(data[: len(data) // 4 * 4 or 1], np.uint8)[::4, None], C, 1).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Stores:
    def make(limit_bytes: int = 1000, **options: object) -> SourceStore:
        return SourceStore(tmp_path / "state" / "sources", limit_bytes, read, 25.0, **options)

    return make


def test_the_id_is_the_hash_of_the_bytes_and_the_same_bytes_are_stored_once(store: Stores) -> None:
    sources = store()
    source, is_new = sources.add(b"abcd" * 10)
    assert (source.id, is_new) == (hashlib.sha256(b"abcd" * 10).hexdigest(), True)
    assert (source.size_bytes, source.milliseconds, source.kind) == (40, 400, "audio")
    assert sources.add(b"abcd" * 10) == (source, False)
    assert sources.all() == [source]
    assert len(list(sources.folder.iterdir())) == 1
    assert (sources.folder / source.file_name).read_bytes() == b"abcd" * 10


def test_latents_are_those_of_the_bytes_and_cannot_be_changed(store: Stores) -> None:
    sources = store()
    source, _ = sources.add(b"abcd" * 10)
    latents = sources.latents(source.id)
    assert np.array_equal(latents, read(b"abcd" * 10))
    with pytest.raises(ValueError, match="read-only"):
        latents[0] = 1.0


def test_latents_files_are_of_their_own_kind(tmp_path: Path) -> None:
    data = latents_bytes(np.zeros((5, C), np.float32), {})
    with_latents = SourceStore(tmp_path, 10_000, lambda _: np.zeros((5, C), np.float32), 25.0)
    assert with_latents.add(data)[0].kind == "latents"


def test_files_are_read_one_at_a_time_and_not_again_while_they_are_cached(tmp_path: Path) -> None:
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

    sources = SourceStore(tmp_path, 1000, count, 25.0)
    threads = [threading.Thread(target=sources.add, args=(data * 10,)) for data in (b"abcd", b"efgh")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, num_reads) == (1, 2)
    ids = [source.id for source in sources.all()]
    assert sources.are_cached(*ids, None)
    assert not sources.are_cached(ids[0], "0" * 64)


def test_what_cannot_be_read_is_not_stored(store: Stores) -> None:
    sources = store()
    with pytest.raises(RequestError, match="empty"):
        sources.add(b"")
    assert (sources.all(), list(sources.folder.iterdir())) == ([], [])


@pytest.mark.parametrize("source_id", ["", "0" * 64, "../secret", "..", "/etc/passwd", "a\0b"])
def test_an_unknown_id_is_refused_and_names_its_field(store: Stores, tmp_path: Path, source_id: str) -> None:
    sources = store()
    (tmp_path / "state" / "secret").write_bytes(b"abcd")
    for call in (sources.get, sources.remove, sources.latents):
        with pytest.raises(SourceNotFoundError):
            call(source_id)
    with pytest.raises(SourceNotFoundError) as error:
        sources.latents(source_id, "target_id")
    assert error.value.field == "target_id"
    assert (tmp_path / "state" / "secret").exists()


def test_sources_survive_a_restart_in_the_order_of_their_use(store: Stores) -> None:
    sources = store()
    ids = [sources.add(bytes([n]) * 8)[0].id for n in range(4)]
    for nanoseconds, source in enumerate(reversed(sources.all())):
        os.utime(sources.folder / source.file_name, ns=(nanoseconds, nanoseconds))
    sources.latents(ids[1])
    reopened = store()
    assert [source.id for source in reopened.all()] == [ids[1], ids[3], ids[2], ids[0]]
    assert reopened.all() == sources.all()
    assert np.array_equal(reopened.latents(ids[2]), read(bytes([2]) * 8))


def test_a_restart_removes_interrupted_uploads_and_leaves_other_files(store: Stores) -> None:
    folder = store().folder
    for name in ("tmpabc.part", "notes.txt", f"{'0' * 63}.1.audio"):
        (folder / name).write_bytes(b"x")
    assert store().all() == []
    assert {path.name for path in folder.iterdir()} == {"notes.txt", f"{'0' * 63}.1.audio"}


def test_sources_used_least_recently_make_room(store: Stores) -> None:
    evicted = []
    sources = store(100, on_evict=lambda: evicted.append(1))
    first, second, third = (sources.add(bytes([n]) * 40)[0] for n in range(3))
    assert (sources.all(), len(evicted), sources.size_bytes) == ([third, second], 1, 80)
    held = sources.latents(second.id)
    fourth, _ = sources.add(b"x" * 60)
    assert sources.all() == [fourth, second]
    sources.add(b"y" * 100)
    assert (len(sources.all()), len(evicted), len(list(sources.folder.iterdir()))) == (1, 4, 1)
    assert np.array_equal(held, read(bytes([1]) * 40))
    with pytest.raises(SourceNotFoundError):
        sources.latents(first.id)


@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
def test_a_damaged_file_is_removed_and_may_be_uploaded_again(
    store: Stores, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    source, _ = store().add(b"abcd" * 10)
    sources = store()
    path = sources.folder / source.file_name
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(SourceNotFoundError, match="damaged"):
        sources.latents(source.id)
    assert "damaged" in caplog.text
    assert (sources.all(), path.exists()) == ([], False)
    assert sources.add(b"abcd" * 10)[1]
    assert len(sources.latents(source.id)) == 10


def test_a_deleted_source_is_gone_and_work_that_uses_it_keeps_its_latents(store: Stores) -> None:
    sources = store()
    source, _ = sources.add(b"abcd" * 10)
    held = sources.latents(source.id)
    sources.remove(source.id)
    assert (sources.all(), list(sources.folder.iterdir()), len(held)) == ([], [], 10)


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    num_reads = []

    def counted(data: bytes) -> NDArray[np.float32]:
        num_reads.append(1)
        return read(data)

    sources = SourceStore(tmp_path, 10_000, counted, 25.0, cache_bytes=3 * 80)
    ids = [sources.add(bytes([n]) * 40)[0].id for n in range(5)]
    assert len(num_reads) == 5
    for source_id in (ids[4], ids[3], ids[2]):
        sources.latents(source_id)
    assert len(num_reads) == 5
    sources.latents(ids[0])
    assert len(num_reads) == 6


def test_a_full_disk_is_an_error_that_leaves_nothing(store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = store()
    known, _ = sources.add(b"abcd")

    def full(*arguments: object, **options: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("server.sources.tempfile.NamedTemporaryFile", full)
    with pytest.raises(StoreError, match="No space left on device"):
        sources.add(b"efgh")
    assert sources.all() == [known]


def test_without_a_folder_sources_end_with_the_store() -> None:
    sources = SourceStore(None, 1000, read, 25.0)
    source, _ = sources.add(b"abcd")
    assert (sources.folder / source.file_name).exists()
    sources.close()
    assert not sources.folder.exists()


def test_a_folder_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "sources"):
        with pytest.raises(ConfigError, match="sources cannot be stored") as error:
            SourceStore(folder, 1000, read, 25.0)
        assert "state" in error.value.fix


def test_threads_share_a_store(store: Stores) -> None:
    sources = store(200)
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
    assert sources.size_bytes <= 200
    assert {path.name for path in sources.folder.iterdir()} == {source.file_name for source in sources.all()}
