from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.http_harness import TIMEOUT_S

from server.asgi.problems import ProblemError
from server.codec_workers import FirstAudioTracker, PriorityWorkers, SourceWorker, run_to_end


def test_equal_priorities_alternate_and_first_windows_go_first() -> None:
    asyncio.run(_priorities())


async def _priorities() -> None:
    workers, order = PriorityWorkers(), []

    async def stream(name: str) -> None:
        for window in range(3):
            async with workers.acquire(priority=min(window, 1)):
                await asyncio.sleep(0)
                order.append(f"{name}{window}")

    await asyncio.gather(*(stream(name) for name in "abc"))
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_cancelled_waiter_takes_no_worker() -> None:
    asyncio.run(_cancelled_waiter())


async def _cancelled_waiter() -> None:
    workers, got = PriorityWorkers(), []

    async def take(name: str) -> None:
        async with workers.acquire(0):
            got.append(name)

    async with workers.acquire(0):
        tasks = [asyncio.create_task(take(name)) for name in "ab"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
    await tasks[1]
    assert got == ["b"]
    async with asyncio.timeout(TIMEOUT_S), workers.acquire(0):
        got.append("again")


def test_a_waiter_cancelled_as_its_worker_is_granted_releases_it() -> None:
    asyncio.run(_cancelled_when_granted())


async def _cancelled_when_granted() -> None:
    workers = PriorityWorkers()

    async def take() -> None:
        async with workers.acquire(0):
            pass

    async with workers.acquire(0):
        task = asyncio.create_task(take())
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(TIMEOUT_S), workers.acquire(0):
        pass


def test_the_limit_bounds_the_workers_in_use() -> None:
    assert asyncio.run(_most_in_use(size=3, limit=9)) == 3
    assert asyncio.run(_most_in_use(size=3, limit=2)) == 2
    assert asyncio.run(_most_in_use(size=3, limit=0)) == 1


async def _most_in_use(size: int, limit: int) -> int:
    workers, inside, most = PriorityWorkers(size, lambda: limit), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with workers.acquire(0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(10)))
    return most


def test_a_rising_limit_grants_more_workers() -> None:
    asyncio.run(_rising_limit())


async def _rising_limit() -> None:
    limit, inside = 1, 0
    workers = PriorityWorkers(3, lambda: limit)
    go = asyncio.Event()

    async def work() -> None:
        nonlocal inside
        async with workers.acquire(0):
            inside += 1
            await go.wait()

    async with workers.acquire(0):
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0)
        assert inside == 0
        limit = 3
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inside == 3
    go.set()
    await asyncio.gather(*tasks)


def test_cancelled_work_in_a_thread_is_waited_for() -> None:
    ended = asyncio.run(_cancelled_work())
    assert ended


async def _cancelled_work() -> bool:
    ended, go = threading.Event(), threading.Event()

    def work(answer: int) -> int:
        go.wait(TIMEOUT_S)
        ended.set()
        return answer

    with ThreadPoolExecutor(1) as threads:
        task = asyncio.create_task(run_to_end(threads, work, 42))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run_to_end(threads, work, 43) == 43
    return ended.is_set()


def test_peers_are_the_first_that_wait_at_most_size() -> None:
    tracker = FirstAudioTracker(2)
    for name in "abcd":
        tracker.add(name)
    assert tracker.peers("a") == {"b", "c"}
    assert tracker.peers("d") == {"a", "b"}
    tracker.discard("b")
    tracker.discard("b")
    assert tracker.peers("a") == {"c", "d"}


def test_waiting_ends_with_the_last_peers_first_audio() -> None:
    asyncio.run(_waits())


async def _waits() -> None:
    tracker = FirstAudioTracker(8)
    for name in "abc":
        tracker.add(name)
    peers = tracker.peers("a")
    tracker.add("late")
    waiter = asyncio.create_task(tracker.wait_for(peers, 10 * TIMEOUT_S))
    for name in "bc":
        await asyncio.sleep(0.01)
        assert not waiter.done()
        tracker.discard(name)
    await asyncio.wait_for(waiter, TIMEOUT_S)


def test_waiting_is_bounded() -> None:
    tracker = FirstAudioTracker(8)
    tracker.add("b")
    started_s = time.monotonic()
    asyncio.run(tracker.wait_for(frozenset("b"), 0.05))
    assert time.monotonic() - started_s > 0.04


def test_sources_are_read_one_at_a_time_and_few_wait() -> None:
    asyncio.run(_sources())


async def _sources() -> None:
    worker, go, running, most = SourceWorker(max_waiting=2), threading.Event(), 0, 0

    def read(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert go.wait(TIMEOUT_S)
        running -= 1
        return number

    tasks = [asyncio.create_task(worker.run(read, number)) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(ProblemError) as refusal:
        await worker.run(read, 3)
    assert (refusal.value.status, "Retry-After" in refusal.value.headers) == (503, True)
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    tasks[2] = asyncio.create_task(worker.run(read, 4))
    go.set()
    assert await asyncio.gather(*tasks) == [0, 1, 4]
    assert most == 1
    worker.close()
