"""A long run of a server process: live sessions with random controls, disconnects and resumes, HTTP generations beside.

No audio breaks off, every session and generation is accounted for, and memory, files and threads do not grow. The same
run of a server that keeps every chunk of audio fails. SOAK_MINUTES: how long it takes (`make soak`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import psutil
import pytest
from helpers.http_harness import GENERATIONS
from helpers.paths import ROOT

from engine_build.compile.builder import build_deployment
from profiling.bench.live.client import LiveClient, live_client
from profiling.bench.live.run import UNLIMITED
from profiling.server_process import ServerProcess, server_process
from runtime.config.deployment import load_deployment
from runtime.live.protocol.messages import (
    Close,
    GetCanvas,
    LivePrompt,
    Open,
    Seek,
    SetBand,
    SetControls,
    SetPrompts,
)
from server.service.metrics import Outcome

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))
SESSIONS = 8
KEEP_S = 2.0
# Zero while nothing is left to do.
GAUGES = ("live_sessions", "live_connected", "generations_in_flight", "slots_active", "queue_depth")
SETTLE_S = 60.0
GROWTH_BYTES = 48 * 2**20
# Threads of pools and connections that end come and go.
MORE_FDS, MORE_THREADS = 4, 8
# A server that keeps every chunk of audio that it sends.
LEAKING = """
from runtime.live.protocol import frames
kept, encode = [], frames.ChunkEncoder.encode
frames.ChunkEncoder.encode = lambda self, chunk: kept.append(chunk) or encode(self, chunk)
from server.cli import main
main()
"""
WORDS = ("calm", "fast", "dark", "bright", "pads", "drums", "bass", "melody", "arpeggio", "in C major", "in A minor")


@dataclass
class Seen:
    """What all clients did and saw."""

    opened: int = 0
    resumed: int = 0
    controls: int = 0
    gaps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)

    def add(self, client: LiveClient) -> None:
        self.gaps += [gap_text(client, *gap) for gap in client.log.gaps]
        self.problems += [f"{problem.code}: {problem.detail}" for problem in client.problems]


def gap_text(client: LiveClient, begin: int, end: int) -> str:
    """How long the audio broke off, when, and in which session."""
    log, ready = client.log, client.ready
    at = time.localtime(time.time() - time.monotonic() + log.time_of(begin))
    where = f"{ready.mode}{', resumed' * ready.resumed}, {(begin - ready.next_sample) / log.sample_rate_hz:.2f} s"
    return f"{time.strftime('%H:%M:%S', at)}: {1e3 * (end - begin) / log.sample_rate_hz:.0f} ms, {where} after it began"


async def play_sessions(url: str, seed: int, until_s: float, seen: Seen) -> None:
    """One session after another."""
    rng = random.Random(seed)
    while time.monotonic() < until_s:
        await play_session(url, rng, until_s, seen)


async def play_session(url: str, rng: random.Random, until_s: float, seen: Seen) -> None:
    """A session over a few connections; it is closed, or left behind."""
    opening = Open(
        mode=rng.choice(["loop", "extend"]),
        prompts=prompts(rng),
        seed=rng.randrange(100),
        slots=rng.randint(1, 4),
        format=rng.choice(["s16", "f32", "opus"]),
    )
    session, seqs = "", count(1)
    for _ in range(rng.randint(1, 3)):
        async with live_client(url, opening, session) as client:
            assert client.ready.resumed == bool(session)
            seen.opened, seen.resumed = seen.opened + (not session), seen.resumed + bool(session)
            session, opening = client.ready.session, Open(resume=client.ready.resume_token)
            await change_controls(client, rng, seqs, min(until_s, time.monotonic() + rng.uniform(2.0, 20.0)), seen)
            if is_closing := rng.random() < 0.3:
                await client.send(Close())
            elif rng.random() < 0.5:
                client.disconnect()
        seen.add(client)
        if is_closing or time.monotonic() > until_s:
            return
        await asyncio.sleep(rng.uniform(0.0, KEEP_S / 4))


async def change_controls(client: LiveClient, rng: random.Random, seqs: count[int], until_s: float, seen: Seen) -> None:
    while not client.log.is_playing:
        await asyncio.sleep(0.05)
    while time.monotonic() < until_s:
        await rng.choice(CHANGES)(client, rng, next(seqs))
        seen.controls += 1
        await asyncio.sleep(rng.uniform(0.1, 2.0))


async def set_step_parameter(client: LiveClient, rng: random.Random, seq: int) -> None:
    name, high = rng.choice([("guidance", 6.0), ("velocity_scale", 1.2), ("rescale", 1.0)])
    value = rng.choice([None, rng.uniform(0.8 * high, high)])
    await client.send(SetControls(seq=seq, values={name: value}, ramp_ms=rng.choice([0.0, 500.0])))


async def set_generation_parameter(client: LiveClient, rng: random.Random, seq: int) -> None:
    name, value = rng.choice([("seed", rng.randrange(100)), ("steps", rng.randint(4, 16)), ("variation", 0.3)])
    await client.send(SetControls(seq=seq, values={name: rng.choice([None, value])}))


async def set_prompts(client: LiveClient, rng: random.Random, seq: int) -> None:
    await client.send(SetPrompts(seq=seq, items=prompts(rng), blend=rng.choice(["velocity", "tokens"])))


async def move(client: LiveClient, rng: random.Random, seq: int) -> None:
    """Play a part of a loop, or all of it; then go on elsewhere in it."""
    start_s = rng.choice([None, rng.uniform(0.0, 4.0)]) if client.ready.mode == "loop" else None
    end_s = None if start_s is None else start_s + 2.0
    await client.send(SetBand(seq=seq, start_s=start_s, end_s=end_s))
    await client.send(Seek(to_s=(start_s or 0.0) + rng.uniform(0.1, 1.5)))
    await client.send(GetCanvas())


CHANGES: tuple[Callable[[LiveClient, random.Random, int], Awaitable[None]], ...] = (
    set_step_parameter, set_step_parameter, set_generation_parameter, set_prompts, set_prompts, move,
)  # fmt: skip


def prompts(rng: random.Random) -> list[LivePrompt]:
    texts = [" ".join(rng.sample(WORDS, 3)) for _ in range(rng.randint(1, 3))]
    return [LivePrompt(text=text, weight=rng.uniform(0.1, 1.0)) for text in texts]


async def generate(url: str, until_s: float, seen: Seen) -> None:
    """HTTP generations, one every few seconds; some are left before they end."""
    rng = random.Random(99)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        while time.monotonic() < until_s:
            body = {"prompt": "calm pads", "seed": rng.randrange(100), "steps": 8, "seconds": rng.uniform(1.0, 10.0)}
            async with client.stream("POST", GENERATIONS, json=body) as answer:
                if rng.random() < 0.7:
                    await answer.aread()
                    seen.answers[answer.status_code] += 1
            await asyncio.sleep(rng.uniform(1.0, 4.0))


async def run_clients(server: ServerProcess, minutes: float, seed: int) -> Seen:
    """Everything at once for some time; then wait until the server has nothing left to do."""
    seen, until_s = Seen(), time.monotonic() + 60.0 * minutes
    players = (play_sessions(server.url, seed + index, until_s, seen) for index in range(SESSIONS))
    await asyncio.gather(generate(server.url, until_s, seen), *players)
    idle_by_s = time.monotonic() + SETTLE_S
    while any(server.metrics()[f"tickrt_{name}"] for name in GAUGES):
        assert time.monotonic() < idle_by_s, "sessions or generations are left"
        await asyncio.sleep(0.2)
    return seen


@dataclass(frozen=True)
class Size:
    """Memory, open files and threads of the server."""

    rss_bytes: int
    fds: int
    threads: int


def size_of(server: ServerProcess) -> Size:
    process = psutil.Process(server.pid)
    return Size(process.memory_info().rss, process.num_fds(), process.num_threads())


async def soak(server: ServerProcess, minutes: float) -> tuple[list[Seen], list[Size]]:
    """Two halves, and the server's size while it is idle after each."""
    seen, sizes = [], []
    for half in range(2):
        seen.append(await run_clients(server, minutes / 2, SESSIONS * half))
        sizes.append(size_of(server))
    return seen, sizes


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped demo with engines of its own."""
    folder = tmp_path_factory.mktemp("soak")
    (folder / "demo").symlink_to(ROOT / "configs" / "demo")
    path = folder / "demo.toml"
    path.write_text((ROOT / "configs" / "demo.toml").read_text())
    build_deployment(load_deployment(path))
    return path


SETTINGS = {**UNLIMITED, "TICKRT_SESSION_KEEP_S": str(KEEP_S)}


@pytest.mark.slow
def test_sessions_and_generations_run_for_long_without_a_trace(config: Path) -> None:
    with server_process(config, SETTINGS) as server:
        halves, (before, after) = asyncio.run(soak(server, MINUTES))
        counted = server.metrics()
    assert [problem for half in halves for problem in half.problems] == []
    assert [gap for half in halves for gap in half.gaps] == []
    assert counted["tickrt_underruns_total"] == 0
    check_accounts(counted, halves)
    assert after.rss_bytes - before.rss_bytes < GROWTH_BYTES
    assert after.fds <= before.fds + MORE_FDS
    assert after.threads <= before.threads + MORE_THREADS


def check_accounts(counted: dict[str, float], halves: list[Seen]) -> None:
    """Every session and every generation that began has exactly one end."""

    def total(name: str) -> float:
        return sum(value for key, value in counted.items() if key.startswith(f"tickrt_{name}_total"))

    opened = sum(half.opened for half in halves)
    assert min(half.controls for half in halves) > SESSIONS
    assert counted["tickrt_live_sessions_started_total"] == total("live_sessions_ended") == opened
    assert counted["tickrt_live_generations_started_total"] == total("live_generations_ended") > opened
    assert counted["tickrt_generations_started_total"] == total("generations")
    answers = sum((half.answers for half in halves), Counter[int]())
    assert set(answers) == {200}
    ended = {name: counted[f"tickrt_generations_total{{outcome={name}}}"] for name in Outcome}
    assert ended[Outcome.OK] + ended[Outcome.CANCELLED] == counted["tickrt_generations_started_total"]
    assert ended[Outcome.OK] >= answers[200]
    for gauge in GAUGES:
        assert counted[f"tickrt_{gauge}"] == 0


@pytest.mark.slow
def test_a_server_that_keeps_its_audio_is_found(config: Path) -> None:
    with server_process(config, SETTINGS, program=("-c", LEAKING)) as server:
        _, (before, after) = asyncio.run(soak(server, 1.0))
    assert after.rss_bytes - before.rss_bytes > GROWTH_BYTES
