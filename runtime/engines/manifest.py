"""The manifest beside every engine: what it was built from and for, its tensors, hashes and measured error.

`Identity` is everything that decides whether an engine is up to date; `Manifest` adds the results of the build. An
engine that could not run where it was built has a `Measurement` in a file of its own once a machine has run it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import ml_dtypes  # noqa: F401  by it numpy knows bfloat16 and the 8-bit types of engines by their names
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.base.errors import EngineMismatchError, EngineNotBuiltError
from runtime.base.files import read_stored, reading
from runtime.config.deployment import ShapeRanges, Target
from runtime.config.explain import explain

MANIFEST_SCHEMA_VERSION: Literal[1] = 1
MANIFEST_SUFFIX = ".manifest.json"
# The facts of a decoder on the CPU, where two virtual cores are one physical one: the best number of threads, and what
# each number took that was measured: as many as there are physical cores, and all.
THREADS, THREAD_TIMES = "threads", "thread_times_ms"
# The fact of a codec's decoder on the CPU: milliseconds that one thread takes, by the number of frames, shortest first.
WINDOW_TIMES = "window_times_ms"
MEASURED_SUFFIX = ".measured.json"
# The build option that chooses between libraries on the CPU, and the fact of an engine that says in which it runs, and
# why; the fact whether a row of one in OpenVINO has the same bits alone and beside others.
BACKEND, SAME_BITS = "backend", "same_bits"
# The suffix of OpenVINO's engines, and the build option with its name of their device.
OPENVINO_SUFFIX, OPENVINO_DEVICE = ".xml", "openvino_device"


class TensorInfo(BaseModel):
    """One input or output of an engine: numpy's dtype name, and the shape, with names for free dimensions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Identity(BaseModel):
    """Everything that must be equal for an engine to be reused instead of built."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = MANIFEST_SCHEMA_VERSION
    name: str
    target: Target
    tool_versions: dict[str, str]
    device: dict[str, str]
    graph_sha256: str
    build: dict[str, Any]
    shapes: tuple[ShapeRanges, ...] = ()
    features: tuple[str, ...] = ()


class Manifest(Identity):
    """An engine's identity, its files with their hashes, its tensors, and its measured error against the graph.

    `engine_sha256` is of `engine_file`; `data_files` maps further files to their SHA-256; `size_bytes` covers all.
    `facts`: further results of the build (flags by name, GPU, driver, parser version, memory); nothing depends on them
    but how many threads (THREADS) an execute takes where the deployment does not say, and which of a codec's windows
    are decoded as one (WINDOW_TIMES).
    """

    engine_file: str
    engine_sha256: str
    data_files: dict[str, str] = {}
    size_bytes: int = Field(ge=0)
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    error: dict[str, float]
    build_s: float = Field(ge=0)
    built_on: str = ""
    facts: dict[str, Any] = {}

    @property
    def needed_tools(self) -> dict[str, str]:
        """Its tool versions, but that of OpenVINO where it runs in ONNX Runtime."""
        is_needed = self.engine_file.endswith(OPENVINO_SUFFIX)
        return {name: version for name, version in self.tool_versions.items() if is_needed or name != "openvino"}

    @property
    def is_measured(self) -> bool:
        """Whether its error was measured when it was built."""
        return "max_rel" in self.error


class EngineMeasurement(BaseModel):
    """What the first machine that ran an engine measured. engine_sha256: of the engine's file, to which it belongs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    engine_sha256: str
    error: dict[str, float]
    measured_on: str
    facts: dict[str, Any] = {}


def manifest_path(folder: Path, name: str) -> Path:
    """The path of the manifest of engine `name`."""
    return folder / f"{name}{MANIFEST_SUFFIX}"


