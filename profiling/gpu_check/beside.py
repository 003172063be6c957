"""Audio that is decoded for those who play, for others, and beside ticks: how long it takes, and whether it stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from profiling.bench.statistics import percentiles
from profiling.bench.steady_stream import Latents, tolerance_of
from runtime.audio.codec_queue import Urgency
from runtime.pipeline.generation import LongGeneration, all_latents
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options

# Clients of each kind, and the seconds between two windows of one; those in the background never pause.
KINDS = {Urgency.PLAYING: (4, 0.1), Urgency.BACKGROUND: (2, 0.0)}
# A window that is played has so many seconds; one in the background as much as one execute takes.
WINDOW_S, LEAD_S = 0.5, 1.0
# Generations of the ticks beside which are compared with the same ones alone.
COMPARED = 2


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
        "allowed": tolerance_of(pipeline.engines.decoder.manifest, list(expected.values())),
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
