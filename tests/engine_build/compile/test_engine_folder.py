"""The folder of engines: locked, complete engines only, nothing left of failures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_build.compile import engine_folder
from engine_build.compile.engine_folder import locked, partial_folder, publish_engine, remove_unwanted
from runtime.base.errors import BuildError


def test_a_partial_folder_is_always_removed(tmp_path: Path) -> None:
    with partial_folder(tmp_path, "decoder") as partial:
        assert partial.parent == tmp_path
        (partial / "decoder.onnx").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt), partial_folder(tmp_path, "decoder"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_build_error(tmp_path: Path) -> None:
    with (
        pytest.raises(BuildError, match=r"'decoder' cannot be written to .*: No space left"),
        partial_folder(tmp_path, "decoder"),
    ):
        raise OSError(28, "No space left on device")


def test_a_second_build_is_refused_and_leftovers_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "engines"
    (folder / "decoder.abc.partial").mkdir(parents=True)
    with locked(folder):
        assert list(folder.iterdir()) == []
        with pytest.raises(BuildError, match="another build is running"), locked(folder):
            pass
    with locked(folder):
        pass


def written(partial: Path) -> Any:
    """A complete engine in a partial folder; its manifest's file names."""
    partial.mkdir()
    for name in ("decoder.onnx", "decoder.onnx.data", "decoder.manifest.json"):
        (partial / name).write_text(name)
    return SimpleNamespace(name="decoder", engine_file="decoder.onnx", data_files={"decoder.onnx.data": ""})


def test_an_engine_is_published_with_its_manifest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    publish = engine_folder.publish

    def recorded(source: Path, target: Path) -> None:
        order.append(target.name)
        publish(source, target)

    monkeypatch.setattr(engine_folder, "publish", recorded)
    publish_engine(tmp_path / "partial", tmp_path, written(tmp_path / "partial"))
    assert order == ["decoder.onnx.data", "decoder.onnx", "decoder.manifest.json"]
    assert (tmp_path / "decoder.onnx").read_text() == "decoder.onnx"


def test_unwanted_engines_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    for name in ("step.old.manifest.json", "decoder.manifest.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    wanted: Any = [SimpleNamespace(spec=SimpleNamespace(name="decoder"))]
    assert list(remove_unwanted(tmp_path, wanted)) == ["step.old"]
    assert {file.name for file in tmp_path.iterdir()} == {"decoder.manifest.json", "notes.txt"}
