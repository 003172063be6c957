"""The SQLite store: the contract of stores, one server per folder, damaged, foreign and newer files, full disks."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.store_contract import *  # noqa: F403  (tests that every session store passes)
from helpers.store_contract import Opened, assert_same, assert_taken_from, snapshot

from runtime.base.errors import ConfigError
from runtime.live.storage.sqlite_store import DATABASE, LOCK, open_sqlite_store
from runtime.live.storage.store import STORE_FORMAT, SessionSnapshot

KIB = 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def opened(folder: Path) -> Opened:
    return lambda: open_sqlite_store(folder)


@pytest.fixture
def database(folder: Path, opened: Opened) -> Path:
    """A closed database with two sessions."""
    with opened() as store:
        for name in "ab":
            store.save(name, SessionSnapshot({"name": name}, {"canvas": np.zeros((100, 64), np.float32)}))
    return folder / DATABASE


def test_a_second_server_on_one_folder_is_refused(folder: Path, opened: Opened) -> None:
    with opened() as store:
        assert folder.stat().st_mode & 0o777 == 0o700, "only the owner enters it"
        with pytest.raises(ConfigError, match="in use by another server"):
            opened()
        store.save("a", snapshot(1))
        assert_same(store.load("a"), snapshot(1))
    with opened() as store:
        assert store.ids() == ["a"]


def test_only_the_owner_reads_sessions_in_a_folder_that_others_read(folder: Path, opened: Opened) -> None:
    folder.mkdir(mode=0o755)

    def modes() -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}

    with opened() as store:
        store.save("a", snapshot(1))
        assert_same(store.load("a"), snapshot(1))  # it is written
        while_open = modes()
        shutil.copytree(folder, folder.with_name("copy"))
    assert while_open == dict.fromkeys([DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK], 0o600)
    for path in folder.with_name("copy").iterdir():  # as an older version, which was killed, has left them
        path.chmod(0o644)
        shutil.copy2(path, folder)
    assert set(modes().values()) == {0o644}
    with opened() as store:
        assert_same(store.load("a"), snapshot(1))
        assert modes() == while_open


def test_the_folder_is_free_again_after_a_kill_and_what_was_written_is_there(folder: Path, opened: Opened) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from helpers.store_contract import snapshot\n"
        "from runtime.live.storage.sqlite_store import open_sqlite_store\n"
        "store = open_sqlite_store(pathlib.Path(sys.argv[1]))\n"
        "for number in range(20): store.save('a', snapshot(number, **{f'canvas/{number}': number})); store.flush()\n"
        "print('stored', flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout.readline() == "stored\n"
        with pytest.raises(ConfigError, match="in use by another server"):
            opened()
        server.send_signal(signal.SIGKILL)
    with opened() as store:
        assert_same(store.load("a"), snapshot(19, **{"canvas/19": 19}))


def test_a_server_whose_lock_was_deleted_does_not_overwrite_what_its_successor_stores(
    folder: Path, opened: Opened
) -> None:
    with opened() as old:
        (folder / LOCK).unlink()
        with opened() as new:
            assert_taken_from(old, new)


def test_a_database_of_format_1_is_upgraded(database: Path, opened: Opened) -> None:
    connection = sqlite3.connect(database)
    connection.execute("ALTER TABLE sessions DROP COLUMN epoch")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with opened() as store:
        taken = store.take("a")
        store.save("a", SessionSnapshot({"name": "new"}, taken.pieces))
    with opened() as store:
        assert [store.load(name).meta["name"] for name in "ab"] == ["new", "b"]  # type: ignore[union-attr]


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database\n" + path.read_bytes()[15:])


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 : len(data)] = os.urandom(len(data) - 4096)
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 5 * 4096 + 100])


def replace_by_foreign_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("text")


@pytest.mark.parametrize(
    "spoil",
    [damage_header, damage_pages, cut, replace_by_foreign_database, replace_by_folder],
    ids=lambda f: f.__name__,
)
def test_a_file_that_cannot_be_used_is_kept_under_another_name(
    spoil: Callable[[Path], None], database: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        spoil(database)
        content = database.read_bytes() if database.is_file() else None
        caplog.clear()
        with opened() as store:
            assert store.ids() == []
            store.save("new", SessionSnapshot({}, {"canvas": np.zeros((100, 64), np.float32)}))
        kept = database.with_name(f"{DATABASE}.unusable-{number}")
        assert (kept.read_bytes() if kept.is_file() else None) == content
        assert [kept.name in record.getMessage() for record in caplog.records] == [True]


def test_a_newer_format_is_refused_and_kept(database: Path, opened: Opened) -> None:
    connection = sqlite3.connect(database)
    connection.execute(f"PRAGMA user_version = {STORE_FORMAT + 1}")
    connection.close()
    content = database.read_bytes()
    with pytest.raises(ConfigError, match=f"format {STORE_FORMAT + 1}, this server reads formats up to {STORE_FORMAT}"):
        opened()
    assert database.read_bytes() == content


def test_an_empty_file_is_a_new_store(folder: Path, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    (folder / DATABASE).touch()
    with opened() as store:
        store.save("a", snapshot(1))
        assert_same(store.load("a"), snapshot(1))
    assert not caplog.records


@pytest.mark.parametrize("name", ["", LOCK])
def test_a_folder_that_cannot_be_written_is_refused(name: str, folder: Path, opened: Opened) -> None:
    if name:
        (folder / name).mkdir(parents=True)
    else:
        folder.write_text("a file in place of the folder")
    with pytest.raises(ConfigError, match="cannot be written"):
        opened()


def test_a_read_only_file_system_is_refused(database: Path, opened: Opened) -> None:
    folder = database.parent
    with (
        mounted(folder, "--bind", str(folder)),
        remounted_read_only(folder),
        pytest.raises(ConfigError, match="Read-only"),
    ):
        opened()
    with opened() as store:
        assert store.ids() == ["a", "b"]


def test_a_full_disk_ends_persistence_and_what_was_stored_is_kept(
    tmp_path: Path, folder: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=512k", "tmpfs"):
        stored = fill(opened)
        shutil.copytree(folder, tmp_path / "copy")
    assert len(caplog.records) == 1
    assert "full" in caplog.text
    with open_sqlite_store(tmp_path / "copy") as store:
        assert_same(store.load("a"), stored)


def test_a_file_size_limit_ends_persistence_and_what_was_stored_is_kept(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * KIB, hard))
    try:
        stored = fill(opened)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.records) == 1
    with opened() as store:
        assert_same(store.load("a"), stored)


def fill(opened: Opened) -> SessionSnapshot:
    """Save ever more until persistence ends; returns the last snapshot that was stored before."""
    with opened() as store:
        pieces: dict[str, np.ndarray] = {}
        while store.failure is None:
            stored = SessionSnapshot({}, dict(pieces))
            pieces[f"frames/{len(pieces)}"] = np.full((40, 64), len(pieces), np.float32)
            store.save("a", SessionSnapshot({}, dict(pieces)))
            store.flush()
            assert len(pieces) < 1000
        store.save("a", stored)
    return stored


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """A file system mounted on `folder`; skips the test where that is not permitted."""
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def remounted_read_only(folder: Path) -> Iterator[None]:
    done = subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    yield


# Refuses one read of a page, with EIO.
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
static int left = 0;
void refuse_read(int number) { left = number; }
int was_refused(void) { return left == 0; }
ssize_t pread64(int file, void *to, size_t size, off_t at) {
    if (left > 0 && size >= 100 && --left == 0) { errno = EIO; return -1; }
    return ((ssize_t (*)(int, void *, size_t, off_t)) dlsym(RTLD_NEXT, "pread64"))(file, to, size, at);
}
ssize_t pread(int file, void *to, size_t size, off_t at) { return pread64(file, to, size, at); }
"""
READ_ALL = """
import ctypes, pathlib, sys
from runtime.base.errors import TickError
from runtime.live.storage.sqlite_store import open_sqlite_store
shim, folder, number = ctypes.CDLL(sys.argv[1]), pathlib.Path(sys.argv[2]), 0
while True:
    number += 1
    shim.refuse_read(number)
    try:
        with open_sqlite_store(folder) as store:
            for name in "ab":
                assert store.load(name) is not None, f"{name} is lost to read {number}"
    except TickError as error:
        print(error.what)
    if not shim.was_refused():
        break
"""


def test_no_read_that_the_disk_refuses_is_taken_for_damage(database: Path, tmp_path: Path) -> None:
    """Also those of SQLite's own check, which reports them like damage."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    shim, source = tmp_path / "shim.so", tmp_path / "shim.c"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(shim)}
    command = [sys.executable, "-c", READ_ALL, str(shim), str(database.parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("this SQLite reads in another way")
    assert sorted(path.name for path in database.parent.iterdir()) == [LOCK, DATABASE]


def test_a_session_whose_deletion_failed_is_deleted_by_the_next_attempt(database: Path) -> None:
    with open_sqlite_store(database.parent) as store:
        assert store.take("a") is not None
        store._retry_s = 0.0
        for is_read_only in (1, 0):
            store._writer.submit(store._backend._connection.execute, f"PRAGMA query_only = {is_read_only}").result()
            if is_read_only:
                store.delete("a")
                store.flush()
                assert store.failure is not None
        store.save("c", snapshot(1))
        store.flush()
        store.flush()
        assert store.ids() == ["b", "c"]


def test_closing_leaves_no_thread(opened: Opened) -> None:
    before = set(threading.enumerate())
    with opened() as store:
        store.save("a", snapshot())
    assert not set(threading.enumerate()) - before
