"""Work of the codec for live sessions: decoding and encoding; a thread for each.

What continues a session's audio is decoded before replacements, which may come late without a gap; among equal ones the
earliest deadline is first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.finishing import soft_limited
from runtime.audio.formats import Latents, Pcm
from runtime.errors import TickError
from runtime.sessions.actions import DecodeWindow
from runtime.sessions.messages import WriteAudio

Call = Callable[[Callable[[], None]], None]
# What work in a thread gave, or the error that it raised: `expected` tells which.
PcmDone = Callable[[Pcm | BaseException], None]
LatentsDone = Callable[[Latents | BaseException], None]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Decoding:
    """A window to decode; `is_wanted` is asked right before."""

    window: DecodeWindow
    is_wanted: Callable[[], bool]
    done: PcmDone


class CodecWork:
    """Decodes and encodes for the host's thread, which calls all methods; `call` puts results into its queue.

    Windows wait here, not in the decoding thread, so that the most urgent one is always next and outdated ones cost
    nothing. What is decoded has the bundle's `gain_db`, and no sample above -1.6 dB.
    """

    def __init__(self, codec: Codec, call: Call) -> None:
        self._codec, self._call = codec, call
        self._gain = 10 ** (codec.spec.gain_db / 20)
        self._windows: list[tuple[bool, float, int, _Decoding]] = []
        self._numbers = count()
        self._is_decoding = False
        self._decoding_thread = ThreadPoolExecutor(1, "live-decode")
        self._encoding_thread = ThreadPoolExecutor(1, "live-encode")

    def close(self) -> None:
        """Wait for what is under way; what waits is dropped."""
        self._windows.clear()
        self._decoding_thread.shutdown()
        self._encoding_thread.shutdown()

    def decode(self, window: DecodeWindow, deadline_s: float, is_wanted: Callable[[], bool], done: PcmDone) -> None:
        """Decode a window, trimmed, unless it is not wanted any more when its turn comes. deadline_s: of any clock."""
        decoding = _Decoding(window, is_wanted, done)
        heapq.heappush(self._windows, (window.is_replacing, deadline_s, next(self._numbers), decoding))

    def start_next(self) -> None:
        """Start to decode the most urgent window, if none is being decoded."""
        while self._windows and not self._is_decoding:
            decoding = heapq.heappop(self._windows)[-1]
            if decoding.is_wanted():
                self._is_decoding = True
                decoded = self._decoding_thread.submit(self._decode, decoding.window)
                decoded.add_done_callback(partial(report, self._call, partial(self._decoded, decoding)))

    def encode(self, work: Callable[[], Latents], done: LatentsDone) -> None:
        """Run `work`, which may take long, in the encoding thread; in the order of the calls."""
        self._encoding_thread.submit(work).add_done_callback(partial(report, self._call, done))

    def write(self, message: WriteAudio, pcm: Pcm, offset: int, latents: Latents) -> Latents:
        """Work for encode(): `latents` `[n, C]` with the audio in place of, or added to, theirs from sample `offset`.

        Raises RequestError, EngineError.
        """
        audio = self._codec.decode(latents)
        part = audio[offset : offset + len(pcm)]
        part[:] = pcm[: len(part)] / np.float32(self._gain) + (part if message.mode == "sum" else 0.0)
        return self._codec.encode(audio)

    def _decode(self, window: DecodeWindow) -> Pcm:
        """In the decoding thread."""
        pcm = soft_limited(self._codec.decode(window.values, window.start_frame), self._gain)
        return pcm[window.trim_begin : window.trim_end]

    def _decoded(self, decoding: _Decoding, pcm: Pcm | BaseException) -> None:
        self._is_decoding = False
        decoding.done(pcm)


def report(call: Call, done: Callable[[Any], None], ended: Future[Any]) -> None:
    """Let the host's thread take what work in another one gave or raised."""
    call(partial(done, ended.exception() or ended.result()))


def expected(given: T | BaseException) -> T | TickError:
    """What work in a thread gave, or TickRT's error. Raises any other error, where it ends one session alone."""
    if isinstance(given, BaseException) and not isinstance(given, TickError):
        raise given
    return given
