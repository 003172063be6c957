"""What a builder process is asked for: plain values that travel as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from engine_build.roles import Port

TENSORRT_OPTIONS = (
    "optimization_level", "workspace_mib", "refit", "verbosity", "max_aux_streams", "version_compatible",
    "hardware_compatibility", "tf32",
)  # fmt: skip


class PlanRequest(BaseModel):
    """One plan to build: the graph's file, where the plan goes, and everything that decides what it becomes.

    `options` are those of TENSORRT_OPTIONS; `profiles` map inputs to their smallest, usual and largest shapes, as text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    graph: Path
    plan: Path
    options: dict[str, Any]
    profiles: list[dict[str, str]]
    timing_cache: Path | None = None
    threads: int = 0


class SmokeRequest(BaseModel):
    """An engine to run once at every sample (sizes of the shape letters of `inputs`).

    Outputs of the first samples go into the files of `results` (numpy's .npz); all of them must be finite.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    folder: Path
    inputs: list[Port]
    samples: list[dict[str, int]]
    results: list[Path]


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """ "1x2 4x2 8x2" -> ((1, 2), (4, 2), (8, 2))."""
    return tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split())
