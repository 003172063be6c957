"""Temporary folders: of running servers, and of those that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runtime.base.errors import ConfigError
from server.service.temporary_folder import LOCK, PREFIX, TemporaryFolder, remove_abandoned

MAKE = """
import os, sys, tempfile
tempfile.tempdir = sys.argv[1]
from server.service.temporary_folder import TemporaryFolder
print(TemporaryFolder("test").path)
os.abort()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    os.utime(folder.parent / LOCK, (0, 0))


def test_a_folder_is_there_until_it_is_closed(parent: Path) -> None:
    folder = TemporaryFolder("test")
    (folder.path / "file").write_bytes(b"a")
    assert folder.path.parent.parent == parent
    folder.close()
    folder.close()
    assert not list(parent.iterdir())


def test_what_a_killed_server_has_left_is_removed_once_it_is_old(parent: Path) -> None:
    made = subprocess.run([sys.executable, "-c", MAKE, str(parent)], capture_output=True, text=True, check=False)
    killed, running = Path(made.stdout.strip()), TemporaryFolder("test")
    remove_abandoned(parent)
    assert killed.exists(), "it is new: its server may be about to lock it"
    age(killed)
    age(running.path)
    TemporaryFolder("test").close()
    assert not killed.parent.exists()
    assert running.path.exists()
    running.close()


def test_other_folders_stay(parent: Path) -> None:
    (parent / "other").mkdir()
    (parent / "other" / LOCK).touch()
    age(parent / "other" / "files")
    (parent / f"{PREFIX}link").symlink_to(parent / "other")
    remove_abandoned(parent)
    assert (parent / "other").exists()


def test_where_no_folder_can_be_made_the_fix_is_told(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(parent / "missing"))
    with pytest.raises(ConfigError, match=r"no temporary folder can be made: No such file[\s\S]*TMPDIR"):
        TemporaryFolder("test")
