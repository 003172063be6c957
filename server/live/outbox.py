"""What waits to be sent to one client of a live session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import CanvasPicture, Changed, Plan, ServerMessage, State

# A session runs at most 2 s ahead of its client, which is 768 KB of float32 stereo at 48 kHz.
MAX_AUDIO_BYTES = 2**20
MAX_AUDIO_AGE_S = 2.0
MAX_MESSAGES = 1024


class Outbox:
    """The listener of a session: any thread puts, the event loop's thread takes. Messages go before audio.

    Audio that a newer chunk replaces is left out. Where the client does not read, audio is dropped, oldest first;
    messages are not, but of `state`, `canvas`, `plan` and `changed` only one waits. `has_overflowed`: more than
    MAX_MESSAGES wait.
    """

    def __init__(self, on_drop: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self.has_overflowed = False
        self._on_drop = on_drop
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of messages and audio; never held while something waits
        self._is_filled = asyncio.Event()
        self._is_closed = False
        self._messages: deque[ServerMessage] = deque()
        self._audio: deque[tuple[float, AudioChunk]] = deque()
        self._audio_bytes = 0

    def on_message(self, message: ServerMessage) -> None:
        """Add a message."""
        with self._lock:
            if self._is_closed:
                return
            if isinstance(message, State | CanvasPicture | Plan | Changed):
                message = self._replacing_waiting(message)
            self.has_overflowed |= len(self._messages) >= MAX_MESSAGES
            if not self.has_overflowed:
                self._messages.append(message)
            self._wake()

    def on_audio(self, chunk: AudioChunk) -> None:
        """Add a chunk of audio."""
        with self._lock:
            if self._is_closed:
                return
            kept = deque((put_s, waiting) for put_s, waiting in self._audio if not _is_replaced(waiting, chunk))
            kept.append((self._clock(), chunk))
            self._audio = kept
            self._audio_bytes = sum(waiting.pcm.nbytes for _, waiting in kept)
            while self._audio_bytes > MAX_AUDIO_BYTES and len(self._audio) > 1:
                self._drop_oldest()
            self._wake()

    async def take(self) -> ServerMessage | AudioChunk | None:
        """Wait for what is to be sent next; None when messages have overflowed."""
        while True:
            await self._is_filled.wait()  # until the next `_wake`, without a limit: the connection ends the task
            with self._lock:
                if self.has_overflowed:
                    return None
                item = self._next()
                if item is not None:
                    return item
                self._is_filled.clear()

    def close(self) -> None:
        """Ignore everything from now on."""
        with self._lock:
            self._is_closed = True

    def _replacing_waiting(self, message: State | CanvasPicture | Plan | Changed) -> ServerMessage:
        """Remove the message of this type that waits; a `changed` has the values of both."""
        if isinstance(message, Changed):
            older = [waiting.values for waiting in self._messages if isinstance(waiting, Changed)]
            message = Changed(
                values={name: value for values in (*older, message.values) for name, value in values.items()}
            )
        self._messages = deque(waiting for waiting in self._messages if type(waiting) is not type(message))
        return message

    def _next(self) -> ServerMessage | AudioChunk | None:
        if self._messages:
            return self._messages.popleft()
        while self._audio and self._clock() - self._audio[0][0] > MAX_AUDIO_AGE_S:
            self._drop_oldest()
        if not self._audio:
            return None
        _, chunk = self._audio.popleft()
        self._audio_bytes -= chunk.pcm.nbytes
        return chunk

    def _drop_oldest(self) -> None:
        _, chunk = self._audio.popleft()
        self._audio_bytes -= chunk.pcm.nbytes
        self._on_drop()

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._is_filled.set)  # an asyncio.Event belongs to the event loop's thread


def _is_replaced(waiting: AudioChunk, chunk: AudioChunk) -> bool:
    """Whether the client has no use for `waiting` once it has `chunk`."""
    is_inside = chunk.start_sample <= waiting.start_sample and waiting.end_sample <= chunk.end_sample
    return waiting.epoch != chunk.epoch or is_inside
