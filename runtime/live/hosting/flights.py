"""The generations of one live session in the tick loop, from their composition to their end."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from runtime.base.errors import DrainingError, EngineDeadError, QueueFullError, RequestError, TickError
from runtime.live.hosting.control_times import ControlTimes
from runtime.live.hosting.mailbox import SessionWork, expected
from runtime.live.hosting.services import Clock, HostServices
from runtime.live.hosting.work import compose_job
from runtime.live.protocol.actions import SessionJob, UpdateSteps
from runtime.live.session.live_session import LiveSession
from runtime.requests.options import StepOptions
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment, step_parameters
from runtime.tick.loop.events import Event, Failed, Finished, Progress, Started, Updated

NO_STEPS = StepOptions()


@dataclass(eq=False)
class _Flight:
    """A generation, with changes up to `newest_seq`. `seqs`: of updates that it has not applied yet.

    is_submitted: it is in the loop; before, it is composed, and `updates` wait.
    """

    segment: Segment
    newest_seq: int
    submitted_s: float
    composing: Future[GenerationRequest]
    seqs: deque[int] = field(default_factory=deque)
    updates: list[UpdateSteps] = field(default_factory=list)
    is_submitted: bool = False
    is_cancelled: bool = False


class Flights:
    """Starts, changes and ends a session's generations, and tells it what becomes of them. The host's thread calls it.

    clock: the session's time. is_closed: the session has ended.
    """

    def __init__(
        self, services: HostServices, session: LiveSession, session_id: str, clock: Clock, work: SessionWork
    ) -> None:
        self.is_closed = False
        self.times = ControlTimes(services.observe_control, services.clock)
        self._services, self._session, self._session_id = services, session, session_id
        self._clock, self._work = clock, work
        self._flights: dict[str, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def submit(self, job: SessionJob) -> None:
        """Compose a generation in another thread, and begin it then."""
        services = self._services
        self.times.mark("submitted", job.full_seq)
        services.generations_started += 1
        composing = services.compose_threads.submit(
            compose_job, services.pipeline, job, self._session.seed, self._session_id
        )
        self._flights[job.id] = _Flight(job.segment, job.full_seq, services.clock(), composing)
        self._work.when_done(composing, lambda composed: self._composed(job.id, composed))

    def cancel(self, job_id: str) -> None:
        """End a generation."""
        flight = self._flights.get(job_id)
        if flight is None or flight.is_submitted:
            self._services.pipeline.loop.cancel(job_id)
        elif flight.composing.cancel():
            self._remove(job_id, "cancelled")
            self._work.change()
        else:
            flight.is_cancelled = True

    def update(self, action: UpdateSteps) -> None:
        """Change step parameters of generations; of those that are composed once they have begun."""
        self.times.mark("submitted", action.seq)
        for job_id in action.job_ids:
            flight = self._flights.get(job_id)
            if flight is not None and not flight.is_submitted:
                flight.updates.append(action)
            elif flight is not None:
                self._update(job_id, flight, action)

    def close(self) -> None:
        """End all of them; the session gets nothing more."""
        self.is_closed = True
        for job_id in list(self._flights):
            self.cancel(job_id)

    def _composed(self, job_id: str, composed: GenerationRequest | BaseException) -> None:
        flight = self._flights[job_id]
        try:
            request = expected(composed)
            if isinstance(request, TickError):
                raise request
            if flight.is_cancelled:
                self._remove(job_id, "cancelled")
                self._work.change()
                return
            self._services.pipeline.loop.submit(replace(request, id=job_id, is_urgent=True), self._publish)
        except TickError as error:
            self._lose(job_id, error)
            return
        except BaseException:
            self._remove(job_id, "failed")
            raise
        flight.is_submitted = True
        for action in flight.updates:
            self._update(job_id, flight, action)

    def _update(self, job_id: str, flight: _Flight, action: UpdateSteps) -> None:
        values = step_parameters(NO_STEPS.model_copy(update=action.patch), flight.segment)
        try:
            flight.seqs.append(action.seq)
            self._services.pipeline.loop.update(job_id, {name: getattr(values, name) for name in action.patch})
        except (QueueFullError, RequestError) as error:  # its adapters find no place beside those of others
            flight.seqs.pop()
            self._session.step_refused(error)

    def _publish(self, event: Event) -> None:
        """On the tick thread."""
        if not isinstance(event, (Started, Progress)):
            self._work.put(self._take, event)  # to the host's thread

    def _take(self, event: Event) -> None:
        job_id, flight = event.request_id, self._flights[event.request_id]
        if isinstance(event, Updated):
            flight.newest_seq = flight.seqs.popleft()
            self._session.step_applied(flight.newest_seq, (job_id,), event.tick)
        elif isinstance(event, Finished):
            self._remove(job_id, "finished")
            self.times.mark("finished", flight.newest_seq)
            took_s = self._services.clock() - flight.submitted_s
            self._session.generation_finished(job_id, event.latents, event.tick, self._clock(), took_s)
        elif isinstance(event, Failed):
            self._lose(job_id, event.error)
        else:
            self._remove(job_id, "cancelled")
        self._work.change()

    def _lose(self, job_id: str, error: TickError) -> None:
        """A generation has ended with an error."""
        self._remove(job_id, "failed")
        if isinstance(error, (EngineDeadError, DrainingError)):
            self._services.mailbox.failure = error
        elif not self.is_closed:
            self._session.generation_failed(job_id, error, self._clock())
            self._work.change()

    def _remove(self, job_id: str, outcome: str) -> None:
        del self._flights[job_id]
        self._services.generations_ended[outcome] += 1
