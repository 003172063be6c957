"""How engines of each target are compiled and measured: one table, COMPILERS."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_build.compile.engine_folder import PARTIAL_SUFFIX, TIMING_CACHE_FOLDER, cache_path, full_disk_as_oserror
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.onnxruntime_compiler import compile_cuda, compile_onnxruntime, open_cuda
from engine_build.compile.rebuild_check import RebuildDecision, preparation_shapes
from engine_build.compile.tasks import RunRequest, compile_engine, run_engine
from engine_build.compile.verify import thread_facts, window_facts
from engine_build.compile.worker import BuildLog, CompileRequest, Worker
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import Graph, data_files
from engine_build.graphs.reference_session import graph_session, onnxruntime_errors, open_onnxruntime, run_reason
from engine_build.graphs.tensorrt_preparation import prepared
from engine_build.precision.quantization import Quantization
from engine_build.request import BuildRequest
from engine_build.specs.engine_spec import sizes_at
from runtime.base.errors import BuildError
from runtime.config.deployment import HOST_TARGETS
from runtime.devices.device import HostDevice
from runtime.devices.machine import num_cores, num_physical_cores
from runtime.engines.loading import open_engine
from runtime.engines.manifest import OPENVINO_SUFFIX

# Running a large graph on the CPU for comparison takes minutes: only one shape of each length is compared.
LARGE_GRAPH_SAMPLES = 2

# Of all executes by which an engine is measured; with kernels that are compiled meanwhile.
EXECUTE_LIMIT_S = 900.0

Facts = dict[str, Any]


@dataclass(frozen=True)
class BuildTask:
    """One engine to build: `graph` is the spec's graph in the wanted precision, `engine` the file to write.

    `worker` runs what may crash the process. `quantization`: which products of it run in 8 bits.
    """

    decision: RebuildDecision
    graph: Graph
    engine: Path
    request: BuildRequest
    environment: BuildEnvironment
    worker: Worker
    log: BuildLog
    quantization: Quantization | None = None

    @property
    def options(self) -> BuildConfig:
        """The options of the build, for its target."""
        return self.request.options

    @property
    def tolerance(self) -> float:
        """The largest accepted error."""
        return float(self.decision.wanted.build["tolerance"])


@dataclass(frozen=True)
class Compiler:
    """One target: the engine file's suffix; the function that writes it and returns facts; the one that measures it."""

    suffix: str
    compile: Callable[[BuildTask], Facts]
    measure: Callable[[BuildTask], tuple[dict[str, float], Facts]]


def measure_engine(task: BuildTask) -> tuple[dict[str, float], Facts]:
    """The error of an engine that was just compiled, and facts for its manifest. Raises BuildError."""
    error, facts = engine_error(task)
    recipe_error, recipe_facts = _recipe_error(task)
    return {**error, **recipe_error}, {**facts, **recipe_facts}


def engine_error(task: BuildTask) -> tuple[dict[str, float], Facts]:
    """The error of an engine against its graph, {} where it does not run on this machine. Raises BuildError."""
    if task.environment.cannot_run:
        return {}, {}
    try:
        return compiler_of(task).measure(task)
    except onnxruntime_errors() as cause:
        raise BuildError(
            f"{task.decision.spec.graph.label} fails to run at a shape of the deployment's ranges: {run_reason(cause)}",
            fix="check frame_multiple in bundle.toml and the shape ranges",
        ) from cause


def _recipe_error(task: BuildTask) -> tuple[dict[str, float], Facts]:
    """The error of the precision recipe alone on the decoder, over the states of a generation; {} for float32.

    Of 8 bits on a GPU also which products are not in them, each with its error if it alone were.
    """
    spec, recipe = task.decision.spec, task.decision.wanted.build.get("precision", "fp32")
    if spec.name != "decoder" or recipe == "fp32":
        return {}, {}
    from engine_build.precision.error import recipe_error
    from engine_build.precision.recipe import without_kernel
    from engine_build.precision.sample_states import decoder_sample_states, steps_of

    threads, decided = task.options.threads, task.quantization
    states = decoder_sample_states(task.request.bundle, spec.graph, steps=steps_of(spec.graph), threads=threads)
    without = without_kernel(task.decision.wanted.target, recipe)
    error = recipe_error(spec.graph, recipe, list(states), without=without, quantization=decided, threads=threads)
    return error.summary(), {} if decided is None else {"not_in_8_bits": decided.kept}


def _compile_cpu(task: BuildTask) -> Facts:
    with full_disk_as_oserror(task.engine):
        compile_onnxruntime(task.graph, task.engine, task.options, is_step=task.decision.spec.kind == "step")
    return {}


def _measure_cpu(task: BuildTask) -> tuple[dict[str, float], Facts]:
    with full_disk_as_oserror(task.engine):
        engine = open_onnxruntime(task.engine, task.options)
    error, facts = _measure_session(task, engine)
    return error, {**facts, **_host_facts(task)}


def _compile_openvino(task: BuildTask) -> Facts:
    from engine_build.compile.openvino_compiler import compile_openvino

    with _graph_file(task.graph, task.engine) as source:
        compile_openvino(source, task.engine, task.decision.spec.graph.label)
    return {}


