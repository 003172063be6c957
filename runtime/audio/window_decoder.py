"""Windows of one generation's latents to finished audio, in order, and where audio of two is joined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.audio.finishing import Finisher, block_energies, loudness_lufs
from runtime.audio.windows import Window
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
