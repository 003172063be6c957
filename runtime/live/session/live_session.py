"""A live session as a state machine: no sockets, no clocks, no threads.

It takes the client's messages, playhead reports and finished latents, and gives actions. Calls that depend on the time
have `now_s` of one monotonic clock, real or simulated, which holds until the next one. The host calls `advance` after
each call that may change something and whenever `due_s` has come, and carries out the actions in their order.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from runtime.base.errors import NoNotesError, RequestError, StaleSeqError, TickError
from runtime.config.codec import Latents
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.core import SessionCore
from runtime.live.parts.extend import ExtendMode
from runtime.live.parts.generations import Generations
from runtime.live.parts.loop import LoopMode
from runtime.live.parts.outline import SongOutline
from runtime.live.parts.pieces import Pieces
from runtime.live.playback.canvas import PlayedPart, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol import messages
from runtime.live.protocol.actions import Action, CancelJob, Commit, End, LiveModel, MadeHints
from runtime.live.protocol.messages import AudioFormat, ClientMessage, EventKind, Mode, Open
from runtime.live.protocol.server_messages import Applied, Problem, Ready, problem_of
from runtime.live.session.changes import Changes
from runtime.live.session.reports import Reporter, has_plan
from runtime.live.session.stored import (
    CommitTimer,
    check_fits,
    load_timeline,
    new_canvas_notice,
    renewed,
    signal_of,
    stored_timeline,
)
from runtime.live.session.transport import Transport
from runtime.live.storage.document import (
    StoredIdentity,
    StoredPlayhead,
    StoredSession,
    document_of,
    parse_session,
)
from runtime.live.storage.store import SessionSnapshot
from runtime.music.tempo import tempo_of
from runtime.requests.seeds import draw_seed

SCHEDULE_MARGIN_S = 0.3  # `advance` is called at least once per STATE_INTERVAL_S.


@dataclass
class Opened:
    """What a session was opened as. token_sha256: of the token that resumes it.

    notice: what is new in it for the client that resumes it, in plain words. events: what else its client is told.
    """

    id: str
    mode: Mode
    format: AudioFormat
    events: Sequence[EventKind]
    token_sha256: str = ""
    notice: str = ""


class LiveSession:
    """One client's stream, in parts that take messages, and that `advance` in turn. Used by one thread at a time.

    source `[N, C]`: the latents of `opened.source_id`. Raises RequestError where `opened` does not fit the model.
    """

    def __init__(
        self, session_id: str, model: LiveModel, opened: Open, now_s: float, source: Latents | None = None
    ) -> None:
        given = opened.controls.get("seed") if opened.seed is None else opened.seed
        clock, seed = SessionClock(now_s), draw_seed() if given is None else given
        values = opened.controls if opened.bars is None else {**opened.controls, "loop_bars": opened.bars}
        controls = ControlState(model, clock, values, opened.prompts, opened.blend, seed)
        frames, playhead = model.canvas_frames(opened.seconds, opened.mode), Playhead(clock, model.sample_rate_hz)
        if opened.seconds is None and opened.mode == "loop" and (bars := values.get("loop_bars")):
            frames = model.bars_frames(int(bars), tempo_of(controls.final_options(), model.ranges.bpm))
        playhead.is_playing = not opened.paused
        if opened.events:
            model.known_notes("events")
        model.check_layers(opened.muted, "muted")
        core = SessionCore(model, frames, opened.slots, controls, Timeline(muted=set(opened.muted)), playhead)
        self._set_up(core, Opened(session_id, opened.mode, opened.format, list(opened.events)))
        self.generations.mode.check_bars(values, "controls.loop_bars" if opened.bars is None else "bars")
        if has_plan(model, opened):
            self.generations.follow_song()
        if opened.source_id is not None:
            patch = core.references.take("source", opened.source_id, opened.source_strength, source, 0)
            controls.change(patch, 0)

    def _set_up(self, core: SessionCore, opened: Opened, epoch: int = 0) -> None:
        mode = LoopMode(core) if opened.mode == "loop" else ExtendMode(core)
        self.id, self.model, self.playhead = opened.id, core.model, core.playhead
        # The one that it was opened with: later changes of the control do not alter what it draws.
        self.seed = int(core.controls.defaults["seed"])
        self.client_seqs = core.controls.client_seqs  # Which seqs are the client's.
        self.generations = Generations(core, mode)
        self.changes = Changes(core, mode)
        self.transport = Transport(core, mode, epoch, notes="notes" in opened.events)
        self.audio = self.transport.audio
        self.reporter = Reporter(core, opened.mode, self.transport, self.changes)
        self._parts = (self.changes, self.generations, self.transport, self.reporter)
        self.core, self._opened, self._controls, self._clock = core, opened, core.controls, core.clock
        self._commits = CommitTimer(core.playhead)
        self._due_s: float | None = None
        self._problem = ""
        # What concerns one of the parts alone.
        self.wanted_s, self.write_region = self.generations.wanted_s, self.generations.write_region
        self.values, self.words_found = self.reporter.values, self.reporter.words_found
        self.decoded, self.is_current = self.audio.decoded, self.transport.is_current

    @property
    def num_waiting(self) -> int:
        """Changes that begin at a sample that is to come."""
        return len(self._controls.scheduled)

    @property
    def next_seq(self) -> int:
        """The seq of a change that another than the client makes now."""
        return self._controls.accepted_seq + 1

    @property
    def plan(self) -> SongOutline | None:
        """What it plays by; None: nothing."""
        return self.core.references.song

    @property
    def epoch(self) -> int:
        """That of the newest connection."""
        return self.audio.epoch

    @property
    def is_ending(self) -> bool:
        """Whether what it plays ends soon, unless a generation continues it."""
        return self.generations.mode.is_ending

    def wait_for_plan(self) -> None:
        """Its time stands still while something is waited for."""
        if (song := self.generations.mode.song) is not None:
            song.waits = True

    def playhead_sample(self, now_s: float) -> int:
        """Estimate of the next sample that the client plays."""
        self._clock.now_s = now_s
        return self.playhead.position

    def attach(self, token: str, now_s: float, *, keep_s: float) -> Ready:
        """A client has connected: a new epoch begins at the playhead. `token`: what resumes the session later."""
        self._clock.now_s, opened = now_s, self._opened
        is_resumed, opened.token_sha256 = bool(opened.token_sha256), _sha256(token)
        notice, opened.notice = opened.notice, ""
        self.playhead.attach()
        self.audio.start_epoch()
        self._commits.is_changed = True
        self.reporter.attach()
        plain = {"session": self.id, "format": opened.format, "resume_token": token, "resumed": is_resumed}
        return self.reporter.ready(keep_s=keep_s, notice=notice, **plain)

    def detach(self, now_s: float) -> None:
        """The connection has ended: the next `advance` ends what runs, and nothing runs until the next `attach`."""
        self._clock.now_s = now_s
        self.playhead.detach()
        self.core.outbox = [action for action in self.core.outbox if isinstance(action, CancelJob | End)]
        self._commits.is_changed = True

    def has_token(self, token: str) -> bool:
        """Whether `token` resumes this session; compared in constant time."""
        return hmac.compare_digest(self._opened.token_sha256, _sha256(token))

    def handle(self, message: ClientMessage, now_s: float, latents: Latents | None = None) -> None:
        """Take a client's message. Raises RequestError; then nothing has changed.

        latents `[N, C]`: of SetSource, the source; of SetStructure, its hints; of SetTimbre, the reference `[F, C]`; of
        WriteAudio, the frames of `write_region` with the audio in them.
        """
        self._clock.now_s = now_s
        seq = messages.seq_in(message)
        if seq is not None and seq <= self._controls.accepted_seq:
            raise StaleSeqError(f"got {seq} after {self._controls.accepted_seq}", field="seq", fix="count up")
        at_sample = self.transport.begins_at(message)
        part = next((part for part in self._parts if isinstance(message, part.takes)), None)
        if part is None:
            raise refusal(message)
        at_sample = part.handle(message, latents, at_sample)
        if at_sample is not None and seq is not None:
            self.core.outbox.append(Applied(seq=seq, at_sample=at_sample))
        if not isinstance(message, messages.Ack | messages.GetCanvas | messages.GetPlan):
            self._commits.is_changed = True
        if isinstance(message, messages.Play | messages.Pause | messages.Seek | messages.SetBand):
            self.reporter.state_now()
        if isinstance(message, messages.Ack):
            self._due_s = now_s if self.audio.is_short else self._next_due_s()

    def played(self, now_s: float, most_s: float) -> PlayedPart:
        """What was played by now, at most so long; see Transport. Raises RequestError."""
        self._clock.now_s = now_s
        return self.transport.played(most_s)

    def advance(self, now_s: float, *, may_generate: bool = True, may_draft: bool = True) -> list[Action]:
        """Everything that is to be done now; at most one generation, and none unless `may_generate`.

        may_draft: the tick loop has time for a draft before a complete generation.
        """
        self._clock.now_s = now_s
        if self.playhead.is_active:
            estimate_s = self.core.flights.times.estimate_s
            soon = self.playhead.wanted_until + self.core.samples(2 * estimate_s + SCHEDULE_MARGIN_S)
            self.changes.advance(soon)
            self.generations.mode.note()
        # Jobs of a session that was restored in the same process have other ids than those before.
        prefix = f"{self.id}/{self.audio.epoch}"
        actions = [*self.generations.advance(prefix, may_generate=may_generate, may_draft=may_draft)]
        actions += self.transport.advance()
        actions += self.reporter.advance()
        actions += self.core.outbox
        self.core.outbox = []
        if self._commits.take():
            actions.append(Commit())
        self._due_s = self._next_due_s()
        return actions

    def due_s(self) -> float | None:
        """When `advance` has to be called if nothing else happens; None: only after another call."""
        return self._due_s

    def _next_due_s(self) -> float | None:
        if not self.playhead.is_active:
            return None
        audio_s = self.audio.due_s
        times = [self.generations.due_s, self.reporter.due_s, self._commits.due_s]
        return min([*times, *([] if audio_s is None else [audio_s])])

    def generation_finished(
        self, job_id: str, latents: Latents, tick: int, now_s: float, took_s: float | None = None
    ) -> None:
        """A generation's latents `[T, C]`; they belong to the session from now on. Unknown ids are ignored.

        took_s: how long it took, where the session's time is not that of a clock.
        """
        self._clock.now_s = now_s
        self._problem = ""
        self.generations.mode.note()
        if self.generations.finish(job_id, latents, took_s):
            self.audio.tick = tick
            self._commits.is_changed = True

    def generation_failed(self, job_id: str, error: TickError, now_s: float) -> None:
        """A generation ended without latents; it is tried again later. Unknown ids are ignored."""
        self._clock.now_s = now_s
        if self.core.flights.fail(job_id):
            self.step_refused(error)

    def plan_made(self, number: int, made: MadeHints | TickError, now_s: float) -> None:
        """What came of a MakeHints; unknown numbers are ignored. Where it failed it is tried again later."""
        self._clock.now_s = now_s
        song = self.generations.mode.song
        if song is None:
            return
        if not isinstance(made, TickError):
            song.made(number, made)
            self._commits.is_changed = True
        elif (problem := song.maker.failed(number, made, is_attached=self.playhead.is_attached)) is not None:
            self._report(problem)

    def step_applied(self, seq: int, job_ids: Sequence[str], tick: int) -> None:
        """An UpdateSteps has reached these generations."""
        self.core.flights.step_applied(seq, job_ids)

    def step_refused(self, error: TickError) -> None:
        """The loop did not take an UpdateSteps; the generations go on as they are."""
        self._report(problem_of(error))

    def _report(self, problem: Problem) -> None:
        """Send a problem; one that answers no message only once where it comes again."""
        if problem.seq is not None or problem.detail != self._problem:
            self._problem = problem.detail
            self.core.outbox.append(problem)

    def snapshot(self, now_s: float) -> SessionSnapshot:
        """Everything that `restore` needs. Its arrays do not change later."""
        self._clock.now_s = now_s
        pieces, core, opened = Pieces(), self.core, self._opened
        stored = StoredSession(
            id=self.id,
            mode=opened.mode,
            format=opened.format,
            slots=core.slots,
            frames=core.frames,
            token_sha256=opened.token_sha256,
            events=list(opened.events),
            signal=signal_of(self.model),
            made_by=StoredIdentity(**asdict(self.model.identity())),
            epoch=self.audio.epoch,
            controls=core.controls.stored(),
            playhead=StoredPlayhead(**core.playhead.snapshot()),
            timeline=stored_timeline(core.timeline, pieces),
            generations=self.generations.stored(pieces),
            muted=list(core.timeline.muted),
            waiting=self.changes.stored(pieces),
        )
        return SessionSnapshot(document_of(stored), pieces.arrays)

    @classmethod
    def restore(cls, snapshot: SessionSnapshot, model: LiveModel, now_s: float) -> LiveSession:
        """A session as it was, without connection and without generations in flight.

        One of another model, or of another precision, has its prompts, controls and seed, and a new canvas. Raises
        RequestError where the snapshot is of another format version or does not fit the model, StoreError where it is
        damaged.
        """
        stored, pieces, clock = parse_session(snapshot.meta), Pieces(snapshot.pieces), SessionClock(now_s)
        has_plan = stored.generations.plan is not None and model.plan is not None
        if notice := new_canvas_notice(stored, model):
            stored, notice = renewed(stored, model, notice)
        else:
            check_fits(stored, model)
        controls = ControlState.restore(stored.controls, model, clock)
        timeline = load_timeline(stored, pieces, model)
        playhead = Playhead.restore(vars(stored.playhead), clock, model.sample_rate_hz)
        core = SessionCore(model, stored.frames, stored.slots, controls, timeline, playhead)
        session = cls.__new__(cls)
        opened = Opened(stored.id, stored.mode, stored.format, stored.events, stored.token_sha256, notice)
        session._set_up(core, opened, stored.epoch)
        session.changes.restore(stored.waiting, pieces)
        session.generations.restore(stored.generations, pieces)
        if notice:
            if has_plan:
                session.generations.follow_song()
            session.changes.advance(math.inf)
        return session


def refusal(message: ClientMessage) -> RequestError:
    """The error of a message that no part of a session takes."""
    match message:
        case messages.Reset():
            return RequestError("a loop continues nothing", field="type", fix="open the session with mode extend")
        case messages.SetPlan():
            return RequestError("the session has no plan", field="type", fix="open it with mode extend and plan true")
        case messages.PlayNotes():
            return NoNotesError("the model makes nothing of notes", field="type", fix="a bundle with [notes]")
        case messages.GetPlan():
            return RequestError("the session has no plan", field="type")
    return RequestError("the session is open already", field="type")


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
