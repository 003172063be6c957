"""What is to be made of the song that a session plays by: its beginning, what follows, changes and edits.

It is made in another thread, a step at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.base.errors import RequestError, TickError
from runtime.config.codec import Latents
from runtime.live.parts.outline import SongOutline
from runtime.live.parts.pieces import Pieces
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece
from runtime.live.playback.playhead import SessionClock
from runtime.live.protocol.actions import LiveModel, MadeHints, MakeHints, SongBeginning, SongEdit, SongFacts
from runtime.live.protocol.backoff import FIRST_RETRY_S, LONGEST_RETRY_S, backoff_s
from runtime.live.protocol.messages import SetPlan
from runtime.live.protocol.server_messages import Problem, problem_of
from runtime.live.storage.document import StoredChange, StoredPlan, StoredPlanValues, StoredSection, damaged
from runtime.music.sections import SectionRequest, SongSection, SongState, item_of
from runtime.requests.options import GenerationOptions, parse_options

STEP_S = 2.0
# A generation waits so long for the first part of a song.
MAX_WAIT_S = 10.0
# So long after a change of prompt, tempo or key no more is planned than the next generation needs: another may follow.
SETTLE_S = 5.0
STEPS_NOTED = 8
MAX_EDITS = 16


def basis_of(options: GenerationOptions) -> tuple[Any, ...]:
    """What a song is made for, of a session's options."""
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    return (sorted(texts), options.bpm, options.key, options.time_signature)


