"""The timing cache on disk: locked, replaced atomically."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from engine_build.compile.engine_folder import cache_path, read_cache, updating
from runtime.base.errors import BuildError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return cache_path(tmp_path / "times", "11.4.0.106", "NVIDIA H200", "9.0")


def write(path: Path, data: bytes) -> None:
    with updating(path) as (_, replacement):
        replacement.append(data)


def write_and_fail(path: Path) -> None:
    with updating(path) as (_, replacement):
        replacement.append(b"half")
        raise RuntimeError


def test_the_file_name_has_version_gpu_and_capability(tmp_path: Path) -> None:
    names = {
        cache_path(tmp_path, version, gpu, capability).name
        for version in ("10.16.1.11", "11.4.0.106")
        for gpu, capability in (("NVIDIA H200", "9.0"), ("NVIDIA GeForce RTX 4090", "8.9"))
    }
    assert len(names) == 4
    assert "tensorrt-11.4.0.106-nvidia-geforce-rtx-4090-cc8.9.timing" in names


def test_none_is_empty_and_what_is_written_is_read(path: Path) -> None:
    assert read_cache(path) == b""
    write(path, b"times")
    assert read_cache(path) == b"times"
    assert not list(path.parent.glob("*.partial"))


def test_nothing_is_written_without_a_replacement_or_after_an_error(path: Path) -> None:
    write(path, b"times")
    with updating(path) as (data, _):
        assert data == b"times"
    with pytest.raises(RuntimeError):
        write_and_fail(path)
    assert read_cache(path) == b"times"


def test_concurrent_updates_are_serialized(path: Path) -> None:
    def add(word: bytes) -> None:
        with updating(path) as (data, replacement):
            time.sleep(0.01)
            replacement.append(data + word)

    threads = [threading.Thread(target=add, args=(bytes([65 + number]),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_cache(path)) == list(range(65, 77))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file where a folder should be")
    with pytest.raises(BuildError, match="cannot be read"):
        read_cache(tmp_path / "times" / "cache.timing")
