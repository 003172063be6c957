"""Windows of one generation's latents to finished audio, in order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.audio.finishing import Finisher
from runtime.audio.splicing import AudioSplicer
from runtime.audio.windows import Window
from runtime.config.codec import Pcm

# The loudness of a part is that of pieces of this length, a fifth of the part but 3 to 8. They lie at multiples of the
# golden ratio, which no rhythm shares.
PROBE_S, PROBE_SHARE, MIN_PROBES, MAX_PROBES = 1.2, 0.2, 3, 8
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class AudioDecoder:
    """Decodes and finishes the windows of one generation, in order; what is kept of an audio source stays the source's.

    From the second window on, others are decoded ahead where the codec has free workers. total_samples: where the audio
    is cut; None without an end. kept_frames: the frames of which `splicer` has the source's samples. One thread at a
    time.
    """

    def __init__(
        self,
        hop_samples: int,
        total_samples: int | None,
        splicer: AudioSplicer | None,
        finisher: Finisher | None,
        kept_frames: NDArray[np.int64],
    ) -> None:
        self.num_samples = 0
        self._hop_samples, self._total_samples, self._splicer = hop_samples, total_samples, splicer
        self.finisher, self._kept_frames = finisher, kept_frames
        self._coming: tuple[Window, ...] = ()
        self._decoded: dict[int, Future[Pcm]] = {}  # by the index of a window, with its margins

    def decode(self, window: Window, codec: Codec) -> Pcm:
        """The next window's PCM `[n, channels]` float32; empty behind the end. Raises EngineError, RequestError."""
        if window.following is not None:
            self._coming = tuple(each for each in window.following if len(self._generated_frames(each)))
        if self.finisher is not None and window.following is not None:
            pieces = self._probes([window, *window.following], codec, self.finisher.span_starts)
            self.finisher.measure(pieces, window.first_frame * self._hop_samples)
        finish = partial(self._finish, window, codec)
        pcm = finish() if self._splicer is None else self._splicer.splice(window.frames * self._hop_samples, finish)
        self._decoded.pop(window.index, None)
        if self._total_samples is not None:
            pcm = pcm[: self._total_samples - self.num_samples]
        self.num_samples += len(pcm)
        return pcm

    def _finish(self, window: Window, codec: Codec) -> Pcm:
        coming = [each for each in self._coming if each.index > window.index][: codec.queue.size]
        pcm = self._decode(window, codec, coming if window.index else ())
        if self.finisher is not None:
            pcm = self.finisher.finish(pcm, window.start_frame * self._hop_samples)
        return codec.trimmed(pcm, window)

    def _decode(self, window: Window, codec: Codec, others: Iterable[Window]) -> Pcm:
        """With margins; meanwhile free workers decode others. What was decoded before is not decoded again."""
        if window.index not in self._decoded and not codec.queue.is_inside:
            self._decoded[window.index] = codec.start(window)
        for other in others:
            if other.index not in self._decoded and other.index != window.index:
                if (started := codec.start_if_free(other)) is None:
                    break
                self._decoded[other.index] = started
        if window.index not in self._decoded:  # This thread is the worker that decodes it.
            self._decoded[window.index] = codec.start(window)
        # Until a worker of the codec has decoded it.
        return self._decoded[window.index].result()

    def _generated_frames(self, window: Window) -> NDArray[np.int64]:
        end = window.first_frame + window.frames
        return np.setdiff1d(np.arange(window.first_frame, end), self._kept_frames)

    def _probes(self, windows: Sequence[Window], codec: Codec, starts: Sequence[int]) -> Iterator[tuple[int, Pcm]]:
        """A few pieces of what is generated of the windows' frames, for their loudness, with their first samples.

        starts: the samples with which spans begin; there are some of each.
        """
        hop = codec.hop_samples
        frames = np.concatenate([self._generated_frames(window) for window in windows])
        size = math.ceil(PROBE_S * codec.sample_rate_hz / hop)
        parts = np.split(frames, np.searchsorted(frames, -(-np.array(starts) // hop)))
        pieces = [piece for part in parts if len(part) for piece in probed(part, size)]
        read = [window for window in windows if any(len(_inside(window, piece)) for piece in pieces)]
        for piece in pieces:
            yield int(piece[0]) * hop, self._frames(piece, read, codec)

    def _frames(self, numbers: NDArray[np.int64], windows: Sequence[Window], codec: Codec) -> Pcm:
        """PCM of frames that lie in these windows, which are all decoded sooner or later."""
        pieces: list[Pcm] = []
        for window in windows:
            if len(inside := _inside(window, numbers)):
                pcm = codec.trimmed(self._decode(window, codec, windows), window)
                pieces.append(pcm.reshape(window.frames, -1)[inside])
        return np.concatenate(pieces).reshape(-1, codec.channels)


def probed(frames: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """A few pieces of `size` of these frames, each without gaps; one of all of them where they are fewer."""
    wanted = len(frames) / size
    number = math.ceil(min(wanted, MAX_PROBES, max(MIN_PROBES, wanted * PROBE_SHARE)))
    starts = [int(index * GOLDEN_RATIO % 1 * max(0, len(frames) - size)) for index in range(number)]
    pieces = [frames[first : first + size] for first in starts]
    return [piece[piece < piece[0] + size] for piece in pieces]


def _inside(window: Window, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of these frames that are a window's, counted from its first one after the margin."""
    inside = numbers - window.first_frame
    return inside[(inside >= 0) & (inside < window.frames)]