class SongMaker:
    """Asks for the parts of one song, and takes them into its outline. frames: those of a generation."""

    def __init__(self, model: LiveModel, clock: SessionClock, frames: int) -> None:
        assert model.plan is not None
        self.facts, self.clock = model.plan, clock
        self.outline = SongOutline(model.plan, model.frame_rate_hz)
        self._model, self._frames = model, frames
        size = self.facts.frames_per_code
        self._step = math.ceil(STEP_S * model.frame_rate_hz / size) * size
        self._number = 0
        self._changed_s = -math.inf  # when prompt, tempo or key last changed
        self._steps_s: deque[float] = deque(maxlen=STEPS_NOTED)
        self._changes: deque[SongEdit] = deque()
        self.restart(GenerationOptions(prompt=""), 0, 0)

    def restart(self, options: GenerationOptions, seed: int, origin: int | None) -> None:
        """A new song takes its place."""
        self.outline.restart(origin)
        self._options, self._seed, self._is_begun = options, seed, False
        self._state: SongState | None = None
        self._changes.clear()
        self._asked: MakeHints | None = None
        self._asked_s = 0.0
        self._waiting_since_s: float | None = None
        self._retry_s, self._num_failed = -math.inf, 0

    @property
    def has_edits(self) -> bool:
        """Whether an edit was taken that is not made yet."""
        return any(change.options is None for change in self._changes)

    def duration_s(self) -> float:
        """How long a generation's hints take, at most, as far as is known; also what is being made comes first."""
        return (math.ceil(self._frames / self._step) + 1) * max(self._steps_s, default=0.0)

    @property
    def is_late(self) -> bool:
        """Whether generations have waited long enough for its first part, or it has failed."""
        now_s = self.clock.now_s
        return self.has_failed or now_s > (self._waiting_since_s or now_s) + MAX_WAIT_S

    @property
    def has_failed(self) -> bool:
        """Whether the newest work has failed."""
        return self._num_failed > 0

    def stop(self) -> bool:
        """Forget what is being made; it is asked for again. Returns whether something was."""
        was_asked, self._asked, self._waiting_since_s = self._asked is not None, None, None
        self._is_begun &= not was_asked
        return was_asked

    def move(self, canvas_frame: int) -> None:
        """Begin at a canvas frame, where nothing is made yet and that is known."""
        if not self._can_go_on and self._asked is None and self.outline.origin is not None:
            self.outline.origin = canvas_frame

    def is_for(self, options: GenerationOptions) -> bool:
        """Whether it is planned for these options, or will be."""
        return basis_of(options) == basis_of(self._options)

    def follow(self, options: GenerationOptions, canvas_frame: int) -> None:
        """Plan anew from a canvas frame on where prompt, tempo or key are others than the song's."""
        if self.is_for(options) or self._asked is not None:
            return
        if not self._can_go_on or self.outline.origin is None:
            self.restart(options, self._seed, self.outline.origin)
            return
        self._options, self._changed_s = options, self.clock.now_s
        if self._changes and self._changes[-1].options is not None:  # Nothing was made of it.
            self._changes.pop()
        frame = max(0, canvas_frame - self.outline.origin)
        if not self.outline.is_bar(frame):
            frame = self.outline.code_frame(frame, up=True)
        self._changes.append(SongEdit(frame, options=options))

    def work(self, first: int, known: int) -> MakeHints | None:
        """What to make now; None where enough is there, or something is being made.

        first, known: canvas frames; before `first` nothing is shown, up to `known` all is generated.
        """
        song, now_s = self.outline, self.clock.now_s
        if song.origin is not None:
            song.forget(first - song.origin)
        if self._asked is not None or now_s < self._retry_s:
            return None
        change = self._changes[0] if self._changes else None
        if self._is_begun and change is None and song.end >= self._wanted(known - (song.origin or 0)):
            return None
        start = song.end if change is None else min(song.end, song.code_frame(change.from_frame))
        begin = None if self._is_begun else SongBeginning(self._options, self._seed, self._state)
        self._number += 1
        self._asked, self._asked_s = MakeHints(self._number, begin, change, start, self._step), now_s
        self._waiting_since_s = now_s if self._waiting_since_s is None else self._waiting_since_s
        return self._asked

    def made(self, number: int, part: MadeHints) -> int | None:
        """Take what was made; the canvas frame that it differs from, where that was known. Others are ignored."""
        work = self._take(number)
        if work is None:
            return None
        self._num_failed, self._retry_s, self._is_begun = 0, -math.inf, True
        self._steps_s.append(self.clock.now_s - self._asked_s)
        changed = None
        if work.change is not None:
            self._changes.popleft()
            changed = self.outline.code_frame(work.change.from_frame)
            self.outline.cut(changed)
        self._add(work.start_frame, part.hints, number)
        self._state = part.state
        self._note_sections(part)
        return None if changed is None else changed + (self.outline.origin or 0)

    def failed(self, number: int, error: TickError, *, is_attached: bool) -> Problem | None:
        """Nothing was made; what to report, None where that is of no interest. A change that is refused is given up.

        is_attached: there is a client to report it to; without one a change that is refused is tried again.
        """
        work = self._take(number)
        if work is None:
            return None
        self._is_begun = False
        if isinstance(error, RequestError) and work.change is not None and is_attached:
            return problem_of(error, self._changes.popleft().seq)
        self._retry_s = self.clock.now_s + backoff_s(self._num_failed, FIRST_RETRY_S, LONGEST_RETRY_S)
        self._num_failed += 1
        return problem_of(error)

    def edit(self, message: SetPlan, earliest: int) -> None:
        """Take an edit from canvas frame `earliest` on. Raises RequestError; then nothing has changed."""
        song, rate_hz = self.outline, self._model.frame_rate_hz
        if song.origin is None or not song.sections or song.is_idle:
            raise RequestError("there is no plan yet", field="type", fix="wait for the message plan")
        if len(self._changes) >= MAX_EDITS:
            raise RequestError(f"{MAX_EDITS} edits are not made yet", field="type", fix="wait for the message plan")
        frame = round(message.start_s * rate_hz) - song.origin
        if frame > self._kept_end:
            raise RequestError(
                f"what is at {message.start_s:g} s is planned anew, for another prompt, tempo or key",
                field="start_s",
                fix="wait for the message plan",
            )
        starts = self._starts() if message.sections is not None else self._code_starts(len(message.codes or ()))
        known = (start for start in starts if start <= self._kept_end)
        allowed = [start for start in known if song.code_frame(start) + song.origin >= earliest]
        if frame not in allowed:
            at = " or ".join(f"{(start + song.origin) / rate_hz:.2f} s" for start in allowed[:1])
            name = "a section" if message.sections is not None else "a code"
            raise RequestError(
                f"{message.start_s:g} is not the start of {name} that can still be changed",
                field="start_s",
                fix=f"the earliest is {at}" if at else "wait for the next section",
            )
        sections = None if message.sections is None else requests_of(message, self.facts)
        codes = None if message.codes is None else checked_codes(message.codes, self.facts)
        if sections is not None and codes is not None and song.code_frame(frame) > song.end:
            raise RequestError("the codes before them are not made yet", field="codes", fix="wait for the message plan")
        if self._waiting_edit() == frame and codes is None:  # With codes it may yet be refused.
            self._changes.pop()
        self._changes.append(SongEdit(frame, sections, codes, seq=message.seq))
        song.seq = message.seq
        song.cut(song.code_frame(frame))
        song.sections = tuple(section for section in song.sections if section.start_frame < frame)

    @property
    def _can_go_on(self) -> bool:
        """Whether something of it is made, by a song that is open or by one whose state there is."""
        return self._is_begun or self._state is not None

    @property
    def _kept_end(self) -> float:
        """Sections that begin up to this frame stay; those behind it are not known before they are planned anew."""
        return min((change.from_frame for change in self._changes if change.options is not None), default=math.inf)

    def _starts(self) -> list[int]:
        """The frames that sections begin at, also those of edits that are not made yet and that none came before."""
        edits = [change.from_frame for change in self._changes if change.sections is not None]
        begun = [frame for place, frame in enumerate(edits) if frame == min(edits[place:])]
        return [*(section.start_frame for section in self.outline.sections), *begun]

    def _code_starts(self, count: int) -> range:
        """The frames where `count` codes can begin: those before are made, and they end with a section."""
        song, size = self.outline, self.facts.frames_per_code
        last = song.code_frame(int(min(song.sections[-1].end_frame, self._kept_end)))
        first = song.code_frame(song.sections[0].start_frame, up=True)
        return range(first, min(song.end, last - count * size) + 1, size)

    def _waiting_edit(self) -> int | None:
        """The frame of the newest edit of sections, where nothing was made of it yet."""
        newest = self._changes[-1] if self._changes else None
        is_asked = self._asked is not None and self._asked.change is newest
        return None if newest is None or newest.sections is None or is_asked else newest.from_frame

    def _wanted(self, known: int) -> int:
        """Plan two generations and a whole section further than is generated; one generation right after a change."""
        if self.clock.now_s < self._changed_s + SETTLE_S:
            return known + self._frames
        following = (section.end_frame for section in self.outline.sections if section.start_frame > known)
        return max(known + 2 * self._frames, next(following, 0))

    def _add(self, start: int, hints: Latents, number: int) -> None:
        """Hints of frames from `start` on, where they continue what is known; up to the first edit."""
        song = self.outline
        limits = [song.code_frame(change.from_frame) for change in self._changes if change.options is None]
        end = min([start + len(hints), *limits])
        if start <= song.end < end:
            song.add(CanvasPart(Piece(f"plan/{number}", hints), song.end - start, song.end, end, 0, 0))

    def _note_sections(self, part: MadeHints) -> None:
        """The newest ones, after those that the song does not have any more."""
        first = min((section.index for section in part.sections), default=0)
        older = [section for section in self.outline.sections if section.index < first]
        edits = [change.from_frame for change in self._changes if change.options is None]
        newest = [section for section in part.sections if all(section.start_frame < frame for frame in edits)]
        self.outline.header = part.header
        self.outline.show([*older, *newest])

    def _take(self, number: int) -> MakeHints | None:
        asked = self._asked
        if asked is None or asked.number != number:
            return None
        self._asked = None
        return asked

    def stored(self, pieces: Pieces) -> StoredPlan:
        """What `restore` takes."""
        song = self.outline
        values = StoredPlanValues(
            origin=song.origin,
            header=dict(song.header),
            sections=[StoredSection(**vars(section)) for section in song.sections],
            options=plain_options(self._options),
            seed=self._seed,
            number=self._number,
            state=None if self._state is None else (self._state.values, self._state.codes.tolist()),
            end=song.end,
            is_idle=song.is_idle,
            changes=[
                StoredChange(**{**vars(change), "options": change.options and plain_options(change.options)})
                for change in self._changes
            ],
        )
        return StoredPlan(values=values, hints=pieces.store_parts(song.known_hints.parts))

    def restore(self, stored: StoredPlan, pieces: Pieces) -> None:
        """Go on with a song; it is opened again with the next work. Raises RequestError and StoreError."""
        values, song, hints = stored.values, self.outline, pieces.load_parts(stored.hints)
        if hints and hints[-1].end != values.end:
            raise damaged("generations.plan.values.end is not that of its hints")
        for given in [values.options, *(change.options for change in values.changes)]:
            self._model.ranges.check(given or {}, "plan.")
        self.restart(parse_options(values.options), values.seed, values.origin)
        song.header, song.end, self._number = values.header, values.end, values.number
        song.sections = tuple(SongSection(**vars(section)) for section in values.sections)
        song.is_idle, song.known_hints = values.is_idle, Canvas(hints)
        if values.state is not None:
            self._state = SongState(values.state[0], np.array(values.state[1], np.int64))
            self.facts.check_state(self._state)
        for change in values.changes:
            options = None if change.options is None else parse_options(change.options)
            codes = None if change.codes is None else tuple(change.codes)
            sections = change.sections
            requests = None if sections is None else tuple(SectionRequest(*section) for section in sections)
            self._changes.append(SongEdit(change.from_frame, requests, codes, options, change.seq))


def requests_of(message: SetPlan, facts: SongFacts) -> tuple[SectionRequest, ...]:
    """The sections that a message asks for. Raises RequestError for those that no song can have."""
    made = [SectionRequest(each.kind, tuple(each.layers), each.bars) for each in message.sections or ()]
    for request in made:
        item_of(facts.spec, request)
    return tuple(made)


def checked_codes(codes: Sequence[int], facts: SongFacts) -> tuple[int, ...]:
    """Codes that a model has. Raises RequestError."""
    for index, code in enumerate(codes):
        if code >= facts.num_codes:
            raise RequestError(f"expected at most {facts.num_codes - 1}", field=f"codes.{index}")
    return tuple(codes)


def plain_options(options: GenerationOptions) -> dict[str, Any]:
    """Options as JSON values that `parse_options` takes."""
    return options.model_dump(mode="json", exclude_unset=True)
