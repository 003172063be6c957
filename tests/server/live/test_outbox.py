"""What waits for a client that does not read: bounded, newest audio kept, messages in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from helpers.fake_live_host import chunk
from helpers.lock_check import lock_checked

from runtime.base.errors import RequestError
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, Changed, State, problem_of
from server.live.outbox import MAX_AUDIO_AGE_S, MAX_AUDIO_BYTES, MAX_MESSAGES, Outbox


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def state(playhead: int) -> State:
    return State(
        playhead_sample=playhead,
        sent_until_sample=0,
        lead_s=0.0,
        generations_in_flight=0,
        generation_s=0.0,
        underruns=0,
        ticks=0,
        tick_ms=0.0,
        canvas_position_s=0.0,
        playing=True,
    )


def taken(fill: Callable[[Outbox, Clock], None]) -> tuple[list[Any], int]:
    """All that can be taken after `fill`, and how many chunks were dropped."""
    drops: list[None] = []

    async def run() -> list[Any]:
        clock = Clock()
        outbox = lock_checked(Outbox, "_messages", "_audio", "_audio_bytes")(lambda: drops.append(None), clock)
        fill(outbox, clock)
        items = []
        while True:
            try:
                async with asyncio.timeout(0.05):
                    items.append(await outbox.take())
            except TimeoutError:
                return items
            if items[-1] is None:
                return items

    return asyncio.run(run()), len(drops)


def starts(items: list[Any]) -> list[int]:
    return [item.start_sample for item in items if isinstance(item, AudioChunk)]


def test_messages_go_before_audio_and_keep_their_order() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        outbox.on_audio(chunk(0))
        outbox.on_audio(chunk(960))
        outbox.on_message(Applied(seq=1))
        outbox.on_message(problem_of(RequestError("no")))

    items, dropped = taken(fill)
    assert [type(item).__name__ for item in items] == ["Applied", "Problem", "AudioChunk", "AudioChunk"]
    assert (starts(items), dropped) == ([0, 960], 0)


def test_only_the_newest_state_waits() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        for playhead in range(5):
            outbox.on_message(state(playhead))
            outbox.on_message(Applied(seq=playhead + 1))

    items, _ = taken(fill)
    assert [item.playhead_sample for item in items if isinstance(item, State)] == [4]
    assert [item.seq for item in items if isinstance(item, Applied)] == [1, 2, 3, 4, 5]


def test_audio_beyond_the_limit_is_dropped_oldest_first() -> None:
    samples = 48_000
    size_bytes = chunk(0, samples).pcm.nbytes
    kept = MAX_AUDIO_BYTES // size_bytes

    def fill(outbox: Outbox, clock: Clock) -> None:
        for index in range(kept + 3):
            outbox.on_audio(chunk(index * samples, samples))

    items, dropped = taken(fill)
    assert starts(items) == [index * samples for index in range(3, kept + 3)]
    assert dropped == 3


def test_one_changed_waits_with_the_values_of_all() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        outbox.on_message(Changed(values={"guidance": 3.0, "seed": 1}))
        outbox.on_message(Applied(seq=1))
        outbox.on_message(Changed(values={"guidance": 4.0}))

    items, _ = taken(fill)
    assert items == [Applied(seq=1), Changed(values={"guidance": 4.0, "seed": 1})]


def test_old_audio_is_dropped() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        outbox.on_audio(chunk(0))
        clock.now_s = MAX_AUDIO_AGE_S + 0.1
        outbox.on_audio(chunk(960))

    items, dropped = taken(fill)
    assert (starts(items), dropped) == ([960], 1)


def test_audio_that_is_replaced_is_left_out_and_not_counted() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        for start in (0, 960, 1920):
            outbox.on_audio(chunk(start))
        outbox.on_audio(chunk(480, 2400, is_replacing=True))

    items, dropped = taken(fill)
    assert (starts(items), dropped) == ([0, 480], 0)


def test_audio_that_begins_before_or_ends_behind_its_replacement_is_sent() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        for start, end in ((0, 960), (960, 1920), (1920, 2880)):
            outbox.on_audio(chunk(start, end))
        outbox.on_audio(chunk(960, 2400, is_replacing=True))

    items, dropped = taken(fill)
    assert (starts(items), dropped) == ([0, 1920, 960], 0)


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


def test_a_new_epoch_leaves_out_the_old_one() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        outbox.on_audio(chunk(0, epoch=1))
        outbox.on_audio(chunk(5000, epoch=2))

    items, dropped = taken(fill)
    assert (starts(items), dropped) == ([5000], 0)


def test_too_many_messages_end_the_connection() -> None:
    def fill(outbox: Outbox, clock: Clock) -> None:
        for seq in range(MAX_MESSAGES + 1):
            outbox.on_message(Applied(seq=seq + 1))

    assert taken(fill)[0] == [None]


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

    assert starts(asyncio.run(run())) == [0, 960, 1920]


def test_a_closed_outbox_takes_calls_after_its_event_loop() -> None:
    async def run() -> Outbox:
        outbox = Outbox(lambda: None)
        outbox.close()
        return outbox

    outbox = asyncio.run(run())
    outbox.on_message(Applied(seq=1))
    outbox.on_audio(chunk())
