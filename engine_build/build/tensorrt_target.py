"""Plans: built and tried in a process of their own. This side of it; TensorRT itself is never loaded here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_build.build.engine_folder import PARTIAL_SUFFIX
from engine_build.build.engine_specs import Job
from engine_build.build.rebuild_check import Decision
from engine_build.build.timing_cache import FOLDER, cache_path
from engine_build.build.verify import Arrays, load_arrays
from engine_build.build.worker import TENSORRT_OPTIONS, BuildLog, BuildProcess, PlanRequest, SmokeRequest
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import Graph
from runtime.config.deployment import Deployment

Facts = dict[str, Any]


def compile_plan(
    process: BuildProcess,
    decision: Decision,
    graph: Graph,
    engine: Path,
    options: BuildConfig,
    timing_cache: Path | None,
    log: BuildLog,
) -> Facts:
    """Have a plan of `graph` built into `engine`; gives what the build found out.

    Raises BuildError, also where that process crashes.
    """
    build = decision.wanted.build
    with _as_file(graph, engine.parent) as source:
        request = PlanRequest(
            label=decision.job.graph.label if isinstance(graph.source, Path) else f"the graph of {decision.job.name}",
            graph=source,
            plan=engine,
            options={name: build[name] for name in TENSORRT_OPTIONS},
            profiles=build["profiles"],
            timing_cache=timing_cache,
            threads=options.threads,
        )
        return process.ask("plan", request, log)


def timing_cache_of(deployment: Deployment, options: BuildConfig, facts: dict[str, Any], version: str) -> Path | None:
    """Where the measured times of this device lie; None where the deployment wants none."""
    if options.timing_cache is False:
        return None
    own = deployment.engines / FOLDER
    folder = own if options.timing_cache is True else deployment.path.parent / options.timing_cache
    return cache_path(folder, version, facts["gpu"], facts["compute_capability"])


def try_plan(process: BuildProcess, job: Job, folder: Path, kept: int, log: BuildLog) -> tuple[list[Arrays], Facts]:
    """Have an engine run at every sample, as the runtime would; gives the outputs of the first `kept`, and facts.

    Raises BuildError, also where a value is not finite.
    """
    with tempfile.TemporaryDirectory(suffix=PARTIAL_SUFFIX, dir=folder.parent) as files:
        results = [Path(files) / f"outputs-{index}.npz" for index in range(kept)]
        samples = [dict(sizes) for sizes in job.samples]
        request = SmokeRequest(name=job.name, folder=folder, inputs=list(job.inputs), samples=samples, results=results)
        facts = process.ask("smoke", request, log)
        return [load_arrays(path) for path in results], facts


@contextmanager
def _as_file(graph: Graph, beside: Path) -> Iterator[Path]:
    """TensorRT reads files: a graph that was only written into memory gets one for the time of the build."""
    if isinstance(graph.source, Path):
        yield graph.source
        return
    with tempfile.TemporaryDirectory(suffix=PARTIAL_SUFFIX, dir=beside.parent) as folder:
        path = Path(folder) / "graph.onnx"
        path.write_bytes(graph.source)
        yield path
