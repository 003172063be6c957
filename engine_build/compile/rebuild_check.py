"""Decides per engine whether to build or to reuse it, with the reason. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engine_build.compile.environment import BuildEnvironment, build_environment
from engine_build.config import (
    CPU_GRAPH_VERSION,
    INLINE_LIMIT_BYTES,
    QUIET_PRECISION,
    RECIPE_VERSION,
    RTX_OPTIONS,
    TENSORRT_OPTIONS,
    BuildConfig,
    for_target,
)
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.tensorrt_preparation import PREPARATION, prepare_model
from engine_build.graphs.tensorrt_rules import doubts, oversized, problems
from engine_build.request import BuildRequest
from engine_build.specs.engine_spec import IN_PLACE, WORDS, EngineSpec, input_shapes, optimization_profiles, sizes_at
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError, EngineError, EngineMismatchError, EngineNotBuiltError
from runtime.base.files import own_entries
from runtime.config.deployment import HOST_TARGETS, MERGING_TARGETS, PLAN_TARGETS, Deployment, Target
from runtime.engines.adapter_files import read_catalog
from runtime.engines.adapters import MERGED, describe_merged
from runtime.engines.manifest import (
    BACKEND,
    MANIFEST_SUFFIX,
    OPENVINO_DEVICE,
    Identity,
    Manifest,
    manifest_path,
    metadata_matches,
    read_manifest,
    verify_file,
)
from runtime.engines.value_shapes import value_shapes

# The solver's results are the state itself; a structure code jumps where a value crosses a limit, and so does a token.
EXACT_KINDS = ("rows", "step", "structure_encode", "sampler")
# The engines that a tick launches, and of these the ones that tell NaN from numbers.
TICK_KINDS = ("decoder", "rows", "step", "planner", "planner_draft", "sampler")
STRICT_KINDS = ("rows", "step", "sampler")
PROBLEMS_SHOWN = 3
# The fact of a manifest that says in which precision its codec would be heard as noise.
NOISY = "noisy_precision"


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

    `environment`: default this machine. Where it lacks something, an engine's own device and versions count as wanted,
    and what `[build]` leaves to the card is as on the card of the engine.
    """
    folder, options = request.deployment.engine_folder(target), for_target(request.options, request.deployment, target)
    options.check_target(target)
    merged = _merged(request.deployment, target)
    environment = environment or build_environment(target, options)
    found = list[RebuildDecision]()
    for spec in engine_specs(request):
        last, problem = _last_build(folder, spec.name)
        if last is not None and environment.missing is not None:
            own = for_target(request.options, request.deployment, target, card_of(last))
            wanted = identity(spec, target, own, environment, merged).model_copy(
                update={"tool_versions": last.tool_versions, "device": last.device}
            )
        else:
            wanted = identity(spec, target, options, environment, merged)
        card = environment.card or _tried_on(last, folder)
        problem = problem or "--force" * force
        found.append(_check_engine(spec, _lowered(wanted, folder, card), folder, last, problem))
    return [_kept_quiet(decision, request, options) for decision in found]


def _last_build(folder: Path, name: str) -> tuple[Manifest | None, str]:
    """The manifest of an engine's last build, or why there is none."""
    try:
        return read_manifest(manifest_path(folder, name)), ""
    except EngineNotBuiltError:
        return None, "not built yet"
    except EngineMismatchError:
        return None, "its manifest is damaged or of another version"


def card_of(manifest: Manifest) -> dict[str, str]:
    """The card on which an engine was built, as for_target takes it; empty where it was built without one."""
    names = ("gpu", "compute_capability")
    return {name: manifest.facts[name] for name in names} if set(names) <= manifest.facts.keys() else {}


def _tried_on(last: Manifest | None, folder: Path) -> Mapping[str, str]:
    """The card that executed an engine first, as of its trials; empty where none is known."""
    if last is None or last.target not in PLAN_TARGETS:
        return {}
    from runtime.engines.tensorrt.trials import read_trials

    cards = [trial.card for trial in read_trials(folder, last.name) if trial.engine_sha256 == last.engine_sha256]
    return cards[-1] if cards else {}


