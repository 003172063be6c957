"""What waits for a client that does not read: bounded, newest audio kept, messages in order."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from helpers.fake_live_host import chunk
from helpers.live_clients import state
from helpers.lock_check import lock_checked

from runtime.base.errors import RequestError
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, Changed, ServerMessage, problem_of
from server.live.outbox import MAX_AUDIO_AGE_S, MAX_AUDIO_BYTES, MAX_MESSAGES, Outbox


def taken(*given: AudioChunk | ServerMessage | float) -> tuple[list[Any], int]:
    """All that can be taken after what is given, chunks by their first sample, and how many chunks were dropped.

    A number is the time of what follows.
    """
    drops: list[None] = []

    async def run() -> list[Any]:
        now_s = 0.0
        outbox = lock_checked(Outbox, "_messages", "_audio", "_audio_bytes")(lambda: drops.append(None), lambda: now_s)
        for item in given:
            if isinstance(item, float):
                now_s = item
            elif isinstance(item, AudioChunk):
                outbox.on_audio(item)
            else:
                outbox.on_message(item)
        items: list[Any] = []
        with suppress(TimeoutError):
            while not items or items[-1] is not None:
                async with asyncio.timeout(0.05):
                    items.append(await outbox.take())
        return [item.start_sample if isinstance(item, AudioChunk) else item for item in items]

    return asyncio.run(run()), len(drops)


STATES = [state(playhead_sample=sample) for sample in range(5)]
APPLIED, PROBLEM = [Applied(seq=seq) for seq in range(1, 6)], problem_of(RequestError("no"))
LONG = 48_000
KEPT = MAX_AUDIO_BYTES // chunk(0, LONG).pcm.nbytes


@pytest.mark.parametrize(
    ("given", "expected", "dropped"),
    [
        pytest.param(
            [chunk(0), chunk(960), APPLIED[0], PROBLEM], [APPLIED[0], PROBLEM, 0, 960], 0, id="messages first"
        ),
        pytest.param(
            [item for pair in zip(STATES, APPLIED, strict=True) for item in pair],
            [*APPLIED[:4], STATES[4], APPLIED[4]],
            0,
            id="the newest state",
        ),
        pytest.param(
            [Changed(values={"guidance": 3.0, "seed": 1}), APPLIED[0], Changed(values={"guidance": 4.0})],
            [APPLIED[0], Changed(values={"guidance": 4.0, "seed": 1})],
            0,
            id="one changed with the values of all",
        ),
        pytest.param(
            [chunk(index * LONG, LONG) for index in range(KEPT + 3)],
            [index * LONG for index in range(3, KEPT + 3)],
            3,
            id="audio beyond the limit, oldest first",
        ),
        pytest.param([chunk(0), MAX_AUDIO_AGE_S + 0.1, chunk(960)], [960], 1, id="old audio"),
        pytest.param(
            [*map(chunk, (0, 960, 1920)), chunk(480, 2400, is_replacing=True)], [0, 480], 0, id="what is replaced"
        ),
        pytest.param(
            [*(chunk(start, start + 960) for start in (0, 960, 1920)), chunk(960, 2400, is_replacing=True)],
            [0, 1920, 960],
            0,
            id="what begins before its replacement or ends behind it",
        ),
        pytest.param([chunk(0, epoch=1), chunk(5000, epoch=2)], [5000], 0, id="an old epoch"),
        pytest.param([Applied(seq=seq + 1) for seq in range(MAX_MESSAGES + 1)], [None], 0, id="too many messages"),
    ],
)
def test_what_is_taken_of_what_waits(given: list[Any], expected: list[Any], dropped: int) -> None:
    assert taken(*given) == (expected, dropped)


def test_a_message_wakes_the_taker() -> None:
    async def run() -> Any:
        outbox = Outbox(lambda: None)
        taking = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)
        outbox.on_message(Applied(seq=1))
        for _ in range(5):
            await asyncio.sleep(0)
        return taking.done() and taking.result()

    assert asyncio.run(run()) == Applied(seq=1)


def test_another_thread_wakes_the_taker() -> None:
    async def run() -> Any:
        outbox = Outbox(lambda: None)
        thread = threading.Thread(target=outbox.on_message, args=(Applied(seq=1),))
        asyncio.get_running_loop().call_later(0.01, thread.start)
        async with asyncio.timeout(60):
            return await outbox.take()

    assert asyncio.run(run()) == Applied(seq=1)


def test_a_chunk_is_taken_once_while_another_thread_adds_one() -> None:
    """Adding looks through what waits: nothing is taken from there meanwhile."""
    adding, is_taken = threading.Event(), threading.Event()
    main = threading.get_ident()

    def clock() -> float:
        if threading.get_ident() != main:
            adding.set()
            is_taken.wait(0.1)  # with the lock held: nothing comes
        return 0.0

    async def run() -> list[Any]:
        outbox = Outbox(lambda: None, clock)
        outbox.on_audio(chunk(0))
        await asyncio.sleep(0)
        thread = threading.Thread(target=outbox.on_audio, args=(chunk(960),))
        thread.start()
        adding.wait()
        items = [await outbox.take()]
        is_taken.set()
        thread.join()
        outbox.on_audio(chunk(1920))
        return [*items, await outbox.take(), await outbox.take()]

    assert [item.start_sample for item in asyncio.run(run())] == [0, 960, 1920]


def test_a_closed_outbox_takes_calls_after_its_event_loop() -> None:
    async def run() -> Outbox:
        outbox = Outbox(lambda: None)
        outbox.close()
        return outbox

    outbox = asyncio.run(run())
    outbox.on_message(Applied(seq=1))
    outbox.on_audio(chunk())
