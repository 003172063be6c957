"""How each target is built and measured: one table. What an engine's precision costs belongs to its measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_build.build.environment import Place
from engine_build.build.onnxruntime_compiler import compile_cuda, compile_onnxruntime, open_cuda
from engine_build.build.rebuild_check import Decision
from engine_build.build.worker import BuildLog, BuildProcess
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import Graph
from engine_build.graphs.reference_session import graph_session, onnxruntime_errors, open_onnxruntime
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.errors import BuildError

# Running a graph of this size on the CPU for comparison takes minutes per shape: the first shapes are enough.
LARGE_GRAPH_BYTES = 1 << 30
LARGE_GRAPH_SAMPLES = 2


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
    measure: Callable[[Work], tuple[dict[str, float], dict[str, Any]]]


def measured(work: Work) -> tuple[dict[str, float], dict[str, Any]]:
    """The error of an engine that was just compiled, and what else was found out. Raises BuildError."""
    try:
        error, facts = COMPILERS[work.decision.wanted.target].measure(work)
    except onnxruntime_errors() as cause:
        raise BuildError(
            f"{work.decision.job.graph.label} fails to run at a shape of the deployment's ranges: {cause}",
            fix="check frame_multiple in bundle.toml and the shape ranges",
        ) from cause
    return {**error, **_recipe_error(work)}, facts


def _compile_cpu(work: Work) -> dict[str, Any]:
    compile_onnxruntime(work.graph, work.engine, work.options)
    return {}


def _measure_cpu(work: Work) -> tuple[dict[str, float], dict[str, Any]]:
    from engine_build.build.verify import verify

    graph = graph_session(work.decision.job.graph, work.options)
    engine = open_onnxruntime(work.engine, work.options)
    return verify(work.decision.job, graph, engine, work.tolerance), {}


def _compile_cuda(work: Work) -> dict[str, Any]:
    compile_cuda(work.graph, work.engine, work.options, tf32=work.decision.wanted.build["tf32"])
    return {}


def _measure_cuda(work: Work) -> tuple[dict[str, float], dict[str, Any]]:
    from engine_build.build.verify import verify

    graph = graph_session(work.decision.job.graph, work.options)
    engine = open_cuda(work.engine, work.options, tf32=work.decision.wanted.build["tf32"])
    return verify(work.decision.job, graph, engine, work.tolerance), {}


def _recipe_error(work: Work) -> dict[str, float]:
    """What the precision alone does to the decoder, along a generation of its own; nothing for full precision."""
    job, recipe = work.decision.job, work.decision.wanted.build.get("precision", "fp32")
    if job.name != "decoder" or recipe == "fp32":
        return {}
    from engine_build.precision.error import measure
    from engine_build.precision.recipe import without_kernel
    from engine_build.precision.sample_states import STEPS, decoder_feeds

    bundle, threads = load_bundle(work.deployment.bundle), work.options.threads
    steps = 2 if job.graph.weights_bytes > LARGE_GRAPH_BYTES else STEPS
    feeds = decoder_feeds(bundle, job.graph, steps=steps, threads=threads)
    without = without_kernel(work.decision.wanted.target, recipe)
    return measure(job.graph, recipe, feeds, without=without, threads=threads)


def _compile_tensorrt(work: Work) -> dict[str, Any]:
    from engine_build.build.tensorrt_target import compile_plan, timing_cache_of

    version = work.place.tool_versions["tensorrt"]
    cache = timing_cache_of(work.deployment, work.options, work.place.facts, version)
    return compile_plan(work.process, work.decision, work.graph, work.engine, work.options, cache, work.log)


def _measure_tensorrt(work: Work) -> tuple[dict[str, float], dict[str, Any]]:
    from engine_build.build.tensorrt_target import try_plan
    from engine_build.build.verify import verify_outputs

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
