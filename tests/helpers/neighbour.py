"""Honest clients, each in a process of its own: their waits are the server's alone."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from profiling.bench.live.client import LiveClient, live_client
from runtime.live.protocol.messages import LivePrompt, Open

PROBE_PERIOD_S, PROBE_TIMEOUT_S = 0.05, 10.0
PROBE = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


class LiveNeighbour:
    """A client of a live session that plays by the clock, for the length of a block, beside /health/live on a new
    connection every 50 ms.

    certificate: what it trusts, of a server with TLS. Once the block has ended: max_gap_s, the longest wait for audio;
    underruns, how often its audio broke off; health_p50_s, health_p95_s, of answers; num_refused, probes without one.
    """

    def __init__(self, url: str, key: str = "", certificate: Path | None = None) -> None:
        trust = {} if certificate is None else {"SSL_CERT_FILE": str(certificate)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, __file__, url, key], env=os.environ | trust, **pipes)

    def __enter__(self) -> LiveNeighbour:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "plays\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.take(**json.loads(self._process.communicate()[0]))

    def take(
        self, max_gap_s: float, underruns: int, health_p50_s: float, health_p95_s: float, num_refused: int
    ) -> None:
        """What the process has found."""
        self.max_gap_s, self.underruns, self.num_refused = max_gap_s, underruns, num_refused
        self.health_p50_s, self.health_p95_s = health_p50_s, health_p95_s
        health = f"health p50 {1e3 * health_p50_s:.1f} ms, p95 {1e3 * health_p95_s:.1f} ms"
        print(f"gap {max_gap_s:.2f} s, {underruns} underruns, {health}, {num_refused} refused")


async def live(url: str, key: str, is_ended: threading.Event) -> dict[str, float]:
    """Play a live session in mode extend; prints "plays" after 2 s of it, from when on the figures are."""
    opening = Open(mode="extend", prompts=[LivePrompt(text="calm piano", weight=1.0)], seed=1)
    async with live_client(url, opening, headers={"x-api-key": key}) as client:
        while not client.log.is_playing:
            await asyncio.sleep(0.01)
        await asyncio.sleep(2.0)
        print("plays", flush=True)
        before = client.log.underruns
        probing = asyncio.create_task(probe(url, is_ended))
        gap_s = await longest_gap_s(client, is_ended)
        answers = await probing
        client.log.advance(time.monotonic())
        underruns = client.log.underruns - before
    times_s = [answer for answer in answers if answer is not None]
    return {
        "max_gap_s": gap_s,
        "underruns": underruns,
        "health_p50_s": statistics.median(times_s),
        "health_p95_s": statistics.quantiles(times_s, n=20)[-1],
        "num_refused": len(answers) - len(times_s),
    }


async def longest_gap_s(client: LiveClient, is_ended: threading.Event) -> float:
    """The longest time without audio."""
    longest_s, since_s, seen = 0.0, time.monotonic(), client.received_bytes
    while not is_ended.is_set():
        await asyncio.sleep(0.005)
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - since_s)
        if client.received_bytes != seen:
            since_s, seen = now_s, client.received_bytes
    return longest_s


async def probe(url: str, is_ended: threading.Event) -> list[float | None]:
    """How long each /health/live took; None: it was not answered."""
    probes = []
    context = ssl.create_default_context() if url.startswith("https:") else None
    while not is_ended.is_set():
        probes.append(asyncio.create_task(answer_s(url, context)))
        await asyncio.sleep(PROBE_PERIOD_S)
    return await asyncio.gather(*probes)


async def answer_s(url: str, context: ssl.SSLContext | None) -> float | None:
    """How long one /health/live takes, from before its connection."""
    address, started_s = urlsplit(url), time.monotonic()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=context)
            writer.write(PROBE)
            is_answered = (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
    except OSError:
        return None
    return time.monotonic() - started_s if is_answered else None


def main(url: str, key: str) -> None:
    """Run until the end of standard input, then print the figures."""
    is_ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_ended.set())).start()
    print(json.dumps(asyncio.run(live(url, key, is_ended))))


if __name__ == "__main__":
    main(*sys.argv[1:])
