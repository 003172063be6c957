"""Concurrent against sequential clients: `python -m profiling.http_bench configs/demo.toml`.

Starts a server process, sends generations over HTTP and prints a table. `ratio` is the time of all
clients concurrently over their time one after the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from profiling.output import JSON_HELP, check_folders, open_console, write_json
from profiling.server_process import server_process
from runtime.commands.command_line import CommandLine
from runtime.commands.progress import TaskProgress
from runtime.commands.terminal import print_line

GENERATIONS = "/v1/audio/generations"
cli = CommandLine(add_completion=False)


@dataclass(frozen=True)
class StreamTiming:
    """The times of one client's stream, in seconds on the monotonic clock, and the size of its body."""

    started_s: float
    first_s: float
    end_s: float
    size_bytes: int


async def stream_one(url: str, body: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> StreamTiming:
    """One generation on its own connection, read as fast as it arrives."""
    address = urlsplit(url)
    payload = json.dumps(body).encode()
    started_s = clock()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {GENERATIONS} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(payload)}\r\n\r\n".encode() + payload)
    try:
        status = await reader.readline()
        if not status:
            raise SystemExit("error: the server closed the connection before it answered: its log says why")
        if b" 200 " not in status:
            raise SystemExit(f"error: {status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
        await reader.readuntil(b"\r\n\r\n")
        size_bytes, first_s = 0, 0.0
        while part := await reader.read(65536):
            first_s = first_s or clock()
            size_bytes += len(part)
    finally:
        writer.close()
    return StreamTiming(started_s, first_s, clock(), size_bytes)


async def run_concurrently(url: str, bodies: list[dict[str, Any]]) -> list[StreamTiming]:
    """All clients at the same time."""
    return list(await asyncio.gather(*(stream_one(url, body) for body in bodies)))


async def run_sequentially(url: str, bodies: list[dict[str, Any]]) -> list[StreamTiming]:
    """One client after the other."""
    return [await stream_one(url, body) for body in bodies]


def span_s(timings: list[StreamTiming]) -> float:
    """Time from the first start to the last end."""
    return max(item.end_s for item in timings) - min(item.started_s for item in timings)


def measure_clients(url: str, bodies: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Run both ways alternately, `rounds` times after one warm-up."""
    with TaskProgress([1.0] * (rounds + 1)) as progress:
        with progress.task("warm-up"):
            asyncio.run(run_concurrently(url, bodies))
        pairs = [_measure_pair(url, bodies, progress, f"round {index + 1}") for index in range(rounds)]
    return result_of_rounds(pairs)


def result_of_rounds(pairs: Sequence[tuple[list[StreamTiming], list[StreamTiming]]]) -> dict[str, Any]:
    """Medians of rounds: all clients one after the other, and at the same time."""
    sequential_s, concurrent_s = median(span_s(a) for a, _ in pairs), median(span_s(b) for _, b in pairs)
    return {
        "clients": len(pairs[0][0]),
        "rounds": len(pairs),
        "sequential_s": round(sequential_s, 4),
        "concurrent_s": round(concurrent_s, 4),
        "ratio": round(concurrent_s / sequential_s, 4),
        "sequential_first_audio_s": round(median(time_s for a, _ in pairs for time_s in _first_audio_s(a)), 4),
        "concurrent_first_audio_s": round(median(max(_first_audio_s(b)) for _, b in pairs), 4),
        "all_start_before_first_end": all(
            max(item.first_s for item in b) < min(item.end_s for item in b) for _, b in pairs
        ),
    }


def _measure_pair(
    url: str, bodies: list[dict[str, Any]], progress: TaskProgress, name: str
) -> tuple[list[StreamTiming], list[StreamTiming]]:
    with progress.task(name):
        return asyncio.run(run_sequentially(url, bodies)), asyncio.run(run_concurrently(url, bodies))


def _first_audio_s(timings: list[StreamTiming]) -> list[float]:
    return [item.first_s - item.started_s for item in timings]


def bodies_of(clients: int, **asked: float | None) -> list[dict[str, Any]]:
    """A request of each client, with its own prompt and seed, and what is not None."""
    given = {key: value for key, value in asked.items() if value is not None}
    return [{"prompt": f"bright synth arpeggio {seed}", "seed": seed, **given} for seed in range(clients)]


@cli.command()
def command(
    config: Annotated[Path, typer.Argument(help="Deployment file, such as configs/demo.toml.")],
    clients: Annotated[int, typer.Option(min=1, max=256, help="Number of clients.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Repetitions; the median is reported.")] = 5,
    seconds: Annotated[float | None, typer.Option(help="Length of each generation. [default: one canvas]")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each generation. [default: the model's]")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure CLIENTS generations over HTTP, concurrently and one after the other."""
    check_folders(json_path)
    with server_process(config) as server:
        result = measure_clients(server.url, bodies_of(clients, seconds=seconds, steps=steps), rounds)
    for name, value in result.items():
        print_line(f"{name:28} {value}", open_console(json_path))
    if json_path is not None:
        write_json(json_path, result)


if __name__ == "__main__":
    cli()
