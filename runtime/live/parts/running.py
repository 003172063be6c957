"""A session's generations in flight: what they are made with, their step controls, failures, and how long they take."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runtime.live.parts.control_state import ControlState
from runtime.live.parts.controls import NEEDS_SOURCE_NAMES
from runtime.live.parts.references import References
from runtime.live.playback.canvas import Timeline
from runtime.live.playback.playhead import Playhead
from runtime.live.protocol.actions import CheckedControls, SessionJob, UpdateSteps
from runtime.live.protocol.backoff import FIRST_RETRY_S, LONGEST_RETRY_S, backoff_s
from runtime.requests.options import GenerationOptions
from runtime.requests.segments import Segment

UPDATE_INTERVAL_S = 0.02
ESTIMATE_START_S, ESTIMATE_MARGIN, ESTIMATE_SAMPLES = 0.5, 1.1, 8

# What a generation is made with: options, the version of what is given, and what makes it a loop.
Key = tuple[GenerationOptions, int, tuple[str, int | None]]


@dataclass(eq=False)
class Basis:
    """What a generation was started with. is_mixed: step controls have changed since its first step."""

    key: Key
    first_seq: int
    full_seq: int
    is_mixed: bool = False


@dataclass(eq=False)
class Running:
    """A generation in flight: `number` counts them, `steps` are its step controls by now.

    from_sample: it has no effect before. is_append: it continues the canvas, and nothing has changed. is_draft: it has
    only the last steps, from the canvas; the complete one follows. is_beginning: it continues nothing, after a reset.
    """

    job: SessionJob
    number: int
    basis: Basis
    started_s: float
    steps: CheckedControls
    from_sample: int
    is_append: bool = False
    is_draft: bool = False
    is_beginning: bool = False


@dataclass
class GenerationTimes:
    """How long generations take from submit to finish."""

    newest_s: deque[float] = field(default_factory=lambda: deque(maxlen=ESTIMATE_SAMPLES))

    @property
    def estimate_s(self) -> float:
        """A little more than the 90th percentile of the newest."""
        ordered = sorted(self.newest_s)
        return ordered[math.ceil(0.9 * len(ordered)) - 1] * ESTIMATE_MARGIN if ordered else ESTIMATE_START_S


class RunningGenerations:
    """Generations in flight, oldest first. `slots`: how many there may be.

    `num_started` counts all, `num_placed` those whose latents were put into the canvas. `latest`: what the newest that
    counts was started with; None: nothing of what is there has what holds now. `retry_s`: none starts before.
    """

    def __init__(
        self, slots: int, controls: ControlState, references: References, timeline: Timeline, playhead: Playhead
    ) -> None:
        self.slots = slots
        self.running: list[Running] = []
        self.times = GenerationTimes()
        self.num_started = self.num_placed = 0
        self.latest: Basis | None = None
        self.retry_s = self._updated_s = -math.inf
        self._controls, self._references = controls, references
        self._timeline, self._playhead, self._clock = timeline, playhead, playhead.clock
        self._num_failed = 0

    def key(self) -> Key:
        """What a generation that starts now is made with."""
        given = self._references
        has_source, has_structure = given.source is not None, given.structure is not None or given.is_planned
        loop = str(self._controls.value("loop_mode")), self._controls.value("loop_bars")
        return self._controls.options(has_source=has_source, has_structure=has_structure), given.version, loop

    @property
    def is_changed(self) -> bool:
        """Whether no generation was started with what holds now, and kept it."""
        return self.latest is None or self.latest.is_mixed or self.latest.key != self.key()

    def new(self, job_id: str, segment: Segment, *, seed: int, loop_frames: int | None = None, **job: Any) -> Running:
        """The next generation, with the newest values; job: members of its SessionJob."""
        key, full_seq = self.key(), self._controls.full_seq
        options = key[0].model_copy(update={"seed": seed})
        job |= {"loop_frames": loop_frames, **self._references.inputs(segment, loop_frames)}
        return Running(
            job=SessionJob(job_id, options, segment, full_seq=full_seq, **job),
            number=self.num_started,
            basis=Basis(key, self._controls.seq, full_seq),
            started_s=self._clock.now_s,
            steps=CheckedControls({**self._controls.step_values()}),
            from_sample=self._controls.from_sample,
        )

    def start(self, running: Running) -> None:
        """A generation is in flight."""
        self.num_started += 1
        self.running.append(running)
        self.latest = running.basis

    def finish(self, job_id: str, took_s: float | None) -> Running | None:
        """A generation has ended with latents; None where it is unknown. took_s: since it was started."""
        done = self._take(job_id)
        if done is not None:
            if not done.is_draft:
                self.times.newest_s.append(self._clock.now_s - done.started_s if took_s is None else took_s)
            self._num_failed, self.retry_s = 0, -math.inf
        return done

    def fail(self, job_id: str) -> bool:
        """A generation ended without latents: try again after 1, 2, 4 ... seconds. False where the id is unknown."""
        failed = self._take(job_id)
        if failed is None:
            return False
        self.retry_s = self._clock.now_s + backoff_s(self._num_failed, FIRST_RETRY_S, LONGEST_RETRY_S)
        self._num_failed += 1
        self._forget([failed])
        return True

    def clear(self) -> list[str]:
        """Forget what is in flight; what was wanted is wanted again. Returns the ids."""
        stopped, self.running = self.running, []
        self._forget(stopped)
        return [running.job.id for running in stopped]

    def cancel_appends(self) -> list[str]:
        """Forget those that only continue the canvas. Returns their ids."""
        stopped = [item for item in self.running if item.is_append]
        self.running = [item for item in self.running if not item.is_append]
        return [item.job.id for item in stopped]

    def step_applied(self, seq: int, job_ids: Iterable[str]) -> None:
        """Step controls up to `seq` have reached these generations."""
        reached = set(job_ids)
        for running in self.running:
            if running.job.id in reached:
                running.basis.first_seq = max(running.basis.first_seq, seq)

    def update(self) -> UpdateSteps | None:
        """The step controls that generations in flight do not have yet; at most every UPDATE_INTERVAL_S."""
        if self._clock.now_s < self._updated_s + UPDATE_INTERVAL_S:
            return None
        reached, patch = self._missing_steps()
        if not patch:
            return None
        self._updated_s = self._clock.now_s
        for running in reached:
            running.basis.is_mixed |= any(running.steps[name] != value for name, value in patch.items())
            running.steps.update(patch)
        return UpdateSteps(tuple(running.job.id for running in reached), patch, self._controls.seq)

    def settle(self) -> None:
        """The newest generation has all that was changed since: what it made counts as complete up to now."""
        latest, seq = self.latest, self._controls.full_seq
        if latest is None or seq <= latest.full_seq:
            return
        bases = [running.basis for running in self.running]
        if latest not in bases:
            self._timeline.set_seq(latest.full_seq, seq)
        for basis in {latest, *bases}:
            if basis.key == latest.key and not basis.is_mixed:
                basis.full_seq, basis.first_seq = seq, max(seq, basis.first_seq)

    @property
    def due_s(self) -> float:
        """When step controls are to be updated; inf: not before another call."""
        if self._controls.moving or self._missing_steps()[1]:
            return max(self._clock.now_s, self._updated_s) + UPDATE_INTERVAL_S
        return math.inf

    @property
    def is_latest_made(self) -> bool:
        """Whether nothing is in flight that the canvas waits for, but for appends."""
        return self.latest not in [running.basis for running in self.running if not running.is_append]

    def restore(self, num_started: int, num_placed: int, times_s: Iterable[float], is_current: bool) -> None:
        """Go on after the generations of a stored session."""
        self.num_started, self.num_placed = num_started, num_placed
        self.times.newest_s.extend(times_s)
        seq = self._controls.full_seq
        self.latest = Basis(self.key(), seq, seq) if is_current else None

    def _forget(self, stopped: Iterable[Running]) -> None:
        if any(running.basis is self.latest and not running.is_append for running in stopped):
            self.latest = None

    def _take(self, job_id: str) -> Running | None:
        found = next((running for running in self.running if running.job.id == job_id), None)
        if found is not None:
            self.running.remove(found)
        return found

    def _missing_steps(self) -> tuple[list[Running], CheckedControls]:
        """Generations that may take step controls, and the values that they lack."""
        from_sample = self._controls.from_sample
        is_reached = from_sample <= self._playhead.reach
        reached = [running for running in self.running if is_reached or running.from_sample >= from_sample]
        if not reached:
            return [], CheckedControls({})
        has_source = all(running.job.source is not None and not running.is_draft for running in reached)
        missing = {
            name: value
            for name, value in self._controls.step_values().items()
            if (has_source or name not in NEEDS_SOURCE_NAMES) and any(item.steps[name] != value for item in reached)
        }
        return reached, CheckedControls(missing)
