"""A client of live sessions that plays what it gets as soon as it gets it."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from helpers.http_harness import TIMEOUT_S, Served, open_websocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from runtime.live.protocol.frames import AudioChunk, decode_chunk
from runtime.live.protocol.server_messages import Closed, Ready, ServerMessage, parse_server_message


class Player:
    """A client that plays what it gets as soon as it gets it."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self.chunks: list[AudioChunk] = []
        self.messages: list[ServerMessage] = []
        self.ready: Ready

    def send(self, **members: Any) -> None:
        self._websocket.send(json.dumps(members))

    def open(self, **members: Any) -> Ready:
        self.send(type="open", **members)
        message = self.receive()
        assert isinstance(message, Ready), message
        return message

    def receive(self) -> ServerMessage | AudioChunk:
        data = self._websocket.recv(TIMEOUT_S)
        if isinstance(data, str):
            message = parse_server_message(data)
            self.messages.append(message)
            if isinstance(message, Ready):
                self.ready = message
            return message
        chunk = decode_chunk(data, self.ready.sample_rate_hz, self.ready.channels)
        self.chunks.append(chunk)
        with suppress(ConnectionClosed):
            self.send(type="ack", playhead_sample=chunk.start_sample, client_time_s=12.5)
        return chunk

    def receive_until(self, wanted: Callable[[Any], Any]) -> Any:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not wanted(item := self.receive()):
            assert time.monotonic() < deadline_s, self.messages[-10:]
        return item

    def receive_end(self) -> tuple[Closed, int]:
        closed = self.receive_until(lambda item: isinstance(item, Closed))
        with pytest.raises(ConnectionClosed) as error:
            self._websocket.recv(TIMEOUT_S)
        assert error.value.rcvd is not None
        return closed, error.value.rcvd.code

    def reset(self) -> None:
        """End the TCP connection with RST."""
        connection = self._websocket.socket
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
        connection.close()


@contextmanager
def player(served: Served, path: str = "/v1/live", **options: Any) -> Iterator[Player]:
    """A player that is connected. Where audio is left unread at the end, the closing handshake waits in vain."""
    with open_websocket(served, path, **{"close_timeout": 1.0, **options}) as websocket:
        yield Player(websocket)


def is_audio(item: object) -> bool:
    return isinstance(item, AudioChunk)
