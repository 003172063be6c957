"""Windows of one generation's latents to finished audio, in order, and where audio of two is joined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial, reduce

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

    Others are decoded ahead where the codec has free workers, neighbours of a part as one where that takes less. But
    with is_streamed the first audio waits for none of that. total_samples: where the audio is cut; None without an end.
    kept_frames: the frames of which `splicer` has the source's samples. One thread at a time.
    """

    def __init__(
        self,
        hop_samples: int,
        total_samples: int | None,
        splicer: AudioSplicer | None,
        finisher: Finisher | None,
        kept_frames: NDArray[np.int64],
        *,
        is_streamed: bool = True,
    ) -> None:
        self.num_samples = 0
        self._hop_samples, self._total_samples, self._splicer = hop_samples, total_samples, splicer
        self.finisher, self._kept_frames, self._is_streamed = finisher, kept_frames, is_streamed
        self._coming: list[Window] = []
        self._spans: dict[int, Window] = {}  # By the index of a window: what it is decoded in.
        self._decoded: dict[int, Future[Pcm]] = {}  # by the index of a span, with its margins

    def decode(self, window: Window, codec: Codec) -> Pcm:
        """The next window's PCM `[n, channels]` float32; empty behind the end. Raises EngineError, RequestError."""
        if window.following is not None:
            self._arrive((window, *window.following), codec)
        finish = partial(self._finish, window, codec)
        pcm = finish() if self._splicer is None else self._splicer.splice(window.frames * self._hop_samples, finish)
        if (span := self._span(window)).end_frame == window.end_frame:
            self._decoded.pop(span.index, None)
        if self._total_samples is not None:
            pcm = pcm[: self._total_samples - self.num_samples]
        self.num_samples += len(pcm)
        return pcm

    def _arrive(self, windows: Sequence[Window], codec: Codec) -> None:
        """Find which windows of a part are decoded as one, and measure them."""
        generated = [each for each in windows if len(self._generated_frames(each))]
        pieces = [] if self.finisher is None else self._pieces(windows, codec, self.finisher.span_starts)
        read = [window for window in windows if any(len(_inside(window, piece)) for piece in pieces)]
        is_first = self._is_streamed and windows[0].index == 0
        awaited = {each.index for each in (windows[0], *read)} if is_first else set()
        self._spans = _joined([each for each in generated if each.index not in awaited], codec)
        self._coming = list({span.index: span for span in map(self._span, generated)}.values())
        if self.finisher is not None:
            measured = ((int(piece[0]) * codec.hop_samples, self._frames(piece, read, codec)) for piece in pieces)
            self.finisher.measure(measured, windows[0].first_frame * codec.hop_samples)

    def _span(self, window: Window) -> Window:
        return self._spans.get(window.index, window)

    def _finish(self, window: Window, codec: Codec) -> Pcm:
        coming = [span for span in self._coming if span.index > window.index][: codec.queue.size]
        pcm = self._decode(window, codec, coming if window.index or not self._is_streamed else ())
        if self.finisher is not None:
            pcm = self.finisher.finish(pcm, window.start_frame * self._hop_samples)
        return codec.trimmed(pcm, window)

    def _decode(self, window: Window, codec: Codec, others: Iterable[Window]) -> Pcm:
        """With margins; meanwhile free workers decode others. What was decoded before is not decoded again."""
        span = self._span(window)
        others = [other for other in map(self._span, others) if other.index != span.index]
        if span.index not in self._decoded and not codec.queue.is_inside:
            self._decoded[span.index] = codec.start(span)
        self._start_ahead(others, codec)
        if span.index not in self._decoded:  # This thread is the worker that decodes it.
            self._decoded[span.index] = codec.start(span)
        while not (decoded := self._decoded[span.index]).done():
            # Until a worker of the codec has decoded it, or is free for another one.
            wait([each for each in self._decoded.values() if not each.done()] or [decoded], return_when=FIRST_COMPLETED)
            self._start_ahead(others, codec)
        begin = (window.start_frame - span.start_frame) * codec.hop_samples
        return decoded.result()[begin : begin + len(window.values) * codec.hop_samples]

    def _start_ahead(self, spans: Iterable[Window], codec: Codec) -> None:
        """Let the codec's free workers decode what is not decoded yet."""
        for span in spans:
            if span.index not in self._decoded:
                if (started := codec.start_if_free(span)) is None:
                    break
                self._decoded[span.index] = started

    def _generated_frames(self, window: Window) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(window.first_frame, window.end_frame), self._kept_frames)

    def _pieces(self, windows: Sequence[Window], codec: Codec, starts: Sequence[int]) -> list[NDArray[np.int64]]:
        """A few pieces of what is generated of the windows' frames, for their loudness.

        starts: the samples with which parts of a level begin; there are some of each.
        """
        hop = codec.hop_samples
        frames = np.concatenate([self._generated_frames(window) for window in windows])
        size = math.ceil(PROBE_S * codec.sample_rate_hz / hop)
        parts = np.split(frames, np.searchsorted(frames, -(-np.array(starts) // hop)))
        return [piece for part in parts if len(part) for piece in probed(part, size)]

    def _frames(self, numbers: NDArray[np.int64], windows: Sequence[Window], codec: Codec) -> Pcm:
        """PCM of frames that lie in these windows, which are all decoded sooner or later."""
        pieces: list[Pcm] = []
        for window in windows:
            if len(inside := _inside(window, numbers)):
                pcm = codec.trimmed(self._decode(window, codec, (*windows, *self._coming)), window)
                pieces.append(pcm.reshape(window.frames, -1)[inside])
        return np.concatenate(pieces).reshape(-1, codec.channels)


def _joined(windows: Iterable[Window], codec: Codec) -> dict[int, Window]:
    """By the index of a window: what it is decoded in."""
    runs = list[list[Window]]()
    for window in windows:
        if not runs or runs[-1][-1].end_frame != window.first_frame:
            runs.append([])
        runs[-1].append(window)
    found = [group for run in runs for group in codec.together(run)]
    return {each.index: span for group in found for span in [reduce(Window.with_next, group)] for each in group}


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
