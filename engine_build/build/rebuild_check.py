"""Decides per engine whether to build or to reuse it, with the reason. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engine_build.build.engine_specs import EngineSpec, engine_specs, optimization_profiles
from engine_build.build.environment import BuildEnvironment, build_environment
from engine_build.config import CPU_GRAPH_VERSION, RECIPE_VERSION, TENSORRT_OPTIONS, BuildConfig, BuildRequest
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

# The solver's results are the state itself; a structure code jumps where a value crosses a limit.
EXACT_KINDS = ("rows", "step", "structure_encode")


@dataclass(frozen=True)
class RebuildDecision:
    """Whether one engine is built or reused. `last`: the manifest of its last build, if readable."""

    spec: EngineSpec
    wanted: Identity
    action: Literal["build", "reuse"]
    reason: str
    last: Manifest | None

    @property
    def size_bytes(self) -> int:
        """Size of the engine's files; the graph's size where the engine will be built."""
        return self.last.size_bytes if self.last and self.action == "reuse" else self.spec.graph.size_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of the open engine: weights, inputs and outputs at the largest shape; without its internal buffers."""
        return self.weights_bytes + tensor_bytes(self.spec)

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights; a built engine may hold more constants than its graph."""
        weights = self.spec.graph.weights_bytes
        return max(weights, self.size_bytes) if self.action == "reuse" else weights


def check_rebuilds(
    request: BuildRequest, target: Target, *, force: bool = False, environment: BuildEnvironment | None = None
) -> list[RebuildDecision]:
    """The decision for every engine of a deployment. Raises ConfigError, BuildError.

    `environment`: default this machine. Where it lacks something, an engine's own device and versions count as wanted.
    """
    folder, options = request.deployment.engine_folder(target), request.options
    environment = environment or build_environment(target, options)
    return [
        _check_engine(spec, identity(spec, target, options, environment), folder, force, environment)
        for spec in engine_specs(request)
    ]


def identity(spec: EngineSpec, target: Target, options: BuildConfig, environment: BuildEnvironment) -> Identity:
    """Everything that decides whether an engine of this spec may be reused."""
    return Identity(
        name=spec.name,
        target=target,
        tool_versions=environment.tool_versions,
        device=environment.device,
        graph_sha256=spec.graph.sha256,
        build=build_options(spec, target, options),
        shapes=spec.shapes,
        features=spec.features,
    )


def engine_precision(spec: EngineSpec, target: Target, options: BuildConfig) -> str:
    """The precision of a spec's engine. EXACT_KINDS, and all graphs on the CPU, are float32."""
    if target == "cpu" or spec.kind in EXACT_KINDS:
        return "fp32"
    return options.codec_precision if spec.kind.startswith("codec") else options.precision


def build_options(spec: EngineSpec, target: Target, options: BuildConfig) -> dict[str, Any]:
    """The options that change the engine, and its tolerance."""
    precision = engine_precision(spec, target, options)
    tolerance = {"tolerance": options.tolerance_for(target, precision)}
    if target == "tensorrt":
        chosen = {**options.model_dump(include=set(TENSORRT_OPTIONS)), **_without_tf32(spec)}
        return {**_recipe(precision), **tolerance, **chosen, "profiles": optimization_profiles(spec)}
    chosen = options.model_dump(include={"optimization", "inline_limit_bytes"})
    if target == "cpu" and options.optimization != "basic":
        chosen["rewrite"] = CPU_GRAPH_VERSION
    if target == "cuda":
        chosen |= {**_recipe(precision), "tf32": options.tf32, **_without_tf32(spec)}
    return {**tolerance, **chosen}


def _recipe(precision: str) -> dict[str, Any]:
    """The precision, and the version of its recipe."""
    return {"precision": precision} if precision == "fp32" else {"precision": precision, "recipe": RECIPE_VERSION}


def _without_tf32(spec: EngineSpec) -> dict[str, bool]:
    """EXACT_KINDS never use TF32."""
    return {"tf32": False} if spec.kind in EXACT_KINDS else {}


def tensor_bytes(spec: EngineSpec) -> int:
    """Bytes of all inputs and outputs at the spec's largest sizes."""
    return sum(
        np.dtype(port.dtype).itemsize * prod(spec.largest[letter] for letter in port.letters)
        for port in (*spec.inputs, *spec.outputs)
    )


def total_memory_bytes(decisions: Iterable[RebuildDecision]) -> int:
    """Memory of all engines when open. Variants of one kind (step.*, rows.*) share their tensors."""
    weights, tensors = 0, dict[str, int]()
    for decision in decisions:
        kind = decision.spec.kind
        weights += decision.weights_bytes
        tensors[kind] = max(tensors.get(kind, 0), tensor_bytes(decision.spec))
    return weights + sum(tensors.values())


def unwanted_manifests(folder: Path, decisions: list[RebuildDecision]) -> list[Path]:
    """Manifests of engines that the deployment no longer has."""
    wanted = {manifest_path(folder, decision.spec.name) for decision in decisions}
    return sorted(set(folder.glob(f"*{MANIFEST_SUFFIX}")) - wanted)


def _check_engine(
    spec: EngineSpec, wanted: Identity, folder: Path, force: bool, environment: BuildEnvironment
) -> RebuildDecision:
    try:
        last = read_manifest(manifest_path(folder, spec.name))
    except EngineNotBuiltError:
        return RebuildDecision(spec, wanted, "build", "not built yet", None)
    except EngineMismatchError:
        return RebuildDecision(spec, wanted, "build", "its manifest is damaged or of another version", None)
    if force:
        return RebuildDecision(spec, wanted, "build", "--force", last)
    if environment.missing is not None:
        wanted = wanted.model_copy(update={"tool_versions": last.tool_versions, "device": last.device})
    matches, reason = metadata_matches(last, wanted)
    if not matches:
        return RebuildDecision(spec, wanted, "build", reason, last)
    return _check_file(spec, wanted, folder, last)


def _check_file(spec: EngineSpec, wanted: Identity, folder: Path, last: Manifest) -> RebuildDecision:
    try:
        verify_file(last, folder)
    except EngineError as error:
        return RebuildDecision(spec, wanted, "build", error.what, last)
    return RebuildDecision(spec, wanted, "reuse", "up to date", last)