def _lowered(wanted: Identity, folder: Path, card: Mapping[str, str]) -> Identity:
    """A plan at the highest optimization level, up to the wanted one, at which it did not crash on a card."""
    if not card:
        return wanted
    from runtime.engines.tensorrt.trials import crashed_levels

    crashed = crashed_levels(wanted, folder, card)
    while wanted.build["optimization_level"] in crashed and (lower := at_lower_level(wanted)) is not None:
        wanted = lower
    return wanted


def at_lower_level(wanted: Identity) -> Identity | None:
    """A plan at a lower optimization level: 1, then 0; None where there is none."""
    level = wanted.build["optimization_level"]
    if not level:
        return None
    return wanted.model_copy(update={"build": {**wanted.build, "optimization_level": 1 if level > 1 else 0}})


def _kept_quiet(decision: RebuildDecision, request: BuildRequest, options: BuildConfig) -> RebuildDecision:
    """A codec is reused that was built in QUIET_PRECISION because what is wanted would be heard."""
    last, wanted = decision.last, decision.wanted
    if last is None or NOISY not in last.facts or not request.has_automatic_codec:
        return decision
    if (last.facts[NOISY], last.graph_sha256) != (wanted.build.get("precision"), wanted.graph_sha256):
        return decision
    quiet = made_quiet(wanted, options)
    is_same = decision.reason != "--force" and metadata_matches(last, quiet)[0]
    return (
        decision
        if not is_same
        else _check_file(decision.spec, quiet, request.deployment.engine_folder(wanted.target), last)
    )


def check_graphs(decisions: Iterable[RebuildDecision]) -> list[str]:
    """Refuse graphs that TensorRT would refuse, before the first plan is built. Raises BuildError.

    Returns what it may refuse. TensorRT-RTX's builder decides for itself: only what it takes and computes wrongly is
    refused here.
    """
    found = list[str]()
    for decision in decisions:
        if decision.action == "build" and decision.wanted.target == "tensorrt":
            found += _check_graph(decision.spec)
        elif decision.action == "build" and decision.wanted.target == "tensorrt-rtx":
            _check_problems(decision.spec, problems(model_of(decision.spec.graph), {}, "tensorrt-rtx"))
    return found


def _check_problems(spec: EngineSpec, problems: Iterable[str]) -> None:
    if found := list(problems):
        raise BuildError(
            f"TensorRT does not take {spec.graph.label}: {'; '.join(found[:PROBLEMS_SHOWN])}",
            fix="export the graph again, without these nodes",
        )


def _check_graph(spec: EngineSpec) -> list[str]:
    doubtful = dict[str, None]()
    model = prepare_model(model_of(spec.graph), preparation_shapes(spec))
    for sizes in _outermost([sizes_at(spec, ranges, 2) for ranges in spec.ranges]):
        values = value_shapes(model, input_shapes(spec, sizes))
        _check_problems(spec, problems(model, values))
        if found := list(oversized(model, values)):
            where = ", ".join(
                f"{WORDS.get(name, name)} {size}" for name, size in sizes.items() if name in spec.ranges[0]
            )
            raise BuildError(
                f"{spec.name} is too large for TensorRT at {where}: {found[0]}",
                fix="lower max of that range in [[shapes]]",
            )
        doubtful |= dict.fromkeys(f"TensorRT may refuse {spec.graph.label}: {doubt}" for doubt in doubts(model, values))
    return list(doubtful)


def _outermost(largest: Sequence[Mapping[str, int]]) -> Iterator[Mapping[str, int]]:
    """The sizes that are not below others in every letter."""
    for index, sizes in enumerate(largest):
        others = (other for other in largest if other != sizes)
        is_inside = any(all(size <= other[letter] for letter, size in sizes.items()) for other in others)
        if not is_inside and sizes not in largest[:index]:
            yield sizes


def preparation_shapes(spec: EngineSpec) -> list[dict[str, tuple[int, ...]]]:
    """The sizes at which a graph is looked at to prepare it."""
    return [input_shapes(spec, sizes_at(spec, spec.ranges[0], end)) for end in (1, 2)]


def _merged(deployment: Deployment, target: Target) -> dict[str, Any]:
    """The build option of decoders whose weights have adapters in them; empty where they are merged when opened."""
    if target not in MERGING_TARGETS or not deployment.merged_adapters:
        return {}
    return {MERGED: describe_merged(read_catalog(deployment).find(deployment.merged_adapters))}


