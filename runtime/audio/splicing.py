"""Decoded audio with the samples of its source where the source is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.audio.loudness import block_energies, loudness_lufs
from runtime.config.codec import Pcm

# Beside a join the decoded audio is the source as the codec reproduces it, so a linear crossfade keeps the level.
CROSSFADE_S = 0.02
# What surrounds a passage: the source up to this far from it, in pieces of a block of the loudness.
SURROUNDINGS_S, PIECE_S = 10.0, 0.4


class AudioSplicer:
    """Replaces decoded samples of kept frames by those of the source; used from the first sample on, in order.

    kept `[N]` bool: the frames of `hop_samples` whose audio is the source's. source: its PCM `[n, channels]` in chunks,
    from frame 0 on. A crossfade of `fade_samples` lies on the kept side of every join. One thread at a time.
    """

    def __init__(self, kept: NDArray[np.bool_], hop_samples: int, fade_samples: int, source: Iterator[Pcm]) -> None:
        self._generated = [(begin * hop_samples, end * hop_samples) for begin, end in _generated_spans(kept)]
        self._fade_samples = max(1, fade_samples)
        self._source = _SampleReader(source)
        self._position = 0

    def splice(self, num_samples: int, decode: Callable[[], Pcm]) -> Pcm:
        """The next `[num_samples, channels]`; `decode` makes them, and is not called where all are the source's."""
        share = self._generated_share(self._position, self._position + num_samples)
        self._position += num_samples
        original = self._source.read(num_samples)
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


class _SampleReader:
    """Reads PCM that comes in chunks, in pieces of any length."""

    def __init__(self, source: Iterator[Pcm]) -> None:
        self._source = source
        self._unread: list[Pcm] = []

    def read(self, num_samples: int) -> Pcm | None:
        """The next samples, and silence after its end; None from there on."""
        while sum(map(len, self._unread)) < num_samples and (chunk := next(self._source, None)) is not None:
            self._unread.append(chunk)
        if not self._unread:
            return None
        pcm = self._unread[0] if len(self._unread) == 1 else np.concatenate(self._unread)
        self._unread = [pcm[num_samples:]] if len(pcm) > num_samples else []
        return np.pad(pcm[:num_samples], ((0, max(0, num_samples - len(pcm))), (0, 0)))


def surrounding_loudness(
    kept: NDArray[np.bool_], hop_samples: int, sample_rate_hz: int, source: Iterator[Pcm]
) -> float | None:
    """LUFS of the kept frames near the others, None for silence. The arguments are those of AudioSplicer."""
    reach, size = (max(1, round(length_s * sample_rate_hz / hop_samples)) for length_s in (SURROUNDINGS_S, PIECE_S))
    is_near = np.zeros(len(kept), np.bool_)
    for begin, end in _generated_spans(kept):
        is_near[max(0, begin - reach) : end + reach] = True
    is_near &= kept
    reader, energies = _SampleReader(source), [np.empty(0)]
    for frame in range(0, int(np.flatnonzero(is_near).max(initial=-1)) + 1, size):
        pcm = reader.read(size * hop_samples)
        if pcm is not None and is_near[frame : frame + size].all():
            energies.append(block_energies(pcm, sample_rate_hz))
    return loudness_lufs(np.concatenate(energies))


def _generated_spans(kept: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where frames are not kept, as ranges."""
    edges = np.flatnonzero(np.diff(~kept, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
