"""Long runs of the server: mixed load, corrupted requests, disconnects; no leaks."""

from __future__ import annotations

import gc
import json
import random
import socket
import struct
import threading
import time
from collections import Counter

import httpx
import psutil
import pytest
from helpers.http_harness import Serve, Served, connected, eventually, exchange, raw_request, read_all

from server.service.metrics import Outcome

CLIENTS = 8
MINUTE_S = 60.0
MALLOC_SLACK_BYTES = 32 * 2**20  # encoders come and go in several malloc arenas, each with a high-water mark of its own


def send_valid(served: Served, rng: random.Random) -> str:
    name = rng.choice(["wav", "pcm", "flac", "ogg", "latents"])
    body = {"seed": rng.randrange(100), "steps": rng.randint(1, 20), "seconds": rng.uniform(0.2, 4)}
    return str(served.post(response_format=name, stream=rng.random() < 0.7, **body).status_code)


def send_invalid(served: Served, rng: random.Random) -> str:
    bad = rng.choice([{"steps": 0}, {"x": 1}, {"guidance": []}, {"denoise": 0.5}, {"seconds": 1e9}])
    return str(served.post(**bad).status_code)


def disconnect(served: Served, rng: random.Random) -> str:
    body = json.dumps({"prompt": "a", "steps": 200, "seconds": 10}).encode()
    with connected(served, raw_request(body)[: rng.choice([20, 150, 10_000])]) as connection:
        time.sleep(rng.uniform(0, 0.05))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "disconnect"


def send_random_bytes(served: Served, rng: random.Random) -> str:
    with connected(served, rng.randbytes(rng.randint(1, 2000)) + b"\r\n\r\n") as connection:
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)
    return "send_random_bytes"


ACTIONS = (send_valid, send_valid, send_valid, send_valid, send_invalid, disconnect, disconnect, send_random_bytes)


def client(served: Served, seed: int, until_s: float, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until_s:
        try:
            seen[rng.choice(ACTIONS)(served, rng)] += 1
        except (httpx.TransportError, OSError) as error:
            seen[f"failed: {error!r}"] += 1


def run_clients(served: Served, seconds: float) -> Counter[str]:
    seen: Counter[str] = Counter()
    until_s = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(served, seed, until_s, seen)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: not served.service.admission.permits and not served.service.admission.num_pending)
    return seen


def size(process: psutil.Process) -> tuple[int, int, int]:
    gc.collect()
    return process.memory_info().rss, process.num_fds(), process.num_threads()


@pytest.mark.slow
def test_a_minute_of_mixed_load_leaks_nothing(serve: Serve) -> None:
    served = serve(depth=4, queue=2)
    process = psutil.Process()
    seen = run_clients(served, MINUTE_S / 2)
    rss, fds, threads = size(process)
    seen += run_clients(served, MINUTE_S / 2)
    rss_after, fds_after, threads_after = size(process)
    assert not [name for name in seen if name.startswith("failed") or name == "500"], seen
    assert seen["200"] > 100
    assert rss_after - rss < MALLOC_SLACK_BYTES
    assert abs(fds_after - fds) <= 4
    assert abs(threads_after - threads) <= 8
    counted = served.metrics()
    outcomes = {name: counted[f"tickrt_generations_total{{outcome={name}}}"] for name in Outcome}
    assert counted["tickrt_generations_started_total"] == sum(outcomes.values())
    assert outcomes[Outcome.OK] == seen["200"]
    assert outcomes[Outcome.INTERNAL_ERROR] == outcomes[Outcome.ENGINE_ERROR] == 0
    for gauge in ("generations_in_flight", "slots_active", "queue_depth"):
        assert counted[f"tickrt_{gauge}"] == 0


@pytest.mark.slow
def test_corrupted_requests_cause_no_server_error(serve: Serve) -> None:
    served, rng = serve(), random.Random(7)
    good = raw_request(b'{"prompt": "a", "guidance": [1, 2.5], "dcw": {"low": 0.1}, "seconds": 0.5}')
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            position = rng.randrange(len(data))
            data[position : position + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        answer = exchange(served, bytes(data), is_all=True)
        assert not answer.startswith(b"HTTP/1.1 5"), (bytes(data), answer[:300])
    assert served.post().status_code == 200
