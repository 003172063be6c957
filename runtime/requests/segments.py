"""Segments of a generation longer than the canvas: the frames that each covers, and its part of every curve.

Each segment after the first keeps the last frames of the one before it and adds new frames after them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.config.decoder import LatentSpec
from runtime.config.deployment import ShapeRanges
from runtime.requests.curves import Curve
from runtime.requests.option_types import DcwOptions, Span, Values
from runtime.requests.options import GenerationOptions, StepOptions
from runtime.requests.request import CURVE_PARAMETERS, Dcw, StepParameters

NUM_LENGTHS = 4


@dataclass(frozen=True)
class Segment:
    """Frames `start_frame .. start_frame + frames` of a generation of `total_frames`; the first `keep_frames` are kept.

    The only segment of a short generation may reach beyond its end. `total_frames` None: the generation has no end, and
    curves span each segment.
    """

    start_frame: int
    frames: int
    keep_frames: int = 0
    total_frames: int | None = None

    @property
    def first_frame(self) -> int:
        """Where it begins in curves and sources: they span each segment of a generation without an end."""
        return 0 if self.total_frames is None else self.start_frame

    def positions(self, length: int) -> NDArray[np.float64]:
        """`[T]`: its frames as positions in `length` values that span the generation, from 0 to `length` - 1."""
        total = self.frames if self.total_frames is None else self.total_frames
        frames = np.arange(self.first_frame, self.first_frame + self.frames, dtype=np.float64)
        return frames * ((length - 1) / max(total - 1, 1))

    def curve(self, values: Values) -> Curve:
        """Its part of a curve, interpolated linearly to one value per frame `[T]` float32; a number stays a number."""
        if isinstance(values, list):
            return np.interp(self.positions(len(values)), np.arange(len(values)), values).astype(np.float32)
        return float(values)

    def part(self, latents: Latents, beyond: Latents) -> Latents:
        """`[T, C]`: its frames of `latents` `[N, C]`, which begin at frame 0 of the generation.

        beyond `[T, C]`: frames of this segment, used after the end of `latents`.
        """
        part = np.empty((self.frames, latents.shape[1]), np.float32)
        known = latents[self.first_frame : self.first_frame + self.frames]
        part[: len(known)] = known
        part[len(known) :] = beyond[len(known) :]
        return part


def generation_lengths(latents: LatentSpec, shapes: Sequence[ShapeRanges]) -> tuple[int, ...]:
    """The values of T that generations have, in order, up to the canvas: few, so that generations share buckets.

    They are multiples of a quarter of the canvas, or as close as `most_unused` says, and the largest T of each shape
    range, where a range holds them. The canvas is the bundle's, or the largest T that the engines take where that is
    less.
    """
    largest = [shape.frames.max // latents.frame_multiple * latents.frame_multiple for shape in shapes]
    limit = min(latents.canvas_frames, max(shape.frames.max for shape in shapes))
    canvas = limit // latents.frame_multiple * latents.frame_multiple
    step = latents.round_up(-(-canvas // NUM_LENGTHS))
    steps = range(step, canvas, step) if latents.most_unused is None else _close_lengths(latents, canvas, shapes)
    wanted = {*steps, *(length for length in largest if length < canvas)}
    return (*sorted(n for n in wanted if any(shape.frames.holds(n) for shape in shapes)), canvas)


def loop_lengths(latents: LatentSpec, shapes: Sequence[ShapeRanges]) -> tuple[int, ...]:
    """The values of T that loops have, in order: those of generations, and as many as NUM_LENGTHS beyond the canvas.

    The last one is the largest T that the engines take. A loop is one generation: nothing continues it.
    """
    lengths, multiple = generation_lengths(latents, shapes), latents.frame_multiple
    largest = max(shape.frames.max for shape in shapes) // multiple * multiple
    parts = [lengths[-1] + (largest - lengths[-1]) * part // NUM_LENGTHS for part in range(1, NUM_LENGTHS + 1)]
    longer = sorted({part // multiple * multiple for part in parts if part > lengths[-1]})
    return (*lengths, *(n for n in longer if n > lengths[-1] and any(shape.frames.holds(n) for shape in shapes)))


def _close_lengths(latents: LatentSpec, canvas: int, shapes: Sequence[ShapeRanges]) -> Iterator[int]:
    """Lengths below a canvas, each so much shorter than the one before it as `most_unused` allows."""
    assert latents.most_unused is not None
    multiple, shortest = latents.frame_multiple, min(shape.frames.min for shape in shapes)
    length = canvas
    while length > shortest:
        # The shortest generation that takes `length` is one frame longer than the next length.
        least = math.floor(length * (1 - latents.most_unused) - 1 + 1e-9) + 1
        length = min(latents.round_up(least), length - multiple)
        yield length


def next_segment(
    done_frames: int, total_frames: int | None, *, lengths: Sequence[int], overlap_frames: int
) -> Segment | None:
    """The segment after the first `done_frames` frames; None where all are done.

    lengths: the values of T that a segment may have, in order; the last is the canvas. A generation that fits into the
    canvas takes the first length that holds it. In a longer one every segment is a canvas long: the last one keeps more
    than `overlap_frames`.
    """
    canvas = lengths[-1]
    if done_frames == 0:
        needed = canvas if total_frames is None else min(total_frames, canvas)
        frames = next(length for length in lengths if length >= needed)
        return Segment(0, frames, 0, total_frames)
    new = canvas - overlap_frames
    if total_frames is not None:
        new = min(new, total_frames - done_frames)
    return Segment(done_frames + new - canvas, canvas, canvas - new, total_frames) if new > 0 else None


def step_parameters(options: StepOptions, segment: Segment) -> StepParameters:
    """The options' step parameters, every curve as one value per frame of the segment. Raises RequestError."""
    curves = {name: segment.curve(value) for name in CURVE_PARAMETERS if (value := getattr(options, name)) is not None}
    return StepParameters(
        **curves,
        channel_gain=None if options.channel_gain is None else _gain(options.channel_gain, segment),
        dcw=None if options.dcw is None else _dcw(options.dcw, segment),
        adapters=None if options.adapters is None else {use.id: use.strength for use in options.adapters},
        cfg_interval_start=options.cfg_interval_start,
        cfg_interval_end=options.cfg_interval_end,
    )


