"""What a graph does not say, measured by running it on the CPU: frame multiple, samples per frame, receptive field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.graphs.graph_file import Graph
from engine_build.graphs.reference_session import exact_options, onnxruntime_errors, session
from engine_build.new_bundle.roles import AssignedRole
from runtime.config.bundle import DecoderInputs
from runtime.errors import ConfigError

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
PROBE_FRAMES = 64
PROBE_TOKENS = 4
SEED = 0


@dataclass(frozen=True)
class CodecFacts:
    """Audio channels, samples per frame, and how many frames beyond its own a frame of latents changes."""

    channels: int
    hop_samples: int
    margin_frames: int


def frame_multiple(graph: Graph, roles: Mapping[str, AssignedRole]) -> int:
    """The smallest m with which the decoder runs at m and 3m frames; 1 where T is fixed.

    Raises ConfigError where it does not run, or its output is not of the latents' shape.
    """
    runner, fixed = session(graph.source, exact_options(0), graph.label), roles["latents"].tensor.shape[1]
    if isinstance(fixed, int):
        _run_decoder(graph, runner, roles, fixed)
        return 1
    problem: ConfigError | None = None
    for multiple in MULTIPLES:
        try:
            for frames in (multiple, 3 * multiple):
                _run_decoder(graph, runner, roles, frames)
        except ConfigError as error:
            problem = problem or error
        else:
            return multiple
    assert problem is not None
    raise problem


def codec_facts(graph: Graph, roles: Mapping[str, AssignedRole], channels: int) -> CodecFacts:
    """Decode noise, once as it is and once with the middle frame changed. Raises ConfigError."""
    runner = session(graph.source, exact_options(0), graph.label)
    fixed = roles["latents"].tensor.shape[1]
    frames = fixed if isinstance(fixed, int) else PROBE_FRAMES
    latents = np.random.default_rng(SEED).standard_normal((1, frames, channels)).astype(np.float32)
    feeds: dict[str, NDArray[Any]] = {roles["latents"].tensor.name: latents}
    if "start_frame" in roles:
        feeds[roles["start_frame"].tensor.name] = np.zeros(1, np.int64)
    audio = _run(graph, runner, feeds, roles["audio"])
    hop, rest = divmod(audio.shape[2], frames)
    if rest or not hop:
        raise ConfigError(
            f"{graph.label} makes {audio.shape[2]} samples of {frames} frames, expected a multiple",
            fix="export it so that T frames give T * hop samples",
        )
    changed = latents.copy()
    changed[:, frames // 2] += 1.0
    other = _run(graph, runner, {**feeds, roles["latents"].tensor.name: changed}, roles["audio"])
    touched = np.flatnonzero((audio != other).any(axis=(0, 1))) // hop
    margin = int(np.abs(touched - frames // 2).max(initial=0))
    return CodecFacts(audio.shape[1], hop, margin)


def _run_decoder(graph: Graph, runner: Any, roles: Mapping[str, AssignedRole], frames: int) -> None:
    """One execute on noise. Raises ConfigError where the velocity has not the latents' shape or is not finite."""
    random = np.random.default_rng(SEED)
    names = DecoderInputs(**{role: choice.tensor.name for role, choice in roles.items() if role != "velocity"})
    rank = len(roles["condition"].tensor.shape) if "condition" in roles else 3
    letters, sizes = names.letters(rank), {"R": 1, "T": frames, "L": PROBE_TOKENS}
    feeds: dict[str, NDArray[Any]] = {}
    for info in (choice.tensor for role, choice in roles.items() if role != "velocity"):
        pairs = zip(info.shape, letters[info.name], strict=True)
        shape = tuple(size if isinstance(size, int) else sizes[letter] for size, letter in pairs)
        is_plain = info.name in (names.time, names.condition_mask)
        feeds[info.name] = np.ones(shape, np.float32) if is_plain else random.standard_normal(shape).astype(np.float32)
    velocity = _run(graph, runner, feeds, roles["velocity"])
    expected = feeds[names.latents].shape
    if velocity.shape != expected or not np.isfinite(velocity).all():
        what = f"shape {list(velocity.shape)}" if velocity.shape != expected else "values that are not finite"
        raise ConfigError(
            f"{graph.label} is not a velocity decoder: of latents {list(expected)} it makes {what}",
            fix="export a graph whose output has the shape of its latents",
        )


def _run(graph: Graph, runner: Any, feeds: Mapping[str, NDArray[Any]], output: AssignedRole) -> NDArray[Any]:
    try:
        result: NDArray[Any] = runner.run([output.tensor.name], dict(feeds))[0]
    except onnxruntime_errors() as error:
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in feeds.items())
        raise ConfigError(
            f"{graph.label} does not run with {shapes}: {str(error).splitlines()[0]:.300}",
            fix="engine_build/README.md says which shapes a graph has to take",
        ) from error
    return result
