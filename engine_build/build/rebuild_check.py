"""Per engine: build or reuse, and why. Reads, never writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engine_build.build.engine_specs import Job, jobs_of, profiles_of
from engine_build.build.environment import Place, place_of
from engine_build.build.worker import TENSORRT_OPTIONS
from engine_build.config import RECIPE_VERSION, BuildConfig, BuildRequest
from runtime.config.deployment import Target
from runtime.engines.manifest import (
    MANIFEST_SUFFIX,
    Identity,
    Manifest,
    manifest_path,
    metadata_matches,
    read_manifest,
    verify_file,
)
from runtime.errors import EngineError, EngineMismatchError, EngineNotBuiltError


@dataclass(frozen=True)
class Decision:
    """What will be done about one engine. `last` is its manifest of the last build, where there is a readable one."""

    job: Job
    wanted: Identity
    action: Literal["build", "reuse"]
    reason: str
    last: Manifest | None

    @property
    def size_bytes(self) -> int:
        """The engine's files: what they are, or the graph's own size where there are none yet."""
        return self.last.size_bytes if self.last and self.action == "reuse" else self.job.graph.size_bytes

    @property
    def memory_bytes(self) -> int:
        """What it will hold when open: weights, and its tensors at the largest shape (not what happens inside)."""
        return self.weights_bytes + tensor_bytes(self.job)

    @property
    def weights_bytes(self) -> int:
        """Weights in memory; a built engine may hold more constants than its graph."""
        weights = self.job.graph.weights_bytes
        return max(weights, self.size_bytes) if self.action == "reuse" else weights


def decide(request: BuildRequest, target: Target, *, force: bool = False, place: Place | None = None) -> list[Decision]:
    """What to do about every engine of a deployment. Raises ConfigError, BuildError.

    `place`: where it will be done; here, where none is given. One with something missing can only be looked at: engines
    count as valid where they were built.
    """
    folder, options = request.deployment.engine_folder(target), request.options
    place = place or place_of(target, options)
    return [_decide_one(job, identity(job, target, options, place), folder, force, place) for job in jobs_of(request)]


def identity(job: Job, target: Target, options: BuildConfig, place: Place) -> Identity:
    """Everything that governs whether an engine of this job may be used."""
    return Identity(
        name=job.name,
        target=target,
        tool_versions=place.tool_versions,
        device=place.device,
        graph_sha256=job.graph.sha256,
        build=build_options(job, target, options),
        shapes=job.shapes,
        features=job.features,
    )


def precision_of(job: Job, target: Target, options: BuildConfig) -> str:
    """What a job's engine computes in. The solver is float32 whatever the decoder is; so is all on the CPU."""
    if target == "cpu" or job.kind in ("rows", "step"):
        return "fp32"
    return options.codec_precision if job.kind.startswith("codec") else options.precision


def build_options(job: Job, target: Target, options: BuildConfig) -> dict[str, Any]:
    """The options that change the engine or what is accepted as one."""
    precision = precision_of(job, target, options)
    tolerance = {"tolerance": options.tolerance_for(target, precision)}
    if target == "tensorrt":
        chosen = {**options.model_dump(include=set(TENSORRT_OPTIONS)), **_exact(job)}
        return {**_recipe(precision), **tolerance, **chosen, "profiles": profiles_of(job)}
    chosen = options.model_dump(include={"optimization", "inline_limit_bytes"})
    if target == "cuda":
        chosen |= {**_recipe(precision), "tf32": options.tf32, **_exact(job)}
    return {**tolerance, **chosen}


def _recipe(precision: str) -> dict[str, Any]:
    """The precision, and which version of its recipe."""
    return {"precision": precision} if precision == "fp32" else {"precision": precision, "recipe": RECIPE_VERSION}


def _exact(job: Job) -> dict[str, bool]:
    """Rows and step graphs multiply in whole float32: their results are the state itself."""
    return {"tf32": False} if job.kind in ("rows", "step") else {}


def tensor_bytes(job: Job) -> int:
    """Bytes of all inputs and outputs at the job's largest sizes."""
    return sum(
        np.dtype(port.dtype).itemsize * prod(job.largest[letter] for letter in port.letters)
        for port in (*job.inputs, *job.outputs)
    )


def total_memory_bytes(decisions: Iterable[Decision]) -> int:
    """What all engines hold when open. Variants of one kind (step.*, rows.*) work on the same tensors."""
    weights, tensors = 0, dict[str, int]()
    for decision in decisions:
        kind = decision.job.name.partition(".")[0]
        weights += decision.weights_bytes
        tensors[kind] = max(tensors.get(kind, 0), tensor_bytes(decision.job))
    return weights + sum(tensors.values())


def leftovers(folder: Path, decisions: list[Decision]) -> list[Path]:
    """Manifests of engines that the deployment no longer has."""
    wanted = {manifest_path(folder, decision.job.name) for decision in decisions}
    return sorted(set(folder.glob(f"*{MANIFEST_SUFFIX}")) - wanted)


def _decide_one(job: Job, wanted: Identity, folder: Path, force: bool, place: Place) -> Decision:
    try:
        last = read_manifest(manifest_path(folder, job.name))
    except EngineNotBuiltError:
        return Decision(job, wanted, "build", "not built yet", None)
    except EngineMismatchError:
        return Decision(job, wanted, "build", "its manifest is damaged or of another version", None)
    if force:
        return Decision(job, wanted, "build", "--force", last)
    if place.missing is not None:
        wanted = wanted.model_copy(update={"tool_versions": last.tool_versions, "device": last.device})
    matches, reason = metadata_matches(last, wanted)
    if not matches:
        return Decision(job, wanted, "build", reason, last)
    return _decide_by_file(job, wanted, folder, last)


def _decide_by_file(job: Job, wanted: Identity, folder: Path, last: Manifest) -> Decision:
    try:
        verify_file(last, folder)
    except EngineError as error:
        return Decision(job, wanted, "build", error.what, last)
    return Decision(job, wanted, "reuse", "up to date", last)
