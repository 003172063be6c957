"""What a graph does not say, measured by running it on the CPU: frame multiple, samples per frame, windows' margin."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine_build.graphs.graph_file import Graph, with_axis_names
from engine_build.graphs.reference_session import exact_session, onnxruntime_errors, run_reason
from engine_build.new_bundle.roles import AssignedRole
from runtime.base.errors import ConfigError
from runtime.base.untrusted import quoted
from runtime.commands.progress import waiting
from runtime.config.decoder import DecoderInputs
from runtime.engines.manifest import TensorInfo

# Lengths at which it is tried which multiples a graph takes: above its shortest, below its longest.
LENGTHS = (64, 16, 1)
MOST_MULTIPLE = 64
PROBE_FRAMES = 128
# Windows of about so many frames, cut out of the middle at so many places, with margins of at most so many frames.
WINDOW_FRAMES, NUM_WINDOWS, MOST_MARGIN = 3, 8, 48
MOST_GROUP = 16
# What windows may differ from the whole, as a share of its peak: less than the last of 16 bits.
LIMIT = 1e-5
# What windows that are told their position differ by at most from the whole, as a share of its peak.
NO_POSITION = 0.1
SMALLEST_PEAK = 1e-6
PROBE_TOKENS = 4
CODEC_LETTERS = {"latents": "BTC", "start_frame": "B", "audio": "BAW"}
# Of one input, 1 GiB of float32.
MOST_VALUES = 1 << 28
SEED = 0


@dataclass(frozen=True)
class CodecFacts:
    """Audio channels, samples per frame, and the margin of windows.

    reach_frames: how many frames beyond its own a frame of latents changes. margin_frames: the smallest margin with
    which windows differ from the whole by no more than LIMIT: in attention frames that are far apart change each other
    by nothing that is heard. align_frames: windows begin at multiples of it. error: by how much they differ from the
    whole, as a share of its peak. shortest_frames: the fewest that it takes.
    """

    channels: int
    hop_samples: int
    reach_frames: int
    margin_frames: int
    align_frames: int = 1
    error: float = 0.0
    shortest_frames: int = 1


class FrameCounts(NamedTuple):
    """Numbers of frames that a graph takes: multiples of one, from the shortest on."""

    multiple: int = 1
    shortest: int = 1


@waiting("measuring the decoder")
def frame_counts(graph: Graph, roles: Mapping[str, AssignedRole]) -> FrameCounts:
    """The numbers of frames that a decoder takes; every number of them where T is fixed.

    Raises ConfigError where it does not run, or its output is not of the latents' shape.
    """
    _, letters = _decoder_inputs(roles)
    runner, fixed = (
        exact_session(with_axis_names(graph, {**letters, roles["velocity"].tensor.name: "RTC"}), 0),
        roles["latents"].tensor.shape[1],
    )
    decoder = _Decoder(graph, runner, roles)
    if isinstance(fixed, int):
        decoder.run(decoder.feeds(fixed))
    counts = FrameCounts() if isinstance(fixed, int) else _counts(lambda frames: decoder.run(decoder.feeds(frames)))
    frames = fixed if isinstance(fixed, int) else _up(max(counts.shortest, 8), counts.multiple)
    _check_mask(decoder, frames)
    _check_context(decoder, frames, counts.multiple)
    return counts


def _check_mask(decoder: _Decoder, frames: int) -> None:
    """Raises ConfigError where tokens with 0 in the mask change the velocity: it is another condition."""
    if "condition_mask" not in decoder.roles:
        return
    mask, condition = (decoder.roles[role].tensor.name for role in ("condition_mask", "condition"))
    feeds = decoder.feeds(frames)
    kept = -(-feeds[mask].shape[1] // 2)
    feeds[mask][:, kept:] = 0
    others = {**feeds, condition: feeds[condition].copy()}
    others[condition][:, kept:] += 1
    first, second = decoder.run(feeds), decoder.run(others)
    if np.abs(first - second).max() > LIMIT * max(float(np.abs(first).max()), SMALLEST_PEAK):
        raise ConfigError(
            f"{decoder.graph.label}: {quoted(mask)} has the shape of a condition mask, [B, L], but tokens with 0 in it "
            "still change the velocity: it is no mask",
            fix="export it with one condition, to which a second one is joined; or with a mask that leaves tokens out",
        )


def _check_context(decoder: _Decoder, frames: int, multiple: int) -> None:
    """Raises ConfigError where a context may be longer than the latents: it is tokens."""
    if "context" not in decoder.roles or isinstance(decoder.roles["context"].tensor.shape[1], int):
        return
    name, feeds = decoder.roles["context"].tensor.name, decoder.feeds(frames)
    try:
        decoder.run({**feeds, name: np.concatenate((feeds[name], feeds[name][:, :multiple]), axis=1)})
    except ConfigError:
        return
    raise ConfigError(
        f"{decoder.graph.label}: {quoted(name)} has the shape of a context, [B, T, 2 C], but may be longer than the "
        "latents: it is tokens",
        fix=f"--role condition={name}",
    )


@waiting("measuring the codec")
def measured_codec(graph: Graph, roles: Mapping[str, AssignedRole], channels: int) -> CodecFacts:
    """Decode noise as a whole, with the middle frame changed, and in windows. Raises ConfigError."""
    runner = exact_session(
        with_axis_names(graph, {choice.tensor.name: CODEC_LETTERS[role] for role, choice in roles.items()}), 0
    )
    fixed = roles["latents"].tensor.shape[1]
    noise = np.random.default_rng(SEED).standard_normal((1, 3 * PROBE_FRAMES, channels)).astype(np.float32)

    def decode(values: NDArray[np.float32], start_frame: int = 0) -> NDArray[np.float32]:
        """Latents `[1, T, C]` -> audio `[channels, T * hop]`."""
        feeds: dict[str, NDArray[Any]] = {roles["latents"].tensor.name: values}
        if "start_frame" in roles:
            feeds[roles["start_frame"].tensor.name] = np.array([start_frame], np.int64)
        return np.asarray(_run(graph, runner, feeds, roles["audio"])[0], np.float32)

    counts = FrameCounts() if isinstance(fixed, int) else _counts(lambda frames: decode(noise[:, :frames]))
    frames = fixed if isinstance(fixed, int) else _up(max(PROBE_FRAMES, counts.shortest), counts.multiple)
    latents = np.resize(noise, (1, frames, channels))
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
        size = _up(WINDOW_FRAMES, align)
        # Neighbouring multiples: that of a longer group is not in every one.
        starts = [_up(MOST_MARGIN, align) + align * index for index in range(max(NUM_WINDOWS // align, 2))]
        try:
            return max(difference(start, start + size, margin) for start in starts)
        except ConfigError:
            return math.inf

    def difference(start: int, end: int, margin: int) -> float:
        low = max(start - margin, 0)
        window = decode(latents[:, low : end + margin], low)[:, (start - low) * hop : (end - low) * hop]
        peak = max(float(np.abs(audio).max()), 1e-9)
        return float(np.abs(window - audio[:, start * hop : end * hop]).max()) / peak

    found = _margin(reach, counts, error)
    if "start_frame" in roles and (not found.error <= NO_POSITION or not audio.any()):
        name, silent = roles["start_frame"].tensor.name, not audio.any()
        raise ConfigError(
            f"{graph.label}: {quoted(name)} has the shape of a start_frame, but is not the first frame's position: "
            + ("with 0 in it the audio is silence" if silent else "windows with theirs are not parts of the whole"),
            fix="export the codec without this input, or with what it stands for as a constant",
        )
    return replace(found, channels=audio.shape[0], hop_samples=hop, shortest_frames=counts.shortest)


def _counts(run: Callable[[int], object]) -> FrameCounts:
    """The smallest m with which two neighbouring multiples of it run, and the shortest of its multiples that does.

    run: executes at so many frames. Raises its ConfigError at one frame where there is no m.
    """

    def runs(frames: int) -> bool:
        try:
            run(frames)
        except ConfigError:
            return False
        return True

    for length in LENGTHS:
        for multiple in range(1, MOST_MULTIPLE + 1):
            first = _up(length, multiple)
            if runs(first) and runs(first + multiple):
                shorter = range(multiple, first, multiple)
                return FrameCounts(multiple, multiple * (1 + bisect_left(shorter, True, key=runs)))
    run(1)
    raise ConfigError("it runs at one frame, and at no other number", fix="export it with a dynamic number of frames")


def _up(frames: int, multiple: int) -> int:
    return -(-frames // multiple) * multiple


def _margin(reach: int, counts: FrameCounts, error: Callable[[int, int], float]) -> CodecFacts:
    """The margin and the alignment of windows. error: of a margin and an alignment."""
    found: list[CodecFacts] = []
    for align in range(counts.multiple, max(MOST_GROUP, counts.multiple) + 1, counts.multiple):
        # With a margin on one side a group is as long as the shortest.
        least = _up(max(counts.shortest - align, 0), align)
        most = max(min(_up(reach, align), MOST_MARGIN // align * align), least)
        found.append(CodecFacts(0, 0, reach, most, align, error(most, align)))
        if found[-1].error <= LIMIT:
            # The larger a margin, the smaller its error: of those that are small enough, the first one is looked for.
            margins = range(least, most, align)
            index = bisect_left(margins, True, key=lambda margin: error(margin, align) <= LIMIT)
            margin = margins[index] if index < len(margins) else most
            return replace(found[-1], margin_frames=margin, error=error(margin, align))
    return min(found, key=lambda facts: facts.error)


@dataclass(frozen=True)
class _Decoder:
    """A decoder's graph, opened, with its roles."""

    graph: Graph
    runner: Any
    roles: Mapping[str, AssignedRole]

    def feeds(self, frames: int) -> dict[str, NDArray[Any]]:
        """One row of noise; ones for the time and the mask. Raises ConfigError where a width is open."""
        random, chosen = np.random.default_rng(SEED), self.roles
        names, letters = _decoder_inputs(chosen)
        channels = int(chosen["velocity"].tensor.shape[2])
        sizes = {"R": 1, "T": frames, "L": PROBE_TOKENS, "C": channels, "X": 2 * channels}
        found: dict[str, NDArray[Any]] = {}
        for info in (choice.tensor for role, choice in chosen.items() if role != "velocity"):
            shape = _shape(self.graph, info, letters[info.name], sizes)
            is_plain = info.name in (*names.row_numbers, names.condition_mask)
            found[info.name] = (np.ones(shape) if is_plain else random.standard_normal(shape)).astype(np.float32)
        return found

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The velocity. Raises ConfigError where it has not the latents' shape or is not finite."""
        velocity = _run(self.graph, self.runner, feeds, self.roles["velocity"])
        channels = self.roles["velocity"].tensor.shape[2]
        expected = (*feeds[self.roles["latents"].tensor.name].shape[:2], channels)
        if velocity.shape != expected or not np.isfinite(velocity).all():
            what = f"shape {list(velocity.shape)}" if velocity.shape != expected else "values that are not finite"
            raise ConfigError(
                f"{self.graph.label} is not a velocity decoder: of latents {list(expected)} it makes {what}",
                fix="export a graph whose output has the shape of its latents",
            )
        return velocity


