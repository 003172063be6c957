from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.codec_workers import Audience, Turns, finish_in


def test_equals_take_turns_and_first_windows_go_first() -> None:
    asyncio.run(_turns())


async def _turns() -> None:
    turns, order = Turns(), []

    async def stream(name: str) -> None:
        for window in range(3):
            async with turns.turn(priority=min(window, 1)):
                await asyncio.sleep(0)
                order.append(f"{name}{window}")

    await asyncio.gather(*(stream(name) for name in "abc"))
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_cancelled_waiter_does_not_keep_the_turn() -> None:
    asyncio.run(_cancelled_waiter())


async def _cancelled_waiter() -> None:
    turns, got = Turns(), []

    async def take(name: str) -> None:
        async with turns.turn(0):
            got.append(name)

    async with turns.turn(0):
        tasks = [asyncio.create_task(take(name)) for name in "ab"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
    await tasks[1]
    assert got == ["b"]
    async with asyncio.timeout(1), turns.turn(0):
        got.append("again")


def test_a_waiter_cancelled_at_the_moment_of_its_call_hands_the_turn_on() -> None:
    asyncio.run(_cancelled_when_called())


async def _cancelled_when_called() -> None:
    turns = Turns()

    async def take() -> None:
        async with turns.turn(0):
            pass

    async with turns.turn(0):
        task = asyncio.create_task(take())
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(1), turns.turn(0):
        pass


def test_as_many_lanes_are_in_use_as_the_limit_says() -> None:
    assert asyncio.run(_most_at_a_time(buckets=3, limit=3)) == (3, {0, 1, 2})
    most, _ = asyncio.run(_most_at_a_time(buckets=3, limit=2))
    assert most == 2
    most, _ = asyncio.run(_most_at_a_time(buckets=3, limit=0))
    assert most == 1


async def _most_at_a_time(buckets: int, limit: int) -> tuple[int, set[int]]:
    turns, inside, seen, most = Turns(buckets, lambda: limit), set[int](), set[int](), 0

    async def work() -> None:
        nonlocal most
        async with turns.turn(0) as bucket:
            assert bucket not in inside
            inside.add(bucket)
            seen.add(bucket)
            most = max(most, len(inside))
            await asyncio.sleep(0.001)
            inside.remove(bucket)

    await asyncio.gather(*(work() for _ in range(10)))
    return most, seen


def test_a_limit_that_rises_opens_lanes_for_those_who_wait() -> None:
    asyncio.run(_rising_limit())


async def _rising_limit() -> None:
    limit, inside = 1, 0
    turns = Turns(3, lambda: limit)
    go = asyncio.Event()

    async def work() -> None:
        nonlocal inside
        async with turns.turn(0):
            inside += 1
            await go.wait()

    async with turns.turn(0):
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0)
        assert inside == 0
        limit = 3
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inside == 3
    go.set()
    await asyncio.gather(*tasks)


def test_work_in_a_thread_is_waited_for_also_when_nobody_wants_it() -> None:
    ended = asyncio.run(_cancelled_work())
    assert ended


async def _cancelled_work() -> bool:
    ended, go = threading.Event(), threading.Event()

    def work(answer: int) -> int:
        go.wait(5)
        ended.set()
        return answer

    with ThreadPoolExecutor(1) as threads:
        task = asyncio.create_task(finish_in(threads, work, 42))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await finish_in(threads, work, 43) == 43
    return ended.is_set()


def test_neighbours_are_the_first_that_wait_and_are_bounded() -> None:
    audience = Audience(2)
    for name in "abcd":
        audience.join(name)
    assert audience.neighbours("a") == {"b", "c"}
    assert audience.neighbours("d") == {"a", "b"}
    audience.leave("b")
    audience.leave("b")
    assert audience.neighbours("a") == {"c", "d"}


def test_waiting_ends_when_the_last_neighbour_has_heard_something() -> None:
    asyncio.run(_waits())


async def _waits() -> None:
    audience = Audience(8)
    for name in "abc":
        audience.join(name)
    neighbours = audience.neighbours("a")
    audience.join("late")
    waiter = asyncio.create_task(audience.wait_for(neighbours, 5.0))
    for name in "bc":
        await asyncio.sleep(0.01)
        assert not waiter.done()
        audience.leave(name)
    await asyncio.wait_for(waiter, 1.0)


def test_waiting_is_bounded() -> None:
    audience = Audience(8)
    audience.join("b")
    started_s = time.monotonic()
    asyncio.run(audience.wait_for(frozenset("b"), 0.05))
    assert 0.04 < time.monotonic() - started_s < 5.0
