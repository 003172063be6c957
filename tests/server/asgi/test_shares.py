"""What clients hold of what the server has: limits, what makes room, and when to come back."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.asgi import turns
from server.asgi.problems import ProblemError
from server.asgi.shares import Budget, Holding, RateLimit, Shares, network_of
from server.asgi.turns import MAX_PAUSE_S, Turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU time of threads, which a test sets."""
    used_s = [0.0]
    monkeypatch.setattr(turns.time, "thread_time", lambda: used_s[0])
    return used_s


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


async def test_work_is_done_one_at_a_time(cpu: list[float]) -> None:
    running = threading.Lock()

    def work(number: int) -> int:
        assert running.acquire(blocking=False)
        time.sleep(0.001)
        running.release()
        return number

    turns = Turns("works", 1.0)
    assert await asyncio.gather(*(turns.run(f"{n % 3}", work, n) for n in range(9))) == list(range(9))


async def test_the_client_that_has_used_least_is_next(cpu: list[float]) -> None:
    order: list[str] = []

    def work(client: str, seconds: float) -> None:
        order.append(client)
        cpu[0] += seconds

    turns = Turns("works", 1.0)
    greedy = [asyncio.create_task(turns.run("greedy", work, "greedy", 1e-3)) for _ in range(20)]
    await asyncio.sleep(0)
    modest = [asyncio.create_task(turns.run("modest", work, "modest", 1e-4)) for _ in range(5)]
    await asyncio.gather(*greedy, *modest)
    assert max(index for index, client in enumerate(order) if client == "modest") <= 7


