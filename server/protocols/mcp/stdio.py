"""MCP over standard input and output, which carry nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from mcp.server.stdio import stdio_server

from runtime.terminal import EXIT_INTERRUPTED
from server.protocols.mcp.opening import open_tools
from server.protocols.mcp.protocol import make_server
from server.service.service import Service


async def serve_stdio(service: Service, folder: Path, version: str) -> None:
    """Serve until standard input ends; files are made in `folder`. SIGINT and SIGTERM end the process."""
    tools = open_tools(service, folder)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopping.set))
    service.start()

    async def serve() -> None:
        server = make_server(tools, version, lambda _: ("", ""))
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    serving, stopped = asyncio.create_task(serve()), asyncio.create_task(stopping.wait())
    # Until the assistant has closed standard input, or a signal.
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await tools.close()
    await service.close()
    if not serving.done():
        os._exit(EXIT_INTERRUPTED)  # a thread waits for standard input, which nothing else ends
    stopped.cancel()
    serving.result()