def _decoder_inputs(roles: Mapping[str, AssignedRole]) -> tuple[DecoderInputs, dict[str, str]]:
    """The names of a decoder's inputs, and their shape letters."""
    names = DecoderInputs(**{role: choice.tensor.name for role, choice in roles.items() if role != "velocity"})
    return names, names.letters(len(roles["condition"].tensor.shape) if "condition" in roles else 3)


def _shape(graph: Graph, info: TensorInfo, letters: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape to try an input at. Raises ConfigError where the graph leaves its width open, or asks for too much."""
    pairs = zip(info.shape, letters, strict=True)
    shape = tuple(size if isinstance(size, int) else sizes.get(letter, 0) for size, letter in pairs)
    if not 0 < math.prod(shape) <= MOST_VALUES:
        fault = f"is {list(info.shape)}, too large to try" if all(shape) else "has a dynamic last dimension"
        raise ConfigError(
            f"{graph.label}: {quoted(info.name)} {fault}",
            fix="export it with a fixed width, and other dimensions dynamic",
        )
    return shape


def _run(graph: Graph, runner: Any, feeds: Mapping[str, NDArray[Any]], output: AssignedRole) -> NDArray[Any]:
    try:
        result: NDArray[Any] = runner.run([output.tensor.name], dict(feeds))[0]
    except onnxruntime_errors() as error:
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in feeds.items())
        raise ConfigError(
            f"{graph.label} does not run with {shapes}: {run_reason(error)}",
            fix="configs/docs/pages/model.md says which shapes a graph has to take",
        ) from error
    return result
