"""Which library runs an engine on the CPU: OpenVINO, or ONNX Runtime where it does not take a graph, errs or is slower.

On the target cpu `[build] backend` chooses, and OpenVINO is taken for no graph of which rows would get other bits than
they have alone: those of a tick belong to different generations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.compile.environment import need_openvino
from engine_build.compile.rebuild_check import TICK_KINDS
from engine_build.compile.targets import BuildTask
from engine_build.compile.verify import ROUNDS, WARM_UP_RUNS, WORTH, inputs_at, tensors_at
from engine_build.config import BACKENDS, EIGHT_BITS
from engine_build.specs.engine_spec import IN_PLACE, EngineSpec, sizes_at
from runtime.base.errors import BuildError, EngineError
from runtime.devices.device import HostDevice
from runtime.engines.engine import Engine
from runtime.engines.loading import open_engine
from runtime.engines.manifest import BACKEND, OPENVINO_SUFFIX, SAME_BITS, Manifest, manifest_path, write_manifest

ONNX_RUNTIME, OPENVINO, AUTO = BACKENDS
# Compiles one engine, measures it, and writes its manifest beside it.
Build = Callable[[BuildTask], Manifest]
Arrays = Mapping[str, NDArray[Any]]


def in_backend(task: BuildTask, build: Build) -> tuple[Manifest, Path]:
    """Build an engine in its target's library; returns its manifest, which names that and why, and its folder."""
    wanted, name = _wanted(task), task.decision.spec.kind
    if wanted == ONNX_RUNTIME:
        return build(task), task.engine.parent
    ours = build(in_library(task, ONNX_RUNTIME)) if wanted == AUTO else None
    try:
        theirs = _in_openvino(in_library(task, OPENVINO), build)
        reason, facts = _compared(task) if wanted == AUTO else ("as asked for", _bits(task))
    except (BuildError, EngineError) as error:
        task.log.add("WARNING", f"{name}: {ONNX_RUNTIME}, {error.what}")
        return _named(ours or build(in_library(task, ONNX_RUNTIME)), task, ONNX_RUNTIME, error.what)
    if wanted == AUTO:
        task.log.add("WARNING", f"{name}: {OPENVINO}, {reason}")
    return _named(theirs, task, OPENVINO, reason, facts)


def _in_openvino(task: BuildTask, build: Build) -> Manifest:
    try:
        return build(task)
    except (BuildError, EngineError) as error:
        raise BuildError(f"{OPENVINO} fails: {error.what}") from error


def in_library(task: BuildTask, library: str) -> BuildTask:
    """The task, for a library, in a folder of its own. Raises BuildError where it is known not to do it."""
    if library == OPENVINO and (reason := _refused(task)):
        raise BuildError(reason)
    folder = task.engine.parent / library
    folder.mkdir()
    suffix = OPENVINO_SUFFIX if library == OPENVINO else ".onnx"
    return replace(task, engine=folder / f"{task.decision.spec.name}{suffix}")


def same_bits(spec: EngineSpec, engine: Engine) -> bool:
    """Whether a decoder's row has the same bits alone and beside others, which may have more tokens.

    At the batch sizes of the shape ranges, at their smallest and, of graphs that are not large, usual lengths. True of
    other engines: on the CPU they execute one input at a time.
    """
    if "R" not in spec.padded:
        return True
    ends = (0,) if spec.graph.is_large else (0, 1)
    return all(_is_same(spec, engine, ranges, end) for ranges in spec.ranges for end in ends)


def _wanted(task: BuildTask) -> str:
    target = task.decision.wanted.target
    return {"openvino": OPENVINO, "cpu": task.options.backend}.get(target, ONNX_RUNTIME)


def _refused(task: BuildTask) -> str:
    """Why OpenVINO is known not to do a graph, or not as the target cpu promises; else ""."""
    spec = task.decision.spec
    if any(port.values == IN_PLACE for port in spec.outputs):
        return "its caches are written in place, which OpenVINO does not do"
    if task.decision.wanted.target != "cpu":
        return ""
    need_openvino()
    if spec.kind in TICK_KINDS and spec.kind != "decoder":
        return "what it computes has the same bits in all its variants there"
    if task.decision.wanted.build.get("precision") in EIGHT_BITS:
        return "it is in 8 bits"
    if spec.kind == "decoder" and task.request.bundle.adapters is not None:
        return "adapters are merged into its weights when it is opened"
    return ""


