"""A live session with a simulated clock, engine, codec and client: every sample tells which generation made it.

A finished latent frame is (number of the generation, canvas frame, guidance at its end, full_seq, the
hint); a decoded sample is the frame that it belongs to, so channels have the same meaning.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from helpers.simulated_form import CHANNELS, FACTS, SimulatedForm
from numpy.typing import NDArray

from runtime.base.errors import EngineError, TickError
from runtime.live.hosting.work import make_part
from runtime.live.playback.playhead import SessionClock
from runtime.live.protocol import actions, messages
from runtime.live.protocol.actions import DecodeWindow, LiveModel, SessionJob
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, ServerMessage
from runtime.live.session import reports
from runtime.live.session.live_session import LiveSession

RATE, HOP = 1000, 40
FRAME_RATE = RATE / HOP
MARGIN = 2
LENGTHS = (16, 32, 48, 64)
MODEL = LiveModel(
    sample_rate_hz=RATE,
    channels=CHANNELS,
    hop_samples=HOP,
    frame_rate_hz=FRAME_RATE,
    latent_channels=CHANNELS,
    lengths=LENGTHS,
    overlap_frames=16,
    margin_frames=MARGIN,
    window_frames=32,
    defaults={"guidance": 3.0, "steps": 8, "shift": 1.0},
    window_s=0.2,
)
PLANNING = replace(MODEL, plan=FACTS)
STEP_S, LIMIT_S = 0.005, 90
NUMBER, FRAME, GUIDANCE, SEQ, HINT = range(CHANNELS)


class Timed(Protocol):
    """A part of a session that reads its clock."""

    clock: SessionClock


Told = TypeVar("Told", bound=ServerMessage)
TimedPart = TypeVar("TimedPart", bound=Timed)


def at(part: TimedPart, now_s: float) -> TimedPart:
    """A part of a session, at this time of its clock from now on."""
    part.clock.now_s = now_s
    return part


def new_session(session_id: str = "s", model: LiveModel | None = None, **opened: Any) -> LiveSession:
    """A session, by default of MODEL, attached at time 0."""
    model = model or (PLANNING if opened.get("plan") else MODEL)
    session = LiveSession(session_id, model, messages.Open(**{"seed": 1, **opened}), 0.0)
    session.attach("token", 0.0, keep_s=60.0)
    return session


@dataclass
class Flight:
    """A generation in the simulated engine."""

    job: SessionJob
    number: int
    end_s: float
    guidance: Any


@dataclass
class SlowCodec:
    """One worker that sessions share, with the order of CodecQueue. A window takes `window_s`, and `frame_s` per frame
    without its margins.

    decoded: what was, with how long before its first sample was due.
    """

    window_s: float
    frame_s: float = 0.0
    decoded: list[tuple[DecodeWindow, float]] = field(default_factory=list)
    _waiting: list[tuple[bool, float, int, LiveSession, DecodeWindow]] = field(default_factory=list)
    _current: tuple[float, LiveSession, DecodeWindow] | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, session: LiveSession, window: DecodeWindow, now_s: float) -> None:
        """A session asks for a window."""
        deadline_s = now_s + (window.start_sample - session.playhead_sample(now_s)) / RATE
        heapq.heappush(self._waiting, (window.is_replacing, deadline_s, next(self._numbers), session, window))

    def take(self, session: LiveSession, now_s: float) -> DecodeWindow | None:
        """The window of a session that is finished now, if one is."""
        if self._current is None:
            self._begin(now_s)
        if self._current is None or self._current[1] is not session or self._current[0] > now_s + 1e-9:
            return None
        (end_s, _, window), self._current = self._current, None
        self._begin(end_s)
        return window

    def _begin(self, now_s: float) -> None:
        while self._waiting and self._current is None:
            _, deadline_s, _, session, window = heapq.heappop(self._waiting)
            if session.is_current(window):
                self.decoded.append((window, deadline_s - now_s))
                frames = window.num_samples / HOP
                self._current = (now_s + self.window_s + frames * self.frame_s, session, window)


@dataclass
class Simulation:
    """One session, its engine and its client.

    generation_s, decode_s, network_s: how long things take. `heard` is what the client has played, NaN where it had
    nothing; `chunks` is everything that was sent, with the playhead that was reported last. With `is_lossy`, chunks are
    lost; `has_old_audio` once one of them would have replaced others. plan_s: how long a step of the plan takes. codec:
    shared with others, instead of `decode_s`.
    """

    session: LiveSession
    codec: SlowCodec | None = None
    generation_s: float = 0.14
    decode_s: float = 0.003
    network_s: float = 0.002
    plan_s: float = 0.05
    num_slots: int = 4
    now_s: float = 0.0
    is_lossy: bool = False
    has_old_audio: bool = False
    is_acking: bool = True
    fails_next: bool = False
    flights: list[Flight] = field(default_factory=list)
    jobs: list[SessionJob] = field(default_factory=list)
    updates: list[actions.UpdateSteps] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    chunks: list[tuple[AudioChunk, int]] = field(default_factory=list)
    messages: list[ServerMessage] = field(default_factory=list)
    commits: int = 0
    ring: NDArray[np.float32] = field(default_factory=lambda: np.full((LIMIT_S * RATE, CHANNELS), np.nan, np.float32))
    seqs: NDArray[np.int64] = field(default_factory=lambda: np.zeros((LIMIT_S * RATE, 2), np.int64))
    acked: int = 0
    playhead: int | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _plans: list[tuple[float, actions.MakeHints]] = field(default_factory=list)
    form: SimulatedForm | None = None
    _decodes: list[tuple[float, DecodeWindow]] = field(default_factory=list)
    _arrivals: list[tuple[float, AudioChunk]] = field(default_factory=list)
    _played_s: float = 0.0
    _acked_s: float = 0.0
    _is_paused: bool = False

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.advance()
        for _ in range(round(seconds / STEP_S)):
            self.step()

    def handle(self, message: messages.ClientMessage, latents: Any = None) -> None:
        """A message of the client arrives."""
        self._is_paused = isinstance(message, messages.Pause) or (
            self._is_paused and not isinstance(message, messages.Play)
        )
        self.session.handle(message, self.now_s, latents)
        self.advance()

    def set(self, seq: int, ramp_ms: float = 0.0, at: float | None = None, **values: Any) -> None:
        """Set controls."""
        self.handle(messages.SetControls(seq=seq, values=values, ramp_ms=ramp_ms, at=at))

    def advance(self) -> None:
        """Carry out what the session asks for."""
        for action in self.session.advance(self.now_s, may_generate=len(self.flights) < self.num_slots):
            self._carry_out(action)

    def connect(self) -> None:
        """The client connects again: what it had and what was on its way is lost."""
        self._decodes.clear()
        self._arrivals.clear()
        ready = self.session.attach("token", self.now_s, keep_s=60.0)
        self.playhead = ready.next_sample
        self.ring[self.playhead :] = np.nan
        self._acked_s = self._played_s = self.now_s
        self.acked = 0
        self._ack(None)

    def restart(self) -> None:
        """The process was killed and started again: the session is restored from its snapshot."""
        snapshot = self.session.snapshot(self.now_s)
        self.session = LiveSession.restore(snapshot, self.session.model, self.now_s)
        self.flights.clear()
        self._plans.clear()
        self.form = None
        self.connect()

    def applied(self, seq: int) -> Applied | None:
        """The message that reports a seq, or a newer one, as complete."""
        return next((m for m in self.of(Applied) if m.seq >= seq and m.full_sample is not None), None)

    def of(self, kind: type[Told]) -> list[Told]:
        """The messages of one kind that the client got."""
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def heard(self) -> NDArray[np.float32]:
        """`[samples, CHANNELS]` from sample 0 to the client's playhead."""
        return self.ring[: self.playhead or 0]

    def step(self) -> None:
        """Let one step of time pass."""
        self.now_s += STEP_S
        self._step()

    def _step(self) -> None:
        events = self._finish_plans() + self._finish_flights() + self._finish_decodes() + self._receive() + self._play()
        due_s = self.session.due_s()
        if events or (due_s is not None and due_s <= self.now_s):
            self.advance()

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case SessionJob() as job:
                guidance = 3.0 if job.options.guidance is None else job.options.guidance
                self.jobs.append(job)
                self.flights.append(Flight(job, next(self._numbers), self.now_s + self.generation_s, guidance))
            case actions.MakeHints():
                self._plans.append((self.now_s + self.plan_s, action))
            case actions.StopHints():
                self._plans.clear()
                self.form = None
            case actions.FindWords(seq, texts, options, seed):
                self.session.words_found(seq, reports.prompt_words(self.session.model, texts, options, seed))
            case actions.UpdateSteps(job_ids, patch, seq):
                self.updates.append(action)
                for flight in self.flights:
                    if flight.job.id in job_ids:
                        flight.guidance = patch.get("guidance", flight.guidance)
                self.session.step_applied(seq, job_ids, 0)
            case actions.CancelJob(job_id):
                self.cancelled.append(job_id)
                self.flights = [flight for flight in self.flights if flight.job.id != job_id]
            case DecodeWindow() as window if self.codec is not None:
                self.codec.put(self.session, window, self.now_s)
            case DecodeWindow() as window:
                self._decodes.append((self.now_s + self.decode_s, window))
            case AudioChunk() as chunk:
                self.chunks.append((chunk, self.acked))
                if not (self.is_lossy and len(self.chunks) % 5 == 0):
                    self._arrivals.append((self.now_s + self.network_s, chunk))
                else:
                    self.has_old_audio |= chunk.is_replacing
            case messages.Message() as message:
                self.messages.append(message)
            case actions.Commit():
                self.commits += 1

    def planned(self, frame: int) -> float:
        """The plan's hint of a canvas frame, as it is now."""
        plan = self.session.plan
        assert plan is not None
        hints = plan.hints(frame, 1)
        assert hints is not None
        return float(hints[0, 0])

    def _finish_plans(self) -> int:
        """One step after the other."""
        done = [work for end_s, work in self._plans[:1] if end_s <= self.now_s + 1e-9]
        for work in done:
            del self._plans[0]
            self._plans = [(max(end_s, self.now_s + self.plan_s), later) for end_s, later in self._plans]
            if work.begin is not None:
                self.form = SimulatedForm(work.begin)
            assert self.form is not None
            try:
                self.session.plan_made(work.number, make_part(self.form, work), self.now_s)
            except TickError as error:
                self.session.plan_made(work.number, error, self.now_s)
        return len(done)

    def _finish_flights(self) -> int:
        done = [flight for flight in self.flights if flight.end_s <= self.now_s + 1e-9]
        for flight in done:
            self.flights.remove(flight)
            if self.fails_next:
                self.fails_next = False
                self.session.generation_failed(flight.job.id, EngineError("failed"), self.now_s)
            else:
                latents = self._latents(flight)
                self.session.generation_finished(flight.job.id, latents, 7, self.now_s)
                self._note_place(latents)
        return len(done)

    def _note_place(self, latents: NDArray[np.float32]) -> None:
        """After a reset, a generation's first frame is the canvas frame that it was put at."""
        for part in self.session.core.timeline.canvas.parts:
            if part.piece.latents is latents:
                latents[:, FRAME] = np.arange(len(latents)) + part.start - part.row

    def _latents(self, flight: Flight) -> NDArray[np.float32]:
        segment = flight.job.segment
        latents = np.empty((segment.frames, CHANNELS), np.float32)
        latents[:, NUMBER] = flight.number
        latents[:, FRAME] = np.arange(segment.start_frame, segment.start_frame + segment.frames)
        latents[:, GUIDANCE] = flight.guidance
        latents[:, SEQ] = flight.job.full_seq
        latents[:, HINT] = -1
        if flight.job.hints is not None:
            latents[: len(flight.job.hints), HINT] = flight.job.hints[:, HINT]
        if segment.keep_frames:
            assert flight.job.tail is not None
            latents[: segment.keep_frames] = flight.job.tail
        return latents

    def _finish_decodes(self) -> int:
        done = [item for item in self._decodes if item[0] <= self.now_s + 1e-9]
        self._decodes = [item for item in self._decodes if item not in done]
        while self.codec is not None and (window := self.codec.take(self.session, self.now_s)) is not None:
            done.append((self.now_s, window))
        for _, window in done:
            pcm = np.repeat(window.values, HOP, axis=0)[window.trim_begin : window.trim_end]
            self.session.audio.decoded(window, pcm)
        return len(done)

    def _receive(self) -> int:
        done = [item for item in self._arrivals if item[0] <= self.now_s + 1e-9]
        for item in done:
            self._arrivals.remove(item)
            chunk = item[1]
            if self.playhead is None:
                self.playhead = chunk.start_sample
                self._played_s = self.now_s
                self._ack(None)
            late = max(0, self.playhead - chunk.start_sample)
            self.ring[chunk.start_sample + late : chunk.end_sample] = chunk.pcm[late:]
            self.seqs[chunk.start_sample + late : chunk.end_sample] = (chunk.first_seq, chunk.full_seq)
        return 0

    def _play(self) -> int:
        if self.playhead is None or self._is_paused:
            self._played_s = self.now_s
            return 0
        samples = int((self.now_s - self._played_s) * RATE + 1e-6)
        self._played_s += samples / RATE
        self.playhead += samples
        if self.now_s < self._acked_s + 0.05:
            return 0
        self._acked_s = self.now_s
        known = ~np.isnan(self.ring[self.playhead : self.playhead + 4 * RATE, 0])
        lead_s = float(np.argmin(np.append(known, False))) / RATE
        return self._ack(lead_s)

    def _ack(self, worst_lead_s: float | None) -> int:
        if not self.is_acking or self.playhead is None:
            return 0
        self.acked = self.playhead
        self.session.handle(messages.Ack(playhead_sample=self.playhead, worst_lead_s=worst_lead_s), self.now_s)
        return 1


def playing(seconds: float = 2.0, **opened: Any) -> Simulation:
    """A session that has played for some time."""
    simulation = Simulation(new_session(**opened))
    simulation.run(seconds)
    return simulation
