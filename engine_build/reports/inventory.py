"""The inventory: which engines of a deployment are built and whether they run on this machine; removing engines.

Reads manifests and headers only: no engine is opened, and no GPU is needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from engine_build.compile.engine_folder import PARTIAL_SUFFIX, TIMING_CACHE_FOLDER, TIMING_CACHE_SUFFIX, lock_of, locked
from engine_build.compile.environment import BuildEnvironment
from runtime.base.errors import EngineError, EngineMismatchError, EngineNotBuiltError
from runtime.base.files import own_entries
from runtime.config.deployment import Deployment, Target
from runtime.devices.machine import machine
from runtime.engines.manifest import (
    MANIFEST_SUFFIX,
    EngineMeasurement,
    Manifest,
    machine_mismatch,
    manifest_path,
    measurement_path,
    read_manifest,
    read_measurement,
    verify_file,
)
from runtime.engines.tensorrt.engine_file import KERNELS_SUFFIX, read_engine_header
from runtime.engines.tensorrt.trials import trials_path

PLAN_SUFFIX = ".plan"
ENGINE_SUFFIXES = (".onnx", ".onnx.data", PLAN_SUFFIX)
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True)
class InventoryEntry:
    """One engine: its manifest (None where it cannot be read), and why it does not run here ("" where it does)."""

    name: str
    target: str
    manifest: Manifest | None
    unusable_reason: str
    measurement: EngineMeasurement | None = None

    @property
    def error(self) -> Mapping[str, float]:
        """The error against the graph; {} where no machine that runs the engine has measured it."""
        if self.manifest is None or self.manifest.is_measured:
            return {} if self.manifest is None else self.manifest.error
        return {} if self.measurement is None else self.measurement.error

    def as_json(self) -> dict[str, Any]:
        """The manifest with name, target, fits and why_not, for `list --json`."""
        about = {
            "name": self.name,
            "target": self.target,
            "fits": not self.unusable_reason,
            "why_not": self.unusable_reason,
        }
        if self.measurement is not None:
            about["measured"] = self.measurement.model_dump(mode="json")
        return about if self.manifest is None else {**self.manifest.model_dump(mode="json"), **about}


@dataclass(frozen=True)
class Removal:
    """The files and folders that `clean` removes, and their size."""

    paths: tuple[Path, ...]
    size_bytes: int


def entries(folder: Path, environment: BuildEnvironment) -> Iterator[InventoryEntry]:
    """Every engine in a deployment's folder of one target, sorted by name."""
    for path in own_entries(folder, MANIFEST_SUFFIX):
        name = path.name.removesuffix(MANIFEST_SUFFIX)
        try:
            manifest = read_manifest(path)
        except EngineError as error:
            yield InventoryEntry(name, folder.name, None, error.what)
            continue
        measurement = read_measurement(folder, manifest)
        yield InventoryEntry(
            name, manifest.target, manifest, unusable_reason(manifest, folder, environment), measurement
        )


def unusable_reason(manifest: Manifest, folder: Path, environment: BuildEnvironment) -> str:
    """Why an engine does not run on this machine; "" where it does. Its files are not hashed."""
    try:
        check_files(manifest, folder)
    except EngineError as error:
        return error.what
    if environment.missing is not None:
        return environment.missing.what
    if environment.cannot_run:
        return environment.cannot_run
    return machine_mismatch(
        manifest, {**machine(), **environment.device, **environment.facts}, environment.tool_versions
    )


def check_files(manifest: Manifest, folder: Path) -> None:
    """Check that the files exist and have the right size and a plan's header the right version. Raises EngineError."""
    files = [folder / Path(name).name for name in (manifest.engine_file, *manifest.data_files)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise EngineNotBuiltError(f"{', '.join(missing)} is missing")
    if (size := sum(file.stat().st_size for file in files)) != manifest.size_bytes:
        raise EngineMismatchError(f"the files have {size} bytes, the manifest says {manifest.size_bytes}")
    if files[0].suffix == PLAN_SUFFIX:
        header = read_engine_header(files[0])
        if header.version_text != manifest.tool_versions.get(manifest.target):
            raise EngineMismatchError(f"{files[0].name} was made by {header.library} {header.version_text}")


def inspect(path: Path) -> dict[str, Any]:
    """The facts of an engine file and of the manifest beside it, with its hash checked. Raises EngineError."""
    if not path.is_file():
        raise EngineNotBuiltError(f"no engine at {path}", fix="tickrt-build list CONFIG")
    about: dict[str, Any] = {"file": str(path), "size_bytes": path.stat().st_size}
    if path.suffix == PLAN_SUFFIX:
        header = read_engine_header(path)
        about |= {"plan_library": header.library, "plan_version": header.version_text}
    try:
        manifest = read_manifest(manifest_path(path.parent, path.stem))
    except EngineNotBuiltError:
        return {**about, "manifest": None}
    verify_file(manifest, path.parent)
    if (measurement := read_measurement(path.parent, manifest)) is not None:
        about["measured"] = measurement.model_dump(mode="json")
    return {**about, "manifest": manifest.model_dump(mode="json")}


def engine_folders(deployment: Deployment, target: Target | None) -> list[tuple[Target, Path]]:
    """The existing folders of one target, or of all."""
    folders = [(name, deployment.engine_folder(name)) for name in TARGETS if target in (None, name)]
    return [(name, folder) for name, folder in folders if folder.is_dir()]


def removal(deployment: Deployment, target: Target | None, *, timing_cache: bool = False) -> Removal:
    """What `clean` removes: engines with a manifest, kernels that were compiled for them, leftovers of killed builds.

    Other files stay.
    """
    folders = [folder for _, folder in engine_folders(deployment, target)]
    paths = [path for folder in folders for path in _built_files(folder)]
    # With the lock files of these, which are beside them.
    paths += [path for each in folders for path in sorted(each.parent.glob(f"{each.name}.*{KERNELS_SUFFIX}*"))]
    if timing_cache:
        paths += sorted((deployment.engines / TIMING_CACHE_FOLDER).glob(f"*{TIMING_CACHE_SUFFIX}*"))
    return Removal(tuple(paths), sum(_size(path) for path in paths))


def clean(deployment: Deployment, target: Target | None, *, timing_cache: bool = False) -> Removal:
    """Remove them, and folders that are empty then. Raises BuildError while a build is running."""
    found = removal(deployment, target, timing_cache=timing_cache)
    folders = [folder for _, folder in engine_folders(deployment, target)]
    for folder in folders:
        with locked(folder):
            for path in found.paths:
                if path.parent == folder:
                    _remove(path)
    for path in (*found.paths, *map(lock_of, folders)):
        _remove(path)
    for folder in (*folders, deployment.engines / TIMING_CACHE_FOLDER, deployment.engines):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return found


def _built_files(folder: Path) -> Iterator[Path]:
    for path in own_entries(folder, MANIFEST_SUFFIX):
        name = path.name.removesuffix(MANIFEST_SUFFIX)
        try:
            manifest = read_manifest(path)
            names = [manifest.engine_file, *manifest.data_files]
            names += [measurement_path(folder, name).name, trials_path(folder, name).name]
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
