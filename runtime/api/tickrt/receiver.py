"""What a live session in Python has received: its audio, its state, and the error that it ended with."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import DrainingError, RequestError, TickError
from runtime.live.hosting.session_client import Hearing
from runtime.live.playback.audio_ring import AudioRing
from runtime.live.playback.note_stream import NoteEvent, NoteStream
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import (
    Applied,
    Closed,
    LayerKeys,
    Plan,
    Problem,
    Ready,
    ServerMessage,
    State,
    TextWords,
    TrackedNotes,
)
from runtime.music.score import Score

logger = logging.getLogger("tickrt.live")

# While a change is being made, what can be read is what a player in real time would have played, and this much more.
PACE_SLACK_S, PACE_MAX_S = 0.2, 10.0
# How far back a resumed session may begin for what was received before to stay.
RESUMED_S = 10.0


class Receiver(Hearing):
    """The listener of a session: its audio, its last state, and why it has stopped. Filled by the host's thread.

    ready: the first message. ended: why the session has ended, "" before it has. words: of its prompts and negative
    prompt, as they were found last. layers: of the model's notes.
    """

    def __init__(self, sample_rate_hz: int, channels: int) -> None:
        self.ring = AudioRing(sample_rate_hz, channels)
        self.ready: Future[Ready] = Future()
        self.ended = ""
        self.state: State | None = None
        self.plan: Plan | None = None
        self.seed = 0
        self.words: list[TextWords] = []
        self.notes, self.layers = NoteStream(), list[LayerKeys]()
        self._rate_hz, self._channels = sample_rate_hz, channels
        self._error: TickError | None = None
        self._end: TickError | None = None
        # The reader waits for audio in `read`; the thread that receives notifies it, and holds this for one message.
        self._changed = threading.Condition()
        # The newest change that is not heard yet, when it was sent, and what had been read by then.
        self._pending_seq, self._pending_s, self._pending_sample = 0, 0.0, 0

    def on_audio(self, chunk: AudioChunk) -> None:
        with self._changed:
            self.ring.write(chunk.start_sample, chunk.pcm)
            self._changed.notify_all()

    def on_message(self, message: ServerMessage) -> None:
        with self._changed:
            match message:
                case Ready():
                    if not self._continues(message):
                        self.ring.clear(message.next_sample)
                        self.notes.clear(message.next_sample)
                    self.layers = message.layers
                    self.seed, self.words = message.controls.seed, message.controls.prompt_words
                    if message.notice:
                        logger.warning("session %s: %s", message.session, message.notice)
                    if not self.ready.done():
                        self.ready.set_result(message)
                case State():
                    self.state = message
                case TrackedNotes():
                    self.notes.take(message)
                case Plan():
                    self.plan = message
                case Applied(seq=seq, first_sample=first_sample):
                    self.words = self.words if message.prompt_words is None else message.prompt_words
                    if first_sample is not None:
                        self._heard(seq)
                case Problem():
                    self._error = error_of(message)
                    self._heard(message.seq or 0)
                case Closed():
                    self.ended = message.reason
                    self._end = self._end or DrainingError(f"the session has ended: {message.reason}")
                    self.notes.clear(self.ring.playhead_sample)
            self._changed.notify_all()

    def _heard(self, seq: int) -> None:
        """A change is heard, or never will be: it is waited for no more, nor are those before it."""
        if seq >= self._pending_seq:
            self._pending_seq = 0

    def _continues(self, ready: Ready) -> bool:
        """Whether what is there fits to a session that was resumed: it goes back a little at most, without a hole."""
        back, is_same = self.ring.playhead_sample - ready.next_sample, ready.resumed and not ready.notice
        return is_same and ready.next_sample <= self.ring.end_sample and back <= RESUMED_S * self._rate_hz

    def fail(self, error: TickError) -> None:
        """The session has ended with an error."""
        with self._changed:
            self._end = error
            self._changed.notify_all()

    def expect(self, seq: int) -> None:
        """A change is sent: until it is heard, read() is not faster than real time, which would outrun it."""
        with self._changed:
            self._pending_seq = seq
            self._pending_s, self._pending_sample = time.monotonic(), self.ring.playhead_sample

    def forget(self, seq: int) -> None:
        """A change was refused."""
        with self._changed:
            self._heard(seq)
            self._changed.notify_all()

    def read(self, most: int) -> NDArray[np.float32]:
        """The next samples, at most `most`; blocks until there is one. Raises the session's error instead."""
        with self._changed:
            while self._error is None and self._end is None and self._num_ready <= 0:
                # Until a message arrives; with a change under way also until a fiftieth of a second is over.
                self._changed.wait(PACE_SLACK_S / 10 if self._pending_seq else None)
            if self._num_ready <= 0:
                error, self._error = self._error or self._end, None
                assert error is not None
                raise error
            pcm = np.empty((min(self._num_ready, most), self._channels), np.float32)
            self.ring.read(pcm)
            self.notes.advance(self.ring.playhead_sample)
            return pcm

    def take_events(self) -> list[NoteEvent]:
        """What begins and ends in what was read since the last time."""
        with self._changed:
            events = list(self.notes.events)
            self.notes.events.clear()
            return events

    def end_notes(self) -> None:
        """What sounds ends here."""
        with self._changed:
            self.notes.clear(self.ring.playhead_sample)

    def record(self) -> None:
        """Remember the notes of what is read from here on."""
        with self._changed:
            self.notes.record()

    def recorded(self, frame_s: float) -> Score | None:
        """The notes since `record`; None where the model tells none."""
        with self._changed:
            score = self.notes.recorded(self.layers, self._rate_hz, frame_s)
            return score if self.layers else None

    @property
    def _num_ready(self) -> int:
        end, elapsed_s = self.ring.end_sample, time.monotonic() - self._pending_s
        if self._pending_seq and elapsed_s < PACE_MAX_S:
            end = min(end, self._pending_sample + round((elapsed_s + PACE_SLACK_S) * self._rate_hz))
        return end - self.ring.playhead_sample


def error_of(problem: Problem) -> TickError:
    """The error that a problem reports."""
    if problem.status == RequestError.status:
        field = problem.field or ""
        return RequestError(problem.detail.removeprefix(f"{field}: "), field=field, fix=problem.fix or "")
    error = TickError(problem.detail, fix=problem.fix or "")
    error.code, error.status = problem.code, problem.status
    return error
