"""What clients hold of what the server has: limits, what makes room, and when to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.asgi.problems import ProblemError
from server.asgi.shares import FEW, Holding, RateLimit, Shares, network_of


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


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
    clock = Clock()
    shares = Shares("does it", 2, 0, clock=clock)
    held = shares.take("a")
    clock.now_s = 60.0
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


def test_few_is_less_than_a_share() -> None:
    assert 0 < FEW < 0.125


def test_events_of_a_period() -> None:
    clock = Clock()
    limit = RateLimit(2, 1.0, clock)
    assert [limit.take() for _ in range(3)] == [True, True, False]
    assert not limit.take(3)
    clock.now_s = 1.0
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
