"""A generation as a row of segments, each one canvas at most: which frames they cover and which part of every curve.

Each segment after the first keeps the end of what was generated before it and adds new frames behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.errors import RequestError
from runtime.requests.curves import Curve
from runtime.requests.options import DcwOptions, Span, StepOptions, Values
from runtime.requests.request import CURVE_PARAMETERS, Dcw, StepParameters

Latents = NDArray[np.float32]


@dataclass(frozen=True)
class Segment:
    """Frames `start_frame .. start_frame + frames` of a whole of `total_frames`; the first `keep_frames` exist already.

    A short whole may be less than its only segment, which then reaches beyond it. `total_frames` None: the whole has no
    end, and curves span each segment.
    """

    start_frame: int
    frames: int
    keep_frames: int = 0
    total_frames: int | None = None

    @property
    def new_frames(self) -> int:
        """What it adds."""
        return self.frames - self.keep_frames

    @property
    def end_frame(self) -> int:
        """The frame behind its last."""
        return self.start_frame + self.frames

    def positions(self, length: int) -> NDArray[np.float64]:
        """Where its frames lie in `length` values that span the whole: from 0, the first, to `length` - 1, the last."""
        start, total = (0, self.frames) if self.total_frames is None else (self.start_frame, self.total_frames)
        frames = np.arange(start, start + self.frames, dtype=np.float64)
        return frames * ((length - 1) / max(total - 1, 1))

    def curve(self, values: Values) -> Curve:
        """Its part of a curve, interpolated linearly to one value per frame; a number stays a number."""
        if isinstance(values, list):
            return np.interp(self.positions(len(values)), np.arange(len(values)), values).astype(np.float32)
        return float(values)

    def part(self, latents: Latents, beyond: Latents) -> Latents:
        """Its frames of `latents` `[N, C]`, which begin at frame 0 of the whole; behind their end those of `beyond`.

        `beyond` `[frames, C]` are frames of this segment.
        """
        start = 0 if self.total_frames is None else self.start_frame
        part = np.empty((self.frames, latents.shape[1]), np.float32)
        found = latents[start : start + self.frames]
        part[: len(found)] = found
        part[len(found) :] = beyond[len(found) :]
        return part


def next_segment(
    done_frames: int, total_frames: int | None, *, lengths: Sequence[int], overlap_frames: int
) -> Segment | None:
    """The segment after `done_frames` frames; None where all are done.

    lengths: the numbers of frames that a segment may have, in order; the last is the canvas. A whole that fits into a
    canvas takes the first length that holds it, so that few lengths occur. In a longer one every segment is a canvas:
    the last keeps more than the overlap.
    """
    canvas = lengths[-1]
    if done_frames == 0:
        wanted = canvas if total_frames is None else min(total_frames, canvas)
        frames = next(length for length in lengths if length >= wanted)
        return Segment(0, frames, 0, total_frames)
    new = canvas - overlap_frames
    if total_frames is not None:
        new = min(new, total_frames - done_frames)
    return Segment(done_frames + new - canvas, canvas, canvas - new, total_frames) if new > 0 else None


def plan(total_frames: int, canvas_frames: int, overlap_frames: int, multiple: int = 1) -> tuple[Segment, ...]:
    """All segments of a generation; `total_frames` is rounded up to a multiple.

    Raises ValueError for sizes that cannot be.
    """
    if not 0 <= overlap_frames < canvas_frames or canvas_frames % multiple or overlap_frames % multiple:
        raise ValueError(f"needs 0 <= overlap < canvas in multiples of {multiple}: {overlap_frames}, {canvas_frames}")
    total, lengths = -(-total_frames // multiple) * multiple, range(multiple, canvas_frames + 1, multiple)
    segments: list[Segment] = []
    done = 0
    while (segment := next_segment(done, total, lengths=lengths, overlap_frames=overlap_frames)) is not None:
        segments.append(segment)
        done = segment.end_frame
    return tuple(segments)


def step_parameters(options: StepOptions, segment: Segment) -> StepParameters:
    """The step bucket of the options, every curve as one value per frame of the segment. Raises RequestError."""
    curves = {name: segment.curve(value) for name in CURVE_PARAMETERS if (value := getattr(options, name)) is not None}
    return StepParameters(
        **curves,
        channel_gain=None if options.channel_gain is None else _gain(options.channel_gain, segment),
        dcw=None if options.dcw is None else _dcw(options.dcw, segment),
    )


def _dcw(options: DcwOptions, segment: Segment) -> Dcw:
    return Dcw(options.mode, segment.curve(options.low), segment.curve(options.high))


def _gain(values: float | list[float] | list[list[float]], segment: Segment) -> float | NDArray[np.float32]:
    """A number, `[C]`, or `[T, C]` interpolated from frames of gains."""
    if not isinstance(values, list):
        return float(values)
    try:
        gain = np.array(values, np.float32)
    except ValueError:
        raise RequestError("its lists have unequal lengths", field="channel_gain") from None
    if gain.ndim == 1:
        return gain
    positions, known = segment.positions(len(gain)), np.arange(len(gain))
    return np.stack([np.interp(positions, known, column) for column in gain.T], axis=1).astype(np.float32)


def repaint_curve(spans: list[Span], frame_rate_hz: float, segment: Segment) -> NDArray[np.float32]:
    """`[T]`: 1 in every frame that a span touches, 0 elsewhere. Spans are in seconds of the whole."""
    start = 0 if segment.total_frames is None else segment.start_frame
    mask = np.zeros(segment.frames, np.float32)
    for span in spans:
        begin = int(span.start_s * frame_rate_hz + 1e-6) - start
        end = int(np.ceil(span.end_s * frame_rate_hz - 1e-6)) - start
        mask[max(begin, 0) : max(end, 0)] = 1.0
    return mask
