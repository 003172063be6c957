"""The scripts of a release, by their parts: make release runs them whole."""

from __future__ import annotations

import array
import importlib.util
import io
import tarfile
import wave
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.paths import ROOT

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "packages.yml").read_text("utf-8"))


def script(name: str) -> ModuleType:
    """A module of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release, play = script("release"), script("play")
PROJECT = release.project()


def packed(path: Path, names: list[str], *, mtime: int, mode: int, owner: str) -> Path:
    """A source distribution of files that contain their own names."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uname = len(name), mtime, mode, owner
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_a_source_distribution_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    one = packed(tmp_path / "one.tar.gz", ["a/x", "a/b/y"], mtime=1, mode=0o600, owner="me")
    other = packed(tmp_path / "other.tar.gz", ["a/b/y", "a/x"], mtime=2, mode=0o664, owner="you")
    for file in (one, other):
        release.repack(file, 1_700_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == ["a/b/y", "a/x"]
        assert {(member.mtime, member.mode, member.uname) for member in members} == {(1_700_000_000, 0o644, "")}
        assert [archive.extractfile(member).read() for member in members] == [b"a/b/y", b"a/x"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("licences", "name", "accepted"),
    [
        ([{"license": {"id": "MIT"}}], "MIT", True),
        ([{"expression": "Apache-2.0 OR BSD-3-Clause"}], "Apache-2.0 OR BSD-3-Clause", True),
        ([{"license": {"name": "GNU Lesser General Public License v3 (LGPLv3)"}}], "GNU Lesser ", True),
        ([{"license": {"id": "GPL-3.0-only"}}], "GPL-3.0-only", False),
        ([{"license": {"id": "MIT"}}, {"license": {"id": "GPL-2.0-or-later"}}], "GPL-2.0-or-later, MIT", False),
        ([{"license": {"name": "Proprietary"}}], "Proprietary", False),
        ([], "none", False),
    ],
)
def test_a_licence_of_a_dependency_is_known_or_refused(licences: list[Any], name: str, accepted: bool) -> None:
    found = release.licence_of({"name": "a", "licenses": licences})
    assert found.startswith(name)
    assert release.is_accepted(found) is accepted


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("runtime/commands/generate.py", "runtime/commands/generate.py"),
        ("tickrt/model.py", "runtime/api/tickrt/model.py"),
        ("tickrt/configs/demo/bundle.toml", "configs/demo/bundle.toml"),
    ],
)
def test_a_file_of_the_wheel_is_found_in_the_repository(name: str, source: str) -> None:
    assert release.source_of(name) == source
    assert (ROOT / source).is_file()


def wav(path: Path, samples: list[int]) -> Path:
    with wave.open(str(path), "wb") as audio:
        audio.setparams((1, 2, 10, 0, "NONE", "not compressed"))
        audio.writeframes(array.array("h", samples).tobytes())
    return path


def test_silence_and_a_short_file_are_no_music(tmp_path: Path) -> None:
    play.check_sound(wav(tmp_path / "music.wav", [0, 9000] * 10), 2)
    for samples in ([0, 9000] * 9, [0, 100] * 10, []):
        with pytest.raises(SystemExit, match=r"error: bad\.wav has "):
            play.check_sound(wav(tmp_path / "bad.wav", samples), 2)


def test_every_supported_python_and_system_plays_the_wheel() -> None:
    least, below = PROJECT["requires-python"].removeprefix(">=3.").split(",<3.")
    versions = [f"3.{minor}" for minor in range(int(least), int(below))]
    prefix = "Programming Language :: Python :: 3."
    assert [f"3.{line.removeprefix(prefix)}" for line in PROJECT["classifiers"] if line.startswith(prefix)] == versions
    assert list(release.PYTHONS) == versions
    matrix = WORKFLOW["jobs"]["play"]["strategy"]["matrix"]
    assert matrix["python"] == versions
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_the_workflow_runs_what_there_is() -> None:
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands == ['make release RELEASE_STEPS="build check"', "python .ci/play.py dist/*.whl"]
    assert {"build", "check"} <= set(release.STEPS)
    assert "\nrelease: .venv/.installed-release" in (ROOT / "Makefile").read_text("utf-8")
    assert (ROOT / ".ci" / "play.py").is_file()


def test_an_unknown_step_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["release.py", "publish"])
    with pytest.raises(SystemExit):
        release.main()
    assert "unknown: publish" in capsys.readouterr().err


def test_a_licence_in_the_field_of_before_is_added(tmp_path: Path) -> None:
    (tmp_path / "old-1.dist-info").mkdir()
    (tmp_path / "old-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: old\nLicense: 3-Clause BSD\n")
    components = [{"name": "old"}, {"name": "new", "licenses": [{"license": {"id": "MIT"}}]}, {"name": "unknown"}]
    release.add_licences(components, tmp_path)
    assert [release.licence_of(each) for each in components] == ["3-Clause BSD", "MIT", "none"]
