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
from runtime.config import Deployment, Target
from runtime.errors import BuildError
from runtime.manifest import (
    Manifest,
    file_sha256,
    machine,
    manifest_path,
    write_manifest,
)

DATA_MIN_BYTES = 1024


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
    graph = _session(job.graph.source, _session_options(options.threads), job.graph.label)
    try:
        return verify(job, graph, compiler.open(engine, options), options.tolerance)
    except _onnxruntime_errors() as error:
        raise BuildError(
            f"{job.graph.label} fails to run at a shape of the deployment's ranges: {error}",
            fix="check frame_multiple in bundle.toml and the shape ranges",
        ) from error


def _data_files(engine: Path) -> list[Path]:
    return sorted(file for file in engine.parent.iterdir() if file != engine)


def _onnxruntime() -> Any:
    if importlib.util.find_spec("onnxruntime") is None:
        raise BuildError("ONNX Runtime is not installed; it builds and checks engines", fix="pip install 'tickrt[cpu]'")
    import onnxruntime

    return onnxruntime


def _compile_cpu(graph: Graph, engine: Path, options: BuildConfig) -> None:
    """ONNX Runtime's offline optimization.

    Large weights go into a file beside the engine; so do weights that come from such a file, because ONNX Runtime would
    otherwise write a graph that still points to the original.
    """
    ort = _onnxruntime()
    levels = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    session_options = _session_options(options.threads)
    session_options.graph_optimization_level = levels[options.optimization]
    session_options.optimized_model_filepath = str(engine)
    if graph.has_data_files or graph.weights_bytes > options.inline_limit_bytes:
        prefix = "session.optimized_model_external_initializers"
        session_options.add_session_config_entry(f"{prefix}_file_name", f"{engine.name}.data")
        session_options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(DATA_MIN_BYTES))
    _session(graph.source, session_options, graph.label)


def _open_cpu(engine: Path, options: BuildConfig) -> Any:
    return _session(engine, _session_options(options.threads), str(engine))


def _session_options(threads: int) -> Any:
    """Options that run a graph exactly as it is written."""
    ort = _onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def _session(source: Path | bytes, options: Any, label: str) -> Any:
    name = source if isinstance(source, bytes) else str(source)
    try:
        return _onnxruntime().InferenceSession(name, options, providers=["CPUExecutionProvider"])
    except _onnxruntime_errors() as error:
        raise BuildError(f"ONNX Runtime does not take {label}: {error}", fix="polygraphy inspect model FILE") from error


def _onnxruntime_errors() -> tuple[type[Exception], ...]:
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    module = _onnxruntime().capi.onnxruntime_pybind11_state
    return tuple(getattr(module, name) for name in (*names, "RuntimeException"))


def _need_cuda() -> None:
    if "CUDAExecutionProvider" not in _onnxruntime().get_available_providers():
        raise BuildError(
            "target cuda needs ONNX Runtime with its CUDA provider, this environment has it without",
            fix="pip uninstall onnxruntime; pip install 'tickrt[cuda]'; or build with --target cpu",
        )
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
    "cpu": Compiler(".onnx", _compile_cpu, _open_cpu),
}
NEEDS: Mapping[str, Callable[[], object]] = {
    "cpu": _onnxruntime,
    "cuda": _need_cuda,
    "tensorrt": _need_tensorrt,
}
