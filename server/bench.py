"""Many clients at once against the same ones in a row: `python -m server.bench configs/demo.toml`.

Starts a server process, asks over HTTP, and prints a card for people and one line of JSON for machines. `ratio` is the
time of all at once over the time of all in a row.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

GENERATIONS = "/v1/audio/generations"
READY_S = 300.0
cli = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class Heard:
    """What one client saw, in seconds on the monotonic clock; `size_bytes` of body."""

    started_s: float
    first_s: float
    end_s: float
    size_bytes: int


@contextmanager
def server_process(config: Path) -> Iterator[str]:
    """The URL of a tickrt-serve process, ready; it is stopped afterwards."""
    command = [sys.executable, "-m", "server", str(config), "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        yield _ready_url(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"ready on (http://\S+)", line)
        if found:
            return found.group(1)
    raise SystemExit(f"error: the server ended with code {process.wait()}")


async def hear(url: str, body: dict[str, Any]) -> Heard:
    """One generation over a connection of its own; reads as fast as it comes."""
    address = urlsplit(url)
    payload = json.dumps(body).encode()
    started_s = time.monotonic()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {GENERATIONS} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(payload)}\r\n\r\n".encode() + payload)
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(f"error: {status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
    await reader.readuntil(b"\r\n\r\n")
    size_bytes, first_s = 0, 0.0
    while part := await reader.read(65536):
        first_s = first_s or time.monotonic()
        size_bytes += len(part)
    writer.close()
    return Heard(started_s, first_s, time.monotonic(), size_bytes)


async def at_once(url: str, bodies: list[dict[str, Any]]) -> list[Heard]:
    """All clients together."""
    return list(await asyncio.gather(*(hear(url, body) for body in bodies)))


async def in_a_row(url: str, bodies: list[dict[str, Any]]) -> list[Heard]:
    """One client after the other."""
    return [await hear(url, body) for body in bodies]


def span_s(heard: list[Heard]) -> float:
    """From the first start to the last end."""
    return max(item.end_s for item in heard) - min(item.started_s for item in heard)


def measure(url: str, bodies: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Both ways in turn, `rounds` times; medians."""
    asyncio.run(at_once(url, bodies))
    pairs = [(asyncio.run(in_a_row(url, bodies)), asyncio.run(at_once(url, bodies))) for _ in range(rounds)]
    row_s, together_s = median(span_s(row) for row, _ in pairs), median(span_s(together) for _, together in pairs)
    return {
        "clients": len(bodies),
        "rounds": rounds,
        "in_a_row_s": round(row_s, 4),
        "at_once_s": round(together_s, 4),
        "ratio": round(together_s / row_s, 4),
        "first_audio_alone_s": round(median(item.first_s - item.started_s for row, _ in pairs for item in row), 4),
        "first_audio_at_once_s": round(median(max(_first(together)) for _, together in pairs), 4),
        "all_hear_before_first_end": all(
            max(item.first_s for item in together) < min(item.end_s for item in together) for _, together in pairs
        ),
    }


def _first(heard: list[Heard]) -> list[float]:
    return [item.first_s - item.started_s for item in heard]


@cli.command()
def command(
    config: Annotated[Path, typer.Argument(help="Deployment file, such as configs/demo.toml.")],
    clients: Annotated[int, typer.Option(min=1, max=256, help="Clients at once.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Repetitions; the median counts.")] = 5,
    seconds: Annotated[float | None, typer.Option(help="Length of each generation. [default: one canvas]")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each generation. [default: the model's]")] = None,
) -> None:
    """Measure CLIENTS generations at once against the same ones in a row, over HTTP."""
    body = {key: value for key, value in (("seconds", seconds), ("steps", steps)) if value is not None}
    bodies = [{"prompt": f"warm synth arpeggio {seed}", "seed": seed, **body} for seed in range(clients)]
    with server_process(config) as url:
        result = measure(url, bodies, rounds)
    for name, value in result.items():
        typer.echo(f"{name:28} {value}", err=True)
    typer.echo(json.dumps(result))


if __name__ == "__main__":
    cli()
