"""Plans: built and tried in a process of their own. This side of it; TensorRT itself is never loaded here."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.build_log import BuildLog
from engine_build.build_request import TENSORRT_OPTIONS, PlanRequest, SmokeRequest
from engine_build.child import BuildProcess
from engine_build.config import BuildConfig
from engine_build.decisions import Decision
from engine_build.engine_folder import PARTIAL_SUFFIX
from engine_build.graph_file import Graph
from engine_build.timing_cache import FOLDER, cache_path
from runtime.config import Deployment

Arrays = Mapping[str, NDArray[Any]]


def compile_plan(
    process: BuildProcess,
    decision: Decision,
    graph: Graph,
    engine: Path,
    options: BuildConfig,
    timing_cache: Path | None,
    log: BuildLog,
) -> dict[str, Any]:
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


def try_plan(
    process: BuildProcess, name: str, folder: Path, feeds: Sequence[Arrays], log: BuildLog
) -> tuple[list[Arrays], dict[str, Any]]:
    """Have an engine run at every feed, as the runtime would; gives outputs and memory.

    Raises BuildError.
    """
    with tempfile.TemporaryDirectory(suffix=PARTIAL_SUFFIX, dir=folder.parent) as files:
        asked = [Path(files) / f"feeds-{index}.npz" for index in range(len(feeds))]
        given = [Path(files) / f"results-{index}.npz" for index in range(len(feeds))]
        for path, arrays in zip(asked, feeds, strict=True):
            save_arrays(path, arrays)
        facts = process.ask("smoke", SmokeRequest(name=name, folder=folder, feeds=asked, results=given), log)
        return [_load(path) for path in given], facts


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays under their names into a .npz file."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def _load(path: Path) -> Arrays:
    with np.load(path) as arrays:
        return dict(arrays)


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
