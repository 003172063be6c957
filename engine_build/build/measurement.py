"""The error of an engine that was built where it could not run: measured later, kept in a file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.engines.manifest import Manifest, write_atomically
from runtime.errors import BuildError

MEASURED_SUFFIX = ".measured.json"


class Measurement(BaseModel):
    """What the first machine that ran an engine measured. engine_sha256: of the engine's file, to which it belongs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    engine_sha256: str
    error: dict[str, float]
    measured_on: str
    facts: dict[str, Any] = {}


def measurement_path(folder: Path, name: str) -> Path:
    """The path of the measurement of engine `name`."""
    return folder / f"{name}{MEASURED_SUFFIX}"


def is_measured(manifest: Manifest) -> bool:
    """Whether an engine was measured when it was built."""
    return "max_rel" in manifest.error


def read_measurement(folder: Path, manifest: Manifest) -> Measurement | None:
    """The measurement beside an engine; None where there is none of this engine."""
    try:
        found = Measurement.model_validate_json(measurement_path(folder, manifest.name).read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.engine_sha256 == manifest.engine_sha256 else None


def write_measurement(folder: Path, name: str, measurement: Measurement) -> None:
    """Keep a measurement beside engine `name`. Raises BuildError."""
    path = measurement_path(folder, name)
    try:
        write_atomically(path, measurement.model_dump_json(indent=1).encode() + b"\n")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}", fix="free disk space there") from error
