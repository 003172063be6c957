"""The order of a session's messages while audio is encoded, or a source loaded, for one of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.errors import RequestError, TickError
from runtime.sessions.hosting.message_queue import MAX_WAITING_MESSAGES, MessageQueue, Received
from runtime.sessions.messages import Ack, ClientMessage, SetControls, SetSource, SetStructure, WriteAudio

RATE_HZ = 1000
LATENTS = np.zeros((4, 8), np.float32)


class Queue:
    """A queue whose work waits until `work()`."""

    def __init__(self) -> None:
        self.handled: list[tuple[Any, ...]] = []
        self.refused: list[tuple[int, TickError]] = []
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        work = SimpleNamespace(encode=lambda *call: self.waiting.append(call), write=lambda *_: LATENTS)
        services: Any = SimpleNamespace(sample_rate_hz=RATE_HZ, codec_work=work, reference=self._reference)
        self.queue = MessageQueue(
            services, lambda message: (0, LATENTS), self._handle, self._refuse, lambda work, *given: work(*given)
        )

    def put(self, *messages: ClientMessage, pcm: Any = None) -> None:
        for message in messages:
            self.queue.put(Received(message, pcm, None))

    def work(self) -> None:
        """Do all work, and what follows from it."""
        while self.waiting:
            make, done = self.waiting.pop(0)
            try:
                result = make()
            except RequestError as error:
                result = error
            done(result)

    @staticmethod
    def _reference(kind: str, source_id: str) -> Any:
        if source_id == "missing":
            raise RequestError("there is no such source", field="id")
        return kind

    def _handle(self, received: Received, latents: Any) -> None:
        self.handled.append((getattr(received.message, "seq", received.message.type), latents))

    def _refuse(self, received: Received, error: TickError) -> None:
        self.refused.append((received.message.seq, error))


def test_messages_keep_their_order_while_a_source_is_loaded() -> None:
    queue = Queue()
    queue.put(
        SetSource(seq=1, id="a"),
        SetControls(seq=2, values={}),
        SetSource(seq=3, id="missing"),
        SetSource(seq=4, id=None),
        Ack(playhead_sample=5),
        SetStructure(seq=6, id="b"),
    )
    assert queue.handled == [("ack", None)]
    queue.work()
    assert queue.handled[1:] == [(1, "source"), (2, None), (4, None), (6, "structure")]
    assert [seq for seq, _ in queue.refused] == [3]
    queue.put(SetControls(seq=7, values={}))
    assert queue.handled[-1] == (7, None)


def test_audio_that_waits_to_be_encoded_is_bounded() -> None:
    queue = Queue()
    queue.put(SetSource(seq=1, id="a"))
    writes = [WriteAudio(seq=seq, at_s=0.0, samples=10 * RATE_HZ) for seq in range(2, 6)]
    queue.put(*writes, pcm=np.zeros((10 * RATE_HZ, 2), np.float32))
    assert [(seq, error.fix) for seq, error in queue.refused] == [(5, "send fewer")]
    queue.work()
    assert [seq for seq, _ in queue.handled] == [1, 2, 3, 4]


def test_messages_that_wait_are_bounded() -> None:
    queue = Queue()
    queue.put(SetSource(seq=1, id="a"), *(SetControls(seq=seq + 2, values={}) for seq in range(MAX_WAITING_MESSAGES)))
    assert [seq for seq, _ in queue.refused] == [MAX_WAITING_MESSAGES + 1]


@pytest.mark.parametrize("seq", [1, 2])
def test_a_write_without_audio_is_refused(seq: int) -> None:
    queue = Queue()
    if seq == 2:
        queue.put(SetSource(seq=1, id="a"))
    queue.put(WriteAudio(seq=seq, at_s=0.0, samples=5))
    queue.work()
    assert [(found, str(error)) for found, error in queue.refused] == [(seq, "samples: the audio is missing")]
