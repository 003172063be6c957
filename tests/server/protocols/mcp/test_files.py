"""Files that were made for assistants: their names, room and end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runtime.base.errors import FileError, StoreError
from server.asgi.problems import ProblemError
from server.protocols.mcp import files
from server.protocols.mcp.files import FileStore, MadeFile


def in_store(store: FileStore, steps: Callable[[FileStore], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await steps(store)
        finally:
            store.close()

    asyncio.run(run())


def add(store: FileStore, size_bytes: int, client: str = "me") -> MadeFile:
    name = store.new_name("a title", ".wav")
    with store.room(client, size_bytes) as room:
        store.path_of(name).write_bytes(bytes(size_bytes))
        return store.add(name, "audio/wav", room, {}, {})


def test_names_have_the_title_and_are_not_guessed() -> None:
    store = FileStore(None, 100, 1.0)
    first, second = (store.new_name("Calm MELODY, in D/../minor\n", ".wav") for _ in range(2))
    assert first.startswith("calm-melody-in-d-minor-")
    assert first != second
    assert len(store.new_name("x" * 1000, ".mp3")) < 70
    assert store.new_name("日本", ".wav").startswith("audio-")
    store.close()


def test_the_oldest_files_make_room() -> None:
    async def steps(store: FileStore) -> None:
        first, second = add(store, 400), add(store, 500, "other")
        assert store.of("me") == [first]
        assert first.read() == bytes(400)
        third = add(store, 450)
        with pytest.raises(FileError, match="cannot be read"):
            first.read()
        assert store.of("me") == [third]
        assert store.get(second.name) is second
        with pytest.raises(ProblemError, match="there is no file"):
            store.get(first.name)
        with store.room("other", 600):
            assert store.of("other") == []
            with pytest.raises(ProblemError) as caught, store.room("me", 500):
                pass
            assert caught.value.status == 503
        with pytest.raises(ProblemError) as caught, store.room("me", 1001):
            pass
        assert caught.value.code == "results_too_large"

    in_store(FileStore(None, 1000, 600.0), steps)


def test_files_of_a_temporary_folder_expire() -> None:
    async def steps(store: FileStore) -> None:
        file = add(store, 10)
        while file.path.exists():
            await asyncio.sleep(0.001)
        assert store.of("me") == []

    in_store(FileStore(None, 1000, 0.0), steps)


def test_files_of_a_given_folder_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 1)

    async def steps(store: FileStore) -> None:
        first, second = add(store, 10), add(store, 20)
        assert store.of("me") == [second]
        assert first.path.exists()

    in_store(FileStore(tmp_path, 1, 0.0), steps)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_was_not_written_is_an_error(tmp_path: Path) -> None:
    async def steps(store: FileStore) -> None:
        with store.room("me", 1) as room, pytest.raises(StoreError, match="cannot be stored"):
            store.add("x.wav", "audio/wav", room, {}, {})
        store.discard("x.wav")
        assert store.find("x.wav") is None

    in_store(FileStore(tmp_path, 1, 0.0), steps)
