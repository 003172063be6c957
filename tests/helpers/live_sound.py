"""What a client of a live session received, sample by sample; a client in the test process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Ready, ServerMessage


class Sound:
    """Per sample from `begin` on: `pcm` `[n, 2]`, and `seqs` `[n, 2]`, its (first_seq, full_seq); -1: nothing yet."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.pcm = np.zeros((0, 2), np.float32)
        self.seqs = np.zeros((0, 2), np.int64)

    @property
    def end(self) -> int:
        return self.begin + len(self.pcm)

    def write(self, chunk: AudioChunk) -> None:
        """Put a chunk at its samples; it replaces what is there."""
        missing = max(0, chunk.end_sample - self.end)
        self.pcm = np.concatenate([self.pcm, np.zeros((missing, 2), np.float32)])
        self.seqs = np.concatenate([self.seqs, np.full((missing, 2), -1)])
        part = slice(chunk.start_sample - self.begin, chunk.end_sample - self.begin)
        self.pcm[part] = chunk.pcm
        self.seqs[part] = (chunk.first_seq, chunk.full_seq)

    def part(self, begin: int, end: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`pcm` and `seqs` of samples `begin` .. `end`."""
        part = slice(begin - self.begin, end - self.begin)
        return self.pcm[part], self.seqs[part]


class Heard:
    """A listener in the test process that keeps what it is sent since its newest connection."""

    def __init__(self) -> None:
        self.messages: list[ServerMessage] = []
        self.ready: Ready | None = None
        self.sound = Sound(0)

    def on_message(self, message: ServerMessage) -> None:
        self.messages.append(message)
        if isinstance(message, Ready):
            self.ready, self.sound = message, Sound(message.next_sample)

    def on_audio(self, chunk: AudioChunk) -> None:
        self.sound.write(chunk)