def _dcw(options: DcwOptions, segment: Segment) -> Dcw:
    return Dcw(options.mode, segment.curve(options.low), segment.curve(options.high))


def _gain(values: float | list[float] | list[list[float]], segment: Segment) -> float | NDArray[np.float32]:
    """A number, `[C]`, or `[T, C]` interpolated linearly from a list of gains per channel."""
    if not isinstance(values, list):
        return float(values)
    try:
        gain = np.array(values, np.float32)
    except ValueError:
        raise RequestError("its lists have unequal lengths", field="channel_gain") from None
    if gain.ndim == 1:
        return gain
    positions, indices = segment.positions(len(gain)), np.arange(len(gain))
    return np.stack([np.interp(positions, indices, column) for column in gain.T], axis=1).astype(np.float32)


def requested_mask(options: GenerationOptions, segment: Segment, frame_rate_hz: float) -> NDArray[np.float32] | None:
    """`[T]`: 1 in frames that are generated anew, 0 in those that are kept; None where all are generated."""
    return None if options.task == "lego" else masked_frames(options, segment, frame_rate_hz)


def masked_frames(options: GenerationOptions, segment: Segment, frame_rate_hz: float) -> NDArray[np.float32] | None:
    """`[T]`: 1 inside of what repaint or mask name, 0 outside; None where neither is given."""
    if options.repaint is not None:
        return repaint_curve(options.repaint, frame_rate_hz, segment)
    if options.mask is None:
        return None
    return np.array(np.broadcast_to(segment.curve(options.mask), (segment.frames,)), np.float32)


def repaint_curve(spans: list[Span], frame_rate_hz: float, segment: Segment) -> NDArray[np.float32]:
    """`[T]`: 1 in every frame that a span touches, 0 elsewhere. Spans are in seconds of the generation."""
    start = segment.first_frame
    mask = np.zeros(segment.frames, np.float32)
    for span in spans:
        begin = int(span.start_s * frame_rate_hz + 1e-6) - start
        end = int(np.ceil(span.end_s * frame_rate_hz - 1e-6)) - start
        mask[max(begin, 0) : max(end, 0)] = 1.0
    return mask
