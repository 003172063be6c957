"""A live session's plan as the session knows it: what is there of it, what is to be made next, edits, snapshots.

Its frames begin at 0; the session's canvas has frame 0 at `origin`. It is made in another thread, a step at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from runtime.base.errors import RequestError, TickError
from runtime.config.codec import Latents
from runtime.config.plan_spec import METER
from runtime.live.parts.given_notes import Bar
from runtime.live.playback.bars import BarGrid
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece
from runtime.live.playback.playhead import SessionClock
from runtime.live.protocol.actions import LiveModel, MadeHints, MakeHints, SongBeginning, SongEdit
from runtime.live.protocol.backoff import FIRST_RETRY_S, LONGEST_RETRY_S, backoff_s
from runtime.live.protocol.messages import SetPlan
from runtime.live.protocol.server_messages import Problem, problem_of
from runtime.music.plan_state import SongState
from runtime.music.sections import SectionRequest, SongSection, item_of, sixteenths_of
from runtime.music.tempo import Tempo
from runtime.requests.options import GenerationOptions, parse_options

STEP_S = 2.0
# A generation waits so long for the first part of a plan.
MAX_PLAN_WAIT_S = 10.0
# So long after a change of prompt, tempo or key no more is planned than the next generation needs: another may follow.
SETTLE_S = 5.0
STEPS_NOTED = 8
MAX_EDITS = 16


def basis_of(options: GenerationOptions) -> tuple[Any, ...]:
    """What a plan is made for, of a session's options."""
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    return (sorted(texts), options.bpm, options.key, options.time_signature)


@dataclass(frozen=True)
class _Asked:
    work: MakeHints
    asked_s: float


