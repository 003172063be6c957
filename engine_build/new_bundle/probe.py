"""What a graph does not say, measured by running it on the CPU: frame multiple, samples per frame, windows' margin."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.graphs.graph_file import Graph
from engine_build.graphs.reference_session import exact_options, onnxruntime_errors, session
from engine_build.new_bundle.roles import AssignedRole
from runtime.config.bundle import DecoderInputs
from runtime.errors import ConfigError

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
PROBE_FRAMES = 128
# Windows of about so many frames, cut out of the middle at so many places, with margins of at most so many frames.
WINDOW_FRAMES, NUM_WINDOWS, MOST_MARGIN = 3, 8, 48
ALIGNMENTS = (1, 2, 4, 8, 16)
# What windows may differ from the whole, as a share of its peak: less than the last of 16 bits.
LIMIT = 1e-5
PROBE_TOKENS = 4
SEED = 0


@dataclass(frozen=True)
class CodecFacts:
    """Audio channels, samples per frame, and the margin of windows.

    reach_frames: how many frames beyond its own a frame of latents changes. margin_frames: the smallest margin with
    which windows differ from the whole by no more than LIMIT: in attention frames that are far apart change each other
    by nothing that is heard. align_frames: windows begin at multiples of it. error: by how much they differ from the
    whole, as a share of its peak.
    """

    channels: int
    hop_samples: int
    reach_frames: int
    margin_frames: int
    align_frames: int = 1
    error: float = 0.0


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
    """Decode noise as a whole, with the middle frame changed, and in windows. Raises ConfigError."""
    runner = session(graph.source, exact_options(0), graph.label)

    def decode(values: NDArray[np.float32], start_frame: int = 0) -> NDArray[np.float32]:
        """Latents `[1, T, C]` -> audio `[channels, T * hop]`."""
        feeds: dict[str, NDArray[Any]] = {roles["latents"].tensor.name: values}
        if "start_frame" in roles:
            feeds[roles["start_frame"].tensor.name] = np.array([start_frame], np.int64)
        return np.asarray(_run(graph, runner, feeds, roles["audio"])[0], np.float32)

    fixed = roles["latents"].tensor.shape[1]
    frames = fixed if isinstance(fixed, int) else PROBE_FRAMES
    latents = np.random.default_rng(SEED).standard_normal((1, frames, channels)).astype(np.float32)
    audio = decode(latents)
    hop, rest = divmod(audio.shape[1], frames)
    if rest or not hop:
        raise ConfigError(
            f"{graph.label} makes {audio.shape[1]} samples of {frames} frames, expected a multiple",
            fix="export it so that T frames give T * hop samples",
        )
    changed = latents.copy()
    changed[:, frames // 2] += 1.0
    touched = np.flatnonzero((audio != decode(changed)).any(axis=0)) // hop
    reach = int(np.abs(touched - frames // 2).max(initial=0))
    if isinstance(fixed, int):
        return CodecFacts(audio.shape[0], hop, reach, reach)

    def error(margin: int, align: int) -> float:
        """The largest difference between windows and the whole, as a share of its peak; endless where none decodes."""
        size = -(-WINDOW_FRAMES // align) * align
        starts = {(MOST_MARGIN + each) // align * align for each in range(NUM_WINDOWS)}
        try:
            return max(difference(start, start + size, margin) for start in starts)
        except ConfigError:
            return math.inf

    def difference(start: int, end: int, margin: int) -> float:
        low = max(start - margin, 0)
        window = decode(latents[:, low : end + margin], low)[:, (start - low) * hop : (end - low) * hop]
        peak = max(float(np.abs(audio).max()), 1e-9)
        return float(np.abs(window - audio[:, start * hop : end * hop]).max()) / peak

    return replace(_margin(reach, error), channels=audio.shape[0], hop_samples=hop)


def _margin(reach: int, error: Callable[[int, int], float]) -> CodecFacts:
    """The margin and the alignment of windows. error: of a margin and an alignment."""
    found: list[CodecFacts] = []
    for align in ALIGNMENTS:
        most = min(-(-reach // align) * align, MOST_MARGIN)
        found.append(CodecFacts(0, 0, reach, most, align, error(most, align)))
        if found[-1].error <= LIMIT:
            # The larger a margin, the smaller its error: of those that are small enough, the first one is looked for.
            margins = range(0, most, align)
            index = bisect_left(margins, True, key=lambda margin: error(margin, align) <= LIMIT)
            margin = margins[index] if index < len(margins) else most
            return replace(found[-1], margin_frames=margin, error=error(margin, align))
    return min(found, key=lambda facts: facts.error)


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
            fix="configs/docs/pages/model.md says which shapes a graph has to take",
        ) from error
    return result
