"""None"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from helpers.http_harness import TIMEOUT_S

from server.asgi.problems import ProblemError
from server.asgi.turns import run_to_end
from server.service.admission import Admission, FirstAudioTracker

pytestmark = pytest.mark.anyio


async def test_cancelled_work_in_a_thread_is_waited_for() -> None:
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
    assert ended.is_set()


def test_peers_are_the_first_that_wait_at_most_size() -> None:
    tracker = FirstAudioTracker(2)
    for name in "abcd":
        tracker.add(name)
    assert tracker.peers("a") == {"b", "c"}
    assert tracker.peers("d") == {"a", "b"}
    tracker.discard("b")
    tracker.discard("b")
    assert tracker.peers("a") == {"c", "d"}


async def test_waiting_ends_with_the_last_peers_first_audio() -> None:
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


async def test_waiting_is_bounded() -> None:
    tracker = FirstAudioTracker(8)
    tracker.add("b")
    started_s = time.monotonic()
    await tracker.wait_for(frozenset("b"), 0.05)
    assert time.monotonic() - started_s > 0.04


async def test_an_error_of_cancelled_work_is_not_one_of_the_event_loop() -> None:
    errors: list[dict[str, object]] = []

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
    assert errors == []


def test_capacity_limits_admission() -> None:
    admission = Admission(2)
    first, _ = admission.admit("a"), admission.admit("b")
    with pytest.raises(ProblemError) as refusal:
        admission.admit("c")
    assert (refusal.value.status, refusal.value.code) == (503, "queue_full")
    first.release()
    first.release()
    assert admission.num_pending == 1
    admission.admit("c")


def test_a_released_permit_counts_until_the_loop_has_ended_its_request() -> None:
    admission = Admission(1)
    permit = admission.admit("a")
    permit.add_request()
    permit.release()
    assert (admission.num_pending, admission.permits) == (1, set())
    permit.end_request()
    assert admission.num_pending == 0


def test_a_permit_counts_between_segments_and_not_after_the_last() -> None:
    admission = Admission(1)
    permit = admission.admit("a")
    permit.add_request()
    permit.end_request()
    assert admission.num_pending == 1
    permit.add_request()
    permit.finish_ticks()
    assert admission.num_pending == 1
    permit.end_request()
    assert (admission.num_pending, admission.permits) == (0, {permit})


def test_the_client_limit_is_per_client() -> None:
    admission = Admission(10, client_limit=1)
    permit = admission.admit("a")
    permit.finish_ticks()
    with pytest.raises(ProblemError) as refusal:
        admission.admit("a")
    assert refusal.value.status == 429
    admission.admit("b")
    permit.release()
    admission.admit("a")


@pytest.mark.parametrize(("capacity", "limit"), [(0, 1), (1, 1), (5, 2), (40, 20)])
def test_one_client_gets_half_of_the_capacity_by_default(capacity: int, limit: int) -> None:
    admission = Admission(capacity)
    with ExitStack() as stack:
        for _ in range(limit):
            stack.enter_context(admission.limit_client("a"))
        stack.enter_context(admission.limit_client("b"))
        with pytest.raises(ProblemError) as refusal:
            stack.enter_context(admission.limit_client("a"))
    assert refusal.value.status == 429


def test_the_memory_of_responses_is_bounded_in_all_and_per_client() -> None:
    admission = Admission(10, memory_bytes=100)
    first, second, third = admission.admit("a"), admission.admit("a"), admission.admit("b")
    with pytest.raises(ProblemError) as refusal:
        first.reserve(51)
    assert (refusal.value.status, refusal.value.code) == (422, "response_too_large")
    first.reserve(40)
    with pytest.raises(ProblemError) as refusal:
        second.reserve(11)
    assert refusal.value.status == 429
    third.reserve(50)
    second.reserve(10)
    assert admission.memory.used == 100
    first.release()
    assert admission.memory.used == 60
    second.reserve(40)
    with pytest.raises(ProblemError) as refusal:
        admission.admit("c").reserve(1)
    assert refusal.value.status == 503
    assert "Retry-After" in refusal.value.headers


@pytest.mark.parametrize(
    ("limit", "others", "wanted", "taken"), [(0, 0, 9, 4), (0, 3, 9, 1), (3, 0, 9, 2), (0, 0, 2, 2)]
)
def test_a_generation_of_many_takes_the_places_that_are_free(limit: int, others: int, wanted: int, taken: int) -> None:
    admission = Admission(5, client_limit=limit)
    permit = admission.admit("a")
    for _ in range(others):
        admission.admit("b")
    assert permit.take_places(wanted) == taken
    assert admission.num_pending == 1 + others + taken
    if limit:
        with pytest.raises(ProblemError, match="3 at a time for one client"):
            admission.admit("a")
    permit.release()
    assert admission.num_pending == others
    for _ in range(limit):
        admission.admit("a")


def test_draining_refuses_everything() -> None:
    admission = Admission(1)
    admission.drain()
    with pytest.raises(ProblemError) as refusal:
        admission.admit("a")
    assert refusal.value.code == "draining"
    assert int(refusal.value.headers["Retry-After"]) > 0


async def test_waiting_for_the_last_permit() -> None:
    admission = Admission(2)
    assert await admission.wait_empty(0.0)
    permit = admission.admit("a")
    assert not await admission.wait_empty(0.01)
    asyncio.get_running_loop().call_later(0.01, permit.release)
    assert await admission.wait_empty(5.0)


def test_retry_after_is_the_time_of_the_steps_that_are_left() -> None:
    """Ten steps a second: 60 and 20 steps are left, then 60 and 5."""
    admission = Admission(2, client_limit=1, ticks_s=lambda num_steps: num_steps / 10)
    for client, num_steps in (("a", 60), ("b", 20)):
        permit = admission.admit(client)
        assert permit.remaining_steps == 0, "until it is known what is made"
        permit.remaining_steps = num_steps
    assert refused_for_s(admission, "c") == 8
    assert refused_for_s(admission, "b") == 2
    (permit,) = (permit for permit in admission.permits if permit.client == "b")
    permit.add_request()
    permit.end_request(15)
    assert refused_for_s(admission, "c") == 7
    assert refused_for_s(admission, "b") == 1


def refused_for_s(admission: Admission, client: str) -> int:
    """The Retry-After of a refusal."""
    with pytest.raises(ProblemError) as refusal:
        admission.admit(client)
    return int(refusal.value.headers["Retry-After"])
