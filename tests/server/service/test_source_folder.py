"""Sources as files: what a restart finds, damaged files, a full disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from helpers.left_behind import leave_behind
from helpers.sources import read, store_of
from helpers.storage_faults import ERRNOS, faults

from runtime.base.errors import ConfigError, SourceNotFoundError, StoreError, StoreUnavailableError
from server.service.source import Source
from server.service.source_folder import SourceFolder


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

    monkeypatch.setattr("server.service.source_folder.tempfile.NamedTemporaryFile", full)
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
