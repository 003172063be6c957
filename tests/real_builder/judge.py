"""TensorRT-RTX's real parser and builder, which need no GPU, judge a deployment's engines, through our compiler code.

What was built before is not built again: a file remembers the hashes of what was built.
`python tests/real_builder/judge.py DEPLOYMENT [PRECISION ...]` prints the table.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import filelock
import pytest
from helpers.paths import ROOT

from engine_build.compile.builder import Build, graph_in_precision
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import RebuildDecision, check_rebuilds, preparation_shapes
from engine_build.compile.targets import COMPILERS, BuildTask
from engine_build.compile.tasks import compile_engine
from engine_build.compile.worker import BuildLog, CompileRequest, Worker
from engine_build.config import EIGHT_BITS, FP8_CAPABILITIES, KINDS, RTX_OPTIONS, BuildConfig, PerKind, Precision
from engine_build.graphs.graph_file import Graph
from engine_build.graphs.tensorrt_preparation import prepared
from engine_build.precision.quantization import Quantization
from engine_build.request import BuildRequest, load_request
from runtime.base.errors import BuildError
from runtime.config.deployment import Target
from runtime.engines.manifest import write_atomically

TARGET: Target = "tensorrt-rtx"
BUILT = ROOT / "build" / "real_builder.json"
# Verdicts that are remembered, the newest last; a run of everything has about 130.
KEPT = 500
# Precision, then the hash of a decoder's graph -> what of it is in 8 bits.
DECIDED: dict[str, dict[str, Quantization | None]] = {}
# What decides how a graph is built, beside the graph, its ranges and options.
CODE = [ROOT / "engine_build" / "compile" / name for name in ("tensorrt_compiler.py", "tasks.py")]


@dataclass(frozen=True)
class Verdict:
    """One engine that was built: its name and precision, seconds, sizes in MB, the builder's warnings."""

    engine: str
    precision: str
    seconds: float
    graph_mb: float
    engine_mb: float
    warnings: Sequence[str]


def need_builder(*, with_torch: bool = False) -> None:
    """Skips the test where TensorRT-RTX is not installed; with_torch: or what exports."""
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip("TensorRT-RTX is not installed: make test-builder installs it (x86-64, Linux and Windows)")
    for package in ("torch", "diffusers") if with_torch else ():
        pytest.importorskip(package)


def release() -> str:
    """TensorRT-RTX's release."""
    return importlib.metadata.version("tensorrt-rtx")


def decisions_of(path: Path, precision: str = "") -> tuple[BuildRequest, list[RebuildDecision]]:
    """A deployment with its engines to be built for TensorRT-RTX: those that are of this precision, if it is chosen.

    Default: all of them, as configured.
    """
    request = load_request(path, threads=1)
    chosen: dict[str, Any] = {"precision": precision} if precision else {}
    if precision not in ("", *EIGHT_BITS):
        chosen["precision"] = PerKind[Precision](**dict.fromkeys(KINDS, precision))
    if precision == "fp8":
        chosen["capabilities"] = FP8_CAPABILITIES
    request = replace(request, options=request.options.model_copy(update=chosen))
    found = check_rebuilds(request, TARGET, force=True, environment=BuildEnvironment())
    return request, [item for item in found if item.wanted.build["precision"] == precision or not precision]


def judge(request: BuildRequest, decision: RebuildDecision) -> Verdict:
    """Build one engine, or tell what it took when it was built last. Raises BuildError."""
    log = BuildLog()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph_of = graph_in_precision(decision, folder, log, _quantization(request, decision, folder))
        with graph_of as graph:
            key = _key(prepared(graph, preparation_shapes(decision.spec)), decision)
            if found := _remembered(BUILT).get(key):
                return Verdict(**found)
            verdict = _built(request, decision, graph, folder, log)
    remember(BUILT, key, verdict)
    return verdict


def _quantization(request: BuildRequest, decision: RebuildDecision, folder: Path) -> Quantization | None:
    decided = DECIDED.setdefault(decision.wanted.build["precision"], {})
    return Build(request, folder, BuildEnvironment(), shared_worker(), decided=decided).quantization(decision)


@cache
def shared_worker() -> Worker:
    """The build process of all tests of this process: to start one takes longer than most builds."""
    worker = Worker()
    atexit.register(worker.__exit__)
    return worker


def build_graph(graph: Path, profile: Mapping[str, str], **options: Any) -> None:
    """Build the engine of a graph's file. profile: input -> its min, opt and max shapes. Raises BuildError."""
    chosen = BuildConfig(**options).of("decoder").model_dump(mode="json", include=set(RTX_OPTIONS))
    request = CompileRequest(TARGET, str(graph), graph, graph.with_name("plan"), chosen, [profile], threads=1)
    shared_worker().run(compile_engine, request, BuildLog())


def remember(path: Path, key: str, verdict: Verdict) -> None:
    """Add a verdict to those in the file; the oldest above KEPT are dropped."""
    with filelock.FileLock(path.with_suffix(".lock")):
        found = {**_remembered(path), key: asdict(verdict)}
        write_atomically(path, json.dumps(dict(list(found.items())[-KEPT:]), indent=1).encode())


def build_once(
    request: BuildRequest, decision: RebuildDecision, graph: Graph, engine: Path, worker: Worker, log: BuildLog
) -> None:
    """Build one engine into the file `engine`. Raises BuildError."""
    COMPILERS[TARGET].compile(BuildTask(decision, graph, engine, request, BuildEnvironment(), worker, log))


def _built(request: BuildRequest, decision: RebuildDecision, graph: Graph, folder: Path, log: BuildLog) -> Verdict:
    engine = folder / "engine" / "plan"
    engine.parent.mkdir()
    started = time.monotonic()
    build_once(request, decision, graph, engine, shared_worker(), log)
    seconds = round(time.monotonic() - started, 1)
    sizes = [round(size / 1e6, 1) for size in (graph.size_bytes, engine.stat().st_size)]
    precision = decision.wanted.build["precision"]
    return Verdict(decision.spec.name, precision, seconds, *sizes, log.summary())


def _key(graph: Graph, decision: RebuildDecision) -> str:
    code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in CODE]
    parts = [release(), graph.sha256, decision.wanted.build, code]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _remembered(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def table(path: Path, precisions: Sequence[str]) -> Iterator[str]:
    """A line per engine."""
    for precision in precisions:
        request, decisions = decisions_of(path, precision)
        for decision in decisions:
            try:
                verdict = judge(request, decision)
            except BuildError as error:
                yield f"{decision.spec.name:22} refused: {error.what}"
                continue
            facts = f"{verdict.seconds:6.1f} s {verdict.graph_mb:8.1f} {verdict.engine_mb:8.1f} MB"
            yield f"{decision.spec.name:22} {verdict.precision} {facts}  {'; '.join(verdict.warnings)}"


if __name__ == "__main__":
    for line in table(Path(sys.argv[1]), sys.argv[2:] or [""]):
        print(line, flush=True)
