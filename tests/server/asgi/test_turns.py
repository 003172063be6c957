"""Work of clients, one at a time: order, pace, deadline, and clients that leave."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from server.asgi import turns
from server.asgi.problems import ProblemError
from server.asgi.shares import Budget
from server.asgi.turns import MAX_PAUSE_S, Turns


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU time of threads, which a test sets."""
    used_s = [0.0]
    monkeypatch.setattr(turns.time, "thread_time", lambda: used_s[0])
    return used_s


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(run())


def test_a_debt_is_paid_by_a_pause_that_is_bounded() -> None:
    now_s = [0.0]
    budget = Budget(0.25, 0.05, 0.5, lambda: now_s[0])
    budget.charge(0.05)
    assert budget.pause_s() == 0.0
    budget.charge(0.1)
    assert budget.pause_s() == pytest.approx(0.4)
    now_s[0] = 0.4
    assert budget.pause_s() == pytest.approx(0.0)
    budget.charge(60.0)
    assert budget.pause_s() == pytest.approx(2.0)
    now_s[0] = 1000.0
    assert budget.pause_s() == 0.0
    budget.charge(0.04)
    assert budget.pause_s() == 0.0, "after a quiet time as much is left as at the beginning"


def test_work_is_done_one_at_a_time(cpu: list[float]) -> None:
    running = threading.Lock()

    def work(number: int) -> int:
        assert running.acquire(blocking=False)
        time.sleep(0.001)
        running.release()
        return number

    async def test() -> None:
        turns = Turns("works", 1.0)
        assert await asyncio.gather(*(turns.run(f"{n % 3}", work, n) for n in range(9))) == list(range(9))

    in_loop(test)


def test_the_client_that_has_used_least_is_next(cpu: list[float]) -> None:
    order: list[str] = []

    def work(client: str, seconds: float) -> None:
        order.append(client)
        cpu[0] += seconds

    async def test() -> None:
        turns = Turns("works", 1.0)
        greedy = [asyncio.create_task(turns.run("greedy", work, "greedy", 1e-3)) for _ in range(20)]
        await asyncio.sleep(0)
        modest = [asyncio.create_task(turns.run("modest", work, "modest", 1e-4)) for _ in range(5)]
        await asyncio.gather(*greedy, *modest)
        assert max(index for index, client in enumerate(order) if client == "modest") <= 7

    in_loop(test)


def test_a_debt_of_others_is_bounded(cpu: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """60 s of work, of which a quarter of the time may be: 180 s without a bound."""
    delays: list[float] = []

    async def test() -> None:
        turns, loop = Turns("works", 0.25), asyncio.get_running_loop()
        monkeypatch.setattr(
            loop, "call_later", lambda delay_s, call, *args: (delays.append(delay_s), loop.call_soon(call, *args))[1]
        )
        await turns.run("a", lambda: cpu.__setitem__(0, 60.0))
        waiting = asyncio.create_task(turns.run("b", lambda: 1))
        for _ in range(3):
            await asyncio.sleep(0)
        assert min(delays) <= MAX_PAUSE_S
        waiting.cancel()

    in_loop(test)


def test_work_without_a_turn_in_time_is_refused_and_others_go_on() -> None:
    may_end = threading.Event()

    async def test() -> None:
        turns = Turns("reads", 1.0, 0.01)
        held = asyncio.create_task(turns.run("a", may_end.wait, 60))
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="this server reads, one at a time") as refusal:
            await turns.run("b", lambda: 1)
        assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (503, "1")
        may_end.set()
        await held
        assert await turns.run("b", lambda: 2) == 2

    in_loop(test)


def test_a_client_that_leaves_costs_nothing_and_holds_up_no_other() -> None:
    may_end, begun = threading.Event(), list[str]()

    async def test() -> None:
        turns = Turns("works", 1.0)
        held = asyncio.create_task(turns.run("a", may_end.wait, 60))
        await asyncio.sleep(0)
        leaving = [asyncio.create_task(turns.run("b", begun.append, "b")) for _ in range(100)]
        staying = asyncio.create_task(turns.run("c", begun.append, "c"))
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        may_end.set()
        await asyncio.gather(held, staying)
        await asyncio.gather(*leaving, return_exceptions=True)
        assert begun == ["c"]

    in_loop(test)


def test_a_client_that_leaves_as_its_turn_comes_gives_it_back() -> None:
    async def test() -> None:
        turns = Turns("works", 1.0)
        for steps in range(6):
            leaving = asyncio.create_task(turns.run("a", lambda: 1))
            for _ in range(steps):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            assert await turns.run("b", lambda: 2) == 2

    in_loop(test)


def test_work_that_fails_raises_and_lets_others_go_on() -> None:
    def fail() -> None:
        raise LookupError

    async def test() -> None:
        turns = Turns("works", 1.0)
        for run in (turns.run("a", fail), turns.run_shared(fail)):
            with pytest.raises(LookupError):
                await run
        assert await turns.run_shared(lambda: 1) == 1

    in_loop(test)


def test_those_that_ask_before_work_begins_share_its_result() -> None:
    numbers, begun, may_end = iter(range(10)), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert may_end.wait(60)
        return next(numbers)

    async def test() -> None:
        turns = Turns("works", 1.0)
        first = asyncio.create_task(turns.run_shared(work))
        assert await asyncio.to_thread(begun.wait, 60)
        others = [asyncio.create_task(turns.run_shared(work)) for _ in range(3)]
        await asyncio.sleep(0)
        others[0].cancel()
        may_end.set()
        assert await first == 0
        assert await asyncio.gather(*others[1:]) == [1, 1]
        assert await turns.run_shared(work) == 2

    in_loop(test)
