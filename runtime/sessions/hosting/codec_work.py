"""Work of the codec for live sessions: decoding, in the codec's queue, and encoding, in a thread of its own.

What continues a session's audio is decoded before replacements, which may come late without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.codec_queue import Urgency
from runtime.audio.finishing import soft_limited
from runtime.audio.formats import Latents, Pcm
from runtime.errors import TickError
from runtime.sessions.protocol.actions import DecodeWindow
from runtime.sessions.protocol.messages import WriteAudio

# A session may begin so late: those that play have less time.
BEGIN_S = 0.4
Call = Callable[[Callable[[], None]], None]
# What work in a thread gave, or the error that it raised: `expected` tells them apart.
PcmDone = Callable[[Pcm | BaseException], None]
T = TypeVar("T")


class CodecWork:
    """Decodes and encodes for the host's thread, which calls all methods; `call` puts results into its queue.

    What is decoded has the bundle's `gain_db`, and no sample above -1.6 dB.
    """

    def __init__(self, codec: Codec, call: Call) -> None:
        self._codec, self._call = codec, call
        self._gain = 10 ** (codec.spec.gain_db / 20)
        self._encoding_thread = ThreadPoolExecutor(1, "live-encode")

    def close(self) -> None:
        """Wait for what is being encoded."""
        self._encoding_thread.shutdown()  # until its last encode ends

    def decode(self, window: DecodeWindow, lead_s: float, is_wanted: Callable[[], bool], done: PcmDone) -> None:
        """Decode a window, trimmed, unless it is not wanted any more when its turn comes. lead_s: until it is played.

        is_wanted: called by any thread.
        """
        urgency = Urgency.CHANGING if window.is_replacing else Urgency.PLAYING
        late_s = lead_s + BEGIN_S * window.is_first
        # to a worker of the codec
        decoding = self._codec.queue.submit(partial(self._decode, window), urgency, late_s, is_wanted)
        # runs in that worker; `done` on the host's thread
        decoding.add_done_callback(partial(report, self._call, done))

    def encode(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work`, which may take long, in the encoding thread; in the order of the calls."""
        self._encoding_thread.submit(work).add_done_callback(partial(report, self._call, done))

    def write(self, message: WriteAudio, pcm: Pcm, offset: int, latents: Latents) -> Latents:
        """Work for encode(): `latents` `[n, C]` with the audio in place of, or added to, theirs from sample `offset`.

        Raises RequestError, EngineError.
        """
        audio = self._codec.decode(latents)  # [n * hop, channels]
        part = audio[offset : offset + len(pcm)]  # a view: [samples, channels]
        part[:] = pcm[: len(part)] / np.float32(self._gain) + (part if message.mode == "sum" else 0.0)
        return self._codec.encode(audio)  # [n, C]

    def _decode(self, window: DecodeWindow) -> Pcm:
        """In a worker of the codec."""
        pcm = soft_limited(self._codec.decode(window.values, window.start_frame), self._gain)  # [n * hop, channels]
        return pcm[window.trim_begin : window.trim_end]


def report(call: Call, done: Callable[[Any], None], ended: Future[Any]) -> None:
    """Let the host's thread take what work in another one gave or raised."""
    if not ended.cancelled():
        call(partial(done, ended.exception() or ended.result()))


def expected(given: T | BaseException) -> T | TickError:
    """What work in a thread gave, or TickRT's error. Raises any other error, where it ends one session alone."""
    if isinstance(given, BaseException) and not isinstance(given, TickError):
        raise given
    return given
