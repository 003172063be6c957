"""Builds a deployment's engines, for every target.

An engine is compiled and verified in a folder of its own, and published under its name when it is complete; a failure
before that leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import onnx
from onnx import helper

from engine_build.compile.backends import in_backend
from engine_build.compile.engine_folder import locked, partial_folder, publish_engine, remove_unwanted
from engine_build.compile.environment import BuildEnvironment, build_environment
from engine_build.compile.graph_checks import check_rows, check_stems
from engine_build.compile.rebuild_check import (
    NOISY,
    RebuildDecision,
    at_lower_level,
    check_graphs,
    check_rebuilds,
    made_quiet,
)
from engine_build.compile.targets import COMPILERS, BuildTask, Facts, compiler_of, engine_error, measure_engine
from engine_build.compile.worker import BuildLog, CrashError, Worker
from engine_build.config import EIGHT_BITS, EIGHT_BITS_BASE, QUIET_PRECISION
from engine_build.graphs.graph_file import Graph, decoder_graph, read_graph
from engine_build.graphs.reference_session import model_of
from engine_build.precision.casts import FileWeights, InlineWeights
from engine_build.precision.quantization import Quantization
from engine_build.request import BuildRequest, request_of
from runtime.base.errors import BuildError, StoreUnavailableError
from runtime.config.deployment import Deployment, Target, build_command
from runtime.engines.adapters import MERGED
from runtime.engines.loading import merged_weights
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
from runtime.engines.merging import MergedWeights


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
    request: BuildRequest,
    *,
    target: Target | None = None,
    force: bool = False,
    report: Report | None = None,
    environment: BuildEnvironment | None = None,
) -> list[Manifest]:
    """As build_deployment, with the configuration already read. environment: default this machine's."""
    target = target or request.deployment.target
    request = request.for_target(target)
    environment = environment or build_environment(target, request.options)
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
            current = Build(request, folder, environment, worker, report)
            manifests = [current.built_or_reused(decision) for decision in decisions]
        for name in remove_unwanted(folder, decisions):
            if report is not None:
                report.removed(name)
    if report is not None and not all(_is_measured(manifest, folder) for manifest in manifests):
        report.note(
            f"error: not measured here, because {environment.cannot_run}. On the first machine that runs the engines, "
            f"this measures them: {build_command(request.deployment.path, target)}"
        )
    return manifests


@dataclass(frozen=True)
class Build:
    """What the engines of one build share. `request`: with options for its target; `folder`: locked by the caller.

    `decided`: the hash of a decoder's graph -> its products in 8 bits; to decide that takes minutes.
    """

    request: BuildRequest
    folder: Path
    environment: BuildEnvironment
    worker: Worker
    report: Report | None = None
    decided: dict[str, Quantization | None] = field(default_factory=dict)

    def built_or_reused(self, decision: RebuildDecision) -> Manifest:
        """An engine that is wanted, with a report. Raises BuildError."""
        report = self.report
        if decision.action == "reuse" and decision.last is not None:
            if report is not None:
                report.reused(decision)
            if not self.environment.cannot_run and not _is_measured(decision.last, self.folder):
                measurement = self.measure_built(decision, decision.last)
                self._keep_trial(decision.last)
                if report is not None:
                    report.measured(decision, measurement.error)
            return decision.last
        log = BuildLog()
        with report.building(decision) if report is not None else contextlib.nullcontext():
            manifest = self.build_and_try(decision, log)
        if report is not None:
            report.built(decision, manifest)
            for line in log.summary():
                report.note(line)
        return manifest

    def build_and_try(self, decision: RebuildDecision, log: BuildLog) -> Manifest:
        """Build an engine; a plan that ends its process is built once more, at a lower optimization level.

        Both is kept beside the engine, for this card. Raises BuildError.
        """
        name = decision.spec.name
        try:
            manifest = self.build_engine(decision, log)
        except CrashError as crash:
            lower = at_lower_level(decision.wanted) if self.environment.card else None
            self._keep_trial(decision.wanted, crash.what)
            if lower is None:
                raise BuildError(f"engine {name!r}: {crash.what}", fix=crash.fix) from crash
            levels = [wanted.build["optimization_level"] for wanted in (decision.wanted, lower)]
            log.add("WARNING", f"{name} at optimization level {levels[0]}: {crash.what}; built at {levels[1]}")
            try:
                manifest = self.build_engine(replace(decision, wanted=lower), log)
            except CrashError as again:
                self._keep_trial(lower, again.what)
                raise BuildError(
                    f"engine {name!r}: {again.what}, also at optimization level {levels[1]}", fix=again.fix
                ) from again
        if not self.environment.cannot_run:
            self._keep_trial(manifest)
        return manifest

    def build_engine(self, decision: RebuildDecision, log: BuildLog | None = None) -> Manifest:
        """Compile, verify and publish one engine. Raises BuildError; on any failure the folder is unchanged."""
        compiler, name = COMPILERS[decision.wanted.target], decision.spec.name
        started = time.monotonic()
        log = log or BuildLog()
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(partial_folder(self.folder, name))
            decision = stack.enter_context(with_merged_adapters(decision, self.request.deployment, self.folder))
            decision, noise = _inaudible(decision, self.request, log)
            quantization = self.quantization(decision)
            graph = stack.enter_context(graph_in_precision(decision, self.folder, log, quantization))
            engine = partial / f"{name}{compiler.suffix}"
            task = BuildTask(decision, graph, engine, self.request, self.environment, self.worker, log, quantization)
            manifest, folder = in_backend(task, lambda chosen: _compiled(chosen, noise, started))
            publish_engine(folder, self.folder, manifest)
        return manifest

    def measure_built(self, decision: RebuildDecision, manifest: Manifest) -> EngineMeasurement:
        """Measure an engine that was built where it could not run, and keep the result beside it.

        Raises BuildError, also where its error is too large.
        """
        engine, environment = self.folder / manifest.engine_file, self.environment
        with with_merged_adapters(decision, self.request.deployment, self.folder) as found:
            graph = found.spec.graph
            error, facts = engine_error(
                BuildTask(found, graph, engine, self.request, environment, self.worker, BuildLog())
            )
        measurement = EngineMeasurement(
            engine_sha256=manifest.engine_sha256,
            error=error,
            measured_on=environment.facts["gpu"],
            facts={**environment.facts, **facts},
        )
        try:
            write_measurement(self.folder, manifest.name, measurement)
        except OSError as cause:
            what = f"the error of {manifest.name!r} cannot be written to {self.folder}: {cause.strerror}"
            raise BuildError(what, fix="free disk space there") from cause
        return measurement

    def quantization(self, decision: RebuildDecision) -> Quantization | None:
        """Of the spec's graph; that for adapters is the decoder's with more inputs, and gets what is decided for that.

        Both have the same adapters merged into their weights, if any. None of a precision without such a decision.
        """
        spec, bundle = decision.spec, self.request.bundle
        if decision.wanted.build.get("precision") not in EIGHT_BITS:
            return None
        if spec.name == "decoder":
            return self._decided(decision, spec.graph)
        decoder = replace(decision, spec=replace(spec, name="decoder", graph=decoder_graph(bundle)))
        with with_merged_adapters(decoder, self.request.deployment, self.folder) as found:
            return self._decided(decision, found.spec.graph)

    def _decided(self, decision: RebuildDecision, graph: Graph) -> Quantization | None:
        from engine_build.precision.sensitivity import quantization_for

        if graph.sha256 not in self.decided:
            target, precision = decision.wanted.target, decision.wanted.build["precision"]
            bundle, threads = self.request.bundle, self.request.options.threads
            self.decided[graph.sha256] = quantization_for(target, precision, bundle, graph, threads)
        return self.decided[graph.sha256]

    def _keep_trial(self, engine: Identity, crash: str = "") -> None:
        if not self.environment.card:
            return
        from runtime.engines.tensorrt.trials import keep_trial, trial_of

        with contextlib.suppress(OSError, StoreUnavailableError):  # a server tries it itself
            keep_trial(self.folder, engine.name, trial_of(engine, self.environment.card, crash))


