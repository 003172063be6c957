"""Builds a deployment's engines, for every target.

An engine is compiled and verified in a folder of its own, and published under its name when it is complete; a failure
before that leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine_build.compile.engine_folder import locked, partial_folder, publish_engine, remove_unwanted
from engine_build.compile.environment import BuildEnvironment, build_environment
from engine_build.compile.merged_adapters import with_merged_adapters
from engine_build.compile.rebuild_check import NOISY, RebuildDecision, check_graphs, check_rebuilds, lowered, made_quiet
from engine_build.compile.rows_check import check_rows
from engine_build.compile.stems_check import check_stems
from engine_build.compile.targets import COMPILERS, BuildTask, Facts, engine_error, measured
from engine_build.compile.worker import BuildLog, CrashError, Worker
from engine_build.config import (
    EIGHT_BITS,
    EIGHT_BITS_BASE,
    QUIET_PRECISION,
    BuildRequest,
    for_target,
    has_automatic_codec,
    read_options,
    request_of,
)
from engine_build.graphs.axis_names import decoder_graph
from engine_build.graphs.graph_file import Graph, read_graph
from engine_build.graphs.reference_session import model_of
from runtime.base.errors import BuildError, StoreUnavailableError
from runtime.config.deployment import Deployment, build_command
from runtime.config.targets import Target
from runtime.engines.manifest import (
    EngineMeasurement,
    Identity,
    Manifest,
    file_sha256,
    manifest_path,
    read_measurement,
    write_manifest,
    write_measurement,
)

if TYPE_CHECKING:
    from engine_build.precision.quantization import Quantization


class Report(Protocol):
    """Receives the progress of a build."""

    def building(self, decision: RebuildDecision) -> contextlib.AbstractContextManager[None]:
        """Entered while one engine is built."""

    def built(self, decision: RebuildDecision, manifest: Manifest) -> None:
        """An engine was built."""

    def reused(self, decision: RebuildDecision) -> None:
        """An engine is up to date."""

    def measured(self, decision: RebuildDecision, error: Mapping[str, float]) -> None:
        """The error of an engine was measured that was built where it could not run."""

    def removed(self, name: str) -> None:
        """An engine was removed, because the deployment no longer has it."""

    def note(self, text: str) -> None:
        """A warning of the builder."""


def build_deployment(
    deployment: Deployment, *, target: Target | None = None, force: bool = False, report: Report | None = None
) -> list[Manifest]:
    """Build the missing and stale engines of a deployment. Raises ConfigError, BuildError.

    Returns all manifests, decoder first. One build at a time per folder.
    """
    return build(request_of(deployment), target=target, force=force, report=report)


def build(
    request: BuildRequest, *, target: Target | None = None, force: bool = False, report: Report | None = None
) -> list[Manifest]:
    """As build_deployment, with the configuration already read."""
    target = target or request.deployment.target
    request = replace(request, options=for_target(request.options, request.deployment, target))
    environment = build_environment(target, request.options)
    folder = request.deployment.engine_folder(target)
    with locked(folder):
        decisions = check_rebuilds(request, target, force=force, environment=environment)
        for doubt in check_graphs(decisions):
            if report is not None:
                report.note(doubt)
        check_rows((each.spec for each in decisions if each.action == "build"), request.options)
        stems = request.bundle.stems
        if stems is not None and not stems.tracks and any(each.action == "build" for each in decisions):
            check_stems(request.bundle, request.options)
        with Worker(request.options.watchdog_s) as worker:
            manifests = [
                _build_or_reuse(decision, request, folder, environment, worker, report) for decision in decisions
            ]
        for name in remove_unwanted(folder, decisions):
            if report is not None:
                report.removed(name)
    if report is not None and not all(_is_measured(manifest, folder) for manifest in manifests):
        report.note(
            f"error: not measured here, because {environment.cannot_run}. On the first machine that runs the engines, "
            f"this measures them: {build_command(request.deployment.path, target)}"
        )
    return manifests


def build_engine(
    decision: RebuildDecision,
    request: BuildRequest,
    folder: Path,
    environment: BuildEnvironment,
    log: BuildLog | None = None,
    worker: Worker | None = None,
) -> Manifest:
    """Compile, verify and publish one engine in `folder`. Raises BuildError; on any failure the folder is unchanged.

    worker: that of the whole build; None for one of its own.
    """
    compiler, name = COMPILERS[decision.wanted.target], decision.spec.name
    started = time.monotonic()
    log = log or BuildLog()
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(Worker(request.options.watchdog_s)) if worker is None else worker
        partial = stack.enter_context(partial_folder(folder, name))
        decision = stack.enter_context(with_merged_adapters(decision, request.deployment, folder))
        decision, noise = _inaudible(decision, request, log)
        graph = stack.enter_context(graph_in_precision(decision, request, folder, log))
        engine = partial / f"{name}{compiler.suffix}"
        task = BuildTask(decision, graph, engine, request.deployment, request.options, environment, used, log)
        manifest = _manifest(task, {**compiler.compile(task), **noise})
        # The runtime opens an engine only with a manifest beside it, also to measure it.
        write_manifest(manifest_path(partial, name), manifest)
        error, facts = measured(task)
        build_s = round(time.monotonic() - started, 3)
        manifest = manifest.model_copy(
            update={"error": error, "build_s": build_s, "facts": {**manifest.facts, **facts}}
        )
        write_manifest(manifest_path(partial, name), manifest)
        publish_engine(partial, folder, manifest)
    return manifest


def _inaudible(
    decision: RebuildDecision, request: BuildRequest, log: BuildLog
) -> tuple[RebuildDecision, dict[str, Any]]:
    """The decision, for a codec whose noise would be heard in QUIET_PRECISION, and what was measured.

    A precision that the deployment names is kept, with a warning.
    """
    precision, codec = decision.wanted.build.get("precision", "fp32"), request.bundle.codec
    if decision.spec.name != "codec_decode" or precision == "fp32" or codec is None:
        return decision, {}
    from engine_build.compile.verify import inputs_at
    from engine_build.precision.error import AUDIBLE_DB, codec_snr_db
    from engine_build.precision.recipe import without_kernel

    spec, target = decision.spec, decision.wanted.target
    feed = inputs_at(spec.inputs, spec.samples, len(spec.samples) - 1)
    window, without = codec.sample_rate_hz // 10, without_kernel(target, precision)
    found = round(
        codec_snr_db(spec.graph, precision, feed, window, without=without, threads=request.options.threads), 1
    )
    if found >= AUDIBLE_DB:
        return decision, {"snr_db": found}
    says = (
        f"the codec in {precision} has noise {found:.0f} dB below its audio, which is heard above {-AUDIBLE_DB:.0f} dB"
    )
    if not has_automatic_codec(read_options(request.deployment)):
        log.add("WARNING", f'{says}: better remove the codec from precision in [build], or "{QUIET_PRECISION}"')
        return decision, {"snr_db": found}
    log.add("WARNING", f"{says}: it is built in {QUIET_PRECISION}")
    return replace(decision, wanted=made_quiet(decision.wanted, request.options)), {NOISY: precision, "snr_db": found}


@contextlib.contextmanager
def graph_in_precision(
    decision: RebuildDecision, request: BuildRequest, folder: Path, log: BuildLog
) -> Iterator[Graph]:
    """The spec's graph in the wanted precision; its file exists as long as the context. Raises BuildError.

    A precision that changes nothing is a warning.
    """
    spec, wanted = decision.spec, decision.wanted
    precision = wanted.build.get("precision", "fp32")
    if precision == "fp32":
        yield spec.graph
        return
    from engine_build.precision.recipe import changes_anything, without_kernel, write_recipe

    with partial_folder(folder, f"{spec.name}.{precision}") as partial:
        path = partial / f"{spec.name}.onnx"
        without, decided = without_kernel(wanted.target, precision), _quantization(decision, request, folder)
        write_recipe(spec.graph, path, precision, without=without, quantization=decided)
        graph = read_graph(path)
        if not changes_anything(model_of(graph), precision):
            rest = "fp32" if decided is None else EIGHT_BITS_BASE
            log.add("WARNING", f"{precision} changes nothing in {spec.graph.label}: it stays in {rest}")
        yield graph


def measure_built(
    decision: RebuildDecision,
    manifest: Manifest,
    request: BuildRequest,
    folder: Path,
    environment: BuildEnvironment,
    worker: Worker,
) -> EngineMeasurement:
    """Measure an engine in `folder` that was built where it could not run, and keep the result beside it.

    Raises BuildError, also where its error is too large.
    """
    with with_merged_adapters(decision, request.deployment, folder) as found:
        engine = folder / manifest.engine_file
        task = BuildTask(
            found, found.spec.graph, engine, request.deployment, request.options, environment, worker, BuildLog()
        )
        error, facts = engine_error(task)
    gpu = environment.facts["gpu"]
    measurement = EngineMeasurement(
        engine_sha256=manifest.engine_sha256, error=error, measured_on=gpu, facts={**environment.facts, **facts}
    )
    try:
        write_measurement(folder, manifest.name, measurement)
    except OSError as cause:
        what = f"the error of {manifest.name!r} cannot be written to {folder}: {cause.strerror}"
        raise BuildError(what, fix="free disk space there") from cause
    return measurement


def _is_measured(manifest: Manifest, folder: Path) -> bool:
    return manifest.is_measured or read_measurement(folder, manifest) is not None


def _quantization(decision: RebuildDecision, request: BuildRequest, folder: Path) -> Quantization | None:
    """Of the spec's graph; that for adapters is the decoder's with more inputs, and gets what is decided for that.

    Both have the same adapters merged into their weights, if any.
    """
    from engine_build.precision.sensitivity import quantization_for

    spec, bundle, precision = decision.spec, request.bundle, decision.wanted.build["precision"]
    if precision not in EIGHT_BITS:
        return None
    target, threads = decision.wanted.target, request.options.threads
    if spec.name == "decoder":
        return quantization_for(target, precision, bundle, spec.graph, threads)
    decoder = replace(spec, name="decoder", graph=decoder_graph(bundle))
    with with_merged_adapters(replace(decision, spec=decoder), request.deployment, folder) as found:
        return quantization_for(target, precision, bundle, found.spec.graph, threads)


def _manifest(task: BuildTask, facts: Facts) -> Manifest:
    """An engine's manifest before it is measured."""
    engine = task.engine
    files = sorted(file for file in engine.parent.iterdir() if file != engine)
    sha256 = facts.pop("sha256", None) or file_sha256(engine)
    return Manifest(
        **task.decision.wanted.model_dump(),
        engine_file=engine.name,
        engine_sha256=sha256,
        data_files={file.name: file_sha256(file) for file in files},
        size_bytes=sum(file.stat().st_size for file in (engine, *files)),
        inputs=task.graph.inputs,
        outputs=task.graph.outputs,
        error={},
        build_s=0.0,
        built_on=task.environment.built_on,
        facts={**task.environment.facts, **facts},
    )


