"""Graphs to engines, for every target: the only place that imports a builder API.

An engine is compiled into a folder of its own beside the others, verified there, and given its name only when it is
whole; whatever happens before that leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine_build.config import BuildConfig, BuildRequest, request_of
from engine_build.decisions import Decision, decide
from engine_build.engine_folder import locked, partial_folder, publish_engine, remove_leftovers
from engine_build.graph_file import Graph
from engine_build.onnxruntime_builder import (
    compile_onnxruntime,
    graph_session,
    need_cuda_provider,
    onnxruntime,
    onnxruntime_errors,
    open_onnxruntime,
)
from runtime.config import Deployment, Target
from runtime.errors import BuildError
from runtime.manifest import (
    Manifest,
    file_sha256,
    machine,
    manifest_path,
    write_manifest,
)


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


@dataclass(frozen=True)
class Compiler:
    """How one target is built: the engine file's suffix, graph -> file, file -> a session that verification runs."""

    suffix: str
    compile: Callable[[Graph, Path, BuildConfig], None]
    open: Callable[[Path, BuildConfig], Any]


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
    check_target(target)
    folder = request.deployment.engine_folder(target)
    with locked(folder):
        decisions = decide(request, target, force=force)
        manifests = [_carry_out(decision, folder, request.options, report) for decision in decisions]
        for name in remove_leftovers(folder, decisions):
            if report is not None:
                report.removed(name)
    return manifests


def check_target(target: Target) -> None:
    """Raises BuildError where engines for this target cannot be built here, with what is missing."""
    NEEDS[target]()
    if target not in COMPILERS:
        raise BuildError(f"this version builds engines for cpu only, not for {target}", fix="build with --target cpu")


def build_engine(decision: Decision, folder: Path, options: BuildConfig) -> Manifest:
    """Compile, verify and publish one engine in `folder`. Raises BuildError; on any failure the folder is as it was."""
    compiler, job = COMPILERS[decision.wanted.target], decision.job
    started = time.monotonic()
    with partial_folder(folder, job.name) as partial:
        engine = partial / f"{job.name}{compiler.suffix}"
        compiler.compile(job.graph, engine, options)
        error = _measure(compiler, decision, engine, options)
        manifest = Manifest(
            **decision.wanted.model_dump(),
            engine_file=engine.name,
            engine_sha256=file_sha256(engine),
            data_files={file.name: file_sha256(file) for file in _data_files(engine)},
            size_bytes=sum(file.stat().st_size for file in partial.iterdir()),
            inputs=job.graph.inputs,
            outputs=job.graph.outputs,
            error=error,
            build_s=round(time.monotonic() - started, 3),
            built_on=machine()["cpu"],
        )
        write_manifest(manifest_path(partial, job.name), manifest)
        publish_engine(partial, folder, manifest)
    return manifest


def _carry_out(decision: Decision, folder: Path, options: BuildConfig, report: Report | None) -> Manifest:
    if decision.action == "reuse" and decision.last is not None:
        if report is not None:
            report.reused(decision)
        return decision.last
    with report.building(decision) if report is not None else contextlib.nullcontext():
        manifest = build_engine(decision, folder, options)
    if report is not None:
        report.built(decision, manifest)
    return manifest


def _measure(compiler: Compiler, decision: Decision, engine: Path, options: BuildConfig) -> dict[str, float]:
    from engine_build.verify import verify  # polygraphy takes a while to import; a run that only reuses has no need

    job = decision.job
    try:
        return verify(job, graph_session(job.graph, options), compiler.open(engine, options), options.tolerance)
    except onnxruntime_errors() as error:
        raise BuildError(
            f"{job.graph.label} fails to run at a shape of the deployment's ranges: {error}",
            fix="check frame_multiple in bundle.toml and the shape ranges",
        ) from error


def _data_files(engine: Path) -> list[Path]:
    return sorted(file for file in engine.parent.iterdir() if file != engine)


def _need_cuda() -> None:
    need_cuda_provider()
    _need_gpu("cuda")


def _need_tensorrt() -> None:
    if importlib.util.find_spec("tensorrt") is None:
        raise BuildError(
            "target tensorrt needs the package tensorrt, which is not installed",
            fix="pip install 'tickrt[tensorrt]' on a machine with an NVIDIA GPU; or build with --target cpu",
        )
    _need_gpu("tensorrt")


def _need_gpu(target: str) -> None:
    if not Path("/dev/nvidiactl").exists():
        raise BuildError(
            f"target {target} needs an NVIDIA GPU and its driver, this machine has none",
            fix="build on the machine that will serve; or build with --target cpu",
        )


COMPILERS: Mapping[str, Compiler] = {
    "cpu": Compiler(".onnx", compile_onnxruntime, open_onnxruntime),
}
NEEDS: Mapping[str, Callable[[], object]] = {
    "cpu": onnxruntime,
    "cuda": _need_cuda,
    "tensorrt": _need_tensorrt,
}
