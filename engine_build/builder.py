"""Graphs to engines, for every target: the only place that imports a builder API.

An engine is compiled into a folder of its own beside the others, verified there, and given its name only when it is
whole; whatever happens before that leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine_build.build_log import BuildLog
from engine_build.child import BuildProcess
from engine_build.config import BuildConfig, BuildRequest, request_of
from engine_build.decisions import Decision, decide
from engine_build.engine_folder import locked, partial_folder, publish_engine, remove_leftovers
from engine_build.graph_file import Graph, read_graph
from engine_build.onnxruntime_builder import (
    compile_cuda,
    compile_onnxruntime,
    graph_session,
    onnxruntime_errors,
    open_cuda,
    open_onnxruntime,
)
from engine_build.place import Place, place_of
from runtime.config import Deployment, Target
from runtime.errors import BuildError
from runtime.manifest import Manifest, file_sha256, manifest_path, write_manifest
from runtime.spec import load_bundle

# Running a graph of this size on the CPU for comparison takes minutes per shape: the first shapes are enough.
LARGE_GRAPH_BYTES = 1 << 30
LARGE_GRAPH_SAMPLES = 2


class Report(Protocol):
    """Who is told how a build goes."""

    def building(self, decision: Decision) -> contextlib.AbstractContextManager[None]:
        """Around the work on one engine."""

    def built(self, decision: Decision, manifest: Manifest) -> None:
        """An engine was built."""

    def reused(self, decision: Decision) -> None:
        """An engine is up to date."""

    def removed(self, name: str) -> None:
        """An engine was taken away, because the deployment no longer has it."""

    def note(self, text: str) -> None:
        """Something that the builder wants known."""


@dataclass(frozen=True)
class Work:
    """One engine in the making: `graph` is the job's in the precision that is wanted, `engine` the file to write.

    `process` does what may crash.
    """

    decision: Decision
    graph: Graph
    engine: Path
    deployment: Deployment
    options: BuildConfig
    place: Place
    process: BuildProcess
    log: BuildLog

    @property
    def tolerance(self) -> float:
        """The largest error that is accepted."""
        return float(self.decision.wanted.build["tolerance"])


@dataclass(frozen=True)
class Compiler:
    """How one target is built: the engine file's suffix; what writes it and gives facts; what measures its error."""

    suffix: str
    compile: Callable[[Work], dict[str, Any]]
    measure: Callable[[Work, Any], tuple[dict[str, float], dict[str, Any]]]


def build_deployment(
    deployment: Deployment, *, target: Target | None = None, force: bool = False, report: Report | None = None
) -> list[Manifest]:
    """Build what is missing or stale of a deployment's engines. Raises ConfigError, BuildError.

    Gives all manifests, decoder first. One build at a time per folder.
    """
    return build(request_of(deployment), target=target, force=force, report=report)


def build(
    request: BuildRequest, *, target: Target | None = None, force: bool = False, report: Report | None = None
) -> list[Manifest]:
    """As build_deployment, with the configuration already read."""
    target = target or request.deployment.target
    place = place_of(target, request.options)
    folder = request.deployment.engine_folder(target)
    with locked(folder):
        decisions = decide(request, target, force=force, place=place)
        manifests = [_carry_out(decision, request, folder, place, report) for decision in decisions]
        for name in remove_leftovers(folder, decisions):
            if report is not None:
                report.removed(name)
    return manifests


def build_engine(
    decision: Decision, request: BuildRequest, folder: Path, place: Place, log: BuildLog | None = None
) -> Manifest:
    """Compile, verify and publish one engine in `folder`. Raises BuildError; on any failure the folder is as it was."""
    compiler, job = COMPILERS[decision.wanted.target], decision.job
    started = time.monotonic()
    parts = partial_folder(folder, job.name), in_precision(decision, folder), BuildProcess()
    with parts[0] as partial, parts[1] as graph, parts[2] as process:
        engine = partial / f"{job.name}{compiler.suffix}"
        work = Work(decision, graph, engine, request.deployment, request.options, place, process, log or BuildLog())
        manifest = _manifest(work, compiler.compile(work))
        # Whoever opens the engine to measure it wants a manifest beside it.
        write_manifest(manifest_path(partial, job.name), manifest)
        error, found = _measured(compiler, work, manifest)
        build_s = round(time.monotonic() - started, 3)
        facts = {**manifest.facts, **found}
        error |= _recipe_error(work)
        manifest = manifest.model_copy(update={"error": error, "build_s": build_s, "facts": facts})
        write_manifest(manifest_path(partial, job.name), manifest)
        publish_engine(partial, folder, manifest)
    return manifest


@contextlib.contextmanager
def in_precision(decision: Decision, folder: Path) -> Iterator[Graph]:
    """The job's graph in the precision that is wanted, on disk for as long as it is needed. Raises BuildError."""
    job, wanted = decision.job, decision.wanted
    precision = wanted.build.get("precision", "fp32")
    if precision == "fp32" or not isinstance(job.graph.source, Path):
        yield job.graph
        return
    from engine_build.precision import without_kernel, write_recipe

    with partial_folder(folder, f"{job.name}.{precision}") as partial:
        path = partial / job.graph.source.name
        write_recipe(job.graph.source, path, precision, without=without_kernel(wanted.target, precision))
        yield read_graph(path)


