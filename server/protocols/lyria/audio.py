"""The audio of a live session as a stream that never takes back what it has given, as its clients play it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from runtime.audio.encoding import AudioWriter
from runtime.live.hosting.session_client import Hearing
from runtime.live.playback.audio_ring import AudioRing
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Ready, ServerMessage
from server.protocols.lyria.messages import CHANNELS, SAMPLE_RATE_HZ

CHUNK_S = 0.2
AHEAD_S = 2.0
LEAST_AHEAD_S = 0.4
RING_S = 4.0
STEREO = ([0, 0], [0, 1])  # the channels of stereo, of mono and of more


class AudioStream(Hearing):
    """The listener of a session. The host's thread puts audio and messages; all else is the event loop's.

    `ring` has what can still change; `newest_seq` is the newest whose audio has come. on_change: called after audio has
    come. on_message: gets the session's messages.
    """

    def __init__(
        self,
        sample_rate_hz: int,
        channels: int,
        on_change: Callable[[], object],
        on_message: Callable[[ServerMessage], object],
    ) -> None:
        self.ring = AudioRing(sample_rate_hz, channels, capacity_s=RING_S)
        self._on_change, self._on_message = on_change, on_message
        self._loop = asyncio.get_running_loop()
        self.newest_seq = 0
        self._is_closed = False
        self._awaited_seq = 0
        self._made: list[tuple[int, int]] = []  # (first sample, full_seq), each up to the next one
        self._writer = AudioWriter("pcm", sample_rate_hz, CHANNELS, file_rate_hz=SAMPLE_RATE_HZ)
        self._chunk = np.empty((round(CHUNK_S * sample_rate_hz), channels), np.float32)

    def on_message(self, message: ServerMessage) -> None:
        """Take a message of the session, on the host's thread."""
        self._call(self._take, message)

    def on_audio(self, chunk: AudioChunk) -> None:
        """Take audio of the session, on the host's thread."""
        self._call(self._write, chunk)

    def close(self) -> None:
        """Ignore everything from now on."""
        self._is_closed = True

    def begin_at(self, seq: int) -> None:
        """Give nothing that was made before `seq`."""
        self._awaited_seq = seq
        self._clear(self.ring.playhead_sample)

    @property
    def has_chunk(self) -> bool:
        """Whether `read` has something."""
        return self.ring.end_sample - self.ring.playhead_sample >= len(self._chunk)

    def read(self) -> tuple[int, bytes]:
        """The seq that the next CHUNK_S were made with, and their samples for the client. Raises NonFiniteError."""
        here = self.ring.playhead_sample
        seq = next((seq for first, seq in reversed(self._made) if first <= here), 0)
        self._made = [(here, seq), *(item for item in self._made if item[0] > here)]
        self.ring.read(self._chunk)
        return seq, self._writer.write(self._chunk[:, STEREO[self._chunk.shape[1] > 1]])

    def _call(self, call: Callable[..., None], item: AudioChunk | ServerMessage) -> None:
        if not self._is_closed:
            self._loop.call_soon_threadsafe(call, item)

    def _take(self, message: ServerMessage) -> None:
        if isinstance(message, Ready):
            self._clear(message.next_sample)
        self._on_message(message)

    def _write(self, chunk: AudioChunk) -> None:
        if chunk.full_seq < self._awaited_seq:
            return
        self.newest_seq = max(self.newest_seq, chunk.full_seq)
        if self._awaited_seq:
            self._clear(chunk.start_sample)
            self._awaited_seq = 0
        self.ring.write(chunk.start_sample, chunk.pcm)
        self._made = [item for item in self._made if item[0] < chunk.start_sample]
        self._made.append((chunk.start_sample, chunk.full_seq))
        self._on_change()

    def _clear(self, sample: int) -> None:
        self.ring.clear(sample)
        self._made.clear()


class Pace:
    """When to send: up to AHEAD_S ahead of a client that plays what it gets at once, then in real time.

    clock: seconds, monotonic. While paused, the client keeps what it has.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end_s = 0.0  # when the client has played everything
        self._paused_ahead_s = 0.0

    def wait_s(self, ahead_s: float = AHEAD_S) -> float:
        """How long to wait before another chunk, where the client is to have at most `ahead_s`."""
        return max(0.0, self._end_s + CHUNK_S - ahead_s - self._clock())

    def send(self) -> None:
        """A chunk is sent. A client that had nothing left has waited for it."""
        self._end_s = max(self._end_s, self._clock()) + CHUNK_S

    def pause(self) -> None:
        """The client stands still."""
        self._paused_ahead_s = max(0.0, self._end_s - self._clock())

    def stop(self) -> None:
        """The client has dropped what it had."""
        self._paused_ahead_s = 0.0

    def play(self) -> None:
        """The client goes on."""
        self._end_s = self._clock() + self._paused_ahead_s
