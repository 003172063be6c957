"""Latents to PCM in windows that join without a seam."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from runtime.audio.codec import Codec, Latents
from runtime.audio.formats import Pcm


class DecodeStream:
    """Latents that arrive in pieces, one after the other, as one continuous stream of PCM.

    The last `margin_frames` of what arrived wait for what comes behind them. `total_samples`: where the stream ends, in
    the middle of a frame if need be. One thread at a time.
    """

    def __init__(
        self, codec: Codec, *, window_frames: int, start_frame: int = 0, total_samples: int | None = None
    ) -> None:
        self._codec = codec
        self._samples_left = total_samples
        self._window_frames = window_frames
        self._next_frame = start_frame
        self._decoded = np.empty((0, codec.latent_channels), np.float32)
        self._waiting = self._decoded

    def feed(self, latents: Latents) -> Iterator[Pcm]:
        """Take `[T, C]` more frames; gives the windows that can be decoded now. To be run to its end."""
        self._waiting = np.concatenate((self._waiting, latents))
        yield from self._decode(len(self._waiting) - self._codec.margin_frames)

    def finish(self) -> Iterator[Pcm]:
        """Nothing more comes: the rest."""
        yield from self._decode(len(self._waiting))

    def _decode(self, frames: int) -> Iterator[Pcm]:
        """Decode the first `frames` of those that wait, up to the end of the stream."""
        if frames <= 0 or self._samples_left == 0:
            return
        ready, self._waiting = self._waiting[:frames], self._waiting[frames:]
        before, start_frame = self._decoded, self._next_frame
        history = np.concatenate((before, ready))
        self._decoded = history[max(len(history) - self._codec.margin_frames, 0) :]
        self._next_frame += frames
        windows = self._codec.windows(
            ready, window_frames=self._window_frames, start_frame=start_frame, before=before, after=self._waiting
        )
        for pcm in windows:
            yield pcm[: self._samples_left]
            if self._samples_left is not None:
                self._samples_left = max(self._samples_left - len(pcm), 0)
                if self._samples_left == 0:
                    return