async def test_a_debt_of_others_is_bounded(cpu: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """60 s of work, of which a quarter of the time may be: 180 s without a bound."""
    delays: list[float] = []

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


async def test_work_without_a_turn_in_time_is_refused_and_others_go_on() -> None:
    may_end = threading.Event()

    turns = Turns("reads", 1.0, 0.01)
    held = asyncio.create_task(turns.run("a", may_end.wait, 60))
    await asyncio.sleep(0)
    with pytest.raises(ProblemError, match="this server reads, one at a time") as refusal:
        await turns.run("b", lambda: 1)
    assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (503, "1")
    may_end.set()
    await held
    assert await turns.run("b", lambda: 2) == 2


async def test_a_client_that_leaves_costs_nothing_and_holds_up_no_other() -> None:
    may_end, begun = threading.Event(), list[str]()

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


async def test_a_client_that_leaves_as_its_turn_comes_gives_it_back() -> None:
    turns = Turns("works", 1.0)
    for steps in range(6):
        may_end = threading.Event()
        held = asyncio.create_task(turns.run("c", may_end.wait, 60))
        await asyncio.sleep(0)
        leaving = asyncio.create_task(turns.run("a", lambda: 1))
        await asyncio.sleep(0)
        may_end.set()
        while not held.done():
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert await turns.run("b", lambda: 2) == 2


async def test_work_that_fails_raises_and_lets_others_go_on() -> None:
    def fail() -> None:
        raise LookupError

    turns = Turns("works", 1.0)
    for run in (turns.run("a", fail), turns.run_shared(fail)):
        with pytest.raises(LookupError):
            await run
    assert await turns.run_shared(lambda: 1) == 1


async def test_those_that_ask_before_work_begins_share_its_result() -> None:
    numbers, begun, may_end = iter(range(10)), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert may_end.wait(60)
        return next(numbers)

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


def status_of(shares: Shares, client: str, size: float = 1) -> int:
    """How a client is refused."""
    before = shares.used
    with pytest.raises(ProblemError) as refusal:
        shares.take(client, size)
    assert shares.used == before, "nothing has gone"
    assert int(refusal.value.headers["Retry-After"]) >= 1
    return refusal.value.status


def take(shares: Shares, client: str, name: str, gone: list[str], size: float = 1) -> Holding:
    """What makes room by being added to `gone`."""
    return shares.take(client, size, evict=lambda: gone.append(name))


def test_one_client_has_its_share_in_use_and_all_have_the_limit() -> None:
    shares = Shares("does it", 4, 0.5)
    first, _ = shares.take("a"), shares.take("a")
    assert status_of(shares, "a") == 429
    with shares.hold("b"), shares.hold("b"):
        assert status_of(shares, "c") == 503
    first.release()
    first.release()
    assert (shares.used, shares.used_by("a")) == (1, 1)
    shares.take("a")


def test_without_a_limit_per_client_one_gets_all() -> None:
    shares = Shares("does it", 3, 0)
    for _ in range(3):
        shares.take("a")
    assert status_of(shares, "a") == 503


def test_one_holding_may_be_larger_than_the_share_of_a_client() -> None:
    shares = Shares("keeps bytes", 100, 0.5)
    held = shares.take("a", 80)
    held.grow(20)
    assert status_of(shares, "a") == 429
    assert status_of(shares, "b") == 503


def test_what_was_not_used_for_the_longest_time_makes_room() -> None:
    shares, gone = Shares("keeps things", 3), list[str]()
    oldest, *_ = (take(shares, name, name, gone) for name in "abc")
    oldest.touch()
    take(shares, "d", "d", gone)
    assert gone == ["b"]
    assert shares.used == 3


def test_a_client_that_has_more_than_few_gives_room_to_others_and_takes_none_of_theirs() -> None:
    shares, gone = Shares("keeps things", 32), list[str]()
    take(shares, "honest", "honest", gone)
    for number in range(100):
        take(shares, "attacker", f"attacker {number}", gone)
    take(shares, "new", "new", gone)
    assert gone == [f"attacker {number}" for number in range(70)]


def test_what_many_others_have_is_safe_from_one_that_has_most() -> None:
    shares, gone = Shares("keeps things", 64), list[str]()
    for number in range(40):
        take(shares, f"client {number}", f"client {number}", gone)
    for _ in range(200):
        take(shares, "attacker", "attacker", gone)
    assert set(gone) == {"attacker"}


def test_what_is_in_use_does_not_go() -> None:
    shares, gone = Shares("keeps things", 2, 0), list[str]()
    used, idle = take(shares, "a", "used", gone), take(shares, "a", "idle", gone)
    used.evict = None
    take(shares, "b", "new", gone)
    assert gone == ["idle"]
    idle.grow(5)
    assert shares.used == 2, "it is over"


def test_nothing_goes_where_that_would_not_be_enough() -> None:
    shares, gone = Shares("keeps bytes", 10, 0), list[str]()
    shares.take("a", 6)
    take(shares, "a", "idle", gone, 4)
    assert status_of(shares, "b", 5) == 503
    assert not gone


def test_what_grows_does_not_make_its_own_room() -> None:
    shares, gone = Shares("keeps bytes", 10, 0), list[str]()
    growing, other = take(shares, "a", "growing", gone, 4), take(shares, "b", "other", gone, 4)
    growing.grow(4)
    assert gone == ["other"]
    with pytest.raises(ProblemError):
        growing.grow(4)
    assert (shares.used, growing.size, other.size) == (8, 8, 0)


def test_retry_after_is_how_long_things_are_held_by_how_many_there_are() -> None:
    now_s = [0.0]
    shares = Shares("does it", 2, 0, clock=lambda: now_s[0])
    held = shares.take("a")
    now_s[0] = 60.0
    held.release()
    shares.take("a")
    shares.take("b")
    with pytest.raises(ProblemError) as refusal:
        shares.take("c")
    assert refusal.value.headers == {"Retry-After": "30"}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 20), st.sampled_from(["take", "use", "end"]))))
def test_sums_and_limits_hold(steps: list[tuple[str, int, str]]) -> None:
    shares, gone, held = Shares("keeps bytes", 50), list[str](), list[Holding]()
    for client, size, step in steps:
        try:
            if step == "take":
                held.append(take(shares, client, client, gone, size))
            elif held and step == "use":
                held[size % len(held)].grow(1)
            elif held:
                held.pop(size % len(held)).release()
        except ProblemError:
            pass
        assert shares.used <= 50
        assert shares.used == sum(shares.used_by(name) for name in "abcdef")
    for holding in held:
        holding.release()
    assert shares.used == 0
    assert not any((shares._held, shares._by_client, shares._used, shares._many))


def test_events_of_a_period() -> None:
    now_s = [0.0]
    limit = RateLimit(2, 1.0, lambda: now_s[0])
    assert [limit.take() for _ in range(3)] == [True, True, False]
    assert not limit.take(3)
    now_s[0] = 1.0
    assert limit.take(2)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_the_network_that_limits_go_by(host: str, network: str) -> None:
    assert network_of(host) == network
