"""Concurrent streams: capacity, codec workers, disconnects, clients that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.http_harness import (
    GENERATIONS,
    TIMEOUT_S,
    Serve,
    Served,
    connected,
    eventually,
    problem,
    raw_request,
    read_all,
)

from runtime.audio.codec import Codec
from runtime.audio.encoding import AudioWriter
from runtime.pipeline.generation import LongGeneration
from server.asgi import request_body
from server.routes import generation_stream, generations


def generation(**body: Any) -> bytes:
    return raw_request(json.dumps({"prompt": "a", "seed": 1, **body}).encode())


async def listen(client: httpx.AsyncClient, **body: Any) -> tuple[float, float, bytes]:
    """(time of the first audio, time of the end, body) of one stream."""
    first_s, parts = 0.0, []
    async with client.stream("POST", GENERATIONS, json={"prompt": "a", "seed": 1, **body}) as response:
        assert response.status_code == 200, await response.aread()
        async for part in response.aiter_raw():
            first_s = first_s or time.monotonic()
            parts.append(part)
    return first_s, time.monotonic(), b"".join(parts)


def together(served: Served, bodies: list[dict[str, Any]]) -> list[tuple[float, float, bytes]]:
    async def run() -> list[tuple[float, float, bytes]]:
        limits = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(base_url=served.url, timeout=TIMEOUT_S, limits=limits) as client:
            return await asyncio.gather(*(listen(client, **body) for body in bodies))

    return asyncio.run(run())


def test_eight_waiting_generations_take_the_ticks_of_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(depth=8)
    served.post(steps=10)
    served.pause()
    loop, submitted = served.pipeline.loop, list[str]()
    before, submit = loop.stats().ticks, loop.submit

    def counted(*arguments: Any, **options: Any) -> str:
        submitted.append(submit(*arguments, **options))
        return submitted[-1]

    monkeypatch.setattr(loop, "submit", counted)
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(served.post, seed=seed, steps=10) for seed in range(8)]
        eventually(lambda: len(submitted) == 8)
        served.resume()
        assert {future.result().status_code for future in pending} == {200}
    assert loop.stats().ticks - before <= 10 + 1


def test_eight_short_streams_all_start_before_the_first_ends(serve: Serve) -> None:
    served = serve(depth=8)
    served.tick_s = 0.01
    served.pause()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(together, served, [{"seed": seed, "seconds": 2, "steps": 4} for seed in range(8)])
        eventually(lambda: served.service.admission.num_pending == 8)
        served.resume()
        streams = pending.result()
    assert max(first for first, _, _ in streams) < min(end for _, end, _ in streams)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(frozenset({"b"}), 3.0)]),
        ({"first_sent_s": None}, []),
        ({"lead_s": lambda: 2.0}, []),
        ({"is_streamed": False}, []),
    ],
    ids=["ahead", "nothing-sent", "not-ahead", "whole"],
)
def test_a_stream_ahead_of_real_time_waits_for_the_first_audio_of_its_peers(
    changes: dict[str, Any], expected: list[Any]
) -> None:
    changes, waits = dict(changes), list[Any]()

    async def wait_for(*arguments: Any) -> None:
        waits.append(arguments)

    tracker, settings = SimpleNamespace(wait_for=wait_for), SimpleNamespace(lead_s=2.0)
    service = SimpleNamespace(first_audio_tracker=tracker, settings=settings)
    request = SimpleNamespace(service=service, is_streamed=changes.pop("is_streamed", True))
    job: Any = SimpleNamespace(**{"first_sent_s": 9.0, "lead_s": lambda: 5.0, **changes}, request=request)
    asyncio.run(generation_stream._wait_for_peers(job, frozenset({"b"})))
    assert waits == expected


def test_a_stream_does_not_wait_for_slower_peers_beyond_its_lead(serve: Serve) -> None:
    """Peers go first only while the stream is ahead of real time."""
    served = serve(depth=2)
    served.tick_s = 0.02
    fast, slow = together(served, [{"seconds": 1.2, "steps": 2}, {"seconds": 1.2, "steps": 150}])
    assert fast[1] < slow[0]


def test_a_long_generation_keeps_its_permit_between_segments(serve: Serve) -> None:
    served = serve(depth=1, queue=0)
    served.tick_s = 0.02
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(served.post, seconds=6)
        eventually(lambda: served.service.admission.num_pending == 1)
        statuses = []
        while served.service.admission.num_pending:
            statuses.append(served.post().status_code)
        assert len(statuses) >= 2
        assert set(statuses[:-1]) == {503}
        assert long.result().status_code == 200
        assert len(long.result().content) > 6 * 8000 * 4


def test_a_place_is_free_after_the_last_tick_although_the_client_does_not_read(serve: Serve) -> None:
    served = serve(depth=1, queue=0, send_timeout_s=30.0, send_buffer_bytes=4096)
    with connected(served, generation(seconds=20, steps=2), buffer_bytes=4096) as stalled:
        assert stalled.recv(15) == b"HTTP/1.1 200 OK"
        eventually(lambda: served.service.admission.num_pending == 0, timeout_s=60.0)
        assert len(served.service.admission.permits) == 1
        reserved = served.service.admission.memory.used
        assert 20 * 8000 * 4 > reserved > 0, "latents, and the audio of two windows"
        assert served.post().status_code == 200
        eventually(lambda: served.service.admission.memory.used == reserved)
    eventually(lambda: not served.service.admission.permits)
    assert served.service.admission.memory.used == 0


def test_results_that_are_sent_whole_are_bounded_by_their_bytes(serve: Serve) -> None:
    served = serve(depth=4, send_timeout_s=30.0, send_buffer_bytes=4096, response_budget_bytes=2**20)
    problem(served.post(seconds=40, stream=False), 422, "response_too_large")
    with connected(served, generation(seconds=30, steps=2, stream=False), buffer_bytes=4096) as stalled:
        assert stalled.recv(15) == b"HTTP/1.1 200 OK"
        eventually(lambda: served.service.admission.num_pending == 0, timeout_s=60.0)
        refused = served.post(seconds=30, steps=2, stream=False)
        problem(refused, 503, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert served.metrics()["tickrt_response_size_bytes"] > 30 * 8000 * 4
        assert served.post(seconds=1).status_code == 200
    eventually(lambda: served.service.admission.memory.used == 0)
    assert served.post(seconds=30, steps=2, stream=False).status_code == 200


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_disconnect_frees_the_slot(serve: Serve, how: str) -> None:
    served = serve(depth=1, queue=1)
    served.tick_s = 0.02
    loop = served.pipeline.loop
    for _ in range(3):
        with connected(served, generation(steps=200)) as connection:
            eventually(lambda: loop.stats().slots_active == 1)
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            eventually(lambda: loop.stats().slots_active == 0)
    eventually(lambda: served.service.admission.num_pending == 0)
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=cancelled}"] == 3
    assert counted["tickrt_generations_in_flight"] == 0
    assert counted["tickrt_slots_active"] == 0


def test_a_disconnect_while_streaming_frees_the_slot(serve: Serve) -> None:
    served = serve(depth=1)
    served.tick_s = 0.02
    with connected(served, generation(seconds=60, steps=20)) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: len(connection.recv(65536)) > 0)
    eventually(lambda: served.pipeline.loop.stats().slots_active == 0)
    eventually(lambda: not served.service.admission.permits)
    assert served.metrics()["tickrt_generations_total{outcome=cancelled}"] == 1


def test_the_wait_for_a_slot_is_bounded(serve: Serve) -> None:
    served = serve(depth=1, queue=1, queue_timeout_s=0.3)
    served.pause()
    with ThreadPoolExecutor(2) as pool:
        pending = [pool.submit(served.post) for _ in range(2)]
        eventually(lambda: any(future.done() for future in pending))
        late = next(future.result() for future in pending if future.done())
        served.resume()
        statuses = sorted(future.result().status_code for future in pending)
    problem(late, 504, "queue_timeout")
    assert statuses[-1] == 504
    assert served.metrics()["tickrt_generations_total{outcome=expired}"] >= 1


def test_a_client_that_does_not_read_is_aborted_and_others_are_unaffected(serve: Serve) -> None:
    served = serve(depth=2, send_timeout_s=2.0, send_buffer_bytes=4096)
    alone = served.post(seed=9, seconds=2, response_format="pcm").content
    with connected(served, generation(seconds=120), buffer_bytes=4096) as stalled:
        stalled.recv(10)
        while served.service.admission.permits:
            beside = served.post(seed=9, seconds=2, response_format="pcm").content
            difference = np.frombuffer(alone, "<i2").astype(int) - np.frombuffer(beside, "<i2")
            assert np.abs(difference).max() <= 1, "another batch shape may round otherwise in the last bit, no more"
        is_whole = read_all(stalled).endswith(b"0\r\n\r\n")
        assert not is_whole
    counted = served.metrics()
    assert counted["tickrt_stream_aborts_total{reason=send_timeout}"] == 1
    assert counted["tickrt_generations_total{outcome=expired}"] == 1
    eventually(lambda: len(served.connections) <= 1)


def test_a_slow_reader_gets_the_whole_body(serve: Serve) -> None:
    served = serve(depth=2, send_timeout_s=2.0, send_buffer_bytes=4096)
    expected = served.post(seconds=20, response_format="pcm").content
    body = b'{"prompt": "a", "seed": 1, "seconds": 20, "response_format": "pcm"}'
    with connected(served, raw_request(body, headers="connection: close\r\n")) as connection:
        data = b""
        while part := connection.recv(4096):
            data += part
            time.sleep(0.002)
    assert len(dechunked(data.partition(b"\r\n\r\n")[2])) == len(expected)


def dechunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        parts.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]
    return b"".join(parts)


def test_parsing_decoding_and_encoding_run_outside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[int]] = {}
    slow = [
        (request_body, "parse_object"),
        (generations, "validate"),
        (LongGeneration, "next_request"),
        (Codec, "_decode"),
        (AudioWriter, "write"),
        (AudioWriter, "close"),
        (generation_stream, "latents_bytes"),
    ]
    for owner, name in slow:
        monkeypatch.setattr(owner, name, recording_thread(getattr(owner, name), threads.setdefault(name, set())))
    served = serve()
    for response_format in ("wav", "latents"):
        assert served.post(seconds=3, response_format=response_format).status_code == 200
    assert all(threads.values())
    event_loop = asyncio.run_coroutine_threadsafe(thread_id(), served.event_loop).result()
    assert not any(event_loop in seen for seen in threads.values())


def recording_thread(function: Callable[..., Any], threads: set[int]) -> Callable[..., Any]:
    @wraps(function)
    def recorded(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return function(*arguments, **options)

    return recorded


async def thread_id() -> int:
    return threading.get_ident()
