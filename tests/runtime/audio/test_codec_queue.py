"""The order of what waits for the codec, how many workers there are, and that ticks wait for what is played."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

import pytest
from helpers.lock_check import lock_checked
from helpers.panics import Panic, panic

from runtime.audio.codec_queue import MAX_HOLD_S, MIN_PRUNED, OTHERS_S, RISK_S, WORK_WEIGHT, CodecQueue, Urgency
from runtime.base.errors import DrainingError
from runtime.devices.device import Level

TIMEOUT_S = 60
CheckedQueue = lock_checked(CodecQueue, "_waiting", "_running", "_inside", "_is_held", "_prune_at", lock="_changed")


class Busy:
    """A queue with a simulated clock whose workers are all busy until `go` is set; `order` is what ran after that."""

    def __init__(self, size: int = 1) -> None:
        self.now_s, self.is_alone, self.go, self.order = 100.0, True, threading.Event(), list[str]()
        self.queue = CheckedQueue(size, lambda: self.is_alone, lambda: self.now_s)
        self.begun = [self.queue.submit(self.wait) for _ in range(size)]

    def wait(self) -> None:
        assert self.go.wait(TIMEOUT_S)

    def submit(self, name: str, urgency: Urgency, lead_s: float = 1.0) -> Future[None]:
        return self.queue.submit(lambda: self.order.append(name), urgency, lead_s)

    def finish(self) -> list[str]:
        self.go.set()
        self.queue.submit(lambda: None, Urgency.BACKGROUND).result(TIMEOUT_S)
        return self.order


@pytest.fixture
def busy() -> Iterator[Callable[..., Busy]]:
    made: list[Busy] = []

    def make(size: int = 1) -> Busy:
        made.append(Busy(size))
        return made[-1]

    yield make
    for each in made:
        each.go.set()
        each.queue.close()


def test_playing_comes_before_changing_and_in_a_class_the_earliest_deadline(busy: Callable[..., Busy]) -> None:
    one = busy()
    one.submit("request", Urgency.BACKGROUND, -1.0)
    one.submit("change", Urgency.CHANGING, 0.0)
    one.submit("later", Urgency.PLAYING, 0.4)
    one.submit("soon", Urgency.PLAYING, 0.3)
    one.now_s += 0.2
    one.submit("also later", Urgency.PLAYING, 0.2)
    one.submit("sooner change", Urgency.CHANGING, -0.3)
    assert one.finish() == ["soon", "later", "also later", "sooner change", "change", "request"]


def test_what_waits_can_be_cancelled(busy: Callable[..., Busy]) -> None:
    one = busy()
    assert one.submit("cancelled", Urgency.PLAYING).cancel()
    one.submit("next", Urgency.PLAYING)
    assert one.finish() == ["next"]


def test_what_is_not_wanted_any_more_is_not_done_nor_kept_behind_what_is_more_urgent(busy: Callable[..., Busy]) -> None:
    one, wanted, number, waiting = busy(), set[int](), 10 * MIN_PRUNED, []
    for n in range(number):
        wanted.clear()
        wanted.add(n)
        work, is_wanted = partial(one.order.append, str(n)), partial(wanted.__contains__, n)
        waiting.append(one.queue.submit(work, Urgency.CHANGING, 0.0, is_wanted))
    with one.queue._changed:
        assert len(one.queue._waiting) <= MIN_PRUNED + 1
    assert sum(each.cancelled() for each in waiting) >= number - MIN_PRUNED - 1
    assert one.finish() == [str(number - 1)]


def test_what_is_wanted_is_not_asked_for_again_with_everything_that_is_added(busy: Callable[..., Busy]) -> None:
    one, number, asked = busy(), 4 * MIN_PRUNED, list[int]()

    def is_wanted(n: int) -> bool:
        asked.append(n)
        return True

    for n in range(number):
        one.queue.submit(lambda: None, Urgency.CHANGING, 0.0, partial(is_wanted, n))
    assert len(asked) <= 2 * number


def test_an_error_is_the_result_and_gives_the_worker_back() -> None:
    queue = CheckedQueue()
    for _ in range(3):
        with pytest.raises(Panic):
            queue.submit(panic).result(TIMEOUT_S)
    assert queue.submit(lambda: 5).result(TIMEOUT_S) == 5
    queue.close()


@pytest.mark.parametrize(("size", "is_alone", "free"), [(3, True, 2), (3, False, 0), (1, True, 0)])
def test_one_worker_works_while_ticks_run(size: int, is_alone: bool, free: int) -> None:
    queue, go = CheckedQueue(size, lambda: is_alone), threading.Event()
    queue.submit(lambda: go.wait(TIMEOUT_S))
    started = [queue.submit_if_free(lambda: go.wait(TIMEOUT_S)) for _ in range(4)]
    assert [one is not None for one in started] == [True] * free + [False] * (4 - free)
    go.set()
    queue.close()


def test_what_waits_is_cancelled_by_close(busy: Callable[..., Busy]) -> None:
    one = busy()
    waiting = one.submit("waits", Urgency.PLAYING)
    threading.Timer(0.01, one.go.set).start()
    one.queue.close()
    assert (waiting.cancelled(), one.order) == (True, [])


def test_work_that_decodes_does_what_is_more_urgent_first_and_needs_no_second_worker(
    busy: Callable[..., Busy],
) -> None:
    one = busy()
    ahead: list[Future[None] | None] = []

    def stream() -> None:
        one.submit("its window", Urgency.BACKGROUND)
        one.submit("played", Urgency.PLAYING)
        one.order.append("encoded")

    def long() -> None:
        assert one.queue.is_inside
        ahead.append(one.queue.submit_if_free(lambda: None))
        waiting = threading.Thread(target=one.submit, args=("played", Urgency.PLAYING))
        waiting.start()
        waiting.join(TIMEOUT_S)
        one.submit("other", Urgency.BACKGROUND)
        stream()

    one.queue.submit(long)
    assert not one.queue.is_inside
    assert one.finish() == ["played", "other", "its window", "played", "encoded"]
    assert ahead == [None]


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_tick_waits_until_audio_that_is_due_soon_is_decoded_and_all_workers_work_then(
    busy: Callable[..., Busy], monkeypatch: pytest.MonkeyPatch, is_nested: bool
) -> None:
    """is_nested: by a worker that does it within other work."""
    one = busy()
    one.queue.size, one.is_alone = 2, False
    inside, decoded, held = threading.Event(), threading.Event(), threading.Event()
    waits = list[bool]()

    def due() -> None:
        inside.set()
        assert decoded.wait(TIMEOUT_S)

    def stream() -> None:
        one.queue.submit(lambda: None, Urgency.BACKGROUND)

    def wait_for(is_over: Callable[[], bool], _: float) -> None:
        waits.append(is_over())  # It waits, and is not decoded.
        held.set()
        real(is_over, TIMEOUT_S)

    real = one.queue._changed.wait_for
    monkeypatch.setattr(one.queue._changed, "wait_for", wait_for)
    one.queue.submit(due, Urgency.PLAYING, RISK_S / 2)
    assert not inside.is_set()
    if is_nested:
        one.queue.size = 1
        one.queue.submit(stream)
        one.go.set()
    tick = threading.Thread(target=one.queue.hold)
    tick.start()
    assert inside.wait(TIMEOUT_S)
    assert held.wait(TIMEOUT_S)
    assert tick.is_alive()
    decoded.set()
    tick.join(TIMEOUT_S)
    assert (waits, tick.is_alive()) == ([False], False)
    one.finish()


def test_what_somebody_waits_for_is_urgent_work_of_a_device_also_within_other_work() -> None:
    queue, levels = CheckedQueue(), dict[str, Level]()

    def note(name: str) -> None:
        levels[name] = queue.level

    def outer() -> None:
        note("played")
        queue.submit(partial(note, "within"))
        note("after")

    queue.submit(outer, Urgency.PLAYING).result(TIMEOUT_S)
    queue.submit(partial(note, "first"), Urgency.CHANGING).result(TIMEOUT_S)
    queue.submit(partial(note, "later"), Urgency.BACKGROUND).result(TIMEOUT_S)
    queue.close()
    assert queue.level is Level.BACKGROUND
    urgent = {name for name, level in levels.items() if level is Level.LIVE}
    assert urgent == {"played", "within", "after", "first"}


def test_on_a_device_live_audio_does_not_wait_for_audio_in_the_background() -> None:
    queue, go = CheckedQueue(1, lambda: False, is_apart=True), threading.Event()
    long = queue.submit(lambda: go.wait(TIMEOUT_S))
    queue.submit(lambda: None, Urgency.PLAYING).result(TIMEOUT_S)
    assert not long.done()
    later = queue.submit(lambda: None)
    queue.submit(lambda: None, Urgency.CHANGING).result(TIMEOUT_S)
    assert not later.done(), "the background has one worker, too"
    go.set()
    later.result(TIMEOUT_S)
    queue.close()


@pytest.mark.parametrize(("urgency", "lead_s"), [(Urgency.PLAYING, 2 * RISK_S), (Urgency.CHANGING, 0.0)])
def test_a_tick_does_not_wait_for_audio_that_has_time_or_for_changes(
    busy: Callable[..., Busy], urgency: Urgency, lead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = busy()
    one.submit("waits", urgency, lead_s)
    monkeypatch.setattr(one.queue._changed, "wait_for", lambda *_: pytest.fail("the tick waits"))
    one.queue.hold()


def test_a_tick_for_nothing_live_waits_until_live_audio_is_decoded(busy: Callable[..., Busy]) -> None:
    one = busy()
    one.queue.size, one.is_alone = 2, False
    inside, go, ended = threading.Event(), threading.Event(), threading.Event()

    def changing() -> None:
        inside.set()
        assert go.wait(TIMEOUT_S)

    def tick() -> None:
        one.queue.hold(False)
        ended.set()

    one.submit("a request's", Urgency.CHANGING, math.inf)
    change = one.queue.submit(changing, Urgency.CHANGING, 2 * RISK_S)
    one.queue.hold()  # A tick with live rows does not wait: the change has time.
    assert not inside.is_set()
    waiting = threading.Thread(target=tick)
    waiting.start()
    assert inside.wait(TIMEOUT_S), "the second worker works meanwhile"
    assert not ended.is_set()
    go.set()
    change.result(TIMEOUT_S)
    assert ended.wait(TIMEOUT_S)
    waiting.join()
    assert "a request's" in one.finish()


def test_while_live_ticks_run_a_window_of_others_begins_once_in_a_while() -> None:
    now_s, order = [100.0], list[str]()
    queue = CheckedQueue(1, lambda: True, lambda: now_s[0])

    def submit(name: str, lead_s: float = math.inf) -> Future[None]:
        return queue.submit(lambda: order.append(name), Urgency.CHANGING, lead_s)

    queue.hold(True)
    submit("first").result(TIMEOUT_S)
    second, third = submit("second"), submit("third")
    assert queue.submit_if_free(lambda: None) is None
    submit("live", 1.0).result(TIMEOUT_S)
    assert order == ["first", "live"]
    now_s[0] += OTHERS_S
    submit("also live", 1.0)
    second.result(TIMEOUT_S)
    assert order == ["first", "live", "also live", "second"]
    assert not third.done()
    queue.hold(None)
    third.result(TIMEOUT_S)
    queue.close()


def test_a_tick_waits_no_longer_than_its_limit(busy: Callable[..., Busy], monkeypatch: pytest.MonkeyPatch) -> None:
    one, waits = busy(), []
    one.submit("played", Urgency.PLAYING, 0.0)
    monkeypatch.setattr(one.queue._changed, "wait_for", lambda ready, limit_s: waits.append((ready(), limit_s)))
    one.queue.hold()
    assert waits == [(False, MAX_HOLD_S)]
    one.go.set()
    one.begun[0].result(TIMEOUT_S)


def test_a_tick_waits_earlier_where_much_audio_that_plays_on_waits(
    busy: Callable[..., Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding took 1 s on average: of two that wait, the second would be late otherwise."""
    one, waits = busy(), []
    monkeypatch.setattr(one.queue._changed, "wait_for", lambda ready, _: waits.append(ready()))

    def decode() -> None:
        one.now_s += 1.0 / WORK_WEIGHT

    one.queue.submit(decode, Urgency.PLAYING)
    one.finish()
    one.go.clear()
    one.queue.submit(one.wait)
    one.submit("played", Urgency.PLAYING, 2.0)
    one.queue.hold()
    assert waits == []
    one.submit("also played", Urgency.PLAYING, 2.0)
    one.queue.hold()
    assert waits == [False]


def test_a_closed_queue_takes_no_work() -> None:
    queue = CodecQueue(2)
    queue.close()
    with pytest.raises(DrainingError):
        queue.submit(lambda: 1)
    assert queue.submit_if_free(lambda: 1) is None
