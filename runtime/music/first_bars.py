"""The beat of music that no plan keeps: its own first bars are the hints of what follows, again and again.

Without them the beat is lost behind the first canvas: kick and snare of the demo without its planner lie on sixteenths
with a coherence of 0.01 to 0.06, with them of 0.56 to 0.68.
"""

from __future__ import annotations

import numpy as np

from runtime.config.codec import Latents
from runtime.config.notes import NotesSpec

# How much of them is given: what follows has their beat, and may have other notes.
STRENGTH = 0.7
MOST_BARS = 4


class FirstBars:
    """The keys' levels in whole bars from `start_frame` on: as many as there are, MOST_BARS at most.

    latents `[n, C]`: frames from `start_frame` on; silence `[C]`. bar_frames: how long a bar is, exactly. Expects n to
    have a bar.
    """

    def __init__(
        self, spec: NotesSpec, silence: Latents, latents: Latents, bar_frames: float, start_frame: int = 0
    ) -> None:
        self._start, self._silence = start_frame, silence
        self._length = bar_frames * min(MOST_BARS, int(len(latents) / bar_frames))
        self._channels = [channel for layer in spec.layers for channel in layer.channels]
        levels = latents[: round(self._length), self._channels] - silence[self._channels]
        self._played = silence[self._channels] + np.float32(STRENGTH) * levels  # [bars' frames, K]

    def hints(self, start_frame: int, frames: int) -> Latents:
        """Those of frames from `start_frame` on, `[frames, C]`."""
        # Half a frame before its first beat a frame belongs to it.
        places = (np.arange(start_frame, start_frame + frames) - self._start + 0.5) % self._length
        hints = np.tile(self._silence, (frames, 1)).astype(np.float32)  # [frames, C]
        hints[:, self._channels] = self._played[np.minimum(places.astype(int), len(self._played) - 1)]
        return hints
