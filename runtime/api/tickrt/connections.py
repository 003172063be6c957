"""WebSocket connections that any thread uses, and one thread reads and writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

T = TypeVar("T")


class Connection:
    """A WebSocket; as a context manager it is open inside. Calls block, and raise what websockets raises.

    One thread reads and writes all connections: before Python 3.13 one that reads from a TLS socket and one that writes
    to it can stop each other, and the handshake or a message stays where it is.

    url: ws:// or wss://. open_s, close_s: the longest that opening and closing take. max_bytes: of a message that is
    received.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        subprotocol: str,
        open_s: float,
        close_s: float,
        max_bytes: int,
    ) -> None:
        self._url = url
        self._options: dict[str, Any] = {
            "additional_headers": headers,
            "subprotocols": [Subprotocol(subprotocol)],
            "compression": None,
            "max_size": max_bytes,
            "open_timeout": open_s,
            "close_timeout": close_s,
        }

    def __enter__(self) -> Self:
        self.websocket = _call(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        _call(self.websocket.close())

    def send(self, data: str | bytes) -> None:
        """Send a message."""
        _call(self.websocket.send(data))

    def recv(self, timeout_s: float) -> str | bytes:
        """The next message. Raises TimeoutError."""
        return _call(asyncio.wait_for(self.websocket.recv(), timeout_s))

    async def _connect(self) -> ClientConnection:
        return await connect(self._url, **self._options)


def _call(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # Reads and writes all connections, for as long as the process lives.
    threading.Thread(target=loop.run_forever, name="tickrt-connections", daemon=True).start()
    return loop
