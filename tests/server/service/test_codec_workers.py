from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.http_harness import TIMEOUT_S

from server.service.codec_workers import FirstAudioTracker, run_to_end


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
        task = asyncio.create_task(run_to_end(threads.submit(work, 42)))
        waiting = threads.submit(work, 44)
        cancelled = asyncio.create_task(run_to_end(waiting))
        await asyncio.sleep(0.01)
        task.cancel()
        cancelled.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        assert (cancelled.done(), waiting.cancelled()) == (True, True)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run_to_end(threads.submit(work, 43)) == 43
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


def test_an_error_of_cancelled_work_is_not_one_of_the_event_loop() -> None:
    errors: list[dict[str, object]] = []

    async def cancel() -> None:
        go = threading.Event()

        def fail() -> None:
            go.wait(TIMEOUT_S)
            raise LookupError

        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        with ThreadPoolExecutor(1) as threads:
            task = asyncio.create_task(run_to_end(threads.submit(fail)))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        del task
        gc.collect()

    asyncio.run(cancel())
    assert errors == []
