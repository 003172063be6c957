"""Work on one session's plan, in a thread of its own: sections and codes take as long as the planner needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from runtime.errors import DrainingError
from runtime.requests.form.sections import PlannedSection, SectionRequest
from runtime.requests.form.state import PlanState
from runtime.requests.options import GenerationOptions
from runtime.requests.segments import Latents
from runtime.sessions.hosting.codec_work import Call, report
from runtime.sessions.protocol.actions import MakePlan, PlanBeginning, PlanPart

# As codec_work's.
PlanDone = Callable[[PlanPart | BaseException], None]


class Form(Protocol):
    """A plan that is made as far as it is asked for, as FormPlan of runtime.pipeline. Only hints() blocks."""

    @property
    def header(self) -> Mapping[str, Any]:
        """What holds for all sections; empty before the first is there."""

    @property
    def sections(self) -> Sequence[PlannedSection]:
        """From those of a minute before the newest hints on."""

    def hints(self, start_frame: int, frames: int) -> Latents:
        """Hints `[frames, C]`; makes sections and codes as far as needed. Raises TickError."""

    def replace(
        self, from_frame: int, sections: Sequence[SectionRequest] | None = None, codes: Sequence[int] | None = None
    ) -> None:
        """Other sections from one's start on, or other codes. Raises RequestError."""

    def change(self, options: GenerationOptions, from_frame: int) -> None:
        """Plan anew from about a frame on."""

    def state(self) -> PlanState:
        """What it goes on from."""

    def close(self) -> None:
        """End what is being made."""


def make_part(form: Form, work: MakePlan) -> PlanPart:
    """What a session asks for, blocking. Raises TickError."""
    if (change := work.change) is not None:
        if change.options is not None:
            form.change(change.options, change.from_frame)
        else:
            form.replace(change.from_frame, change.sections, change.codes)
    hints = form.hints(work.start_frame, work.frames)
    return PlanPart(dict(form.header), tuple(form.sections), hints, form.state())


class PlanWork:
    """Makes parts of a plan for the host's thread, which calls all methods; `call` puts results into its queue.

    open_form: opens a plan; in the thread, which begins with the first work.
    """

    def __init__(self, open_form: Callable[[PlanBeginning], Form], call: Call) -> None:
        self._open_form, self._call = open_form, call
        self._form: Form | None = None
        self._begun: MakePlan | None = None  # What the newest plan begins with.
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "live-plan")

    def start(self, work: MakePlan, done: PlanDone) -> None:
        """Make a part; in the order of the calls. Where a plan begins, the one before it ends at once."""
        if work.begin is not None:
            self.stop()
            self._begun = work
        # to the plan's thread; the report comes from there
        self._thread.submit(self._make, work).add_done_callback(lambda made: self._report(done, made))

    def stop(self) -> None:
        """End what is being made: it has failed. What comes next begins a plan."""
        self._begun = None
        if self._form is not None:
            self._form.close()

    def close(self) -> None:
        """End what is being made; nothing is reported any more."""
        self._is_closed = True
        self.stop()
        self._thread.shutdown(wait=False)  # what is being made ends by itself: `stop` has closed its plan

    def _make(self, work: MakePlan) -> PlanPart:
        """In the thread."""
        if self._is_closed:
            raise DrainingError("the session has ended")
        if work.begin is not None:
            self._form = self._open_form(work.begin)
            if self._begun is not work:
                self._form.close()
        assert self._form is not None
        return make_part(self._form, work)

    def _report(self, done: PlanDone, made: Future[PlanPart]) -> None:
        if not self._is_closed:
            report(self._call, done, made)