def identity(
    spec: EngineSpec, target: Target, options: BuildConfig, environment: BuildEnvironment, merged: Mapping[str, Any]
) -> Identity:
    """Everything that decides whether an engine of this spec may be reused. merged: build options of decoders."""
    return Identity(
        name=spec.name,
        target=target,
        tool_versions=environment.tool_versions,
        device=environment.device,
        graph_sha256=spec.graph.sha256,
        build={**build_options(spec, target, options), **spec.made_with, **(merged if spec.kind == "decoder" else {})},
        shapes=spec.shapes,
        features=spec.features,
    )


def engine_precision(spec: EngineSpec, target: Target, options: BuildConfig) -> str:
    """The precision of a spec's engine. EXACT_KINDS, and on the CPU all but a decoder in int8, are float32."""
    precision = options.of(spec.name).precision
    if target in HOST_TARGETS:
        return "int8" if precision == "int8" and spec.kind == "decoder" else "fp32"
    assert isinstance(precision, str)
    return "fp32" if spec.kind in EXACT_KINDS else precision


def build_options(spec: EngineSpec, target: Target, options: BuildConfig) -> dict[str, Any]:
    """The options that change the engine, those of its kind alone, and its tolerance. TF32 is fp32 with a flag."""
    precision, options = engine_precision(spec, target, options), options.of(spec.name)
    tolerance, tf32 = {"tolerance": options.tolerance_for(target, precision)}, {"tf32": precision == "tf32"}
    recipe = _recipe("fp32" if precision == "tf32" else precision)
    if target in PLAN_TARGETS:
        names = TENSORRT_OPTIONS if target == "tensorrt" else RTX_OPTIONS
        chosen = options.model_dump(mode="json", include=set(names)) | tf32 | _tick_options(spec)
        profiles = optimization_profiles(spec)
        return {**recipe, **tolerance, **chosen, "profiles": profiles, "preparation": PREPARATION}
    chosen = {"optimization": options.optimization, "inline_limit_bytes": INLINE_LIMIT_BYTES}
    if precision == "int8":
        chosen |= recipe
    if target in HOST_TARGETS and options.optimization != "basic":
        chosen["rewrite"] = CPU_GRAPH_VERSION
    if target == "cpu" and options.backend != "onnxruntime":
        chosen[BACKEND] = options.backend
    if target == "openvino":
        chosen[OPENVINO_DEVICE] = options.openvino_device
    if target == "cuda":
        chosen |= {**recipe, **tf32}
    return {**tolerance, **chosen}


def _recipe(precision: str) -> dict[str, Any]:
    """The precision, and the version of its recipe."""
    return {"precision": precision} if precision == "fp32" else {"precision": precision, "recipe": RECIPE_VERSION}


def _tick_options(spec: EngineSpec) -> dict[str, Any]:
    """STRICT_KINDS tell NaN from numbers: `x - x` must not become 0. Ticks run on one stream.

    Streams that TensorRT adds have the lowest priority, and a tick's stream the highest.
    """
    streams = 0 if spec.kind in TICK_KINDS else None
    return {"max_aux_streams": streams, "strict_nans": spec.kind in STRICT_KINDS}


def made_quiet(wanted: Identity, options: BuildConfig) -> Identity:
    """A codec whose noise would be heard, in QUIET_PRECISION."""
    tolerance = options.tolerance_for(wanted.target, QUIET_PRECISION)
    build = {name: value for name, value in wanted.build.items() if name != "recipe"}
    return wanted.model_copy(update={"build": build | {"precision": "fp32", "tf32": True, "tolerance": tolerance}})


def tensor_bytes(spec: EngineSpec) -> int:
    """Bytes of all inputs and outputs at the spec's largest sizes."""
    return sum(
        np.dtype(port.dtype).itemsize * prod(spec.largest[letter] for letter in port.letters)
        for port in (*spec.inputs, *spec.outputs)
        if port.values != IN_PLACE
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
    return [path for path in own_entries(folder, MANIFEST_SUFFIX) if path not in wanted]


def _check_engine(
    spec: EngineSpec, wanted: Identity, folder: Path, last: Manifest | None, problem: str
) -> RebuildDecision:
    """problem: why it is built in any case."""
    if last is None or problem:
        return RebuildDecision(spec, wanted, "build", problem, last)
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
