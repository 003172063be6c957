"""What is built: every engine of a deployment, where it runs and whether it fits here; and taking engines away.

Reads manifests and headers only: no engine is opened, and no GPU is needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from engine_build.build.engine_folder import PARTIAL_SUFFIX, locked
from engine_build.build.environment import Place
from engine_build.build.timing_cache import FOLDER, SUFFIX
from runtime.config.deployment import Deployment, Target
from runtime.devices.machine import machine
from runtime.engines.manifest import (
    MANIFEST_SUFFIX,
    Manifest,
    machine_mismatch,
    manifest_path,
    read_manifest,
    verify_file,
)
from runtime.engines.tensorrt.plan_file import read_plan_header
from runtime.errors import EngineError, EngineMismatchError, EngineNotBuiltError

PLAN_SUFFIX = ".plan"
ENGINE_SUFFIXES = (".onnx", ".onnx.data", PLAN_SUFFIX)
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True)
class Entry:
    """One engine: its manifest (None where it cannot be read), and why it does not run here ("" where it does)."""

    name: str
    target: str
    manifest: Manifest | None
    why_not: str

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        about = {"name": self.name, "target": self.target, "fits": not self.why_not, "why_not": self.why_not}
        return about if self.manifest is None else {**self.manifest.model_dump(mode="json"), **about}


@dataclass(frozen=True)
class Doomed:
    """What a clean takes away: files and folders of ours, and their size."""

    paths: tuple[Path, ...]
    size_bytes: int


def entries(folder: Path, place: Place) -> Iterator[Entry]:
    """Every engine in a deployment's folder for one target, by name."""
    for path in sorted(folder.glob(f"*{MANIFEST_SUFFIX}")):
        name = path.name.removesuffix(MANIFEST_SUFFIX)
        try:
            manifest = read_manifest(path)
        except EngineError as error:
            yield Entry(name, folder.name, None, error.what)
            continue
        yield Entry(name, manifest.target, manifest, why_not_here(manifest, folder, place))


def why_not_here(manifest: Manifest, folder: Path, place: Place) -> str:
    """Why an engine does not run on this machine; "" where it does. Its content is not hashed."""
    try:
        check_files(manifest, folder)
    except EngineError as error:
        return error.what
    if place.missing is not None:
        return place.missing.what
    return machine_mismatch(manifest, {**machine(), **place.device, **place.facts}, place.tool_versions)


def check_files(manifest: Manifest, folder: Path) -> None:
    """The files are there, of the right size, and a plan begins as one. Raises EngineError."""
    files = [folder / Path(name).name for name in (manifest.engine_file, *manifest.data_files)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise EngineNotBuiltError(f"{', '.join(missing)} is missing")
    if (size := sum(file.stat().st_size for file in files)) != manifest.size_bytes:
        raise EngineMismatchError(f"the files have {size} bytes, the manifest says {manifest.size_bytes}")
    if files[0].suffix == PLAN_SUFFIX:
        header = read_plan_header(files[0])
        if header.version_text != manifest.tool_versions.get("tensorrt"):
            raise EngineMismatchError(f"{files[0].name} was made by TensorRT {header.version_text}")


def inspect(path: Path) -> dict[str, Any]:
    """Everything that an engine file and the manifest beside it say, its hash checked. Raises EngineError."""
    if not path.is_file():
        raise EngineNotBuiltError(f"no engine at {path}", fix="tickrt-build list CONFIG")
    about: dict[str, Any] = {"file": str(path), "size_bytes": path.stat().st_size}
    if path.suffix == PLAN_SUFFIX:
        about["plan_version"] = read_plan_header(path).version_text
    try:
        manifest = read_manifest(manifest_path(path.parent, path.stem))
    except EngineNotBuiltError:
        return {**about, "manifest": None}
    verify_file(manifest, path.parent)
    return {**about, "manifest": manifest.model_dump(mode="json")}


def engine_folders(deployment: Deployment, target: Target | None) -> list[tuple[Target, Path]]:
    """The folders that exist, of one target or of all."""
    folders = [(name, deployment.engine_folder(name)) for name in TARGETS if target in (None, name)]
    return [(name, folder) for name, folder in folders if folder.is_dir()]


def doomed(deployment: Deployment, target: Target | None, *, timing_cache: bool = False) -> Doomed:
    """What `clean` would take away. Nothing that is not ours: engines with a manifest, and what killed builds left."""
    paths = [path for _, folder in engine_folders(deployment, target) for path in _ours(folder)]
    if timing_cache:
        paths += sorted((deployment.engines / FOLDER).glob(f"*{SUFFIX}*"))
    return Doomed(tuple(paths), sum(_size(path) for path in paths))


def clean(deployment: Deployment, target: Target | None, *, timing_cache: bool = False) -> Doomed:
    """Take it away, and folders that are empty then. Raises BuildError while a build is at work."""
    gone = doomed(deployment, target, timing_cache=timing_cache)
    folders = [folder for _, folder in engine_folders(deployment, target)]
    for folder in folders:
        with locked(folder):
            for path in gone.paths:
                if path.parent == folder:
                    _remove(path)
    for path in gone.paths:
        _remove(path)
    for folder in (*folders, deployment.engines / FOLDER, deployment.engines):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return gone


def _ours(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob(f"*{MANIFEST_SUFFIX}")):
        name = path.name.removesuffix(MANIFEST_SUFFIX)
        try:
            manifest = read_manifest(path)
            names = [manifest.engine_file, *manifest.data_files]
        except EngineError:
            names = [f"{name}{suffix}" for suffix in ENGINE_SUFFIXES]
        yield from (file for item in names if (file := folder / Path(item).name).is_file())
        yield path
    yield from sorted(folder.glob(f"*{PARTIAL_SUFFIX}"))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
