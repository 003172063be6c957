"""The one queue of a codec: all that is decoded, for HTTP, live sessions or a program, waits here for a worker."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import count
from typing import Any, TypeVar

from runtime.base.errors import DrainingError
from runtime.base.threads import Workers
from runtime.devices.device import Level

T = TypeVar("T")
MAX_SIZE = 16
# Ticks wait until audio is decoded that is played so soon, plus the time that all such audio takes. But a tick waits no
# longer than MAX_HOLD_S: generations go on, however many play. So do ticks that yield, to all live audio.
RISK_S, MAX_HOLD_S = 0.2, 1.0
OTHERS_S = 0.25
WORK_WEIGHT = 0.1  # of the newest duration in the mean one
MIN_PRUNED = 64


class Urgency(IntEnum):
    """Why something is decoded, most urgent first.

    PLAYING: it continues what a client of a live session plays. CHANGING: it replaces what such a client has not played
    yet, or is the first audio of a request.
    """

    PLAYING = 0
    CHANGING = 1
    BACKGROUND = 2


def _always() -> bool:
    return True


@dataclass(order=True)
class _Item:
    urgency: Urgency
    deadline_s: float
    number: int
    work: Callable[[], Any] = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False, default=_always)
    future: Future[Any] = field(compare=False, default_factory=Future)

    @property
    def level(self) -> Level:
        """Of its work on a device: somebody waits for all that is not in the background."""
        return Level.BACKGROUND if self.urgency is Urgency.BACKGROUND else Level.LIVE

    @property
    def is_live(self) -> bool:
        """Whether it is for a live session: only such audio is late at some time."""
        return self.deadline_s < math.inf


class CodecQueue:
    """Gives work to `size` workers: the most urgent first, of equal urgency the earliest deadline, then in order.

    One works while ticks run (`is_alone()` is false): they need the cores. `is_alone` is called whenever work could
    begin. is_apart: on a device all work while ticks run, and the background has `size` workers of its own, so that
    nothing more urgent waits for it: a device has levels for them. clock: seconds, monotonic. Any thread may call
    everything.
    """

    def __init__(
        self,
        size: int = 1,
        is_alone: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_apart: bool = False,
    ) -> None:
        self.size, self._is_apart = size, is_apart
        self._is_alone, self._clock = is_alone, clock
        self._is_held = self._is_closed = False
        self._is_live: bool | None = None
        self._others_s = -math.inf  # when the last window that is not live began
        self._prune_at = MIN_PRUNED
        self._playing_work_s = 0.0  # what decoding audio that continues takes, a moving mean
        self._waiting: list[_Item] = []
        self._running: list[_Item] = []  # of each worker the item that it has begun
        self._inside: list[_Item] = []  # what workers do within that one
        self._numbers = count()
        # Held for changes of the queue, never while something is decoded. Only the tick thread waits for it, in `hold`.
        self._changed = threading.Condition()
        self.threads = Workers(MAX_SIZE, "codec-decode")
        self._current = threading.local()

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is a worker."""
        return getattr(self._current, "item", None) is not None

    @property
    def level(self) -> Level:
        """Of what the calling thread does on a device: the most urgent of the items that it is in."""
        level: Level = getattr(self._current, "level", Level.BACKGROUND)
        return level

    def submit(
        self,
        work: Callable[[], T],
        urgency: Urgency = Urgency.BACKGROUND,
        lead_s: float = math.inf,
        is_wanted: Callable[[], bool] = _always,
    ) -> Future[T]:
        """Let a worker run `work`. lead_s: in how many seconds its result is late. What waits can be cancelled.

        Raises DrainingError after close().

        is_wanted: called by any thread; where it says no, `work` is cancelled. Called by a worker, this does what is
        more urgent than that one's own work, then `work`, before it returns.
        """
        self.threads.process.check()
        item = _Item(urgency, self._clock() + lead_s, next(self._numbers), work, is_wanted)
        if self.is_inside:
            self._run_more_urgent(self._current.item.urgency)
            with self._changed:
                self._inside.append(item)
            self._run_inside(item)
        else:
            with self._changed:
                if self._is_closed:
                    raise DrainingError("the model is closed", fix="open it again")
                self._push(item)
        return item.future

    def submit_if_free(self, work: Callable[[], T]) -> Future[T] | None:
        """Let another worker run `work`; None where it would wait."""
        with self._changed:
            self._start()
            item = _Item(Urgency.BACKGROUND, math.inf, next(self._numbers), work)
            if self._is_closed or not self._has_free(item):
                return None
            self._push(item)
            return item.future

    def hold(self, is_live: bool | None = None) -> None:
        """Wait until audio that is played soon is decoded, MAX_HOLD_S at most; before every tick.

        is_live: for what the next tick is, where it takes as long as it has rows. After True, a window of others begins
        once in OTHERS_S; with False this waits until no audio of a live session waits or is decoded.
        """
        with self._changed:
            if is_live is not self._is_live:
                self._is_live = is_live
                self._start()
            if not self._is_waited_for():
                return
            self._is_held = True
            self._start()
            # The tick thread waits until the workers have decoded what is at risk, or all that is live.
            self._changed.wait_for(lambda: not self._is_waited_for(), MAX_HOLD_S)
            self._is_held = False

    def close(self) -> None:
        """Wait for the end of what has begun; what waits is cancelled."""
        with self._changed:
            for item in self._waiting:
                item.future.cancel()
            self._waiting.clear()
            self._is_closed = True
        # Waits until the workers have finished what they decode.
        self.threads.shutdown()

    def _push(self, item: _Item) -> None:
        heapq.heappush(self._waiting, item)
        if len(self._waiting) > self._prune_at:
            self._prune()
        self._start()

    def _prune(self) -> None:
        """Forget what is not wanted any more: behind more urgent work it would only grow."""
        for item in self._waiting:
            if not item.is_wanted():
                item.future.cancel()
        self._waiting = [item for item in self._waiting if not item.future.cancelled()]
        heapq.heapify(self._waiting)
        self._prune_at = max(MIN_PRUNED, 2 * len(self._waiting))

    def _is_waited_for(self) -> bool:
        items = (*self._running, *self._inside, *self._waiting)
        playing = [item.deadline_s for item in items if item.urgency is Urgency.PLAYING]
        soon_s = self._clock() + RISK_S + len(playing) * self._playing_work_s / self.size
        is_at_risk = bool(playing) and min(playing) < soon_s
        return is_at_risk or (self._is_live is False and any(item.is_live for item in items))

    def _has_free(self, item: _Item) -> bool:
        if self._is_live and not item.is_live and self._clock() < self._others_s + OTHERS_S:
            return False
        running = sum(item.level is each.level for each in self._running) if self._is_apart else len(self._running)
        return running < (self.size if running and (self._is_apart or self._is_held or self._is_alone()) else 1)

    def _start(self) -> None:
        while self._waiting and self._has_free(self._waiting[0]):
            item = heapq.heappop(self._waiting)
            self._running.append(item)
            if not item.is_live:
                self._others_s = self._clock()
            self.threads.submit(self._work, item)

    def _work(self, item: _Item) -> None:
        """The worker is free before the result is there, and may run what comes next."""
        finish = self._run(item)
        with self._changed:
            self._running.remove(item)
            self._start()
            self._changed.notify_all()
        finish()

    def _run_more_urgent(self, urgency: Urgency) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._waiting[0].urgency >= urgency:
                    return
                item = heapq.heappop(self._waiting)
                self._inside.append(item)
            self._run_inside(item)

    def _run_inside(self, item: _Item) -> None:
        """Run an item of `_inside` in this worker's thread."""
        finish = self._run(item)
        with self._changed:
            self._inside.remove(item)
            self._changed.notify_all()
        finish()

    def _run(self, item: _Item) -> Callable[[], None]:
        """Run an item in this thread; what is returned sets its result."""
        outer, level = getattr(self._current, "item", None), self.level
        self._current.item, self._current.level = item, min(level, item.level)
        try:
            if not item.is_wanted():
                item.future.cancel()
            if not item.future.set_running_or_notify_cancel():
                return lambda: None
            begin_s = self._clock()
            result = item.work()
            if item.urgency is Urgency.PLAYING:
                self._playing_work_s += WORK_WEIGHT * (self._clock() - begin_s - self._playing_work_s)
            return partial(item.future.set_result, result)
        except BaseException as error:  # also a panic of native code
            return partial(item.future.set_exception, error)
        finally:
            self._current.item, self._current.level = outer, level
