"""A deployment's graphs to engines, for every target.

An engine is compiled into a folder of its own beside the others, verified there, and given its name only when it is
whole; whatever happens before that leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from engine_build.build.engine_folder import locked, partial_folder, publish_engine, remove_leftovers
from engine_build.build.environment import Place, place_of
from engine_build.build.rebuild_check import Decision, decide
from engine_build.build.targets import COMPILERS, Work, measured
from engine_build.build.worker import BuildLog, BuildProcess
from engine_build.config import BuildRequest, request_of
from engine_build.graphs.graph_file import Graph, read_graph
from runtime.config.deployment import Deployment, Target
from runtime.engines.manifest import Manifest, file_sha256, manifest_path, write_manifest


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
        error, found = measured(work)
        build_s = round(time.monotonic() - started, 3)
        facts = {**manifest.facts, **found}
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
    from engine_build.precision.recipe import without_kernel, write_recipe

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
