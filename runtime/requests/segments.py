"""A generation as a row of stretches, each one canvas at most: which frames they cover and which part of every curve.

Each stretch after the first keeps the end of what was generated before it and adds new frames behind it.
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
class Stretch:
    """Frames `start_frame .. start_frame + frames` of a whole of `total_frames`; the first `keep_frames` exist already.

    A short whole may be less than its only stretch, which then reaches beyond it. `total_frames` None: the whole has no
    end, and curves span each stretch.
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

        `beyond` `[frames, C]` are frames of this stretch.
        """
        start = 0 if self.total_frames is None else self.start_frame
        part = np.empty((self.frames, latents.shape[1]), np.float32)
        found = latents[start : start + self.frames]
        part[: len(found)] = found
        part[len(found) :] = beyond[len(found) :]
        return part


def next_stretch(
    done_frames: int, total_frames: int | None, *, lengths: Sequence[int], overlap_frames: int
) -> Stretch | None:
    """The stretch after `done_frames` frames; None where all are done.

    lengths: the numbers of frames that a stretch may have, in order; the last is the canvas. A whole that fits into a
    canvas takes the first length that holds it, so that few lengths occur. In a longer one every stretch is a canvas:
    the last keeps more than the overlap.
    """
    canvas = lengths[-1]
    if done_frames == 0:
        wanted = canvas if total_frames is None else min(total_frames, canvas)
        frames = next(length for length in lengths if length >= wanted)
        return Stretch(0, frames, 0, total_frames)
    new = canvas - overlap_frames
    if total_frames is not None:
        new = min(new, total_frames - done_frames)
    return Stretch(done_frames + new - canvas, canvas, canvas - new, total_frames) if new > 0 else None


def plan(total_frames: int, canvas_frames: int, overlap_frames: int, multiple: int = 1) -> tuple[Stretch, ...]:
    """All stretches of a generation; `total_frames` is rounded up to a multiple.

    Raises ValueError for sizes that cannot be.
    """
    if not 0 <= overlap_frames < canvas_frames or canvas_frames % multiple or overlap_frames % multiple:
        raise ValueError(f"needs 0 <= overlap < canvas in multiples of {multiple}: {overlap_frames}, {canvas_frames}")
    total, lengths = -(-total_frames // multiple) * multiple, range(multiple, canvas_frames + 1, multiple)
    stretches: list[Stretch] = []
    done = 0
    while (stretch := next_stretch(done, total, lengths=lengths, overlap_frames=overlap_frames)) is not None:
        stretches.append(stretch)
        done = stretch.end_frame
    return tuple(stretches)


def step_parameters(options: StepOptions, stretch: Stretch) -> StepParameters:
    """The step lane of the options, every curve as one value per frame of the stretch. Raises RequestError."""
    curves = {name: stretch.curve(value) for name in CURVE_PARAMETERS if (value := getattr(options, name)) is not None}
    return StepParameters(
        **curves,
        channel_gain=None if options.channel_gain is None else _gain(options.channel_gain, stretch),
        dcw=None if options.dcw is None else _dcw(options.dcw, stretch),
    )


def _dcw(options: DcwOptions, stretch: Stretch) -> Dcw:
    return Dcw(options.mode, stretch.curve(options.low), stretch.curve(options.high))


def _gain(values: float | list[float] | list[list[float]], stretch: Stretch) -> float | NDArray[np.float32]:
    """A number, `[C]`, or `[T, C]` interpolated from frames of gains."""
    if not isinstance(values, list):
        return float(values)
    try:
        gain = np.array(values, np.float32)
    except ValueError:
        raise RequestError("its lists have unequal lengths", field="channel_gain") from None
    if gain.ndim == 1:
        return gain
    positions, known = stretch.positions(len(gain)), np.arange(len(gain))
    return np.stack([np.interp(positions, known, column) for column in gain.T], axis=1).astype(np.float32)


def repaint_curve(spans: list[Span], frame_rate_hz: float, stretch: Stretch) -> NDArray[np.float32]:
    """`[T]`: 1 in every frame that a span touches, 0 elsewhere. Spans are in seconds of the whole."""
    start = 0 if stretch.total_frames is None else stretch.start_frame
    mask = np.zeros(stretch.frames, np.float32)
    for span in spans:
        begin = int(span.start_s * frame_rate_hz + 1e-6) - start
        end = int(np.ceil(span.end_s * frame_rate_hz - 1e-6)) - start
        mask[max(begin, 0) : max(end, 0)] = 1.0
    return mask
