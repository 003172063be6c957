"""Stored files: missing, unreadable now, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.base.errors import StoreUnavailableError
from runtime.base.files import read_stored, set_aside


def test_a_missing_file_is_none_and_one_that_cannot_be_read_is_an_error_for_now(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_stored(tmp_path / "file") == b"abc"
    assert read_stored(tmp_path / "other") is None
    with pytest.raises(StoreUnavailableError, match="it cannot be read now: Is a directory") as error:
        read_stored(tmp_path, "it")
    assert (error.value.status, error.value.retry_after_s) == (503, 5.0)


def test_damaged_files_are_renamed_and_none_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in (1, 2, 3):
        path.write_bytes(b"%d" % number)
        path.with_name("file-wal").write_bytes(b"w")
        assert set_aside(path, ("-wal", "-shm", "")) == tmp_path / f"file.damaged-{number}"
    kept = {f"file.damaged-{number}": b"%d" % number for number in (1, 2, 3)}
    kept |= {f"file.damaged-{number}-wal": b"w" for number in (1, 2, 3)}
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == kept
