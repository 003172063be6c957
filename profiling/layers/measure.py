"""Profile an engine: its wall time without a profiler, the time of every layer, and the model's graph behind these."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.layers.kinds import OPAQUE
from profiling.layers.origins import Origins, read_origin_graph
from profiling.layers.timings import LayerTiming, Profile, Wall, layer_timings, make_feeds, timed_executes
from profiling.layers.work import layer_works
from profiling.provenance import commit
from runtime.config.bundle import Bundle
from runtime.config.conditions import TextGraphSpec, TimbreSpec
from runtime.config.deployment import Deployment, Target, build_command
from runtime.devices.device import Device
from runtime.devices.machine import machine
from runtime.engines.engine import Engine, condition_shape, features_of, run_once, sized
from runtime.engines.loading import open_engine, tool_versions
from runtime.engines.manifest import Manifest, manifest_path, read_manifest
from runtime.engines.node_times import NodeTimes
from runtime.tick.denoise.slot_fields import rows_inputs, step_inputs

# Executes are measured in rounds, each with a new session of the profiler: their differences are the noise.
ROUNDS = 5
# How far the sum of the layers' medians may be from the median of their sum without a word.
MOST_SPREAD = 0.05
# CUDA's environment variable that makes every launch wait for its kernel.
BLOCKING = "CUDA_LAUNCH_BLOCKING"
BODIES = "the time of a node with bodies (If, Loop, Scan) is without theirs; nodes in a body have that of all its runs"


def sizes_of(bundle: Bundle, rows: int, frames: int, tokens: int) -> dict[str, int]:
    """Sizes of the free dimensions, by shape letter.

    W samples, B bands of a step engine, F frames of a reference, Y codes, U the frames of these codes.
    """
    hop = bundle.codec.hop_samples if bundle.codec else 1
    sizes = {"R": rows, "S": rows, "T": frames, "L": tokens, "W": frames * hop, "B": -(-frames // 2), "K": 1, "N": 1}
    if bundle.timbre is not None:
        sizes["F"] = bundle.timbre.frames
    if bundle.structure is not None:
        sizes["Y"] = bundle.structure.codes_per_piece(frames)
        sizes["U"] = sizes["Y"] * bundle.structure.frames_per_code
    return sizes


def usual_frames(bundle: Bundle, engine: str) -> int:
    """The canvas, or, of the codec where that is less, what one execute takes: a window with both margins."""
    half = bundle.codec and bundle.codec.halves.get(engine.removeprefix("codec_"))
    canvas = bundle.latents.canvas_frames
    return min(canvas, half.window_frames + 2 * half.margin_frames) if half else canvas


def letters_of(engine: Engine, bundle: Bundle) -> dict[str, str]:
    """Input name -> its shape letters. What the graph's author called the dimensions does not count."""
    kind, features = engine.name.partition(".")[0], features_of(engine.name)
    if kind in ("rows", "step"):
        tensors = rows_inputs(features) if kind == "rows" else step_inputs(features)
        return {tensor.name: tensor.letters for tensor in tensors}
    if (spec := bundle.condition_graphs.get(kind)) is not None:
        if isinstance(spec, TimbreSpec):
            return {spec.inputs.latents: "RFC"}
        seconds = {} if spec.inputs.seconds is None else {spec.inputs.seconds: "R"}
        return {spec.inputs.tokens: "RL", spec.inputs.mask: "RL", **seconds}
    if kind == "structure_encode" and bundle.structure is not None:
        return {bundle.structure.encode.inputs.latents: "RUC"}
    if kind == "structure_decode" and bundle.structure is not None:
        return {bundle.structure.decode.inputs.codes: "RY"}
    if kind == "codec_encode" and bundle.codec is not None and bundle.codec.encode is not None:
        return {bundle.codec.encode.inputs.audio: "RAW"}
    if kind == "codec_decode" and bundle.codec is not None:
        inputs = bundle.codec.decode.inputs
        return {inputs.latents: "RTC"} | ({} if inputs.start_frame is None else {inputs.start_frame: "R"})
    return bundle.decoder.inputs.letters(len(condition_shape(engine, bundle.decoder.inputs)))


