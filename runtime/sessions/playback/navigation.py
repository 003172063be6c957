"""Where the canvas plays: the band that repeats, jumps to another position, the part that a picture shows."""

from __future__ import annotations

import math

from runtime.errors import RequestError
from runtime.sessions.playback.canvas import Band, Placement, Timeline
from runtime.sessions.playback.playhead import Playhead
from runtime.sessions.protocol.actions import LiveModel


class Navigation:
    """Moves a session on its canvas of `frames` frames; changes take effect after the playhead's reach."""

    def __init__(self, model: LiveModel, frames: int, is_loop: bool, timeline: Timeline, playhead: Playhead) -> None:
        self._model, self._frames, self._is_loop = model, frames, is_loop
        self._timeline, self._playhead = timeline, playhead

    def set_band(self, start_s: float | None, end_s: float | None) -> None:
        """Repeat a part of the canvas; None: the whole loop, or nothing. Raises RequestError.

        A position inside the band goes on; any other jumps to the band's beginning.
        """
        band, here = self._band(start_s, end_s), self._newest()
        reach = self._playhead.reach
        frame = reach // self._model.hop_samples
        position = here.canvas_frame_at(frame)
        if band is not None and not band[0] <= position < band[1]:
            position = band[0]
        self._timeline.move(reach, frame, position, band)

    def seek(self, to_s: float) -> None:
        """Go on at another position of the band, or of what is known. Raises RequestError."""
        here = self._newest()
        first, end = here.band or (here.canvas.start, here.canvas.end)
        frame = int(to_s * self._model.frame_rate_hz + 1e-6)
        if not first <= frame < end:
            raise RequestError(f"plays {self._span(first, end)}", field="to_s")
        reach = self._playhead.reach
        self._timeline.move(reach, reach // self._model.hop_samples, frame, here.band)

    @property
    def picture_start(self) -> int:
        """The first frame of a picture: of the loop, or half a canvas before the playhead."""
        sample = self._playhead.position
        here = self._timeline.at(sample)
        if self._is_loop or here is None:
            return self._timeline.canvas.start
        frame = here.canvas_frame_at(sample // self._model.hop_samples) - self._frames // 2
        return min(max(frame, here.canvas.start), here.canvas.end - 1)

    def _newest(self) -> Placement:
        if self._timeline.newest is None:
            raise RequestError("there is no canvas yet", field="type", fix="wait for the first audio")
        return self._timeline.newest

    def _band(self, start_s: float | None, end_s: float | None) -> Band | None:
        if start_s is None or end_s is None:
            return (0, self._frames) if self._is_loop else None
        canvas, rate_hz = self._timeline.canvas, self._model.frame_rate_hz
        begin, end = int(start_s * rate_hz + 1e-6), math.ceil(end_s * rate_hz - 1e-6)
        if begin < canvas.start or end > canvas.end:
            raise RequestError(f"the canvas is {self._span(canvas.start, canvas.end)}", field="end_s")
        return begin, end

    def _span(self, first: int, end: int) -> str:
        rate_hz = self._model.frame_rate_hz
        return f"from {first / rate_hz:.2f} to {end / rate_hz:.2f} s"
