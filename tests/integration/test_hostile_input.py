"""Requests that are made to cost much: each is refused or done, memory returns, and a neighbour's stream goes on."""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import soundfile
from helpers.http_harness import GENERATIONS
from helpers.neighbour import LiveNeighbour

from profiling.server_process import server_process

pytestmark = pytest.mark.slow
MIB = 2**20
MAX_GAP_S = 0.5
JSON = {"content-type": "application/json"}


def unknown_members(num_members: int) -> bytes:
    return json.dumps({"prompt": "a", **{f"k{number}": 1 for number in range(num_members)}}).encode()


def deep_gain() -> bytes:
    """Numbers as many as a body holds, each of them invalid."""
    row = "[" + ",".join(['""'] * 500) + "]"
    return ('{"prompt": "a", "channel_gain": [' + ",".join([row] * 1200) + "]}").encode()


def safetensors_header(header: dict[str, object]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text


def empty_tensors() -> bytes:
    return safetensors_header(
        {f"{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(900_000)}
    )


def metadata() -> bytes:
    return safetensors_header({"__metadata__": {f"{number}": "" for number in range(3_000_000)}})


def silence(number: int) -> bytes:
    """Ten minutes of flac in a few kilobytes; every number has other bytes."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 48_000, 2, format="FLAC", subtype="PCM_16") as flac:
        flac.write(np.full((48_000, 2), number, np.int16))
        for _ in range(598):
            flac.write(np.zeros((48_000, 2), np.int16))
    return file.getvalue()


@pytest.fixture(scope="module")
def server(demo_config: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The demo model in a server process of its own."""
    with server_process(demo_config) as process:
        yield process.url, psutil.Process(process.pid)


def attack(url: str, path: str, bodies: list[bytes], headers: dict[str, str]) -> set[int]:
    """The statuses of requests that are sent at once."""

    def send(body: bytes) -> int:
        return httpx.post(url + path, content=body, headers=headers, timeout=120.0).status_code

    with ThreadPoolExecutor(len(bodies)) as threads:
        return set(threads.map(send, bodies))


@pytest.mark.parametrize(
    ("path", "bodies", "statuses"),
    [
        (GENERATIONS, lambda: [unknown_members(500_000)] * 16, {413}),
        (GENERATIONS, lambda: [unknown_members(100_000)] * 16, {400}),
        (GENERATIONS, lambda: [deep_gain()] * 16, {422}),
        ("/v1/sources", lambda: [empty_tensors()] * 4, {422}),
        ("/v1/sources", lambda: [metadata()] * 4, {422}),
        ("/v1/sources", lambda: [silence(number) for number in range(12)], {201, 503}),
    ],
    ids=["keys-8mb", "keys-2mb", "gain", "tensors", "metadata", "flac"],
)
def test_an_attack_costs_neither_the_neighbour_nor_memory(
    server: tuple[str, psutil.Process], path: str, bodies: Callable[[], list[bytes]], statuses: set[int]
) -> None:
    url, process = server
    data, headers = bodies(), JSON if path == GENERATIONS else {}
    before = process.memory_info().rss
    with LiveNeighbour(url) as neighbour:
        started_s = time.monotonic()
        found = attack(url, path, data, headers)
        took_s = time.monotonic() - started_s
        growth = process.memory_info().rss - before
    print(f"{path}: {found}, {took_s:.1f} s, gap {neighbour.max_gap_s:.2f} s, memory +{growth / MIB:.0f} MiB")
    assert found <= statuses
    assert neighbour.max_gap_s < MAX_GAP_S
    assert growth < 400 * MIB
