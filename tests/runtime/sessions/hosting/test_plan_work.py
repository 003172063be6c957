"""Plans of live sessions, made in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from helpers.simulated_form import SimulatedForm

from runtime.errors import TickError
from runtime.requests.options import GenerationOptions
from runtime.sessions.hosting.plan_work import PlanWork
from runtime.sessions.protocol.actions import MakePlan, PlanBeginning, PlanChange, PlanPart

BEGIN = PlanBeginning(GenerationOptions(prompt=""), 1)
TIMEOUT_S = 60.0


class WaitingForm(SimulatedForm):
    """Hints come once it is closed, as an error."""

    def __init__(self, begin: PlanBeginning) -> None:
        super().__init__(begin)
        self.is_waiting, self._closed = threading.Event(), threading.Event()

    def hints(self, start_frame: int, frames: int) -> Any:
        self.is_waiting.set()
        assert self._closed.wait(TIMEOUT_S)
        raise TickError("the plan was cancelled")

    def close(self) -> None:
        self._closed.set()


class Host:
    """The thread of a host, and the forms that it has opened."""

    def __init__(self, kinds: Iterator[type[SimulatedForm]]) -> None:
        self.forms: list[SimulatedForm] = []
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.made: list[PlanPart | TickError] = []
        self.is_opened = threading.Semaphore(0)
        self._kinds = kinds
        self.work = PlanWork(self._open, self.calls.put)

    def _open(self, begin: PlanBeginning) -> SimulatedForm:
        self.forms.append(next(self._kinds)(begin))
        self.is_opened.release()
        return self.forms[-1]

    def start(self, begin: PlanBeginning | None, change: PlanChange | None = None) -> None:
        self.work.start(MakePlan(1, begin, change, 0, 50), self.made.append)

    def take(self) -> PlanPart | TickError:
        self.calls.get(timeout=TIMEOUT_S)()
        return self.made[-1]


@pytest.fixture
def host() -> Iterator[Host]:
    opened = Host(iter([SimulatedForm, SimulatedForm]))
    yield opened
    opened.work.close()


def test_parts_are_made_in_order_and_told_on_the_hosts_thread(host: Host) -> None:
    host.start(BEGIN)
    host.start(None, PlanChange(0, codes=(7,)))
    first, second = host.take(), host.take()
    assert isinstance(first, PlanPart)
    assert isinstance(second, PlanPart)
    assert (len(first.hints), second.hints[0, 0], second.hints[5, 0]) == (50, 7.0, first.hints[5, 0])
    assert second.state.codes.tolist() == [7]


def test_what_fails_is_told(host: Host) -> None:
    SimulatedForm.fails_next = True
    host.start(BEGIN)
    assert str(host.take()) == "failed"
    host.start(BEGIN)
    assert isinstance(host.take(), PlanPart)


def test_another_plan_ends_the_one_that_is_being_made() -> None:
    host = Host(iter([WaitingForm, SimulatedForm]))
    host.start(BEGIN)
    assert host.is_opened.acquire(timeout=TIMEOUT_S)
    waiting = host.forms[0]
    assert isinstance(waiting, WaitingForm)
    assert waiting.is_waiting.wait(TIMEOUT_S)
    host.start(BEGIN)
    assert isinstance(host.take(), TickError)
    assert isinstance(host.take(), PlanPart)
    host.work.close()


def test_another_plan_ends_one_that_is_still_being_opened() -> None:
    begins = threading.Event()

    class LateForm(WaitingForm):
        def __init__(self, begin: PlanBeginning) -> None:
            super().__init__(begin)
            assert begins.wait(TIMEOUT_S)

    host = Host(iter([LateForm, SimulatedForm]))
    host.start(BEGIN)
    host.start(BEGIN)
    begins.set()
    assert isinstance(host.take(), TickError)
    assert isinstance(host.take(), PlanPart)
    host.work.close()


@pytest.mark.parametrize("is_opened", [False, True])
def test_what_is_stopped_fails_and_another_plan_begins(is_opened: bool) -> None:
    may_open = threading.Event()

    class LateForm(WaitingForm):
        def __init__(self, begin: PlanBeginning) -> None:
            super().__init__(begin)
            assert may_open.wait(TIMEOUT_S)

    host = Host(iter([LateForm, SimulatedForm]))
    host.start(BEGIN)
    if is_opened:
        may_open.set()
        assert host.is_opened.acquire(timeout=TIMEOUT_S)
    host.work.stop()
    may_open.set()
    assert isinstance(host.take(), TickError)
    host.start(BEGIN)
    assert isinstance(host.take(), PlanPart)
    host.work.close()


def test_nothing_is_told_after_the_end() -> None:
    host = Host(iter([WaitingForm]))
    host.start(BEGIN)
    assert host.is_opened.acquire(timeout=TIMEOUT_S)
    host.work.close()
    host.work._thread.shutdown()
    assert host.calls.empty()
