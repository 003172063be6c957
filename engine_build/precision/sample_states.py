"""Realistic decoder inputs: the states of a generation by the decoder itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.graphs.graph_file import Graph, read_graph
from engine_build.graphs.reference_session import exact_session
from runtime.config.bundle import Bundle
from runtime.devices.device import Level
from runtime.engines.manifest import TensorInfo
from runtime.pipeline.text_encoder import TextEncoder
from runtime.requests.request import Condition
from runtime.requests.timesteps import log_snr_schedule, schedule

STEPS, STEPS_OF_LARGE_GRAPHS = 8, 2
LONGEST_FRAMES = 256
GUIDANCE = 3.0
FREE_TOKENS = 8
PROMPT = "slow piano and strings in C major at 80 bpm"
# What scales are taken from is not what errors are measured on.
CALIBRATION_PROMPTS = (
    "bright pads and arpeggios in E minor at 96 bpm",
    "fast drums, bass and lead in A major at 140 bpm",
    "soft melody and chords in D minor at 72 bpm",
)
CALIBRATION_SEED = 100

Arrays = Mapping[str, NDArray[Any]]


def steps_of(graph: Graph) -> int:
    """The steps of a sample generation."""
    return STEPS_OF_LARGE_GRAPHS if graph.is_large else STEPS


def decoder_sample_states(bundle: Bundle, graph: Graph, *, steps: int = STEPS, threads: int = 0) -> Iterator[Arrays]:
    """The decoder's inputs along a generation of its own: a prompt and the null condition, with guidance.

    One feed per step: 2 rows, the canvas length (at most LONGEST_FRAMES). Times and guidance are those that the bundle
    has no other of. Raises BuildError, ConfigError.
    """
    return _states(bundle, graph, (PROMPT,), 0, steps, threads)


def calibration_states(bundle: Bundle, graph: Graph, *, steps: int = STEPS, threads: int = 0) -> Iterator[Arrays]:
    """The same for generations of other prompts and seeds, one after the other.

    Where the decoder takes a context, each after the first continues a part of the one before it.
    """
    return _states(bundle, graph, CALIBRATION_PROMPTS, CALIBRATION_SEED, steps, threads)


def middle(bundle: Bundle, state: Arrays, frames: int) -> Arrays:
    """A state's middle, of at most `frames` frames."""
    names = bundle.decoder.inputs
    count = state[names.latents].shape[1]
    kept = min(bundle.latents.round_up(frames), count)
    cut = slice((count - kept) // 2, (count + kept) // 2)
    framed = (names.latents, names.context, names.frame_numbers)
    return {name: values[:, cut] if name in framed else values for name, values in state.items()}


def _states(
    bundle: Bundle, graph: Graph, prompts: Sequence[str], seed: int, steps: int, threads: int
) -> Iterator[Arrays]:
    names, runner = bundle.decoder.inputs, exact_session(graph, threads)
    frames = bundle.latents.round_up(min(bundle.latents.canvas_frames, LONGEST_FRAMES))
    rule, guidance = bundle.sampler.schedule, 1.0 if bundle.options.guidance.reason else GUIDANCE
    times = (
        schedule(steps, shift=bundle.sampler.shift) if rule is None else log_snr_schedule(steps, rule.start, rule.end)
    )
    x = np.zeros((0, bundle.latents.channels), np.float32)
    for index, condition in enumerate(_conditions(bundle, graph, prompts, threads)):
        fixed = {**condition, **names.steady(2, frames)}
        if names.context is not None:
            known = x[len(x) // 2 :]  # [K,C], the end of the generation before; none for the first
            values = np.concatenate([known, bundle.silence(frames - len(known))])  # [T,C]
            wanted = np.ones((frames, bundle.latents.channels), np.float32)
            wanted[: len(known)] = 0
            fixed[names.context] = np.stack([np.concatenate([values, wanted], axis=1)] * 2)  # [2,T,2C], both rows
        x = np.random.default_rng(seed + index).standard_normal((frames, bundle.latents.channels)).astype(np.float32)
        for t, following in pairwise(times):
            feed = fixed | {names.latents: np.stack([x, x])} | _both_rows(names.numbers(t, t, 1.0))
            yield feed
            if names.time_end is not None:
                built_in = min(guidance, bundle.decoder.jump_guidance[1])
                yield feed | _both_rows(names.numbers(t, following, built_in))
            negative, positive = runner.run([bundle.decoder.outputs.velocity], feed)[0]  # [T,C] each
            x = x + (following - t) * (negative + guidance * (positive - negative))


def _both_rows(numbers: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    return {name: np.full(2, value, np.float32) for name, value in numbers.items()}


def _conditions(
    bundle: Bundle, graph: Graph, prompts: Sequence[str], threads: int
) -> Iterator[dict[str, NDArray[Any]]]:
    """Per prompt: the condition of both rows, padded to one length, and its mask where the decoder takes one."""
    names = bundle.decoder.inputs
    if names.condition is None:
        yield from ({} for _ in prompts)
        return
    null, *given = _tokens(bundle, graph, ("", *prompts), threads)
    for positive in given:
        rows = [Condition(positive if names.condition_mask is None else null), Condition(positive)]
        rows = [row.merged() for row in rows] if bundle.decoder.mask_counts else rows
        tokens = [row.tokens for row in rows]
        longest = max(len(row) for row in tokens)
        stacked = np.stack([np.pad(row, ((0, longest - len(row)), (0, 0))) for row in tokens])  # [2,L,D]
        found = {names.condition: stacked if len(_condition_shape(bundle, graph)) == 3 else stacked[:, 0]}
        if names.condition_mask is not None:
            mask = found[names.condition_mask] = np.zeros((2, longest), np.float32)
            for index, row in enumerate(rows):
                mask[index, : len(row.tokens)] = row.counts
        yield found


def _tokens(bundle: Bundle, graph: Graph, prompts: Sequence[str], threads: int) -> Iterator[NDArray[np.float32]]:
    if bundle.text_encoder is None:
        _, *length, width = _condition_shape(bundle, graph)
        tokens = length[0] if length and isinstance(length[0], int) else FREE_TOKENS
        yield from np.random.default_rng(1).standard_normal((len(prompts), tokens, int(width))).astype(np.float32)
        return
    engine = _GraphEngine(read_graph(bundle.graph_path(bundle.text_encoder.graph)), threads)
    text_encoder = TextEncoder(bundle, engine)
    yield from (text_encoder.encode(_shortened(prompt, text_encoder)) for prompt in prompts)


def _condition_shape(bundle: Bundle, graph: Graph) -> tuple[int | str, ...]:
    return next(info.shape for info in graph.inputs if info.name == bundle.decoder.inputs.condition)


def _shortened(prompt: str, text_encoder: TextEncoder) -> str:
    """The prompt, cut to as many words as the model accepts."""
    words = prompt.split()
    while words and text_encoder.num_tokens(" ".join(words)) > text_encoder.spec.max_tokens:
        words.pop()
    return " ".join(words)


class _GraphEngine:
    """A graph that ONNX Runtime runs as it is."""

    def __init__(self, graph: Graph, threads: int) -> None:
        self.name = graph.label
        self.inputs: Mapping[str, TensorInfo] = {info.name: info for info in graph.inputs}
        self.outputs: Mapping[str, TensorInfo] = {info.name: info for info in graph.outputs}
        self._session = exact_session(graph, threads)

    def run(self, feeds: Arrays, level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        names = list(self.outputs)
        return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
