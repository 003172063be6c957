"""Streams together: places, turns, people who leave, people who do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.http_harness import GENERATIONS, TIMEOUT_S, Served, connected, eventually, problem, raw_request, read_all

Serve = Callable[..., Served]


def generation(**body: Any) -> bytes:
    return raw_request(json.dumps({"prompt": "a", "seed": 1, **body}).encode())


async def listen(client: httpx.AsyncClient, **body: Any) -> tuple[float, float, bytes]:
    """(when the first audio came, when the end, everything) of one stream."""
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
        async with httpx.AsyncClient(base_url=served.url, timeout=30, limits=limits) as client:
            return await asyncio.gather(*(listen(client, **body) for body in bodies))

    return asyncio.run(run())


def test_eight_at_once_all_hear_something_before_the_first_is_done(serve: Serve) -> None:
    served = serve(depth=8)
    served.tick_s = 0.005
    heard = together(served, [{"seed": seed, "seconds": 4, "steps": 8} for seed in range(8)])
    assert max(first for first, _, _ in heard) < min(end for _, end, _ in heard)
    assert len({data for _, _, data in heard}) == 8


def test_eight_that_are_there_take_the_ticks_of_one(serve: Serve) -> None:
    served = serve(depth=8)
    served.post(steps=10)
    served.pause()
    before = served.pipeline.loop.stats().ticks
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(served.post, seed=seed, steps=10) for seed in range(8)]
        eventually(lambda: served.service.admission.num_pending == 8)
        eventually(lambda: served.pipeline.loop.stats().queue_depth + served.pipeline.loop.stats().slots_active == 8)
        served.resume()
        assert {future.result().status_code for future in pending} == {200}
    assert served.pipeline.loop.stats().ticks - before <= 10 + 1


def test_eight_short_ones_too_though_a_window_holds_almost_all_of_them(serve: Serve) -> None:
    served = serve(depth=8)
    served.tick_s = 0.01
    heard = together(served, [{"seed": seed, "seconds": 0.8, "steps": 4} for seed in range(8)])
    assert max(first for first, _, _ in heard) < min(end for _, end, _ in heard)


def test_a_listener_is_not_starved_by_slower_neighbours(serve: Serve) -> None:
    """Those who share its ticks go first, but only while the stream is ahead of real time."""
    served = serve(depth=2)
    served.tick_s = 0.02
    fast, slow = together(served, [{"seconds": 1.2, "steps": 2}, {"seconds": 1.2, "steps": 150}])
    assert slow[0] - fast[0] > 2.0
    assert fast[1] < slow[0] - 0.5


def test_the_same_seed_gives_the_same_bytes_also_among_others(serve: Serve) -> None:
    served = serve(depth=4)
    alone = served.post(seed=5, seconds=3, response_format="pcm").content
    others = [{"seed": 10 + i, "seconds": 2 + i, "steps": 3 + i, "prompt": "b" * i} for i in range(3)]
    wanted = {"seed": 5, "seconds": 3, "response_format": "pcm"}
    for position in range(4):
        bodies = [*others[:position], wanted, *others[position:]]
        heard = together(served, bodies)[position][2]
        difference = np.frombuffer(alone, "<i2").astype(int) - np.frombuffer(heard, "<i2")
        assert np.abs(difference).max() <= 1, "another batch shape may round otherwise in the last bit, no more"


def test_exactly_all_places_are_given_and_the_rest_is_told_to_come_back(serve: Serve) -> None:
    served = serve(depth=2, queue=3)
    served.pause()
    with ThreadPoolExecutor(50) as pool:
        pending = [pool.submit(served.post, seed=seed) for seed in range(50)]
        eventually(lambda: sum(future.done() for future in pending) == 45)
        refused = [future.result() for future in pending if future.done()]
        assert served.service.admission.num_pending == 5
        assert served.pipeline.loop.stats().slots_active + served.pipeline.loop.stats().queue_depth == 5
        served.resume()
        accepted = [future.result(TIMEOUT_S) for future in pending if future.result().status_code == 200]
    assert len(accepted) == 5
    for response in refused:
        assert problem(response, 503, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
    assert served.post().status_code == 200
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=ok}"] == 6
    assert counted["tickrt_generations_total{outcome=rejected}"] == 45
    assert counted["tickrt_generations_started_total"] == 51


def test_a_long_generation_keeps_its_place_between_its_segments(serve: Serve) -> None:
    served = serve(depth=1, queue=0)
    served.tick_s = 0.02
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(served.post, seconds=6)
        eventually(lambda: served.service.admission.num_pending == 1)
        statuses = []
        while served.service.admission.num_pending:
            statuses.append(served.post().status_code)
        assert len(statuses) >= 3
        assert set(statuses[:-1]) == {503}
        assert long.result().status_code == 200
        assert len(long.result().content) == 44 + 6 * 8000 * 4


def test_one_client_gets_no_more_than_its_share(serve: Serve) -> None:
    served = serve(depth=4, client_in_flight=2)
    served.pause()
    with ThreadPoolExecutor(3) as pool:
        pending = [pool.submit(served.post) for _ in range(3)]
        eventually(lambda: any(future.done() for future in pending))
        refused = next(future.result() for future in pending if future.done())
        served.resume()
        statuses = sorted(future.result().status_code for future in pending)
    problem(refused, 429, "too_many_requests")
    assert "retry-after" in refused.headers
    assert statuses == [200, 200, 429]
    assert served.post().status_code == 200


@pytest.mark.parametrize("how", ["reset", "close", "half-close"])
def test_who_leaves_frees_its_slot_within_a_tick(serve: Serve, how: str) -> None:
    served = serve(depth=1, queue=1)
    served.tick_s = 0.02
    loop = served.pipeline.loop
    for _ in range(3):
        with connected(served) as connection:
            connection.sendall(generation(steps=200))
            eventually(lambda: loop.stats().slots_active == 1)
            leave(connection, how)
            started_s = time.monotonic()
            eventually(lambda: loop.stats().slots_active == 0)
            assert time.monotonic() - started_s < 1.0
    eventually(lambda: served.service.admission.num_pending == 0)
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=cancelled}"] == 3
    assert counted["tickrt_generations_in_flight"] == 0
    assert counted["tickrt_slots_active"] == 0


def leave(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-close":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()


def test_who_leaves_in_mid_stream_frees_its_slot(serve: Serve) -> None:
    served = serve(depth=1)
    served.tick_s = 0.02
    with connected(served) as connection:
        connection.sendall(generation(seconds=60, steps=20))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: len(connection.recv(65536)) > 0)
    eventually(lambda: served.pipeline.loop.stats().slots_active == 0, 1.0)
    eventually(lambda: not served.service.admission.permits)
    assert served.metrics()["tickrt_generations_total{outcome=cancelled}"] == 1


def test_two_hundred_who_leave_while_they_wait_cost_the_next_one_nothing(serve: Serve) -> None:
    served = serve(depth=2, queue=200)
    served.tick_s = 0.02
    loop = served.pipeline.loop
    alone_s = timed(served.post)
    crowd = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(200)]
    for connection in crowd:
        connection.sendall(generation(steps=200))
    eventually(lambda: loop.stats().queue_depth == 198)
    for connection in crowd:
        connection.close()
    assert timed(served.post) < 2 * alone_s + 0.5
    eventually(lambda: loop.stats().queue_depth == 0 and loop.stats().slots_active == 0)
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=cancelled}"] == 200
    assert counted["tickrt_queue_depth"] == counted["tickrt_generations_in_flight"] == 0


def timed(action: Callable[[], httpx.Response]) -> float:
    started_s = time.monotonic()
    assert action().status_code == 200
    return time.monotonic() - started_s


def test_who_waits_too_long_for_a_slot_is_told(serve: Serve) -> None:
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


def test_who_does_not_read_is_cut_and_others_hear_no_difference(serve: Serve) -> None:
    served = serve(depth=2, send_timeout_s=0.5, send_buffer_bytes=4096)
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.port))
        stalled.sendall(generation(seconds=120))
        stalled.recv(10)
        quiet = served.post(seed=9, seconds=2).content
        started_s = time.monotonic()
        while served.service.admission.permits:
            is_the_same = served.post(seed=9, seconds=2).content == quiet
            assert is_the_same
            assert time.monotonic() - started_s < 8.0
        stalled.settimeout(5.0)
        is_whole = read_all(stalled).endswith(b"0\r\n\r\n")
        assert not is_whole
    counted = served.metrics()
    assert counted["tickrt_stream_aborts_total{reason=send_timeout}"] == 1
    assert counted["tickrt_generations_total{outcome=expired}"] == 1
    eventually(lambda: len(served.server.server_state.connections) <= 1)


def test_a_slow_reader_gets_everything_and_holds_little(serve: Serve) -> None:
    served = serve(depth=2, send_timeout_s=2.0, send_buffer_bytes=4096)
    expected = served.post(seconds=20, response_format="pcm").content
    body = json.dumps({"prompt": "a", "seed": 1, "seconds": 20, "response_format": "pcm"}).encode()
    with connected(served) as connection:
        connection.sendall(raw_request(body, headers="connection: close\r\n"))
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


def test_the_event_loop_is_never_blocked(serve: Serve) -> None:
    """A callback every 5 ms, while eight streams run and a large body is parsed: none is late by more than 50 ms.

    The machine may itself be late now and then: one quiet round of five is enough.
    """
    served = serve(depth=8)
    formats = ["wav", "flac", "ogg", "pcm"] * 2
    big = {"guidance": [1.5] * 4096, "channel_gain": [[1.0] * 8] * 4096}

    def work() -> None:
        together(served, [{"seed": i, "seconds": 5, "response_format": name} for i, name in enumerate(formats)])
        assert served.post(**big).status_code == 200

    assert any(max(lateness(served.event_loop, work)) < 0.05 for _ in range(5))


def lateness(aio: asyncio.AbstractEventLoop, work: Callable[[], None]) -> list[float]:
    """By how many seconds callbacks were late while `work` was done."""
    late: list[float] = []
    stop = threading.Event()

    def beat(due_s: float) -> None:
        late.append(time.monotonic() - due_s)
        if not stop.is_set():
            aio.call_later(0.005, beat, time.monotonic() + 0.005)

    aio.call_soon_threadsafe(beat, time.monotonic())
    work()
    stop.set()
    assert len(late) > 10
    return late
