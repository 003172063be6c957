"""Live sessions without a server: what a client is told when it opens one, and a server that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from runtime.live.protocol.frames import HEADER
from runtime.live.protocol.messages import SUBPROTOCOL, ClientMessage, parse_client_message
from runtime.live.protocol.server_messages import (
    CanvasLayout,
    Limits,
    Ready,
    ReadyControls,
    ServerMessage,
    State,
    message_text,
)

RATE = 1000
Answer = Callable[[ClientMessage], list[ServerMessage | bytes]]


def ready(**changes: Any) -> Ready:
    """The answer to `open`: one channel at 1000 samples per second."""
    values: dict[str, Any] = {
        "session": "s1", "resume_token": "t1", "resumed": False, "epoch": 1, "sample_rate_hz": RATE, "channels": 1,
        "format": "s16", "mode": "loop", "next_sample": 0, "limits": Limits(keep_s=60.0),
        "canvas": CanvasLayout(frames=250, seconds=10.0, frame_rate_hz=25.0, channels=4),
        "controls": ReadyControls(schema={}, values={}, prompts=[], blend="velocity", seed=1),
    }  # fmt: skip
    return Ready(**{**values, **changes})


def state(**changes: Any) -> State:
    """What a session reports of itself: zero but for the changes."""
    values = dict.fromkeys(("playhead_sample", "sent_until_sample", "generations_in_flight", "underruns", "ticks"), 0)
    times = dict.fromkeys(("lead_s", "generation_s", "tick_ms", "canvas_position_s"), 0.0)
    return State(**{**values, **times, "playing": True, **changes})


def silence(begin: int, end: int, first_seq: int = 0, full_seq: int = 0) -> bytes:
    """The binary message of samples `begin..end` in s16, of one channel."""
    return HEADER.pack(1, begin, end - begin, first_seq, full_seq, 0, 0) + bytes(2 * (end - begin))


@asynccontextmanager
async def scripted_server(answer: Answer) -> AsyncIterator[str]:
    """A server that sends what `answer` gives for each message, on a loopback port; yields its HTTP address."""

    async def handle(connection: ServerConnection) -> None:
        async for data in connection:
            for message in answer(parse_client_message(data)):
                await connection.send(message if isinstance(message, bytes) else message_text(message))

    async with serve(handle, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}"