def _bits(task: BuildTask) -> dict[str, Any]:
    """The fact of an engine in OpenVINO whether its rows have the same bits beside others, with a warning."""
    with ExitStack() as opened:
        is_same = same_bits(task.decision.spec, _opened(task, OPENVINO, opened))
    if not is_same:
        task.log.add("WARNING", f"{task.decision.spec.kind}: a row has other bits alone than beside other rows")
    return {SAME_BITS: is_same}


def _compared(task: BuildTask) -> tuple[str, dict[str, Any]]:
    """Why OpenVINO is taken, and facts. Raises BuildError where it is not, EngineError."""
    spec = task.decision.spec
    with ExitStack() as opened:
        ours, theirs = (_opened(task, library, opened) for library in (ONNX_RUNTIME, OPENVINO))
        ratio = speed_ratio(_execute(spec, ours), _execute(spec, theirs))
        if WORTH * ratio < 1:
            raise BuildError(f"{OPENVINO} is {ratio:.2f} times as fast")
        if not same_bits(spec, theirs):
            raise BuildError(f"{OPENVINO} is not taken: a row has other bits alone than beside other rows")
    return f"{ratio:.2f} times as fast as {ONNX_RUNTIME}", {SAME_BITS: True}


def _opened(task: BuildTask, library: str, opened: ExitStack) -> Engine:
    """The engine as the runtime opens it, until `opened` closes."""
    name, is_tick = task.decision.spec.name, task.decision.spec.kind in TICK_KINDS
    threads = task.request.deployment.runtime.threads if is_tick else 1
    engine = open_engine(task.engine.parent / library, name, HostDevice(), threads=threads, in_tick=is_tick)
    opened.callback(engine.close)
    return engine


def speed_ratio(first: Callable[[], object], second: Callable[[], object]) -> float:
    """How many times as fast `second` is: they take turns, and the median of all rounds counts."""
    rounds = [(_time_s(first), _time_s(second)) for _ in range(WARM_UP_RUNS + ROUNDS)]
    return median(first_s / second_s for first_s, second_s in rounds[WARM_UP_RUNS:])


def _time_s(execute: Callable[[], object]) -> float:
    started = time.perf_counter()
    execute()
    return time.perf_counter() - started


def _execute(spec: EngineSpec, engine: Engine) -> Callable[[], object]:
    """One execute at the usual sizes of the first shape range, as the runtime does it: a tick's in bound tensors."""
    sizes, device = sizes_at(spec, spec.ranges[0], 1), HostDevice()
    if spec.kind not in TICK_KINDS:
        feeds = inputs_at(spec.inputs, [sizes], 0)
        return lambda: engine.run(feeds)
    execution = engine.bind(tensors_at(spec, sizes, engine, device))
    return lambda: execution.launch(device.main)


def _is_same(spec: EngineSpec, engine: Engine, ranges: Mapping[str, tuple[int, int, int]], end: int) -> bool:
    sizes = sizes_at(spec, ranges, end)
    feeds = inputs_at(spec.inputs, [{**sizes, "R": ranges["R"][2]}], 0)
    alone = {row: _rows(spec, engine, feeds, row, row + 1) for row in {count - 1 for count in ranges["R"]}}
    padded = _padded(spec, feeds, ranges["L"][2] - sizes["L"]) if "L" in spec.padded else feeds
    return all(
        np.array_equal(found[row : row + 1], values)
        for given in (feeds, padded)
        for count in set(ranges["R"])
        for found in (_rows(spec, engine, given, 0, count),)
        for row, values in alone.items()
        if row < count
    )


def _rows(spec: EngineSpec, engine: Engine, feeds: Arrays, first: int, end: int) -> NDArray[Any]:
    """What an execute of some rows gives."""
    given = {
        port.name: feeds[port.name][first:end] if "R" in port.letters else feeds[port.name] for port in spec.inputs
    }
    return engine.run(given)[spec.outputs[0].name]


def _padded(spec: EngineSpec, feeds: Arrays, more: int) -> Arrays:
    """The feeds with more tokens, which the mask leaves out."""
    widths = {port.name: [(0, more * (letter == "L")) for letter in port.letters] for port in spec.inputs}
    return {name: np.pad(values, widths[name]) for name, values in feeds.items()}


def _named(
    manifest: Manifest, task: BuildTask, library: str, reason: str, facts: Mapping[str, Any] | None = None
) -> tuple[Manifest, Path]:
    """The manifest with the library, the reason and facts, also in its file."""
    folder, more = task.engine.parent / library, {BACKEND: f"{library}: {reason}", **(facts or {})}
    manifest = manifest.model_copy(update={"facts": {**manifest.facts, **more}})
    write_manifest(manifest_path(folder, manifest.name), manifest)
    return manifest, folder
