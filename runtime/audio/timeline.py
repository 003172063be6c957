"""A generation's latents as they come, cut into windows for the codec."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec import Codec

Latents = NDArray[np.float32]


@dataclass(frozen=True)
class Window:
    """`frames` frames to decode; `latents` `[lead + frames + n, C]` holds the codec's margin on both sides.

    `start_frame` is the absolute number of the first of `latents`.
    """

    latents: Latents
    start_frame: int
    lead: int
    frames: int
    index: int

    def decode(self, codec: Codec) -> NDArray[np.float32]:
        """PCM `[frames * hop, channels]`, equal to that part of the full decode."""
        pcm = codec.decode(self.latents, self.start_frame)
        hop = codec.hop_samples
        return pcm[self.lead * hop : (self.lead + self.frames) * hop]


@dataclass
class Timeline:
    """Cuts `total_frames` frames into a short first window and longer ones after it.

    Where windows begin and end depends on nothing but these numbers and on how long the parts are that come, never on
    when they come: equal generations give equal bytes. A part is cut up to its end, less the margin, so that nothing
    waits for the next one that need not. What is behind the last window is forgotten, but for the margin.
    """

    total_frames: int
    margin_frames: int
    first_frames: int
    window_frames: int
    _base: int = 0
    _next: int = 0
    _windows: int = 0
    _latents: list[Latents] = field(default_factory=list)

    def append(self, latents: Latents) -> None:
        """Put `[T, C]` at the end."""
        self._latents.append(latents)

    @property
    def known_frames(self) -> int:
        """Absolute number of the first frame that is not there yet."""
        return self._base + sum(len(part) for part in self._latents)

    @property
    def is_finished(self) -> bool:
        """Whether the last window has been taken."""
        return self._next >= self.total_frames

    def take(self) -> Window | None:
        """The next window; None while its frames or their margin are not there yet, or after the last."""
        known = self.known_frames
        ready = known if known >= self.total_frames else known - self.margin_frames
        end = min(self._next + self._wanted(), ready, self.total_frames)
        if end <= self._next:
            return None
        reach = min(end + self.margin_frames, self.total_frames)
        latents = np.concatenate(self._latents)
        low = max(self._base, self._next - self.margin_frames)
        window = Window(
            latents[low - self._base : reach - self._base], low, self._next - low, end - self._next, self._windows
        )
        self._forget(latents, max(self._base, end - self.margin_frames))
        self._next = end
        self._windows += 1
        return window

    def _wanted(self) -> int:
        if self._windows:
            return self.window_frames
        return min(self.first_frames, max(1, self.total_frames // 2))

    def _forget(self, latents: Latents, until: int) -> None:
        self._latents = [latents[until - self._base :]]
        self._base = until
