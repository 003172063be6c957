"""Sources in a real Redis: two servers have the same ones, which expire; a Redis that is away."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.left_behind import leave_behind
from helpers.redis_server import RedisServer, redis_server
from helpers.sources import C, read, store_of
from helpers.storage_faults import ERRNOS, faults
from numpy.typing import NDArray

from runtime.audio.formats import latents_bytes
from runtime.base.errors import ConfigError, RequestError, SourceNotFoundError, StoreError, StoreUnavailableError
from server.service import sources as store
from server.service.shared_sources import KEEP_S, SharedSources
from server.service.sources import Source, SourceFiles, SourceFolder, owner_of

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
    small = store_of(open_files(), 10_000, cache_bytes=1)
    first, last = (small.add(bytes([n]) * 40)[0].id for n in (8, 9))
    assert (small.are_cached(first), small.are_cached(last)) == (False, True)


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


def test_a_file_has_the_bytes_and_is_named_by_the_source(tmp_path: Path) -> None:
    source, _ = store_of(SourceFolder(tmp_path / "state" / "sources")).add(b"abcd" * 10)
    assert (tmp_path / "state" / "sources" / source.name).read_bytes() == b"abcd" * 10


def test_sources_survive_a_restart_in_the_order_of_their_use(tmp_path: Path) -> None:
    sources = store_of(SourceFolder(tmp_path))
    ids = [sources.add(bytes([n]) * 8)[0].id for n in range(4)]
    for nanoseconds, source in enumerate(reversed(sources.all())):
        os.utime(tmp_path / source.name, ns=(nanoseconds, nanoseconds))
    sources.latents(ids[1])
    reopened = store_of(SourceFolder(tmp_path))
    assert [source.id for source in reopened.all()] == [ids[1], ids[3], ids[2], ids[0]]
    assert reopened.all() == sources.all()
    assert np.array_equal(reopened.latents(ids[2]), read(bytes([2]) * 8))


def test_what_other_programs_leave_beside_sources_stays_there(tmp_path: Path) -> None:
    source, _ = store_of(SourceFolder(tmp_path)).add(b"abcd")
    names = {*leave_behind(tmp_path, source.name), "song.wav.part", source.name}
    (tmp_path / "song.wav.part").touch()
    for name in ("tmpabc.part", f"{'0' * 64}.1.audio"):
        (tmp_path / name).mkdir()
        names.add(name)
    assert SourceFolder(tmp_path).all() == [source]
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_restart_removes_interrupted_uploads_and_leaves_other_files(tmp_path: Path) -> None:
    for name in ("tmpabc.part", "notes.txt", f"{'0' * 63}.1.audio"):
        (tmp_path / name).write_bytes(b"x")
    assert SourceFolder(tmp_path).all() == []
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", f"{'0' * 63}.1.audio"}


@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
def test_a_damaged_file_is_renamed_and_may_be_uploaded_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    source, _ = store_of(SourceFolder(tmp_path)).add(b"abcd" * 10)
    sources = store_of(SourceFolder(tmp_path))
    path = tmp_path / source.name
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(SourceNotFoundError, match="damaged"):
        sources.latents(source.id)
    assert [record.getMessage().count(source.id) for record in caplog.records] == [1 + (damage is not None)]
    kept = [file.read_bytes() for file in tmp_path.glob("*.damaged-1")]
    assert (sources.all(), path.exists(), kept) == ([], False, [] if damage is None else [damage])
    assert sources.add(b"abcd" * 10)[1]
    assert len(sources.latents(source.id)) == 10
    assert store_of(SourceFolder(tmp_path)).all() == sources.all()


@pytest.mark.parametrize("code", ERRNOS)
def test_a_file_that_cannot_be_read_now_stays(tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture) -> None:
    source, _ = store_of(SourceFolder(tmp_path)).add(b"abcd" * 10)
    sources = store_of(SourceFolder(tmp_path))
    with (
        faults(tmp_path, 1, code, stay=True),
        pytest.raises(StoreUnavailableError, match="the source cannot be read now") as error,
    ):
        sources.latents(source.id)
    assert (error.value.status, str(tmp_path) in str(error.value)) == (503, False)
    assert len(sources.latents(source.id)) == 10
    assert not caplog.records


def test_a_file_that_another_thread_has_replaced_meanwhile_is_not_set_aside(tmp_path: Path) -> None:
    files = SourceFolder(tmp_path)
    source, _ = store_of(files).add(b"abcd" * 10)
    assert files.set_aside(source) == ""
    assert store_of(files).data(source.id) == b"abcd" * 10


def test_no_id_reaches_a_file_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"abcd")
    sources = store_of(SourceFolder(tmp_path / "sources"))
    with pytest.raises(SourceNotFoundError):
        sources.remove("../secret")
    assert (tmp_path / "secret").exists()


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = store_of(SourceFolder(tmp_path))
    known, _ = sources.add(b"abcd")

    def full(*arguments: object, **options: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("server.service.sources.tempfile.NamedTemporaryFile", full)
    with pytest.raises(StoreError, match="No space left on device"):
        sources.add(b"efgh")
    assert sources.all() == [known]


def test_what_was_readable_by_others_is_not_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    source, _ = store_of(SourceFolder(folder)).add(b"abcd")
    folder.chmod(0o755)
    (folder / source.name).chmod(0o644)
    store_of(SourceFolder(folder)).add(b"efgh")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.glob("*.audio"))] == [0o700, 0o600, 0o600]


def test_without_a_folder_sources_end_with_the_store() -> None:
    files = SourceFolder(None)
    sources = store_of(files)
    source, _ = sources.add(b"abcd")
    assert (files.path / source.name).exists()
    sources.close()
    assert not files.path.exists()


def test_a_folder_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "sources"):
        with pytest.raises(ConfigError, match="sources cannot be stored") as error:
            SourceFolder(folder)
        assert "state" in error.value.fix


ID = "0123456789abcdef" * 4


def test_a_source_is_made_of_its_name_and_size() -> None:
    source = Source(ID, 1500, "audio", 40)
    assert source.name == f"{ID}.1500.audio"
    assert Source.named(source.name, 40) == source


@pytest.mark.parametrize("name", ["notes.txt", f"{ID[1:]}.1.audio", f"{ID}.1.mp3", f"../{ID}.1.audio"])
def test_another_name_is_no_source(name: str) -> None:
    assert Source.named(name, 1) is None


def test_what_one_server_is_given_the_other_one_has_until_it_is_deleted(redis: RedisServer) -> None:
    redis.client.flushdb()
    one, two = (store_of(SharedSources(redis.url)) for _ in range(2))
    source, _ = one.add(b"abcd" * 10)
    assert two.add(b"abcd" * 10) == (source, False)
    assert np.array_equal(two.latents(source.id), read(b"abcd" * 10))
    one.remove(source.id)
    for sources in (one, two):  # also where the latents are in memory
        with pytest.raises(SourceNotFoundError):
            sources.latents(source.id)
        sources.close()


def test_a_use_keeps_a_source_and_one_that_expires_is_gone_from_the_list(redis: RedisServer) -> None:
    redis.client.flushdb()
    sources = store_of(SharedSources(redis.url))
    used, unused = (sources.add(data * 8)[0] for data in (b"a", b"b"))
    for source in (used, unused):
        redis.client.pexpire(f"tickrt:source:{source.id}", 1000)
    for member, used_s in redis.client.zrange("tickrt:sources", 0, -1, withscores=True):
        redis.client.zadd("tickrt:sources", {member: used_s - KEEP_S})
    sources.get(used.id)
    assert redis.client.ttl(f"tickrt:source:{used.id}") > KEEP_S - 60
    assert redis.client.pttl(f"tickrt:source:{unused.id}") <= 1000
    assert sources.all() == [used]
    sources.close()


def test_a_redis_that_is_away_is_unavailable_for_now(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        sources = store_of(SharedSources(server.url))
        source, _ = sources.add(b"abcd")
    for call in (sources.all, lambda: sources.latents(source.id), lambda: sources.add(b"efgh")):
        with pytest.raises(StoreUnavailableError, match="Redis"):
            call()
    sources.close()


def test_a_damaged_source_is_renamed_and_may_be_uploaded_again(redis: RedisServer) -> None:
    redis.client.flushdb()
    sources = store_of(SharedSources(redis.url))
    source, _ = store_of(SharedSources(redis.url)).add(b"abcd" * 10)
    redis.client.hset(f"tickrt:source:{source.id}", mapping={"data": b"other bytes"})
    with pytest.raises(SourceNotFoundError, match="damaged"):
        sources.latents(source.id)
    assert sources.all() == []
    assert redis.client.hget(f"tickrt:source:{source.id}:damaged", "data") == b"other bytes"
    assert sources.add(b"abcd" * 10)[1]
    sources.close()


def test_two_servers_that_are_given_the_same_bytes_at_once_have_one_source(redis: RedisServer) -> None:
    """Each has looked before the other one has written; they name different owners."""
    redis.client.flushdb()
    one, two = SharedSources(redis.url), SharedSources(redis.url)
    source = store_of(one).add(b"abcd" * 10, "a client")[0]
    other = replace(source, owner=owner_of("another client"))
    two.add(other, b"abcd" * 10)
    assert one.all() == two.all() == [other]
    assert one.remove(source)
    assert two.all() == []
    assert not two.remove(other)
    one.close()
    two.close()


@dataclass(frozen=True)
class Replaced(Source):
    """A source whose right bytes another server brings while the damaged ones are judged."""

    bring: Callable[[], None] = field(default=lambda: None, compare=False)

    def has(self, data: bytes) -> bool:
        is_right = super().has(data)
        if not is_right:
            self.bring()
        return is_right


def test_a_source_that_is_brought_again_meanwhile_is_not_set_aside(redis: RedisServer) -> None:
    redis.client.flushdb()
    one, two = SharedSources(redis.url), SharedSources(redis.url)
    source = store_of(one).add(b"abcd" * 10)[0]
    redis.client.hset(f"tickrt:source:{source.id}", mapping={"data": b"other bytes"})
    judged = Replaced(*astuple(source), bring=lambda: two.add(source, b"abcd" * 10))
    assert one.set_aside(judged) == ""
    assert two.read(source) == b"abcd" * 10
    assert one.all() == [source]
    assert one.set_aside(replace(source, id="0" * 64)) == ""
    one.close()
    two.close()


def test_what_something_else_has_written_hides_no_source(redis: RedisServer) -> None:
    redis.client.flushdb()
    sources = store_of(SharedSources(redis.url))
    source, _ = sources.add(b"abcd" * 10)
    redis.client.zadd("tickrt:sources", {b"\xff": 1e12, b"song.wav/12": 1e12, source.name: 1e12})
    assert sources.all() == [source]
    sources.close()