def feeds_of(engine: Engine, bundle: Bundle, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Inputs of an engine at these sizes by letter; masks are 1 everywhere."""
    letters = letters_of(engine, bundle)
    shapes = {name: sized(info.shape, letters[name], sizes) for name, info in engine.inputs.items()}
    texts = (spec for spec in bundle.condition_graphs.values() if isinstance(spec, TextGraphSpec))
    masks = {"mask", bundle.decoder.inputs.condition_mask, *(spec.inputs.mask for spec in texts)}
    return make_feeds(engine, shapes, {name for name in masks if name is not None})


def measure_profile(
    deployment: Deployment,
    device: Device,
    name: str,
    sizes: Mapping[str, int],
    runs: int,
    on_share: Callable[[float], None] = lambda share: None,
) -> Profile:
    """Open one engine of a deployment and profile it, at `sizes` by letter. on_share: see profile_engine.

    Raises TickError.
    """
    fix, folder = build_command(deployment.path, deployment.target), deployment.engine_folder()
    bundle = deployment.loaded_bundle
    # Before the engine is opened: a graph that holds its weights is in memory as a whole while it is read.
    origins = origins_of(read_manifest(manifest_path(folder, name), fix=fix), folder, bundle)
    engine = open_engine(folder, name, device, threads=deployment.runtime.threads, fix=fix)
    try:
        profile = profile_engine(engine, device, feeds_of(engine, bundle, sizes), runs, origins, on_share)
        return replace(profile, about={**profile.about, "threads": deployment.runtime.threads})
    finally:
        engine.close()


def profile_engine(
    engine: Engine,
    device: Device,
    feeds: Mapping[str, NDArray[Any]],
    runs: int,
    origins: Origins | None = None,
    on_share: Callable[[float], None] = lambda share: None,
) -> Profile:
    """Measure wall time without a profiler and every layer, in turn in rounds. Raises ShapeError, EngineError.

    on_share: called between rounds with the share that is done, 0..1.
    """
    origins = origins or Origins()
    rounds = round_sizes(runs)
    times_ms: list[float] = []
    measured: list[Sequence[NodeTimes]] = []
    for index, size in enumerate(rounds):
        on_share(index / len(rounds))
        # Every other round in the other order: what is open for the one is so for the next round's, too.
        if index % 2 == 0:
            times_ms += wall_times_ms(engine, device, feeds, size)
        measured.append(engine.profile(feeds, size))
        if index % 2:
            times_ms += wall_times_ms(engine, device, feeds, size)
    nodes = joined(measured)
    works = layer_works(nodes, origins, {name: feed.shape for name, feed in feeds.items()})
    layers = layer_timings(nodes, origins, works)
    notes = (*notes_of(engine.manifest.target, layers), *([BODIES] if any(node.path for node in nodes) else ()))
    wall = Wall(tuple(times_ms))
    profile = Profile(engine.name, runs, layers, wall, about(engine, feeds), notes=notes, rounds=rounds)
    return replace(profile, notes=(*notes, *spread_notes(profile)))


def spread_notes(profile: Profile) -> Iterator[str]:
    """A text where medians of layers, and so all tables, do not add up to the time of an execute."""
    share = profile.layer_medians_ms / (profile.layer_sum_p50_ms or 1.0)
    if profile.layers and abs(share - 1.0) > MOST_SPREAD:
        yield f"the layers' medians add up to {share:.0%} of the sum's: times vary from execute to execute"


def round_sizes(runs: int) -> tuple[int, ...]:
    """Numbers of executes of up to ROUNDS rounds, as equal as can be, longer ones first."""
    rounds = min(ROUNDS, runs)
    return tuple(runs // rounds + (index < runs % rounds) for index in range(rounds))


def joined(rounds: Sequence[Sequence[NodeTimes]]) -> tuple[NodeTimes, ...]:
    """The nodes of a graph with the times of all rounds; 0 in rounds in which a node does not run."""
    first = {node.key: node for nodes in reversed(rounds) for node in nodes}
    by_round = [({node.key: node.runs_ms for node in nodes}, len(nodes[0].runs_ms)) for nodes in rounds if nodes]
    return tuple(
        replace(node, runs_ms=tuple(chain(*(times.get(key, (0.0,) * size) for times, size in by_round))))
        for key, node in first.items()
    )


def notes_of(target: Target, layers: Sequence[LayerTiming]) -> Iterator[str]:
    """Texts on how to read the layer times of this target."""
    if target == "cuda" and os.environ.get(BLOCKING) != "1":
        yield f"layer times are those of launches, kernels run later; with {BLOCKING}=1 they are those of kernels"
    elif target == "cuda":
        yield f"{BLOCKING}=1: layer times are those of kernels, and wall time contains the waits"
    hidden = sum(layer.share for layer in layers if layer.kind == OPAQUE)
    if hidden > 0:
        yield f'{hidden:.0%} of the time is in opaque layers: [build] verbosity = "detailed" shows what they hold'


def wall_times_ms(
    engine: Engine,
    device: Device,
    feeds: Mapping[str, NDArray[Any]],
    runs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[float]:
    """Milliseconds of executes on the device's memory, each waited for, without copies from and to the host."""
    outputs = run_once(engine, feeds)
    tensors = {name: device.zeros(array.shape, array.dtype) for name, array in {**feeds, **outputs}.items()}
    for name, feed in feeds.items():
        device.upload(tensors[name], np.ascontiguousarray(feed), device.main)
    execution = engine.bind(tensors)
    for wall_s, _ in timed_executes(execution, device.main, runs, engine.manifest.target, clock):
        yield wall_s * 1e3
    execution.release()


def about(engine: Engine, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Engine, target, shapes, versions and machine of a profile."""
    manifest = engine.manifest
    return {
        "engine": engine.name,
        "target": manifest.target,
        "commit": commit(),
        "engine_sha256": manifest.engine_sha256,
        "graph_sha256": manifest.graph_sha256,
        "precision": str(manifest.build.get("precision", "fp32")),
        "shapes": {name: list(feed.shape) for name, feed in feeds.items()},
        "versions": tool_versions(manifest.target),
        "machine": {**machine(), **manifest.device},
    }


def origins_of(manifest: Manifest, folder: Path, bundle: Bundle) -> Origins:
    """The model's graph of an engine, and the graph that ONNX Runtime runs; other engines have no such graph.

    Step engines have no graph in the bundle: for them the engine's own graph is both.
    """
    runs = read_origin_graph(folder / manifest.engine_file) if manifest.engine_file.endswith(".onnx") else None
    path = source_path(bundle, manifest.name)
    return Origins(read_origin_graph(path) if path is not None and path.is_file() else runs, runs)


def source_path(bundle: Bundle, name: str) -> Path | None:
    """The bundle's graph of an engine; None for engines whose graphs are made at build time."""
    graphs = {"decoder": bundle.decoder.graph}
    if bundle.codec is not None:
        graphs["codec_decode"] = bundle.codec.decode.graph
        if bundle.codec.encode is not None:
            graphs["codec_encode"] = bundle.codec.encode.graph
    if bundle.structure is not None:
        graphs |= {
            "structure_encode": bundle.structure.encode.graph,
            "structure_decode": bundle.structure.decode.graph,
        }
    graphs |= {name: spec.graph for name, spec in bundle.condition_graphs.items()}
    return bundle.graph_path(graphs[name]) if name in graphs else None
