"""A live session as a state machine: no sockets, no clocks, no threads.

It takes the client's messages, playhead reports and finished latents, and gives actions. Calls that depend on the time
have `now_s` of one monotonic clock, real or simulated, which holds until the next one. The host calls `advance` after
each call that may change something and whenever `due_s` has come, and carries out the actions in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from runtime.base.errors import RequestError, StaleSeqError, TickError
from runtime.config.codec import Latents, Pcm
from runtime.live.parts.base import Generations
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.controls import check_controls, prompt_weights
from runtime.live.parts.extend import ExtendGenerations
from runtime.live.parts.loop import LoopGenerations
from runtime.live.parts.plan import SessionPlan
from runtime.live.playback.audio_schedule import AudioSchedule
from runtime.live.playback.bars import BarLines, following, next_line
from runtime.live.playback.canvas import Piece, PlayedPart, Timeline
from runtime.live.playback.navigation import Navigation
from runtime.live.playback.played_notes import PlayedNotes
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol import messages, server_messages
from runtime.live.protocol.actions import (
    NO_OPTIONS,
    Action,
    CancelJob,
    CheckedControls,
    Commit,
    DecodeWindow,
    End,
    FindWords,
    LiveModel,
    MadeHints,
)
from runtime.live.protocol.client_seqs import ClientSeqs
from runtime.live.protocol.messages import ClientMessage, GetPlan, Open, ReferenceKind, SetPlan, SetPrompts, WriteAudio
from runtime.live.protocol.server_messages import Applied, Ready, ServerMessage
from runtime.live.session import reports
from runtime.live.session.stored import (
    CommitTimer,
    Pieces,
    SessionParts,
    check_fits,
    load_generations,
    new_canvas_notice,
    parsed,
)
from runtime.live.session.waiting import MAX_WAITING, Change, Waiting, WaitingMessages
from runtime.live.storage.store import SessionSnapshot
from runtime.music.tempo import Tempo, tempo_of
from runtime.requests.seeds import draw_seed

STATE_INTERVAL_S = 0.25
# A clock that is followed may differ so much.
TEMPO_TOLERANCE_BPM, PHASE_TOLERANCE_S = 0.3, 0.02
SCHEDULE_MARGIN_S = 0.3  # `advance` is called at least once per STATE_INTERVAL_S.
MODES: dict[str, type[Generations]] = {"loop": LoopGenerations, "extend": ExtendGenerations}


class LiveSession:
    """One client's stream. Used by one thread at a time.

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
        plain = (session_id, opened.mode, opened.format, opened.slots, frames)
        model.check_layers(opened.muted, "muted")
        timeline = Timeline(muted=set(opened.muted))
        parts = SessionParts(*plain, controls, timeline, playhead, events=list(opened.events))
        self._set_up(model, parts)
        self._generations.check_bars(values, "controls.loop_bars" if opened.bars is None else "bars")
        if reports.has_plan(model, opened):
            self._generations.begin_plan(0)
        if opened.source_id is not None:
            self._set_reference("source", opened.source_id, opened.source_strength, source, 0)

    def _set_up(self, model: LiveModel, parts: SessionParts) -> None:
        self.id, self.model, self._parts = parts.id, model, parts
        self._controls, self._timeline, self._playhead = parts.controls, parts.timeline, parts.playhead
        self._clock = parts.playhead.clock
        notes = None
        if "notes" in parts.events and (facts := model.notes) is not None:
            notes = PlayedNotes(facts.spec, facts.silence, model.hop_samples, self._playhead)
        self._audio = AudioSchedule(model, self._timeline, self._playhead, parts.epoch, notes)
        self._generations = MODES[parts.mode](
            model, parts.frames, parts.slots, self._controls, self._timeline, self._playhead
        )
        self._lines = BarLines(model, self._timeline, self._generations.grids)
        self._navigation = Navigation(
            model, parts.frames, parts.mode == "loop", self._timeline, self._playhead, self._generations.own_band
        )
        self._commits = CommitTimer(self._playhead)
        self._outbox: list[Action] = []
        self._stated_s = -math.inf  # last `state`, and its beat
        self._told_beat: server_messages.Beat | None = None
        self._beat_version: Any = None  # What `_has_new_beat` has judged.
        self._due_s: float | None = None
        self._problem = ""
        self._asked_words = self._find_words(0)  # What is known of words, or being found.
        asked = self._asked_words
        self._words = reports.prompt_words(model, asked.texts, asked.options, asked.seed)  # As the client knows them.
        self._words_seq: int | None = None  # Of a change that may be one of texts.
        self._sent_plan: Any = None  # As the client knows it.
        self._is_picture_wanted = False

    @property
    def seed(self) -> int:
        """The one that it was opened with: later changes of the control do not alter what it draws."""
        return int(self._controls.defaults["seed"])

    @property
    def num_jobs(self) -> int:
        """Generations in flight."""
        return len(self._generations.running)

    @property
    def num_waiting(self) -> int:
        """Changes that begin at a sample that is to come."""
        return self._controls.num_scheduled

    @property
    def underruns(self) -> int:
        """How often the client has played all audio that was sent."""
        return self._playhead.underruns

    @property
    def plan(self) -> SessionPlan | None:
        """What it plays by; None: nothing."""
        return self._generations.references.plan

    def playhead_sample(self, now_s: float) -> int:
        """Estimate of the next sample that the client plays."""
        self._clock.now_s = now_s
        return self._playhead.position

    @property
    def is_active(self) -> bool:
        """Whether it plays: connected, not paused, and the client reports its playhead."""
        return self._playhead.is_active

    @property
    def is_ending(self) -> bool:
        """Whether what it plays ends soon, unless a generation continues it."""
        return self._generations.is_ending

    def wanted_s(self) -> float | None:
        """Since when it wants one more generation than it has in flight; None where it wants none."""
        return self._generations.wanted_s()

    @property
    def client_seqs(self) -> ClientSeqs:
        """Which of the session's seqs are its client's."""
        return self._controls.client_seqs

    @property
    def next_seq(self) -> int:
        """The seq of a change that another than the client makes now."""
        return self._controls.accepted_seq + 1

    def wait_for_plan(self) -> None:
        """Its time stands still while something is waited for."""
        self._generations.waits_for_plan = True

    def values(self) -> dict[str, Any]:
        """All that clients may have changed, by name, as in Changed."""
        references, rate_hz = self._generations.references, self.model.frame_rate_hz
        values = reports.values(self._controls, references, self._timeline, self._playhead, rate_hz)
        words = [item.model_dump() for item in self._words]
        return {**values, "mode": self._parts.mode, "prompt_words": words}

    def attach(self, token: str, now_s: float, *, keep_s: float) -> Ready:
        """A client has connected: a new epoch begins at the playhead. `token`: what resumes the session later."""
        self._clock.now_s = now_s
        is_resumed, notice, self._parts.notice = self._parts.set_token(token), self._parts.notice, ""
        self._playhead.attach()
        self._audio.start_epoch()
        self._commits.is_changed = True
        self._sent_plan = None
        return reports.ready(
            self.model,
            self._parts,
            self._generations.references,
            self._words,
            resume_token=token,
            resumed=is_resumed,
            notice=notice,
            epoch=self._audio.epoch,
            keep_s=keep_s,
        )

    @property
    def epoch(self) -> int:
        """That of the newest connection."""
        return self._audio.epoch

    def detach(self, now_s: float) -> None:
        """The connection has ended: the next `advance` ends what runs, and nothing runs until the next `attach`."""
        self._clock.now_s = now_s
        self._playhead.detach()
        self._outbox = [action for action in self._outbox if isinstance(action, CancelJob | End)]
        self._commits.is_changed = True

    def has_token(self, token: str) -> bool:
        """Whether `token` resumes this session."""
        return self._parts.has_token(token)

    def handle(self, message: ClientMessage, now_s: float, latents: Latents | None = None) -> None:
        """Take a client's message. Raises RequestError; then nothing has changed.

        latents `[N, C]`: of SetSource, the source; of SetStructure, its hints; of SetTimbre, the reference `[F, C]`; of
        WriteAudio, the frames of `write_region` with the audio in them.
        """
        self._clock.now_s = now_s
        seq = messages.seq_in(message)
        if seq is not None and seq <= self._controls.accepted_seq:
            raise StaleSeqError(f"got {seq} after {self._controls.accepted_seq}", field="seq", fix="count up")
        at_sample = self._at_sample(message)
        if at_sample is not None or isinstance(message, messages.SetClock):
            self._check_room("at" if at_sample is not None else "type")
        match message:
            case messages.Ack():
                self._ack(message)
            case messages.SetControls():
                self._generations.check_bars(message.values, "values.loop_bars")
                self._controls.set(message, at_sample)
                self._words_seq = message.seq
            case messages.SetPrompts() | messages.SetSource() | messages.SetTimbre() | messages.SetStructure():
                self._change(message, latents, at_sample)
            case messages.SetAdapter():
                self._controls.set_adapter(message)
            case WriteAudio():
                self._write(message, latents)
            case messages.SetBand():
                self._navigation.set_band(message.start_s, message.end_s, at_sample)
                self._controls.accept(message.seq)
            case messages.MuteLayers():
                self.model.check_layers(message.layers, "layers")
                self._timeline.mute(max(at_sample or 0, self._playhead.reach), set(message.layers))
                self._controls.accept(message.seq)
            case messages.SetClock():
                at_sample = self._follow(message)
            case messages.Seek():
                self._navigation.seek(message.to_s, at_sample)
                if message.seq is not None:
                    self._controls.accept(message.seq)
            case messages.Reset():
                self._stop(self._generations.reset())
                self._controls.accept(message.seq)
            case messages.Play():
                self._playhead.play()
            case messages.Pause():
                self._playhead.pause()
            case messages.GetCanvas():
                self._is_picture_wanted = True
            case SetPlan():
                self._generations.edit_plan(message)
                self._controls.accept(message.seq)
            case GetPlan():
                if self.plan is None:
                    raise RequestError("the session has no plan", field="type")
                self._sent_plan = None
            case messages.PlayNotes():
                self._generations.play_notes(message)
                self._controls.accept(message.seq)
            case messages.Close():
                self._outbox.append(End())
            case Open():
                raise RequestError("the session is open already", field="type")
        if at_sample is not None and seq is not None:
            self._send(Applied(seq=seq, at_sample=at_sample))
        if not isinstance(message, messages.Ack | messages.GetCanvas | GetPlan):
            self._commits.is_changed = True
        if isinstance(message, messages.Play | messages.Pause | messages.Seek | messages.SetBand):
            self._stated_s = -math.inf

    @property
    def _possible_sample(self) -> int:
        """What is to begin there can still be made."""
        return self._playhead.reach + self._samples(self._generations.lead_time_s)

    def _check_room(self, field: str) -> None:
        """Whether one more change may wait for its sample. Raises RequestError."""
        waiting = self.num_waiting + self._timeline.num_behind(self._playhead.reach)
        if waiting >= MAX_WAITING:
            raise RequestError(f"{MAX_WAITING} changes wait already", field=field, fix="wait until they have begun")

    def _at_sample(self, message: ClientMessage) -> int | None:
        """The sample that a message is to begin at; None: at once. Raises RequestError where it names a bar in vain."""
        at: messages.InBars | str | float | None = getattr(message, "at", None)
        if isinstance(message, messages.PlayNotes):  # Its `at` says when they were played.
            return None
        if isinstance(at, int | float):
            sample = round(at * self.model.sample_rate_hz)
            return sample if sample >= self._playhead.wanted_until else None
        if at is None:
            return None
        number = at.bars if isinstance(at, messages.InBars) else 1
        return next_line(self._lines, self._possible_sample, number, field="at").sample

    def _follow(self, message: messages.SetClock) -> int | None:
        """Take the tempo and the beats of a clock from a bar on; returns its sample, None where nothing changes.

        Raises RequestError where there is no beat.
        """
        line, sample = following(self._lines, message, self._possible_sample, self.model.sample_rate_hz)
        asked = self._controls.value("bpm") if "bpm" not in self.model.untaken else None
        is_other = abs(message.bpm - (asked or line.bpm)) > TEMPO_TOLERANCE_BPM
        is_moved = self._navigation.put(line.sample, sample, at_least=PHASE_TOLERANCE_S)
        if is_other:
            bpm = self.model.ranges.bpm.nearest(round(message.bpm, 2))
            values = check_controls({"bpm": bpm}, self.model, "clock")
            self._controls.schedule(sample if is_moved else line.sample, values, message.seq)
        else:
            self._controls.accept(message.seq)
        return (sample if is_moved else line.sample) if is_moved or is_other else None

    def _change(self, message: Change, latents: Latents | None, at_sample: int | None = None) -> None:
        """Take prompts or a reference, now or from a sample on. Raises RequestError; then nothing has changed."""
        if isinstance(message, SetPrompts):
            prompt_weights(message.items, self.model, "items")
        else:
            self._generations.references.check(message.type, message.id, latents)
        piece = None if latents is None else Piece(f"waiting/{message.seq}", latents)
        if at_sample is not None:
            self._parts.waiting.add(Waiting(at_sample, message, piece))
            self._controls.schedule(at_sample, CheckedControls({}), message.seq)
            return
        self._begin(Waiting(self._playhead.position, message, piece))

    def _begin(self, item: Waiting) -> None:
        """Carry out a message that was checked."""
        message, latents = item.message, None if item.piece is None else item.piece.latents
        if isinstance(message, SetPrompts):
            weights = prompt_weights(message.items, self.model, "items")
            start_s = self._playhead.reaches_s(item.at_sample)
            self._controls.change_prompts(weights, message.blend, message.seq, message.ramp_ms / 1e3, start_s)
            self._words_seq = message.seq
        else:
            self._set_reference(message.type, message.id, message.strength, latents, message.seq)

    def write_region(self, message: WriteAudio) -> tuple[int, Latents]:
        """What a write overwrites, as it is now: the offset of its first sample in the region, the frames `[n, C]`.

        The caller decodes them, puts the audio in or adds it, encodes, and passes the result to `handle`. Raises
        RequestError.
        """
        start, frames, offset = self._generations.located(self._samples(message.at_s), message.samples)
        canvas = self._timeline.canvas
        size = self._generations.frames if self._parts.mode == "loop" else canvas.end
        return offset, canvas.rows(frame % size for frame in range(start, start + frames))

    def played(self, now_s: float, most_s: float) -> PlayedPart:
        """One pass of what a loop repeats; else what was played last, at most so long, from a bar line where there are.

        Raises RequestError where nothing was played, or not all of it is known.
        """
        position, hop = self.playhead_sample(now_s), self.model.hop_samples
        here, line = self._timeline.at(position), self._lines.at(position)
        if here is None or not here.canvas.parts:
            raise RequestError("nothing was played yet", field="session", fix="play, and ask again")
        writes = (part.piece.name.startswith("write/") for part in here.canvas.parts)
        is_estimated = self._generations.references.source is not None or any(writes)
        tempo = None if line is None else Tempo(line.bpm, line.beats)
        if here.band is not None:
            if here.band[0] < here.canvas.start or here.canvas.end < here.band[1]:
                what = "not all of what repeats is made yet"
                raise RequestError(what, field="session", fix="ask again once it was played")
            return PlayedPart(here.canvas, *here.band, True, tempo, is_estimated)
        start, end = here.canvas.start, min(here.canvas_frame_at(position // hop), here.canvas.end)
        begin = max(start, end - round(most_s * self.model.frame_rate_hz))
        if line is not None and tempo is not None:
            newest, bar = end - (position - line.sample) / hop, tempo.bar_frames(self.model.frame_rate_hz)
            begin = max(begin, round(newest - bar * math.floor((newest - begin) / bar)))
        if begin >= end:
            raise RequestError("nothing was played yet", field="session", fix="play, and ask again")
        return PlayedPart(here.canvas, begin, end, False, tempo, is_estimated)

    def advance(self, now_s: float, *, may_generate: bool = True, may_draft: bool = True) -> list[Action]:
        """Everything that is to be done now; at most one generation, and none unless `may_generate`.

        may_draft: the tick loop has time for a draft before a complete generation.
        """
        self._clock.now_s = now_s
        actions = [*self._generate(may_generate, may_draft)]
        if self.is_active:
            actions += self._audio.windows()
        actions += self._audio.sendable()
        actions += self._state()
        actions += self._new_words()
        actions += self._plan()
        actions += self._picture()
        actions += self._outbox
        self._outbox = []
        actions += self._commit()
        self._due_s = self._next_due_s()
        return actions

    def due_s(self) -> float | None:
        """When `advance` has to be called if nothing else happens; None: only after another call."""
        return self._due_s

    def generation_finished(
        self, job_id: str, latents: Latents, tick: int, now_s: float, took_s: float | None = None
    ) -> None:
        """A generation's latents `[T, C]`; they belong to the session from now on. Unknown ids are ignored.

        took_s: how long it took, where the session's time is not that of a clock.
        """
        self._clock.now_s = now_s
        self._problem = ""
        self._generations.note()
        if self._generations.finish(job_id, latents, took_s):
            self._audio.tick = tick
            self._commits.is_changed = True

    def words_found(self, seq: int, words: list[server_messages.TextWords]) -> None:
        """Which words are understood, as FindWords has asked."""
        self._words = words
        self._send(Applied(seq=seq, prompt_words=words))

    def plan_made(self, number: int, made: MadeHints | TickError, now_s: float) -> None:
        """What came of a MakeHints; unknown numbers are ignored. Where it failed it is tried again later."""
        self._clock.now_s = now_s
        if not isinstance(made, TickError):
            self._generations.plan_made(number, made)
            self._commits.is_changed = True
        elif self.plan is not None:
            problem = self.plan.failed(number, made, is_attached=self._playhead.is_attached)
            if problem is not None:
                self._report(problem)

    def generation_failed(self, job_id: str, error: TickError, now_s: float) -> None:
        """A generation ended without latents; it is tried again later. Unknown ids are ignored."""
        self._clock.now_s = now_s
        if self._generations.fail(job_id):
            self.step_refused(error)

    def step_refused(self, error: TickError) -> None:
        """The loop did not take an UpdateSteps; the generations go on as they are."""
        self._report(server_messages.problem_of(error))

    def step_applied(self, seq: int, job_ids: Iterable[str], tick: int) -> None:
        """An UpdateSteps has reached these generations."""
        self._generations.step_applied(seq, job_ids)

    def is_current(self, window: DecodeWindow) -> bool:
        """Whether the audio of a window is still to be sent. Any thread."""
        return self._playhead.is_attached and self._audio.is_pending(window)

    def decoded(self, window: DecodeWindow, pcm: Pcm | None) -> None:
        """The PCM `[n, channels]` of a window, trimmed; None where it could not be decoded."""
        self._audio.decoded(window, pcm)

    def snapshot(self, now_s: float) -> SessionSnapshot:
        """Everything that `restore` needs. Its arrays do not change later."""
        self._clock.now_s = now_s
        return self._parts.snapshot(self.model, self._generations, self._audio.epoch)

    @classmethod
    def restore(cls, snapshot: SessionSnapshot, model: LiveModel, now_s: float) -> LiveSession:
        """A session as it was, without connection and without generations in flight.

        One of another model, or of another precision, has its prompts, controls and seed, and a new canvas. Raises
        RequestError where the snapshot is of another format version or does not fit the model, StoreError where it is
        damaged.
        """
        pieces, meta, clock = Pieces(snapshot.pieces), parsed(snapshot.meta), SessionClock(now_s)
        session = cls.__new__(cls)
        if notice := new_canvas_notice(meta, model):
            session._set_up(model, SessionParts.renew(meta, model, clock, notice))
            if meta["generations"]["plan"] is not None and model.plan is not None:
                session._generations.begin_plan(0)
            for item in WaitingMessages.restored(meta["waiting"], pieces.load).take(math.inf):
                if isinstance(item.message, SetPrompts):
                    session._begin(item)
            return session
        check_fits(meta, model)
        session._set_up(model, SessionParts.restore(meta, pieces, model, clock))
        load_generations(session._generations, meta["generations"], pieces, model, clock)
        return session

    def _generate(self, may_generate: bool, may_draft: bool) -> Iterator[Action]:
        """Bring the generations up to what holds now."""
        if self.is_active:
            estimate_s = self._generations.times.estimate_s
            soon = self._playhead.wanted_until + self._samples(2 * estimate_s + SCHEDULE_MARGIN_S)
            if (seq := self._controls.begin_scheduled(soon, self._playhead)) is not None:
                self._words_seq = seq
            for item in self._parts.waiting.take(soon):
                self._begin(item)
            self._generations.note()
        if not self._playhead.is_attached:
            yield from self._generations.stop()
        self._generations.settle()
        if not self.is_active:
            return
        if (work := self._generations.plan_work()) is not None:
            yield work
        for job_id in self._generations.cancelled():
            yield CancelJob(job_id)
        if (update := self._generations.update()) is not None:
            yield update
        if may_generate and self._generations.wanted_s() is not None:
            yield self._generations.start(self._job_prefix, may_draft=may_draft)

    @property
    def _job_prefix(self) -> str:
        """Jobs of a session that was restored in the same process have other ids than those before."""
        return f"{self.id}/{self._audio.epoch}"

    def _state(self) -> Iterator[Action]:
        is_due = self._clock.now_s >= self._stated_s + STATE_INTERVAL_S or self._has_new_beat()
        if not self._playhead.is_attached or not is_due or not (self.is_active or self._stated_s == -math.inf):
            return
        self._stated_s = self._clock.now_s
        estimate_s, parts = self._generations.times.estimate_s, (self.model, self._timeline, self._playhead)
        state = reports.state(*parts, lines=self._lines, generations_in_flight=self.num_jobs, generation_s=estimate_s)
        self._told_beat = state.beat
        yield state

    def _has_new_beat(self) -> bool:
        """Whether the bars go on otherwise than the newest `state` says."""
        plan = self.plan
        version = self._timeline.version, None if plan is None else plan.sections
        if version == self._beat_version:
            return False
        self._beat_version = version
        beat, told = reports.beat(self._lines, self._playhead), self._told_beat
        if beat is None or told is None:
            return beat is not told
        bar = 60.0 * self.model.sample_rate_hz * beat.beats / beat.bpm
        off = (beat.sample - told.sample + bar / 2) % bar - bar / 2
        return (beat.bpm, beat.beats) != (told.bpm, told.beats) or abs(off) > 1.0

    def _plan(self) -> Iterator[Action]:
        """The plan, where the client does not have it."""
        if (plan := self.plan) is not None and plan.is_known and plan.published != self._sent_plan:
            self._sent_plan = plan.published
            yield reports.plan(plan, self._navigation.picture_start, self.model.frame_rate_hz)

    def _picture(self) -> Iterator[Action]:
        """The canvas, once for all that have asked since the last call."""
        if self._is_picture_wanted:
            self._is_picture_wanted = False
            start = self._navigation.picture_start
            yield reports.picture(self.model, self._timeline.canvas, start)

    def _new_words(self) -> Iterator[Action]:
        """Ask for the words of texts that have changed, or their options, once for all changes since the last call."""
        if (seq := self._words_seq) is None:
            return
        self._words_seq, wanted = None, self._find_words(seq)
        if replace(wanted, seq=self._asked_words.seq) != self._asked_words:
            self._asked_words = wanted
            yield wanted

    def _find_words(self, seq: int) -> FindWords:
        options = NO_OPTIONS if self.model.meaning is None else self._controls.text_options()
        return FindWords(seq, reports.texts(self.model, self._controls), options, self.seed)

    def _commit(self) -> Iterator[Action]:
        if self._commits.take():
            yield Commit()

    def _next_due_s(self) -> float | None:
        if not self.is_active:
            return None
        times = [self._audio.due_s, self._generations.due_s()]
        times += [self._stated_s + STATE_INTERVAL_S, self._commits.due_s]
        return min(time for time in times if time is not None)

    def _ack(self, ack: messages.Ack) -> None:
        self._playhead.check_ack(ack)
        self._audio.skip_missing(self._playhead.ack(ack))
        self._due_s = self._clock.now_s if self._audio.is_short else self._next_due_s()

    def _set_reference(
        self, kind: ReferenceKind, source_id: str | None, strength: float | None, latents: Latents | None, seq: int
    ) -> None:
        patch = self._generations.references.take(kind, source_id, strength, latents, seq)
        self._controls.change(patch, seq)

    def _write(self, message: WriteAudio, latents: Latents | None) -> None:
        start, frames, _ = self._generations.located(self._samples(message.at_s), message.samples)
        if latents is None or latents.shape != (frames, self.model.latent_channels):
            raise RequestError("the audio could not be encoded", field="samples")
        piece = Piece(f"write/{message.seq}", latents)
        self._controls.accept(message.seq)
        self._stop(self._generations.write(start, piece, message.seq))

    def _stop(self, job_ids: Iterable[str]) -> None:
        self._outbox += [CancelJob(job_id) for job_id in job_ids]

    def _report(self, problem: server_messages.Problem) -> None:
        """Send a problem; one that answers no message only once where it comes again."""
        if problem.seq is not None or problem.detail != self._problem:
            self._problem = problem.detail
            self._send(problem)

    def _send(self, message: ServerMessage) -> None:
        self._outbox.append(message)

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.model.sample_rate_hz)