def read_manifest(path: Path, *, fix: str = "") -> Manifest:
    """The manifest at `path`.

    Raises EngineNotBuiltError where there is none, EngineMismatchError for a damaged one, StoreUnavailableError.
    """
    fix = fix or f"tickrt-build CONFIG --target {path.parent.name}"
    if (data := read_stored(path)) is None:
        name = path.name.removesuffix(MANIFEST_SUFFIX)
        raise EngineNotBuiltError(f"engine {name!r} is not built: no {path}", fix=fix)
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise EngineMismatchError(
            f"{path} is not a manifest of schema 1: {explain(error, Manifest)}", fix=f"{fix} --force"
        ) from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write `manifest` to `path` atomically."""
    write_atomically(path, manifest.model_dump_json(indent=1).encode() + b"\n")


def measured_threads(manifest: Manifest, cores: int) -> int:
    """How many threads the build found best; 0 where it did not measure, or not with so many cores."""
    measured = manifest.facts.get(THREAD_TIMES, {})
    return int(manifest.facts[THREADS]) if cores == max(map(int, measured), default=0) else 0


def measurement_path(folder: Path, name: str) -> Path:
    """The path of the measurement of engine `name`."""
    return folder / f"{name}{MEASURED_SUFFIX}"


def read_measurement(folder: Path, manifest: Manifest) -> EngineMeasurement | None:
    """The measurement beside an engine; None where there is none of this engine. Raises StoreUnavailableError."""
    try:
        found = EngineMeasurement.model_validate_json(read_stored(measurement_path(folder, manifest.name)) or b"")
    except ValidationError:
        return None
    return found if found.engine_sha256 == manifest.engine_sha256 else None


def write_measurement(folder: Path, name: str, measurement: EngineMeasurement) -> None:
    """Keep a measurement beside engine `name`. Raises OSError."""
    write_atomically(measurement_path(folder, name), measurement.model_dump_json(indent=1).encode() + b"\n")


def metadata_matches(manifest: Identity, wanted: Identity) -> tuple[bool, str]:
    """Whether a built engine is the wanted one, and the reason: the first field that differs, with both values."""
    for name in Identity.model_fields:
        found, expected = getattr(manifest, name), getattr(wanted, name)
        if found != expected:
            return False, _difference(name, found, expected)
    return True, "up to date"


def machine_mismatch(manifest: Manifest, device: Mapping[str, str], tool_versions: Mapping[str, str]) -> str:
    """How a machine (`device`, `tool_versions`) differs from the one an engine was built for; "" where the engine runs.

    Tool versions do not count for a version-compatible plan: the version in its header is checked when it is loaded.
    """
    built, found = dict(manifest.device), {name: device.get(name, "") for name in manifest.device}
    if not manifest.build.get("version_compatible", False):
        built |= manifest.needed_tools
        found |= {name: tool_versions.get(name, "") for name in manifest.needed_tools}
    names = [name for name in {**built, **found} if built.get(name) != found.get(name)]
    parts = [f"{name} {built.get(name)}, this machine has {found.get(name) or 'none'}" for name in names]
    return f"built for {'; '.join(parts)}" if parts else ""


def verify_file(manifest: Manifest, folder: Path, *, fix: str = "") -> None:
    """Check the SHA-256 of an engine's files, before one is deserialized: engine files may contain code.

    Raises EngineMismatchError, EngineNotBuiltError, StoreUnavailableError.
    """
    fix = fix or f"tickrt-build CONFIG --target {manifest.target} --force"
    for name, expected in {manifest.engine_file: manifest.engine_sha256, **manifest.data_files}.items():
        path = folder / name
        if Path(name).name != name:
            raise EngineMismatchError(
                f"manifest of {manifest.name!r} names {name!r}, expected a file beside it", fix=fix
            )
        try:
            with reading(path):
                found = file_sha256(path)
        except FileNotFoundError:
            what = f"engine {manifest.name!r} has a manifest, but {path} is missing"
            raise EngineNotBuiltError(what, fix=fix) from None
        if found != expected:
            raise EngineMismatchError(f"{path} has SHA-256 {found[:12]}…, its manifest says {expected[:12]}…", fix=fix)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`: temporary file in the same folder, fsync, rename. A failure leaves no temporary file."""
    descriptor, partial = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(partial, 0o644)
        publish(Path(partial), path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def publish(partial: Path, path: Path) -> None:
    """Rename a finished file to its final name, with fsync of file and, where folders can be opened, of the folder."""
    _sync(partial, os.O_RDWR)  # Windows syncs only what may be written
    partial.replace(path)
    if hasattr(os, "O_DIRECTORY"):
        _sync(path.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _difference(name: str, found: object, expected: object) -> str:
    if name == "graph_sha256":
        return "the graph changed"
    if isinstance(found, dict) and isinstance(expected, dict):
        key = next(k for k in [*found, *expected] if found.get(k) != expected.get(k))
        return f"{name}.{key} is {_short(found.get(key))}, wanted {_short(expected.get(key))}"
    return f"{name} is {_short(found)}, wanted {_short(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
