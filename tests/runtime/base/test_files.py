"""Folders and files of users: what is read, and how it is kept."""

from __future__ import annotations

import operator
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
import typer
from helpers.factories import tiny_deployment
from helpers.left_behind import FILES, FOLDERS, leave_behind
from helpers.paths import ROOT
from platformdirs import user_music_path

from runtime.audio.formats import complete_file
from runtime.base.errors import ConfigError, FileError, StoreUnavailableError
from runtime.base.files import (
    check_file,
    expanded,
    is_left_behind,
    open_file,
    own_entries,
    plain_name,
    read_file,
    read_stored,
    set_aside,
    user_folder,
)
from runtime.commands.command_line import CommandLine
from runtime.config.deployment import engine_cache, load_deployment
from runtime.pipeline.stem_files import save_files
from server.config import load_settings

LISTS = re.compile(r"\.(?:iterdir|r?glob|iglob|scandir|listdir|f?walk)\(")
# Files that list folders by themselves, how often, and why that is right: nothing else of a person is read there.
ALLOWED = {
    "runtime/base/files.py": (2, "the rule; free names"),
    "runtime/commands/command_line.py": (2, "completion of what was typed, with or without a point"),
    "runtime/engines/adapter_files.py": (1, "names what it skips"),
    "runtime/engines/loading.py": (1, "names of engines"),
    "runtime/live/storage/sqlite_store.py": (1, "names of the database"),
    "server/service/sources.py": (2, "names of sources; all are made private"),
    "server/service/temporary_folder.py": (1, "temporary folders of servers"),
    "server/live/page_routes.py": (1, "the page's own files"),
    "engine_build/graphs/graph_file.py": (1, "names in an error"),
    "engine_build/shipping.py": (1, "whether a folder is empty"),
    "engine_build/compile/builder.py": (1, "a temporary folder"),
    "engine_build/compile/engine_folder.py": (3, "parts of builds, a temporary folder"),
    "engine_build/reports/inventory.py": (5, "parts of builds and kernels by name; whether a folder is empty"),
    "engine_build/compile/worker.py": (1, "processes of Linux"),
    "engine_build/export/__main__.py": (1, "the size of what was written"),
    "engine_build/export/bundle_export.py": (5, "sources of exporters; whether a folder is empty; a folder of its own"),
    "engine_build/export/hub.py": (1, "the hub's cache"),
    "engine_build/export/stable_audio_3/layouts.py": (1, "folders that have a configuration"),
}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_what_programs_leave_behind_is_known_by_its_name(name: str) -> None:
    assert is_left_behind(name.format(name="soft.safetensors"))
    assert is_left_behind(name.format(name="soft.safetensors").upper())


@pytest.mark.parametrize(
    "name",
    ["soft.safetensors", "part", "x - Copy (2).safetensors", "tmp.toml", "🎹 — été.safetensors", "a.b", "~x", "$x"],
)
def test_files_of_people_are_not(name: str) -> None:
    assert not is_left_behind(name)


def test_a_folder_has_the_files_of_people_by_name(tmp_path: Path) -> None:
    names = ["a.toml", "b.toml", unicodedata.normalize("NFD", "é.toml"), "z.txt"]
    for name in names:
        (tmp_path / name).touch()
    leave_behind(tmp_path, "a.toml")
    assert [path.name for path in own_entries(tmp_path)] == ["a.toml", "b.toml", "z.txt", names[2]]
    assert [plain_name(path.name) for path in own_entries(tmp_path, ".toml")] == ["a.toml", "b.toml", "é.toml"]


