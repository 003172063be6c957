"""What a card is, what captured graphs give and cost, and how soon audio is decoded: as commands that write JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from profiling.bench.session import open_bench
from profiling.bench.statistics import percentiles
from profiling.bench.steady_stream import Latents, latents_tolerance
from profiling.bench.workload import with_runtime, workload_of
from profiling.output import write_json
from runtime.audio.codec_queue import Urgency
from runtime.commands.command_line import CommandLine, Config, Group
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.devices import cuda_calls
from runtime.pipeline.generation import LongGeneration, all_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options

# Graphs are captured of what comes back.
DEPTH, TIMES = 4, 12
PACKAGES = ("tickrt", "numpy", "tensorrt-cu13", "tensorrt-rtx", "cuda-python", "onnxruntime")

app = CommandLine(add_completion=False, cls=Group)
Json = Annotated[Path, typer.Option("--json", help="Where the result is written.")]
Of = Annotated[Target, typer.Option(help="Target.")]
# Clients of each kind, and the seconds between two windows of one; those in the background never pause.
KINDS = {Urgency.PLAYING: (4, 0.1), Urgency.BACKGROUND: (2, 0.0)}
# A window that is played has so many seconds; one in the background as much as one execute takes.
WINDOW_S, LEAD_S = 0.5, 1.0
# Generations of the ticks beside which are compared with the same ones alone.
COMPARED = 2


@app.command()
def facts(json_path: Json) -> None:
    """The first GPU, its driver, its free memory, the priorities of its streams, and installed packages."""
    gpu = cuda_calls.probe()
    cuda_calls.open_first()
    found = {
        **asdict(gpu),
        "free_bytes": cuda_calls.free_bytes(),
        "priorities": 1 + abs(int(np.subtract(*cuda_calls.stream_priorities()))),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }
    write_json(json_path, found)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@app.command()
def captured(config: Config, json_path: Json, target: Of = "tensorrt") -> None:
    """Generations by plain launches and by captured graphs: the largest difference, which has to be 0; what a graph
    takes to make, and of the device's memory."""
    deployment = _deployment(config, target)
    load = workload_of(deployment, DEPTH)
    latents = list[list[Latents]]()
    with open_bench(deployment) as session:
        for capture in (False, True):
            with session.stream(load, with_runtime(deployment, capture=capture)) as stream:
                for _ in range(TIMES):
                    last = stream.play()
                    if (counts := stream.loop.launch_counts).replayed:
                        break
                latents.append(last)
    found = {
        "difference": max(float(np.abs(one - two).max()) for one, two in zip(*latents, strict=True)),
        "replayed": counts.replayed,
        "captured": counts.captured,
        "graph_ms": 1e3 * counts.creation_s / max(counts.captured, 1),
        "graph_mib": counts.creation_bytes / max(counts.captured, 1) / (1 << 20),
    }
    write_json(json_path, found)


@app.command()
def decodes(
    config: Config,
    json_path: Json,
    target: Of = "tensorrt",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each of the two measurements.")] = 4.0,
) -> None:
    """How long audio takes to decode, by its urgency, alone and beside ticks; generations in these and alone."""
    with open_pipeline(_deployment(config, target)) as pipeline:
        write_json(json_path, measure_decodes(pipeline, seconds))


def _deployment(config: Path, target: Target) -> Deployment:
    return load_deployment(config).model_copy(update={"target": target})


def main() -> None:
    """Entry point of python -m profiling.gpu_check.card."""
    app(prog_name="python -m profiling.gpu_check.card")


def measure_decodes(pipeline: Pipeline, seconds: float) -> dict[str, Any]:
    """Milliseconds from the request of a window to its audio, by urgency, without ticks and beside full batches.

    difference: the largest of generations in those ticks to the same ones alone; allowed: what their precision
    explains. Raises TickError.
    """
    shared = dict[int, Latents]()
    alone = _decoded(pipeline, seconds)
    begun = pipeline.loop.stats().ticks
    beside = _decoded(pipeline, seconds, partial(_generate, pipeline, shared))
    ticks = pipeline.loop.stats().ticks - begun
    expected = {seed: _generated(pipeline, [seed])[seed] for seed in range(COMPARED)}
    return {
        "alone": alone,
        "beside": beside,
        "ticks_per_s": ticks / seconds,
        "difference": max(float(np.abs(shared[seed] - each).max()) for seed, each in expected.items()),
        "allowed": latents_tolerance(pipeline.engines.decoder.manifest, list(expected.values())),
    }


def _decoded(
    pipeline: Pipeline, seconds: float, more: Callable[[threading.Event], None] | None = None
) -> dict[str, dict[str, float]]:
    """Percentiles by urgency. more: what runs beside, until the event is set."""
    ended, times_ms = threading.Event(), {urgency: list[float]() for urgency in KINDS}
    with ThreadPoolExecutor(1 + sum(clients for clients, _ in KINDS.values())) as threads:
        running = [
            threads.submit(_decode, pipeline, urgency, pause_s, times_ms[urgency], ended)
            for urgency, (clients, pause_s) in KINDS.items()
            for _ in range(clients)
        ]
        running += [threads.submit(more, ended)] if more else []
        try:
            ended.wait(seconds)
        finally:
            ended.set()
    for each in running:
        each.result()
    return {urgency.name.lower(): percentiles(times) for urgency, times in times_ms.items()}


def _decode(
    pipeline: Pipeline, urgency: Urgency, pause_s: float, times_ms: list[float], ended: threading.Event
) -> None:
    """Decode one window after the other, at least one."""
    codec, spec = pipeline.codec, pipeline.bundle.latents
    assert codec is not None
    frames = codec.spec.decode.window_frames
    if urgency is Urgency.PLAYING:
        frames = min(frames, spec.round_up(round(WINDOW_S * spec.frame_rate_hz)))
    latents = np.random.default_rng(0).standard_normal((frames + 2 * codec.margin_frames, spec.channels), np.float32)
    while True:
        begin_s = time.perf_counter()
        codec.queue.submit(partial(codec.decode, latents), urgency, LEAD_S).result()
        times_ms.append((time.perf_counter() - begin_s) * 1e3)
        if ended.wait(pause_s):
            return


def _generate(pipeline: Pipeline, shared: dict[int, Latents], ended: threading.Event) -> None:
    """Generations in all slots, one batch after the other, at least one; `shared` gets the first."""
    depth = pipeline.deployment.runtime.depth
    for batch in count():
        found = _generated(pipeline, range(batch * depth, (batch + 1) * depth))
        shared.update(found if not batch else {})
        if ended.is_set():
            return


def _generated(pipeline: Pipeline, seeds: Any) -> dict[int, Latents]:
    """Canvases `[T, C]` by seed."""
    given = {"prompt": "", "seconds": pipeline.lengths.canvas_frames / pipeline.bundle.latents.frame_rate_hz}
    wanted = {str(seed): LongGeneration(pipeline, parse_options({**given, "seed": seed})) for seed in seeds}
    return {int(name): latents for name, latents in all_latents(pipeline, wanted).items()}


if __name__ == "__main__":
    main()
