"""Work on one session's plan, in a thread of its own: sections and codes take as long as the planner needs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from runtime.errors import TickError
from runtime.sessions.actions import MakePlan, PlanBeginning, PlanPart
from runtime.sessions.generations.plan import Form, make_part
from runtime.sessions.hosting.codec_work import Call

PlanDone = Callable[[PlanPart | TickError], None]


class PlanWork:
    """Makes parts of a plan for the host's thread, which calls all methods; `call` puts results into its queue.

    open_form: opens a plan; in the thread, which begins with the first work.
    """

    def __init__(self, open_form: Callable[[PlanBeginning], Form], call: Call) -> None:
        self._open_form, self._call = open_form, call
        self._form: Form | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "live-plan")

    def start(self, work: MakePlan, done: PlanDone) -> None:
        """Make a part; in the order of the calls. Where a plan begins, the one before it ends at once."""
        if work.begin is not None and self._form is not None:
            self._form.close()
        self._thread.submit(self._make, work, done).add_done_callback(Future.result)

    def close(self) -> None:
        """End what is being made; nothing is reported any more."""
        self._is_closed = True
        if self._form is not None:
            self._form.close()
        self._thread.shutdown(wait=False)

    def _make(self, work: MakePlan, done: PlanDone) -> None:
        """In the thread."""
        if self._is_closed:
            return
        try:
            if work.begin is not None:
                self._form = self._open_form(work.begin)
                if self._is_closed:
                    self._form.close()
            assert self._form is not None
            made: PlanPart | TickError = make_part(self._form, work)
        except TickError as error:
            made = error
        if not self._is_closed:
            self._call(partial(done, made))