def _manifest(work: Work, facts: dict[str, Any]) -> Manifest:
    """An engine's manifest before it was measured."""
    job, engine = work.decision.job, work.engine
    files = sorted(file for file in engine.parent.iterdir() if file != engine)
    sha256 = facts.pop("sha256", None) or file_sha256(engine)
    return Manifest(
        **work.decision.wanted.model_dump(),
        engine_file=engine.name,
        engine_sha256=sha256,
        data_files={file.name: file_sha256(file) for file in files},
        size_bytes=sum(file.stat().st_size for file in (engine, *files)),
        inputs=job.graph.inputs,
        outputs=job.graph.outputs,
        error={},
        build_s=0.0,
        built_on=work.place.built_on,
        facts={**work.place.facts, **facts},
    )


def _carry_out(
    decision: Decision, request: BuildRequest, folder: Path, place: Place, report: Report | None
) -> Manifest:
    if decision.action == "reuse" and decision.last is not None:
        if report is not None:
            report.reused(decision)
        return decision.last
    log = BuildLog()
    with report.building(decision) if report is not None else contextlib.nullcontext():
        manifest = build_engine(decision, request, folder, place, log)
    if report is not None:
        report.built(decision, manifest)
        for line in log.summary():
            report.note(line)
    return manifest


def _measured(compiler: Compiler, work: Work, manifest: Manifest) -> tuple[dict[str, float], dict[str, Any]]:
    try:
        return compiler.measure(work, manifest)
    except onnxruntime_errors() as error:
        raise BuildError(
            f"{work.decision.job.graph.label} fails to run at a shape of the deployment's ranges: {error}",
            fix="check frame_multiple in bundle.toml and the shape ranges",
        ) from error


def _compile_cpu(work: Work) -> dict[str, Any]:
    compile_onnxruntime(work.graph, work.engine, work.options)
    return {}


def _measure_cpu(work: Work, manifest: Manifest) -> tuple[dict[str, float], dict[str, Any]]:
    from engine_build.verify import verify  # polygraphy takes a while to import; a run that only reuses has no need

    graph = graph_session(work.decision.job.graph, work.options)
    engine = open_onnxruntime(work.engine, work.options)
    return verify(work.decision.job, graph, engine, work.tolerance), {}


def _compile_cuda(work: Work) -> dict[str, Any]:
    compile_cuda(work.graph, work.engine, work.options, tf32=work.decision.wanted.build["tf32"])
    return {}


def _measure_cuda(work: Work, manifest: Manifest) -> tuple[dict[str, float], dict[str, Any]]:
    from engine_build.verify import verify

    graph = graph_session(work.decision.job.graph, work.options)
    engine = open_cuda(work.engine, work.options, tf32=work.decision.wanted.build["tf32"])
    return verify(work.decision.job, graph, engine, work.tolerance), {}


def _recipe_error(work: Work) -> dict[str, float]:
    """What the precision alone does to the decoder, along a generation of its own; nothing for full precision."""
    job, recipe = work.decision.job, work.decision.wanted.build.get("precision", "fp32")
    if job.name != "decoder" or recipe == "fp32":
        return {}
    from engine_build.decoder_feeds import STEPS, decoder_feeds
    from engine_build.precision import without_kernel
    from engine_build.precision_error import measure

    bundle, threads = load_bundle(work.deployment.bundle), work.options.threads
    steps = 2 if job.graph.weights_bytes > LARGE_GRAPH_BYTES else STEPS
    feeds = decoder_feeds(bundle, job.graph, steps=steps, threads=threads)
    without = without_kernel(work.decision.wanted.target, recipe)
    return measure(job.graph, recipe, feeds, without=without, threads=threads)


def _compile_tensorrt(work: Work) -> dict[str, Any]:
    from engine_build.tensorrt_target import compile_plan, timing_cache_of

    version = work.place.tool_versions["tensorrt"]
    cache = timing_cache_of(work.deployment, work.options, work.place.facts, version)
    return compile_plan(work.process, work.decision, work.graph, work.engine, work.options, cache, work.log)


def _measure_tensorrt(work: Work, manifest: Manifest) -> tuple[dict[str, float], dict[str, Any]]:
    from engine_build.tensorrt_target import try_plan
    from engine_build.verify import verify_outputs

    job = work.decision.job
    compared = LARGE_GRAPH_SAMPLES if job.graph.weights_bytes > LARGE_GRAPH_BYTES else len(job.samples)
    outputs, facts = try_plan(work.process, job, work.engine.parent, compared, work.log)
    error = verify_outputs(job, graph_session(job.graph, work.options), outputs, work.tolerance)
    return error, {**facts, "tried_shapes": len(job.samples), "compared_shapes": compared}


COMPILERS: Mapping[str, Compiler] = {
    "cpu": Compiler(".onnx", _compile_cpu, _measure_cpu),
    "cuda": Compiler(".onnx", _compile_cuda, _measure_cuda),
    "tensorrt": Compiler(".plan", _compile_tensorrt, _measure_tensorrt),
}