class SessionPlan:
    """The plan of one session. `end`: the frame that its hints are known up to.

    origin: the canvas frame of its frame 0; None after a reset, until there is something new. sections, header: as far
    as they are made. is_idle: the session plays something else than a plan.
    """

    def __init__(self, model: LiveModel, clock: SessionClock, frames: int) -> None:
        assert model.plan is not None
        self.facts, self.clock = model.plan, clock
        self.origin: int | None = 0
        self.header: Mapping[str, Any] = {}
        self.sections: tuple[SongSection, ...] = ()
        self.seq: int | None = None  # Of the newest edit that was taken.
        self.end = self._first = 0  # Before `_first` nothing is shown.
        self._is_begun = self.is_idle = False
        self._frames, self._frame_rate_hz = frames, model.frame_rate_hz
        size = self.facts.frames_per_code
        self._step = math.ceil(STEP_S * model.frame_rate_hz / size) * size
        self._hints = Canvas()
        self._options, self._seed, self._number = GenerationOptions(prompt=""), 0, 0
        self._state: SongState | None = None
        self._changes: deque[SongEdit] = deque()
        self._asked: _Asked | None = None
        self._changed_s = -math.inf  # when prompt, tempo or key last changed
        self._waiting_since_s: float | None = None
        self._retry_s, self._num_failed = -math.inf, 0
        self._steps_s: deque[float] = deque(maxlen=STEPS_NOTED)

    @property
    def is_known(self) -> bool:
        """Whether there are sections, and where they are played."""
        return bool(self.sections) and self.origin is not None

    @property
    def published(self) -> tuple[Any, ...]:
        """What clients are sent of it."""
        return (self.origin, self.header, self.sections, self.seq, self.is_idle)

    @property
    def has_edits(self) -> bool:
        """Whether an edit was taken that is not made yet."""
        return any(change.options is None for change in self._changes)

    def duration_s(self, frames: int) -> float:
        """How long hints of so many frames take, at most, as far as is known; also what is being made comes first."""
        return (math.ceil(frames / self._step) + 1) * max(self._steps_s, default=0.0)

    @property
    def is_late(self) -> bool:
        """Whether generations have waited long enough for its first part, or it has failed."""
        now_s = self.clock.now_s
        return self.has_failed or now_s > (self._waiting_since_s or now_s) + MAX_PLAN_WAIT_S

    @property
    def has_failed(self) -> bool:
        """Whether nothing has come of the newest work."""
        return self._num_failed > 0

    def hints(self, start: int, frames: int) -> Latents | None:
        """Those of canvas frames from `start` on, at most `[frames, C]`; None where there are none.

        What the plan does not have before them is not generated: it is there already.
        """
        first = 0 if self.origin is None else start - self.origin
        known = range(max(first, self._hints.start), min(first + frames, self.end))
        if not known:
            return None
        return self._hints.rows([known.start] * (known.start - first) + list(known))  # [known.stop - first, C]

    def sections_in(self, start: int, frames: int) -> tuple[SongSection, ...]:
        """Those of canvas frames from `start` on; theirs count from there."""
        first = 0 if self.origin is None else start - self.origin
        return tuple(
            replace(each, start_frame=each.start_frame - first, end_frame=each.end_frame - first)
            for each in self.sections
            if each.start_frame < first + frames and each.end_frame > first
        )

    @property
    def grids(self) -> list[BarGrid]:
        """The bars of its sections, by canvas frames."""
        return [self._grid(each) for each in self._timed]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Those of its sections."""
        found = list[Bar]()
        for section in self._timed:
            grid = self._grid(section)
            lines = [grid.frame_of(section.first_bar + bar) for bar in range(section.bars + 1)]
            # A plan that was stored without its sections' meters has one.
            sixteenths = section.sixteenths or sixteenths_of(self.header.get(METER, "4/4"))
            found += [Bar(*line, sixteenths) for line in pairwise(lines)]
        return tuple(found)

    @property
    def _timed(self) -> list[SongSection]:
        """The sections whose tempo is known."""
        return [each for each in self.sections if each.bpm and each.beats]

    def _grid(self, section: SongSection) -> BarGrid:
        tempo, start = Tempo(section.bpm, section.beats), (self.origin or 0) + section.start_frame
        return BarGrid(start + section.offset, tempo, tempo.bar_frames(self._frame_rate_hz), section.first_bar)

    def has_hints(self, canvas_end: int) -> bool:
        """Whether they are known up to a canvas frame; frames are the plan's after a reset."""
        return self.end >= canvas_end - (self.origin or 0)

    # What is to be made.

    def restart(self, options: GenerationOptions, seed: int, origin: int | None) -> None:
        """A new plan takes its place."""
        self.origin, self.header, self.sections, self.end, self._first = origin, {}, (), 0, 0
        self._hints, self._state, self._asked = Canvas(), None, None
        self._options, self._seed, self._is_begun, self.is_idle = options, seed, False, False
        self._changes.clear()
        self._waiting_since_s, self._retry_s, self._num_failed = None, -math.inf, 0

    def stop(self) -> bool:
        """Forget what is being made; it is asked for again. Returns whether something was."""
        was_asked, self._asked, self._waiting_since_s = self._asked is not None, None, None
        self._is_begun &= not was_asked
        return was_asked

    def move(self, canvas_frame: int) -> None:
        """Begin at a canvas frame, where nothing is made yet and that is known."""
        if not self._can_go_on and self._asked is None and self.origin is not None:
            self.origin = canvas_frame

    def follow(self, options: GenerationOptions, canvas_frame: int) -> None:
        """Plan anew from a canvas frame on where prompt, tempo or key are others than the plan's."""
        if basis_of(options) == basis_of(self._options) or self._asked is not None:
            return
        if not self._can_go_on or self.origin is None:
            self.restart(options, self._seed, self.origin)
        else:
            self._options, self._changed_s = options, self.clock.now_s
            if self._changes and self._changes[-1].options is not None:  # Nothing was made of it.
                self._changes.pop()
            frame = max(0, canvas_frame - self.origin)
            if not self._is_bar(frame):
                frame = self._code_frame(frame, up=True)
            self._changes.append(SongEdit(frame, options=options))

    def work(self, first: int, known: int) -> MakeHints | None:
        """What to make now; None where enough is there, or something is being made.

        first, known: canvas frames; before `first` nothing is shown, up to `known` all is generated.
        """
        origin = self.origin or 0
        if self.origin is not None:
            self._first = first - origin
            self._forget()
        if self._asked is not None or self.clock.now_s < self._retry_s:
            return None
        change = self._changes[0] if self._changes else None
        if self._is_begun and change is None and self.end >= self._wanted(known - origin):
            return None
        start = self.end if change is None else min(self.end, self._code_frame(change.from_frame))
        begin = None if self._is_begun else SongBeginning(self._options, self._seed, self._state)
        self._number += 1
        self._asked = _Asked(MakeHints(self._number, begin, change, start, self._step), self.clock.now_s)
        self._waiting_since_s = self._asked.asked_s if self._waiting_since_s is None else self._waiting_since_s
        return self._asked.work

    def made(self, number: int, part: MadeHints) -> int | None:
        """Take what was made; the canvas frame that it differs from, where that was known. Others are ignored."""
        asked = self._take(number)
        if asked is None:
            return None
        self._num_failed, self._retry_s, self._is_begun = 0, -math.inf, True
        self._steps_s.append(self.clock.now_s - asked.asked_s)
        change, start = asked.work.change, asked.work.start_frame
        changed = None
        if change is not None:
            self._changes.popleft()
            changed = self._code_frame(change.from_frame)
            self._cut(changed)
        self._add(start, part.hints, number)
        self._state = part.state
        self._note_sections(part)
        return None if changed is None else changed + (self.origin or 0)

    def failed(self, number: int, error: TickError, *, is_attached: bool) -> Problem | None:
        """Nothing came of it; what to report, None where that is of no interest. A change that is refused is given up.

        is_attached: there is a client to report it to; without one a change that is refused is tried again.
        """
        asked = self._take(number)
        if asked is None:
            return None
        self._is_begun = False
        if isinstance(error, RequestError) and asked.work.change is not None and is_attached:
            return problem_of(error, self._changes.popleft().seq)
        self._retry_s = self.clock.now_s + backoff_s(self._num_failed, FIRST_RETRY_S, LONGEST_RETRY_S)
        self._num_failed += 1
        return problem_of(error)

    def _is_bar(self, frame: int) -> bool:
        """Whether a bar of its sections begins nearest to a frame."""
        grids = self.grids
        first = frame + (self.origin or 0)
        before = [grid for grid in grids if grid.first_frame < first + 0.5]
        if not before:
            return False
        grid = before[-1]
        return abs(grid.frame_of(round((first - grid.first_frame) / grid.bar_frames) + grid.first_bar) - first) <= 0.5

    @property
    def _can_go_on(self) -> bool:
        """Whether something of it is made, by a plan that is open or by one whose state there is."""
        return self._is_begun or self._state is not None

    # Edits.

    def edit(self, message: SetPlan, earliest: int, frame_rate_hz: float) -> None:
        """Take an edit from canvas frame `earliest` on. Raises RequestError; then nothing has changed."""
        if self.origin is None or not self.sections or self.is_idle:
            raise RequestError("there is no plan yet", field="type", fix="wait for the message plan")
        if len(self._changes) >= MAX_EDITS:
            raise RequestError(f"{MAX_EDITS} edits are not made yet", field="type", fix="wait for the message plan")
        frame = round(message.start_s * frame_rate_hz) - self.origin
        if frame > self._kept_end:
            raise RequestError(
                f"what is at {message.start_s:g} s is planned anew, for another prompt, tempo or key",
                field="start_s",
                fix="wait for the message plan",
            )
        starts = self._starts() if message.sections is not None else self._code_starts(len(message.codes or ()))
        known = (start for start in starts if start <= self._kept_end)
        allowed = [start for start in known if self._code_frame(start) + self.origin >= earliest]
        if frame not in allowed:
            at = " or ".join(f"{(start + self.origin) / frame_rate_hz:.2f} s" for start in allowed[:1])
            name = "a section" if message.sections is not None else "a code"
            raise RequestError(
                f"{message.start_s:g} is not the start of {name} that can still be changed",
                field="start_s",
                fix=f"the earliest is {at}" if at else "wait for the next section",
            )
        sections = None if message.sections is None else self._requests(message)
        codes = None if message.codes is None else self._checked(message.codes)
        if sections is not None and codes is not None and self._code_frame(frame) > self.end:
            raise RequestError("the codes before them are not made yet", field="codes", fix="wait for the message plan")
        if self._waiting_edit() == frame and codes is None:  # With codes it may yet be refused.
            self._changes.pop()
        self._changes.append(SongEdit(frame, sections, codes, seq=message.seq))
        self.seq = message.seq
        self._cut(self._code_frame(frame))
        self.sections = tuple(section for section in self.sections if section.start_frame < frame)

    @property
    def _kept_end(self) -> float:
        """Sections that begin up to this frame stay; those behind it are not known before they are planned anew."""
        return min((change.from_frame for change in self._changes if change.options is not None), default=math.inf)

    def _starts(self) -> list[int]:
        """The frames that sections begin at, also those of edits that are not made yet and that none came before."""
        edits = [change.from_frame for change in self._changes if change.sections is not None]
        begun = [frame for place, frame in enumerate(edits) if frame == min(edits[place:])]
        return [*(section.start_frame for section in self.sections), *begun]

    def _code_starts(self, count: int) -> range:
        """The frames where `count` codes can begin: those before are made, and they end with a section."""
        size, end = self.facts.frames_per_code, min(self.sections[-1].end_frame, self._kept_end)
        last = self._code_frame(int(end))
        first = self._code_frame(self.sections[0].start_frame, up=True)
        return range(first, min(self.end, last - count * size) + 1, size)

    def _waiting_edit(self) -> int | None:
        """The frame of the newest edit of sections, where nothing was made of it yet."""
        newest = self._changes[-1] if self._changes else None
        is_asked = self._asked is not None and self._asked.work.change is newest
        return None if newest is None or newest.sections is None or is_asked else newest.from_frame

    def _requests(self, message: SetPlan) -> tuple[SectionRequest, ...]:
        made = [SectionRequest(each.kind, tuple(each.layers), each.bars) for each in message.sections or ()]
        for request in made:
            item_of(self.facts.spec, request)
        return tuple(made)

    def _checked(self, codes: Sequence[int]) -> tuple[int, ...]:
        for index, code in enumerate(codes):
            if code >= self.facts.num_codes:
                raise RequestError(f"expected at most {self.facts.num_codes - 1}", field=f"codes.{index}")
        return tuple(codes)

    # What is known.

    def _wanted(self, known: int) -> int:
        """Plan two generations and a whole section further than is generated; one generation right after a change."""
        if self.clock.now_s < self._changed_s + SETTLE_S:
            return known + self._frames
        following = (section.end_frame for section in self.sections if section.start_frame > known)
        return max(known + 2 * self._frames, next(following, 0))

    def _add(self, start: int, hints: Latents, number: int) -> None:
        """Hints of frames from `start` on, where they continue what is known; up to the first edit."""
        limits = [self._code_frame(change.from_frame) for change in self._changes if change.options is None]
        end = min([start + len(hints), *limits])
        if start <= self.end < end:
            part = CanvasPart(Piece(f"plan/{number}", hints), self.end - start, self.end, end, 0, 0)
            self._hints = Canvas((*self._hints.parts, part))
            self.end = end

    def _cut(self, frame: int) -> None:
        if frame < self.end:
            self._hints = self._hints.cut(self._hints.start, frame)
            self.end = frame

    def _forget(self) -> None:
        if self._hints.parts and self._hints.parts[0].end <= self._first:
            self._hints = Canvas(tuple(part for part in self._hints.parts if part.end > self._first))
            self.sections = tuple(section for section in self.sections if section.end_frame > self._first)

    def _note_sections(self, part: MadeHints) -> None:
        """The newest ones, after those that the plan does not have any more."""
        first = min((section.index for section in part.sections), default=0)
        older = (section for section in self.sections if section.index < first)
        edits = [change.from_frame for change in self._changes if change.options is None]
        newest = (section for section in part.sections if all(section.start_frame < frame for frame in edits))
        shown = (section for section in (*older, *newest) if section.end_frame > self._first)
        self.header, self.sections = part.header, tuple(shown)

    def _code_frame(self, frame: int, *, up: bool = False) -> int:
        """Where the code of a frame begins, or the first one from it on."""
        size = self.facts.frames_per_code
        return -(-frame // size) * size if up else frame // size * size

    def _take(self, number: int) -> _Asked | None:
        asked = self._asked
        if asked is None or asked.work.number != number:
            return None
        self._asked = None
        return asked

    # Snapshots.

    def store(self) -> tuple[dict[str, Any], Iterable[CanvasPart]]:
        """JSON values that `restored` takes, and the parts that hold its hints."""
        state = None if self._state is None else [self._state.values, self._state.codes.tolist()]
        values = {
            "origin": self.origin,
            "header": dict(self.header),
            "sections": [asdict(section) for section in self.sections],
            "options": self._options.model_dump(mode="json", exclude_unset=True),
            "seed": self._seed,
            "number": self._number,
            "state": state,
            "end": self.end,
            "is_idle": self.is_idle,
            "changes": [change.stored() for change in self._changes],
        }
        return values, self._hints.parts

    @classmethod
    def restored(
        cls, model: LiveModel, clock: SessionClock, frames: int, stored: Mapping[str, Any], parts: Iterable[CanvasPart]
    ) -> SessionPlan:
        """The plan of a snapshot; it is opened again with the next work."""
        plan = cls(model, clock, frames)
        for options in [stored["options"], *(change["options"] for change in stored["changes"])]:
            model.ranges.check(options or {}, "plan.")
        plan.restart(parse_options(stored["options"]), stored["seed"], stored["origin"])
        plan.header, plan.end, plan._number = stored["header"], stored["end"], stored["number"]
        plan.sections = tuple(_section(values) for values in stored["sections"])
        plan.is_idle = stored["is_idle"]
        if stored["state"] is not None:
            plan._state = SongState(stored["state"][0], np.array(stored["state"][1], np.int64))
            plan.facts.check_state(plan._state)
        plan._changes.extend(SongEdit.loaded(values) for values in stored["changes"])
        plan._hints = Canvas(tuple(parts))
        return plan


def _section(values: Mapping[str, Any]) -> SongSection:
    codes, others = values["codes"], tuple(values["others"])
    return SongSection(
        **{**values, "layers": tuple(values["layers"]), "codes": codes and tuple(codes), "others": others}
    )