def _build_and_try(
    decision: RebuildDecision,
    request: BuildRequest,
    folder: Path,
    environment: BuildEnvironment,
    worker: Worker,
    log: BuildLog,
) -> Manifest:
    """Build an engine; a plan that ends its process is built once more, at a lower optimization level.

    Both is kept beside the engine, for this card. Raises BuildError.
    """
    try:
        manifest = build_engine(decision, request, folder, environment, log, worker)
    except CrashError as crash:
        lower = lowered(decision.wanted) if environment.card else None
        _keep_trial(decision.wanted, folder, environment, crash.what)
        if lower is None:
            raise BuildError(f"engine {decision.spec.name!r}: {crash.what}", fix=crash.fix) from crash
        levels = [wanted.build["optimization_level"] for wanted in (decision.wanted, lower)]
        log.add(
            "WARNING", f"{decision.spec.name} at optimization level {levels[0]}: {crash.what}; built at {levels[1]}"
        )
        try:
            manifest = build_engine(replace(decision, wanted=lower), request, folder, environment, log, worker)
        except CrashError as again:
            _keep_trial(lower, folder, environment, again.what)
            raise BuildError(
                f"engine {decision.spec.name!r}: {again.what}, also at optimization level {levels[1]}", fix=again.fix
            ) from again
    if not environment.cannot_run:
        _keep_trial(manifest, folder, environment)
    return manifest


def _keep_trial(engine: Identity, folder: Path, environment: BuildEnvironment, crash: str = "") -> None:
    if not environment.card:
        return
    from runtime.engines.tensorrt.trials import keep_trial, trial_of

    with contextlib.suppress(OSError, StoreUnavailableError):  # a server tries it itself
        keep_trial(folder, engine.name, trial_of(engine, environment.card, crash))


def _build_or_reuse(
    decision: RebuildDecision,
    request: BuildRequest,
    folder: Path,
    environment: BuildEnvironment,
    worker: Worker,
    report: Report | None,
) -> Manifest:
    if decision.action == "reuse" and decision.last is not None:
        if report is not None:
            report.reused(decision)
        if not environment.cannot_run and not _is_measured(decision.last, folder):
            measurement = measure_built(decision, decision.last, request, folder, environment, worker)
            _keep_trial(decision.last, folder, environment)
            if report is not None:
                report.measured(decision, measurement.error)
        return decision.last
    log = BuildLog()
    with report.building(decision) if report is not None else contextlib.nullcontext():
        manifest = _build_and_try(decision, request, folder, environment, worker, log)
    if report is not None:
        report.built(decision, manifest)
        for line in log.summary():
            report.note(line)
    return manifest
