"""A client of Lyria RealTime on a plain WebSocket, without any library of Google's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from helpers.http_harness import TIMEOUT_S, Served, open_websocket
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

PATH = "/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateMusic"
SAMPLE_RATE_HZ = 48_000


class LyriaClient:
    """Keeps every message but audio, and the metadata of the newest chunk."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.messages: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {}

    def send(self, **members: Any) -> None:
        self.websocket.send(json.dumps(members))

    def receive(self) -> dict[str, Any]:
        data = self.websocket.recv(TIMEOUT_S)
        assert isinstance(data, bytes), "JSON comes in binary messages"
        message: dict[str, Any] = json.loads(data)
        assert len(message) == 1
        if "serverContent" not in message:
            self.messages.append(message)
        return message

    def receive_until(self, name: str) -> Any:
        """The next message of a kind."""
        while name not in (message := self.receive()):
            pass
        return message[name]

    def audio(self, seconds: float) -> NDArray[np.float32]:
        """The next audio `[n, 2]`, at least `seconds` of it."""
        parts: list[NDArray[np.int16]] = []
        while sum(map(len, parts)) < seconds * SAMPLE_RATE_HZ:
            (chunk,) = self.receive_until("serverContent")["audioChunks"]
            assert chunk["mimeType"] == "audio/l16;rate=48000;channels=2"
            self.metadata = chunk["sourceMetadata"]
            parts.append(np.frombuffer(base64.b64decode(chunk["data"]), "<i2").reshape(-1, 2))
        return np.concatenate(parts).astype(np.float32) / np.float32(32768)

    def closed(self) -> tuple[int, str]:
        """Code and reason with which the server closes the connection."""
        try:
            while True:
                self.receive()
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "")


@contextmanager
def lyria(served: Served, path: str = PATH, **options: Any) -> Iterator[LyriaClient]:
    """A client that is set up."""
    with open_websocket(served, path, **options) as websocket:
        client = LyriaClient(websocket)
        client.send(setup={"model": "models/lyria-realtime-exp"})
        assert client.receive_until("setupComplete") == {}
        yield client