def _measure_openvino(task: BuildTask) -> tuple[dict[str, float], Facts]:
    """The engine is opened as the runtime does it."""
    from engine_build.compile.verify import sample_inputs, verify_outputs

    spec, folder = task.decision.spec, task.engine.parent
    engine = open_engine(folder, spec.name, HostDevice(), threads=task.options.threads)
    try:
        outputs = (engine.run(inputs) for inputs in sample_inputs(spec))
        error = verify_outputs(spec, graph_session(spec.graph, task.options), outputs, task.tolerance)
    finally:
        engine.close()
    return error, _host_facts(task)


def _host_facts(task: BuildTask) -> Facts:
    spec, folder = task.decision.spec, task.engine.parent
    counts = num_physical_cores(), num_cores()
    return {**thread_facts(folder, spec, counts), **window_facts(folder, spec)}


def _compile_cuda(task: BuildTask) -> Facts:
    with full_disk_as_oserror(task.engine):
        compile_cuda(task.graph, task.engine, task.options, tf32=task.decision.wanted.build["tf32"])
    return {}


def _measure_cuda(task: BuildTask) -> tuple[dict[str, float], Facts]:
    with full_disk_as_oserror(task.engine):
        engine = open_cuda(task.engine, task.options, tf32=task.decision.wanted.build["tf32"])
    return _measure_session(task, engine)


def _measure_session(task: BuildTask, engine: Any) -> tuple[dict[str, float], Facts]:
    from engine_build.compile.verify import verify

    graph = graph_session(task.decision.spec.graph, task.options)
    return verify(task.decision.spec, graph, engine, task.tolerance), {}


def _compile_tensorrt(task: BuildTask) -> Facts:
    """Build the plan in the worker: TensorRT is never loaded in this process. Raises BuildError, also after a crash."""
    build, spec = task.decision.wanted.build, task.decision.spec
    graph = prepared(task.graph, preparation_shapes(spec))
    with _graph_file(graph, task.engine.parent) as source:
        request = CompileRequest(
            target=task.decision.wanted.target,
            label=spec.graph.label if isinstance(task.graph.source, Path) else f"the graph of {spec.name}",
            graph=source,
            engine=task.engine,
            options=build,
            profiles=build["profiles"],
            timing_cache=_timing_cache(task),
            threads=task.options.threads,
        )
        facts: Facts = task.worker.run(compile_engine, request, task.log)
    return facts


def _timing_cache(task: BuildTask) -> Path | None:
    """The timing cache file of this device and TensorRT version; None where the deployment turns it off."""
    option, facts = task.options.timing_cache, task.environment.facts
    if option is False or task.decision.wanted.target == "tensorrt-rtx":
        return None
    deployment = task.request.deployment
    folder = deployment.engines / TIMING_CACHE_FOLDER if option is True else deployment.path.parent / option
    version = task.environment.tool_versions["tensorrt"]
    return cache_path(folder, version, facts["gpu"], facts["compute_capability"])


@contextlib.contextmanager
def _graph_file(graph: Graph, beside: Path) -> Iterator[Path]:
    """TensorRT and OpenVINO read files: a graph in memory is written to one for the time of the build."""
    if isinstance(graph.source, Path):
        yield graph.source
        return
    with tempfile.TemporaryDirectory(suffix=PARTIAL_SUFFIX, dir=beside.parent) as folder:
        path = Path(folder) / "graph.onnx"
        path.write_bytes(graph.source)
        for file in data_files(graph):
            link = Path(folder) / file.relative_to(graph.folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
        yield path


def _measure_tensorrt(task: BuildTask) -> tuple[dict[str, float], Facts]:
    """Run the engine in the worker, also at the usual and the largest sizes of every range.

    The first samples are compared with the graph on the CPU, the large sizes with the samples.
    """
    from engine_build.compile.verify import verify_outputs

    spec = task.decision.spec
    sizes = [sizes_at(spec, ranges, end) for ranges in spec.ranges for end in (1, 2)]
    lengths = {sample.get("T") for sample in spec.samples}
    compared = max(LARGE_GRAPH_SAMPLES, len(lengths)) if spec.graph.is_large else len(spec.samples)
    request = RunRequest(
        spec.name,
        task.engine.parent,
        spec.inputs,
        spec.outputs,
        spec.samples,
        compared,
        sizes,
        spec.padded,
        task.tolerance,
    )
    outputs, memory_bytes = task.worker.run(run_engine, request, task.log, EXECUTE_LIMIT_S)
    error = verify_outputs(spec, graph_session(spec.graph, task.options), outputs, task.tolerance)
    tried = len(spec.samples) + len(sizes)
    return error, {"memory_bytes": memory_bytes, "tried_shapes": tried, "compared_shapes": compared}


COMPILERS: Mapping[str, Compiler] = {
    "cpu": Compiler(".onnx", _compile_cpu, _measure_cpu),
    "openvino": Compiler(".xml", _compile_openvino, _measure_openvino),
    "cuda": Compiler(".onnx", _compile_cuda, _measure_cuda),
    "tensorrt": Compiler(".plan", _compile_tensorrt, _measure_tensorrt),
    "tensorrt-rtx": Compiler(".plan", _compile_tensorrt, _measure_tensorrt),
}


def compiler_of(task: BuildTask) -> Compiler:
    """That of the target; on the CPU of the engine's file, which either of two writes."""
    target = task.decision.wanted.target
    if target in HOST_TARGETS:
        target = "openvino" if task.engine.suffix == OPENVINO_SUFFIX else "cpu"
    return COMPILERS[target]
