"""Decoded audio with the samples of its source where the source is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.audio.formats import Pcm

# Beside a join the decoded audio is the source as the codec reproduces it, so a linear crossfade keeps the level.
CROSSFADE_S = 0.02


class AudioSplicer:
    """Replaces decoded samples of kept frames by those of the source; used from the first sample on, in order.

    kept `[N]` bool: the frames of `hop_samples` whose audio is the source's. source: its PCM `[n, channels]` in chunks,
    from frame 0 on. A crossfade of `fade_samples` lies on the kept side of every join. One thread at a time.
    """

    def __init__(self, kept: NDArray[np.bool_], hop_samples: int, fade_samples: int, source: Iterator[Pcm]) -> None:
        edges = np.flatnonzero(np.diff(~kept, prepend=False, append=False)) * hop_samples
        self._generated = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        self._fade_samples = max(1, fade_samples)
        self._source = source
        self._position = 0
        self._unread: list[Pcm] = []

    def splice(self, num_samples: int, decode: Callable[[], Pcm]) -> Pcm:
        """The next `[num_samples, channels]`; `decode` makes them, and is not called where all are the source's."""
        share = self._generated_share(self._position, self._position + num_samples)
        self._position += num_samples
        original = self._read(num_samples)
        if original is None or not share.any():
            return decode() if original is None else original
        spliced: Pcm = share * decode() + (1 - share) * original
        return spliced

    def _generated_share(self, start: int, end: int) -> NDArray[np.float32]:
        """`[n, 1]`: 1 in generated frames, falling to 0 beside them."""
        position, fade = np.arange(start, end), self._fade_samples
        share = np.zeros(len(position))
        for begin, stop in self._generated:
            if begin - fade < end and start < stop + fade:
                np.maximum(share, np.minimum(position - begin + fade, stop - 1 + fade - position) / fade, out=share)
        return np.clip(share, 0.0, 1.0).astype(np.float32)[:, None]

    def _read(self, num_samples: int) -> Pcm | None:
        """The source's next samples, and silence after its end; None from there on."""
        while sum(map(len, self._unread)) < num_samples and (chunk := next(self._source, None)) is not None:
            self._unread.append(chunk)
        if not self._unread:
            return None
        pcm = self._unread[0] if len(self._unread) == 1 else np.concatenate(self._unread)
        self._unread = [pcm[num_samples:]] if len(pcm) > num_samples else []
        return np.pad(pcm[:num_samples], ((0, max(0, num_samples - len(pcm))), (0, 0)))
