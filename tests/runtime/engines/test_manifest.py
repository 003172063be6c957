"""Engine manifests: reading, writing, comparison of identities, hashes of the engine's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from runtime.base.errors import EngineMismatchError, EngineNotBuiltError
from runtime.config.deployment import ShapeRange, ShapeRanges
from runtime.engines import manifest as module
from runtime.engines.manifest import (
    Identity,
    Manifest,
    TensorInfo,
    file_sha256,
    manifest_path,
    metadata_matches,
    read_manifest,
    verify_file,
    write_atomically,
    write_manifest,
)

RANGE = ShapeRange(min=1, opt=2, max=4)


def make_manifest(folder: Path, **changes: object) -> Manifest:
    engine = folder / "decoder.onnx"
    if not engine.exists():
        engine.write_bytes(b"engine")
    fields: dict[str, object] = {
        "name": "decoder",
        "target": "cpu",
        "tool_versions": {"onnxruntime": "1.23.0"},
        "device": {"arch": "x86_64"},
        "graph_sha256": "00",
        "build": {"optimization": "extended"},
        "shapes": (ShapeRanges(rows=RANGE, frames=RANGE, tokens=RANGE),),
        "engine_file": engine.name,
        "engine_sha256": file_sha256(engine),
        "size_bytes": engine.stat().st_size,
        "inputs": (TensorInfo(name="x", dtype="float32", shape=("rows", 4)),),
        "outputs": (TensorInfo(name="y", dtype="float32", shape=("rows", 4)),),
        "error": {"max_abs": 1e-6},
        "build_s": 0.5,
    }
    return Manifest.model_validate(fields | changes)


def test_a_written_manifest_is_read_back_equal(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, features=("dcw", "guidance"))
    path = manifest_path(tmp_path, "decoder")
    write_manifest(path, manifest)
    assert read_manifest(path) == manifest
    assert path.name == "decoder.manifest.json"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["decoder.manifest.json", "decoder.onnx"]


def test_unknown_keys_and_nan_are_refused(tmp_path: Path) -> None:
    path = manifest_path(tmp_path, "decoder")
    table = json.loads(make_manifest(tmp_path).model_dump_json())
    path.write_text(json.dumps(table | {"surprise": 1}))
    with pytest.raises(EngineMismatchError, match="surprise"):
        read_manifest(path)
    with pytest.raises(ValidationError):
        make_manifest(tmp_path, error={"max_abs": float("nan")})


def test_equal_identities_match(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path)
    wanted = Identity.model_validate(manifest.model_dump(include=set(Identity.model_fields)))
    assert metadata_matches(manifest, wanted) == (True, "up to date")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "codec_decode"}, "name is"),
        ({"target": "cuda"}, "target is 'cpu', wanted 'cuda'"),
        ({"tool_versions": {"onnxruntime": "9"}}, "tool_versions.onnxruntime is '1.23.0', wanted '9'"),
        ({"tool_versions": {}}, "tool_versions.onnxruntime is '1.23.0', wanted None"),
        ({"device": {"arch": "aarch64"}}, "device.arch is 'x86_64', wanted 'aarch64'"),
        ({"device": {"arch": "x86_64", "cpu": "z"}}, "device.cpu is None, wanted 'z'"),
        ({"graph_sha256": "11"}, "the graph changed"),
        ({"build": {"optimization": "all"}}, "build.optimization is 'extended', wanted 'all'"),
        ({"shapes": ()}, "shapes is"),
        ({"features": ("dcw",)}, "features is"),
    ],
)
def test_a_difference_in_any_identity_field_is_reported(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    manifest = make_manifest(tmp_path)
    wanted = Identity.model_validate(manifest.model_dump(include=set(Identity.model_fields)) | change)
    matches, said = metadata_matches(manifest, wanted)
    assert not matches
    assert reason in said
    assert len(said) < 400


def test_a_changed_or_missing_data_file_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "decoder.onnx.data"
    data.write_bytes(b"weights")
    manifest = make_manifest(tmp_path, data_files={data.name: file_sha256(data)})
    verify_file(manifest, tmp_path)
    data.write_bytes(b"WEIGHTS")
    with pytest.raises(EngineMismatchError, match=r"decoder\.onnx\.data"):
        verify_file(manifest, tmp_path)
    data.unlink()
    with pytest.raises(EngineNotBuiltError, match="missing"):
        verify_file(manifest, tmp_path)


def test_a_file_outside_the_engine_folder_is_refused(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, engine_file="../decoder.onnx")
    with pytest.raises(EngineMismatchError, match="beside it"):
        verify_file(manifest, tmp_path)


def test_a_failed_write_keeps_the_old_file_and_no_partial_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "decoder.manifest.json"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [(path.name, b"old")]
