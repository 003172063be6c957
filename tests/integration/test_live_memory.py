"""Memory of a server after many short live sessions and generations of every kind: bounded, and flat from then on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx
import psutil
import pytest

from profiling.bench.live.client import live_client
from profiling.bench.live.run import UNLIMITED
from profiling.server_process import server_process
from runtime.live.protocol.messages import Close, LivePrompt, Open, Seek, SetPrompts
from server.service.service import TRIM_S

MIB = 2**20
SESSIONS = 8
ROUND = 192  # sessions and generations
# More than a server that is ready, which plays nothing yet: caches, buffers of each length, engines' working memory.
LIMIT_MIB = 260
GROWTH_MIB = 48
WORDS = (
    "piano", "techno", "calm", "fast", "bass", "drums", "choir", "pads", "violin", "waltz", "dark", "happy", "slow",
    "guitar", "ambient", "bells", "organ", "house",
)  # fmt: skip
FORMATS = ("s16", "f32", "opus")


async def play_some(url: str, number: int, seed: int) -> None:
    """So many short sessions one after another, each of another kind; every fourth is a generation."""
    rng = random.Random(seed)
    for index in range(number):
        if index % 4 == 3:
            await generate(url, rng)
        else:
            await play(url, rng)


async def play(url: str, rng: random.Random) -> None:
    opening = Open(
        mode=rng.choice(["loop", "extend"]),
        seconds=rng.choice([None, rng.uniform(2.0, 10.2)]),
        prompts=prompts(rng),
        seed=rng.randrange(10**6),
        slots=rng.randint(1, 4),
        format=rng.choice(FORMATS),
        plan=rng.choice([None, None, False]),
    )
    async with live_client(url, opening) as client:
        until_s = asyncio.get_running_loop().time() + 30.0
        while not client.log.is_playing and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(0.02)
        await client.send(SetPrompts(seq=1, items=prompts(rng), blend=rng.choice(["velocity", "tokens"])))
        await client.send(Seek(to_s=rng.uniform(0.5, 1.5)))
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        await client.send(Close())


def prompts(rng: random.Random) -> list[LivePrompt]:
    return [
        LivePrompt(text=" ".join(rng.sample(WORDS, 3)), weight=rng.uniform(0.1, 1.0)) for _ in range(rng.randint(1, 3))
    ]


async def generate(url: str, rng: random.Random) -> None:
    body = {
        "prompt": " ".join(rng.sample(WORDS, 3)), "seed": rng.randrange(100), "steps": rng.randint(1, 8),
        "seconds": rng.uniform(0.5, 40.0), "response_format": rng.choice(["wav", "flac", "mp3", "mid", "latents"]),
    }  # fmt: skip
    async with httpx.AsyncClient(timeout=120.0) as client:
        answer = await client.post(f"{url}/v1/audio/generations", json=body)
        assert answer.status_code == 200, answer.text


async def play_all(url: str, number: int, seed: int) -> None:
    await asyncio.gather(*(play_some(url, number // SESSIONS, seed + client) for client in range(SESSIONS)))
    await asyncio.sleep(TRIM_S + 2.0)


@pytest.mark.slow
def test_memory_is_bounded_and_flat_after_many_sessions(demo_config: Path) -> None:
    with server_process(demo_config, {**UNLIMITED, "TICKRT_SESSION_KEEP_S": "1"}) as server:
        sizes = [psutil.Process(server.pid).memory_info().rss // MIB]
        for seed in (0, SESSIONS):
            asyncio.run(play_all(server.url, ROUND, seed))
            sizes.append(psutil.Process(server.pid).memory_info().rss // MIB)
    print(f"MiB before, after {ROUND} and after {2 * ROUND}: {sizes}")
    ready, after, twice = sizes
    assert twice - after < GROWTH_MIB
    assert twice - ready < LIMIT_MIB