def _compiled(task: BuildTask, noise: Facts, started: float) -> Manifest:
    """Compile an engine, and measure it: the runtime opens one only with a manifest beside it."""
    path = manifest_path(task.engine.parent, task.decision.spec.name)
    manifest = _manifest(task, {**compiler_of(task).compile(task), **noise})
    write_manifest(path, manifest)
    error, facts = measure_engine(task)
    build_s = round(time.monotonic() - started, 3)
    manifest = manifest.model_copy(update={"error": error, "build_s": build_s, "facts": {**manifest.facts, **facts}})
    write_manifest(path, manifest)
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
    if not request.has_automatic_codec:
        log.add("WARNING", f'{says}: better remove the codec from precision in [build], or "{QUIET_PRECISION}"')
        return decision, {"snr_db": found}
    log.add("WARNING", f"{says}: it is built in {QUIET_PRECISION}")
    return replace(decision, wanted=made_quiet(decision.wanted, request.options)), {NOISY: precision, "snr_db": found}


@contextlib.contextmanager
def graph_in_precision(
    decision: RebuildDecision, folder: Path, log: BuildLog, quantization: Quantization | None
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
        path, without = partial / f"{spec.name}.onnx", without_kernel(wanted.target, precision)
        write_recipe(spec.graph, path, precision, without=without, quantization=quantization)
        graph = read_graph(path)
        if not changes_anything(model_of(graph), precision):
            rest = "fp32" if quantization is None else EIGHT_BITS_BASE
            log.add("WARNING", f"{precision} changes nothing in {spec.graph.label}: it stays in {rest}")
        yield graph


def _is_measured(manifest: Manifest, folder: Path) -> bool:
    return manifest.is_measured or read_measurement(folder, manifest) is not None


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


@contextlib.contextmanager
def with_merged_adapters(decision: RebuildDecision, deployment: Deployment, folder: Path) -> Iterator[RebuildDecision]:
    """The decision with a graph that has the adapters of its identity in its weights, as long as the context exists.

    Raises AdapterError, EngineMismatchError, BuildError.
    """
    weights = merged_weights(deployment) if decision.wanted.build.get(MERGED) else None
    if weights is None:
        yield decision
        return
    with partial_folder(folder, f"{decision.spec.name}.merged") as partial:
        path = partial / f"{decision.spec.name}.onnx"
        write_merged(decision.spec.graph, weights, path)
        yield replace(decision, spec=replace(decision.spec, graph=read_graph(path)))


def write_merged(graph: Graph, weights: MergedWeights, path: Path) -> None:
    """Write a graph with the weights that adapters change to `path`, large ones to a file beside it, one by one."""
    model = model_of(graph)
    data = path.with_name(f"{path.name}.data")
    store = FileWeights(graph.folder, data) if graph.has_data_files else InlineWeights()
    tensors = list(model.graph.initializer)
    changed = set(weights.changed([tensor.name for tensor in tensors], graph.label))
    kept = [_merged(store, weights, tensor) if tensor.name in changed else store.keep(tensor) for tensor in tensors]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, path)


def _merged(store: InlineWeights, weights: MergedWeights, tensor: Any) -> Any:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return store.write(tensor.name, weights.read(tensor.name).astype(dtype))