def listings(folder: Path) -> Iterator[str]:
    """The file of each place that lists a folder."""
    for path in sorted(folder.rglob("*.py")):
        for _ in LISTS.findall(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix()


def test_every_place_that_lists_a_folder_passes_over_what_is_left_there() -> None:
    """A new one uses own_entries(), or is named here with the reason."""
    found = Counter(file for package in ("runtime", "server", "engine_build") for file in listings(ROOT / package))
    assert found == {file: count for file, (count, _) in ALLOWED.items()}


NO_HOME = "no-such-user"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_path_may_begin_with_a_home_folder_everywhere(home: Path) -> None:
    """In files of configuration and in Python, where no shell expands it; and on a command line inside of a word."""
    tiny_deployment(home)
    deployment = home / "tiny.toml"
    text = deployment.read_text().replace('bundle = "tiny"', 'bundle = "~/tiny"\nadapters = "~/loras"')
    deployment.write_text(text)
    found = load_deployment(Path("~/tiny.toml"))
    assert (found.path, found.bundle, found.adapters) == (deployment, home / "tiny", home / "loras")
    assert load_settings({"state": "~/state"}).state == home / "state"
    assert load_settings({}, state=Path("~/state")).state == home / "state"
    with complete_file(Path("~/made.wav")) as file:
        file.write(b"RIFF")
    assert read_file(Path("~/made.wav"), 10) == b"RIFF"
    save_files(Path("~/stems"), {"bass.wav": b"RIFF"})
    assert (home / "stems" / "bass.wav").is_file()
    assert sorted(path.name for path in home.parent.iterdir()) == ["home"]


def test_a_variable_of_the_server_may_begin_with_a_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKRT_STATE", "~/state")
    assert load_settings({}).state == home / "state"
    monkeypatch.setenv("TICKRT_CACHE", "~/cache")
    assert engine_cache().is_relative_to(home / "cache")


def test_a_path_option_may_begin_with_a_home_folder(home: Path) -> None:
    app, given = CommandLine(), []

    @app.command()
    def run(argument: Path, out: Annotated[Path | None, typer.Option()] = None, text: str = "") -> None:
        given.extend([argument, out, text])

    with pytest.raises(SystemExit):
        app(["~/a", "--out=~/b", "--text=~/c"])
    assert given == [home / "a", home / "b", "~/c"]


def test_a_home_folder_that_nobody_has_is_a_file_that_is_not_there(home: Path) -> None:
    path = Path(f"~{NO_HOME}/x.wav")
    assert expanded(path) == path
    with pytest.raises(FileError, match=rf"~{NO_HOME}.x\.wav cannot be read: No such file"):
        read_file(path, 10)
    with pytest.raises(FileError, match=rf"~{NO_HOME}.x\.wav cannot be written"), complete_file(path):
        pass
    with pytest.raises(ConfigError, match="no configuration at ~"):
        load_deployment(path)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="for systems with users by number")
def test_a_user_without_a_home_is_told_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with a number that is in no list of users."""
    for name in ("HOME", "TICKRT_CACHE", "XDG_CACHE_HOME", "XDG_MUSIC_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", partial(operator.getitem, {}))
    with pytest.raises(ConfigError, match=r"(?s)no home folder: HOME is not set.*set TICKRT_CACHE"):
        engine_cache()
    with pytest.raises(ConfigError, match=r"(?s)no home folder.*--out FOLDER"):
        user_folder(user_music_path, "--out FOLDER")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """One that nothing writes to."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    check_file(path)
    assert read_file(path, 5) == b"12345"
    with open_file(path) as file:
        assert file.read(2) == b"12"
    with pytest.raises(FileError, match="has 5 bytes, at most 4 are read"):
        read_file(path, 4)


def test_of_a_large_file_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # without taking the disk
    with pytest.raises(FileError, match="has 10737418240 bytes"):
        read_file(path, 2**30)


def test_what_is_no_file_is_said_at_once(tmp_path: Path, pipe: Path) -> None:
    for path, cause in (
        (Path("/dev/zero"), "a device or a pipe, expected a file"),
        (pipe, "a device or a pipe, expected a file"),
        (tmp_path, "a folder, expected a file"),
        (tmp_path / "none", "No such file"),
        (Path("a\0b"), "null"),
    ):
        for read in (check_file, lambda path: read_file(path, 4)):
            with pytest.raises(FileError, match=f"cannot be read: .*{cause}"):
                read(path)


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
