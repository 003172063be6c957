"""Where the canvas plays: the band that repeats, jumps to another position, the part that a picture shows."""

from __future__ import annotations

import math
from collections.abc import Callable

from runtime.base.errors import RequestError
from runtime.live.playback.canvas import Band, Canvas, Placement, Timeline
from runtime.live.playback.playhead import Playhead
from runtime.live.protocol.actions import LiveModel

# Of a frame: what a jump has to come nearer.
LEAST_GAIN = 0.125


class Navigation:
    """Moves a session on its canvas of `frames` frames; changes take effect after the playhead's reach."""

    def __init__(
        self,
        model: LiveModel,
        frames: int,
        is_loop: bool,
        timeline: Timeline,
        playhead: Playhead,
        own_band: Callable[[Canvas], Band | None],
    ) -> None:
        self._model, self._frames, self._is_loop = model, frames, is_loop
        self._timeline, self._playhead, self._own_band = timeline, playhead, own_band

    def set_band(self, start_s: float | None, end_s: float | None, at_sample: int | None = None) -> None:
        """Repeat a part of the canvas; None: all of a loop, or nothing. Raises RequestError.

        A position inside the band goes on; any other jumps to the band's beginning. at_sample: from when on.
        """
        sample, here = self._begin(at_sample)
        is_chosen = start_s is not None
        band = self._band(start_s, end_s) if is_chosen else self._own_band(here.canvas)
        frame = sample // self._model.hop_samples
        position = here.canvas_frame_at(frame)
        if band is not None and not band[0] <= position < band[1]:
            position = band[0]
        self._timeline.move(sample, frame, position, band, is_chosen=is_chosen)

    def seek(self, to_s: float, at_sample: int | None = None) -> None:
        """Go on at another position of the band, or of what is known. at_sample: from when on. Raises RequestError."""
        sample, here = self._begin(at_sample)
        first, end = here.band or (here.canvas.start, here.canvas.end)
        frame = int(to_s * self._model.frame_rate_hz + 1e-6)
        if not first <= frame < end:
            raise RequestError(f"plays {self._span(first, end)}", field="to_s")
        self._timeline.move(sample, sample // self._model.hop_samples, frame, here.band)

    def put(self, sample: int, to_sample: int, *, at_least: float) -> bool:
        """Let what is played at a sample be played at another one, by whole frames: what is between goes, or repeats.

        at_least: not where it is so near already, in seconds, or comes hardly nearer. Returns whether it is moved.
        """
        hop, here = self._model.hop_samples, self._timeline.at(sample)
        late = sample - to_sample
        frames = round(late / hop)
        gained = abs(late) - abs(late - frames * hop)
        if here is None or abs(late) <= at_least * self._model.sample_rate_hz or gained < hop * LEAST_GAIN:
            return False
        first = min(sample, to_sample)
        frame = first // hop
        position = here.canvas_frame + frame - here.play_frame + frames
        if here.band is not None:
            position = here.band[0] + (position - here.band[0]) % (here.band[1] - here.band[0])
        self._timeline.move(first, frame, position, here.band)
        return True

    @property
    def picture_start(self) -> int:
        """The first frame of a picture: of the loop, or half a canvas before the playhead."""
        sample = self._playhead.position
        here = self._timeline.at(sample)
        if self._is_loop or here is None:
            return self._timeline.canvas.start
        frame = here.canvas_frame_at(sample // self._model.hop_samples) - self._frames // 2
        return min(max(frame, here.canvas.start), here.canvas.end - 1)

    def _begin(self, at_sample: int | None) -> tuple[int, Placement]:
        """The sample that a change begins at, and what is played there. Raises RequestError."""
        sample = self._playhead.reach if at_sample is None else max(at_sample, self._playhead.reach)
        here = self._timeline.at(sample)
        if here is None:
            raise RequestError("there is no canvas yet", field="type", fix="wait for the first audio")
        return sample, here

    def _band(self, start_s: float | None, end_s: float | None) -> Band:
        assert start_s is not None
        assert end_s is not None
        canvas, rate_hz = self._timeline.canvas, self._model.frame_rate_hz
        begin, end = int(start_s * rate_hz + 1e-6), math.ceil(end_s * rate_hz - 1e-6)
        if begin < canvas.start or end > canvas.end:
            raise RequestError(f"the canvas is {self._span(canvas.start, canvas.end)}", field="end_s")
        return begin, end

    def _span(self, first: int, end: int) -> str:
        rate_hz = self._model.frame_rate_hz
        return f"from {first / rate_hz:.2f} to {end / rate_hz:.2f} s"
