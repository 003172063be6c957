"""What both modes have in common: generations in flight, their step controls, failures, and how long they take."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runtime.base.errors import NoNotesError, RequestError
from runtime.config.codec import Latents
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.controls import NEEDS_SOURCE_NAMES
from runtime.live.parts.given_notes import GivenNotes
from runtime.live.parts.references import References
from runtime.live.playback.bars import BarGrid
from runtime.live.playback.canvas import Band, Canvas, Piece, Placement, Timeline
from runtime.live.playback.playhead import Playhead
from runtime.live.protocol.actions import (
    CancelJob,
    CheckedControls,
    LiveModel,
    MadeHints,
    MakeHints,
    NoteFacts,
    SessionJob,
    StopHints,
    UpdateSteps,
)
from runtime.live.protocol.backoff import FIRST_RETRY_S, LONGEST_RETRY_S, backoff_s
from runtime.live.protocol.messages import PlayNotes, SetPlan
from runtime.music.envelopes import Breath, Marks
from runtime.music.note_levels import phrase_mask, with_notes
from runtime.music.part_moods import NO_MOODS
from runtime.music.sections import beats_of
from runtime.music.tempo import tempo_of
from runtime.requests.options import GenerationOptions
from runtime.requests.request import DENOISE_MIN
from runtime.requests.segments import Segment, requested_mask

UPDATE_INTERVAL_S = 0.02
ESTIMATE_START_S, ESTIMATE_MARGIN, ESTIMATE_SAMPLES = 0.5, 1.1, 8

Key = tuple[GenerationOptions, int]


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


class Generations(ABC):
    """A session's generations. `frames` is T; `running` are in flight, oldest first.

    waits_for_plan: time stands still meanwhile. `num_started` counts all, `num_placed` those whose latents were put
    into the canvas. full_of_notes: what is said of too many notes, and what a client does then.
    """

    full_of_notes = ("are not played yet", "send them later")

    def __init__(
        self, model: LiveModel, frames: int, slots: int, controls: ControlState, timeline: Timeline, playhead: Playhead
    ) -> None:
        self.frames = frames
        self.running: list[Running] = []
        self.times = GenerationTimes()
        self.references = References(model)
        self.waits_for_plan = False
        self.num_started = 0
        self.num_placed = 0
        self._model, self._clock, self._slots = model, playhead.clock, slots
        self._controls, self._timeline, self._playhead = controls, timeline, playhead
        self._latest: Basis | None = None
        self._wanted_since_s: float | None = None
        self._updated_s = -math.inf
        self._retry_s = -math.inf
        self._num_failed = 0
        self._moods = NO_MOODS  # of the generation that is placed

    def wanted_s(self) -> float | None:
        """Since when one more generation is wanted; None where none is."""
        if not self._playhead.is_active or self._clock.now_s < self._ready_s() or not self._is_wanted():
            self._wanted_since_s = None
        elif self._wanted_since_s is None:
            self._wanted_since_s = self._clock.now_s
        return self._wanted_since_s

    @property
    def is_ending(self) -> bool:
        """Whether what is known ends soon, and something plays."""
        return False

    def start(self, session: str, *, may_draft: bool = True) -> SessionJob:
        """The next generation, with the newest values; a draft of it only where that `may_draft`."""
        running = self._new(f"{session}/{self.num_started}", may_draft)
        self.num_started += 1
        self.running.append(running)
        self._latest = running.basis
        self._wanted_since_s = None
        return running.job

    def cancelled(self) -> list[str]:
        """Generations that are not worth finishing any more; they are forgotten."""
        return []

    def stop(self) -> list[CancelJob | StopHints]:
        """Forget what is in flight, as a stored session has; what was wanted is wanted again. Returns how to end it."""
        stopped, self.running = self.running, []
        if any(running.basis is self._latest and not running.is_append for running in stopped):
            self._latest = None
        return [CancelJob(running.job.id) for running in stopped]

    def finish(self, job_id: str, latents: Latents, took_s: float | None = None) -> bool:
        """Take a generation's latents `[T, C]`; False where the canvas stays as it is. took_s: since it was started."""
        done = self._take(job_id)
        if done is None:
            return False
        if not done.is_draft:
            self.times.newest_s.append(self._clock.now_s - done.started_s if took_s is None else took_s)
        self._num_failed, self._retry_s = 0, -math.inf
        if (facts := self._model.notes) is not None:
            latents = with_notes(latents, done.job.exact, facts.spec, facts.silence)
            if facts.spec.has_envelopes:
                latents = self._breathing(done, latents, facts)
        self._moods = self._model.moods(done.basis.key[0], int(self._controls.value("seed")))
        latents = self._model.thinned(self._moods, latents, done.basis.key[0])
        if not self._place(done, Piece(f"latents/{done.number}", latents)):
            return False
        self.num_placed += 1
        return True

    def _breathing(self, done: Running, latents: Latents, facts: NoteFacts) -> Latents:
        """Latents `[T, C]` whose notes have the envelopes of their instruments."""
        job, rate_hz = done.job, self._model.frame_rate_hz
        if job.source is not None and job.options.denoise is not None and job.options.denoise <= DENOISE_MIN:
            return latents
        given, frames = phrase_mask(job.phrases, facts.spec, latents.shape), np.arange(len(latents))
        follows = job.source is not None or job.hints is not None  # and has their beat
        tempo = None if follows and not done.is_draft else tempo_of(job.options, self._model.ranges.bpm)
        beats = beats_of(job.sections, frames, rate_hz) if job.sections else None
        if beats is None and tempo is not None:
            beats = tempo.are_beats(frames, -job.segment.start_frame, rate_hz)
        mask = requested_mask(job.options, job.segment, rate_hz)
        kept = np.zeros(len(latents), bool) if mask is None else mask == 0.0
        fixed = kept[:, None] | phrase_mask(job.exact, facts.spec, latents.shape)
        return self._shaped(Breath(facts.spec, facts.silence), done, latents, Marks(beats, given, fixed))

    @abstractmethod
    def _shaped(self, breath: Breath, done: Running, latents: Latents, marks: Marks) -> Latents:
        """What the generation's latents become behind those that they follow."""

    def fail(self, job_id: str) -> bool:
        """A generation ended without latents: try again after 1, 2, 4 ... seconds. False where the id is unknown."""
        failed = self._take(job_id)
        if failed is None:
            return False
        self._retry_s = self._clock.now_s + backoff_s(self._num_failed, FIRST_RETRY_S, LONGEST_RETRY_S)
        self._num_failed += 1
        if failed.basis is self._latest and not failed.is_append:
            self._latest = None
        return True

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
        """Where the newest generation has all that was changed since, what it made counts as complete up to now."""
        latest, seq = self._latest, self._controls.full_seq
        if latest is None or self._is_dirty() or seq <= latest.full_seq:
            return
        bases = [running.basis for running in self.running]
        if latest not in bases:
            self._timeline.set_seq(latest.full_seq, seq)
        for basis in {latest, *bases}:
            if basis.key == latest.key and not basis.is_mixed:
                basis.full_seq, basis.first_seq = seq, max(seq, basis.first_seq)

    def due_s(self) -> float | None:
        """When something is to be done that only waits for the time."""
        now_s = self._clock.now_s
        times = [self._ready_s()] if self._ready_s() > now_s else []
        if self._controls.is_moving or self._missing_steps()[1]:
            times.append(max(now_s, self._updated_s) + UPDATE_INTERVAL_S)
        return min(times, default=None)

    def is_current(self) -> bool:
        """Whether the canvas has all changes, but for appends in flight."""
        made = [running.basis for running in self.running if not running.is_append]
        return not self._is_dirty() and self._latest not in made

    def restore(self, num_started: int, num_placed: int, is_current: bool) -> None:
        """Go on after the generations of a stored session."""
        self.num_started, self.num_placed = num_started, num_placed
        seq = self._controls.full_seq
        self._latest = Basis(self.key(), seq, seq) if is_current else None

    @abstractmethod
    def note(self) -> None:
        """Note where the playhead is."""

    def write(self, start: int, piece: Piece, seq: int) -> list[str]:
        """Put latents into the canvas from frame `start` on and make them a part of the source.

        Generations in flight do not know of it: they are forgotten. Returns their ids.
        """
        was_dirty = self._is_dirty()
        stopped = [running.job.id for running in self.running]
        is_stopped = bool(stopped)
        self.running.clear()
        self._write(start, piece, seq)
        if is_stopped or was_dirty or self._latest is None:
            self._latest = None
        else:
            self._latest.key = self.key()
        return stopped

    def key(self) -> Key:
        """What a generation that starts now is made with."""
        given = self.references
        has_source, has_structure = given.source is not None, given.structure is not None or given.is_planned
        return self._controls.options(has_source=has_source, has_structure=has_structure), given.version

    def reset(self) -> list[str]:
        """Let the next generation continue nothing. Returns the ids of those in flight, which are forgotten."""
        raise RequestError("a loop continues nothing", field="type", fix="open the session with mode extend")

    def grids(self) -> Sequence[BarGrid]:
        """The bars of the canvas as far as they are planned; a loop's follow from its tempo."""
        return ()

    def own_band(self, canvas: Canvas) -> Band | None:
        """The band where the client has chosen none."""
        return None

    def check_bars(self, values: Mapping[str, Any], field: str) -> None:
        """Raise RequestError where `loop_bars` is not for what is played once these controls are set."""
        if values.get("loop_bars") is not None:
            raise RequestError("music without an end has no loop", field=field, fix="open the session with mode loop")

    @property
    def lead_time_s(self) -> float:
        """How long a change takes until it is generated, at most, as far as is known."""
        return self.times.estimate_s

    def begin_plan(self, origin: int | None) -> None:
        """Play by a plan from canvas frame `origin` on."""
        raise RequestError("a loop has no plan", field="plan")

    def plan_work(self) -> MakeHints | None:
        """What to make of the plan now; None where nothing is."""
        return None

    def plan_made(self, number: int, part: MadeHints) -> None:  # noqa: B027
        """Take a part of the plan; those that it did not ask for are ignored."""

    def edit_plan(self, message: SetPlan) -> None:
        """Take an edit of the plan. Raises RequestError; then nothing has changed."""
        raise RequestError("the session has no plan", field="type", fix="open it with mode extend and plan true")

    def play_notes(self, message: PlayNotes) -> None:
        """Take notes that the client plays. Raises RequestError; then nothing has changed."""
        notes = self.references.notes
        if notes is None:
            raise NoNotesError("the model makes nothing of notes", field="type", fix="a bundle with [notes]")
        notes.check_room(len(message.items), *self.full_of_notes)
        self._play(notes, message)

    @abstractmethod
    def _play(self, notes: GivenNotes, message: PlayNotes) -> None:
        """Take the notes of a message."""

    @abstractmethod
    def _is_wanted(self) -> bool:
        """Whether one more generation is wanted."""

    @abstractmethod
    def _new(self, job_id: str, may_draft: bool) -> Running:
        """The next generation."""

    @abstractmethod
    def _place(self, done: Running, piece: Piece) -> bool:
        """Put latents into the canvas; False where they are of no use."""

    @abstractmethod
    def _write(self, start: int, piece: Piece, seq: int) -> None:
        """Put latents from frame `start` on into the canvas and the source."""

    def located(self, start_sample: int, samples: int) -> tuple[int, int, int]:
        """A write's first canvas frame, its frames, and the offset of its first sample in them. Raises RequestError."""
        if not self._model.has_encoder:
            raise RequestError("the bundle cannot turn audio into latents", field="type")
        group = self._model.align_frames * self._model.hop_samples
        index, offset = divmod(start_sample, group)
        frames = -(-(offset + samples) // group) * self._model.align_frames
        return self.region(index * self._model.align_frames, frames), frames, offset

    @abstractmethod
    def region(self, start: int, frames: int) -> int:
        """The canvas frame where a write from frame `start` begins. Raises RequestError where it does not fit."""

    def _ready_s(self) -> float:
        """When the next generation may start."""
        return self._retry_s

    def _is_dirty(self) -> bool:
        """Whether no generation was started with what holds now, and kept it."""
        return self._latest is None or self._latest.is_mixed or self._latest.key != self.key()

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

    def _canvas_frame(self, seconds: float) -> float:
        """The canvas frame, between frames, that is played at a second of the play axis."""
        frame, part = divmod(seconds * self._model.sample_rate_hz, self._model.hop_samples)
        here = self._timeline.at(round(seconds * self._model.sample_rate_hz))
        return part / self._model.hop_samples + (frame if here is None else here.canvas_frame_at(int(frame)))

    def _running(self, job_id: str, segment: Segment, **job: Any) -> Running:
        key = self.key()
        options = key[0].model_copy(update={"seed": job.pop("seed")})
        full_seq = self._controls.full_seq
        return Running(
            job=SessionJob(job_id, options, segment, full_seq=full_seq, **self.references.inputs(segment), **job),
            number=self.num_started,
            basis=Basis(key, self._controls.seq, full_seq),
            started_s=self._clock.now_s,
            steps=CheckedControls({**self._controls.step_values()}),
            from_sample=self._controls.from_sample,
        )

    def _first_placement(self, canvas: Canvas, band: Band | None) -> Placement:
        """The canvas begins where audio is missing."""
        start = self._playhead.sent_until
        return Placement(start, canvas, start // self._model.hop_samples, 0, band)
