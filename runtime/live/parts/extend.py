"""Generations of music without an end: each continues what is known, or what comes after the playhead anew.

With a plan, a generation starts once the plan's hints of its frames are there; one with a change of the client does not
wait for them: what it makes without hints is made again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.base import Generations, Running
from runtime.live.parts.given_notes import CLOSE_MARGIN_S, CLOSE_S, Bar, GivenNotes, bar_at, echoed
from runtime.live.parts.plan import SessionPlan, basis_of
from runtime.live.playback.bars import BarGrid
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, PlacedSource
from runtime.live.playback.playhead import REACH_S
from runtime.live.protocol.actions import CancelJob, MadeHints, MakeHints, StopHints
from runtime.live.protocol.messages import PlayNotes, SetPlan
from runtime.music.envelopes import HEARD_FRAMES, Breath, Marks
from runtime.music.first_bars import MOST_BARS, FirstBars
from runtime.music.tempo import tempo_of
from runtime.requests.options import GenerationOptions
from runtime.requests.seeds import segment_seed
from runtime.requests.segments import Segment

HISTORY_S = 600.0


class _Begun(NamedTuple):
    """What the music is for by now, the canvas frame that it began at, and how many generations were placed then."""

    basis: tuple[Any, ...]
    start_frame: int
    num_placed: int


class ExtendGenerations(Generations):
    """One generation in flight: an append where little is left to play, or a refresh after a change.

    `played_frame`: canvas frames before it have been played and never change. `context_frame`: where what generations
    continue begins; None after a reset, until there is something new.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.played_frame = 0
        self.context_frame: int | None = 0
        self._noted_frame = self._playhead.sent_until // self._model.hop_samples
        self._stale_frame: int | None = None  # From here on what is known has other hints than the plan.
        self._bare_frame: int | None = None  # From here on what is known was made without hints.
        self._is_played = False  # Notes that the client plays are not in a generation yet.
        self._begun: _Begun | None = None
        self._final_options: tuple[int, GenerationOptions] | None = None  # with the seq that they have

    def note(self) -> None:
        """Note which canvas frames the playhead has reached, and forget those of long ago."""
        frame = self._playhead.position // self._model.hop_samples
        first = max(self._noted_frame, frame - self.frames)
        self.played_frame = max(self.played_frame, self._end_of(first, frame + 1))
        self._noted_frame = frame
        if (notes := self.references.notes) is not None:
            self._renew_played(notes.close(self._exact_position() + self._close_frames()))
            notes.forget(self._position() - self.frames)
        self._timeline.forget(0, self._position() - round(HISTORY_S * self._model.frame_rate_hz))

    @property
    def is_ending(self) -> bool:
        """Whether what is known ends soon, and something plays."""
        return self._timeline.newest is not None and not self.running and self._is_short()

    def cancelled(self) -> list[str]:
        """An append is not worth finishing where a refresh is needed."""
        stopped = [item for item in self.running if item.is_append and self._is_dirty()]
        for item in stopped:
            self.running.remove(item)
        return [item.job.id for item in stopped]

    def stop(self) -> list[CancelJob | StopHints]:
        """Forget what is in flight, also of the plan."""
        plan = self.references.plan
        return [*super().stop(), *([StopHints()] if plan is not None and plan.stop() else [])]

    def reset(self) -> list[str]:
        """What is generated next is played from its beginning, as soon as it is there."""
        stopped = [running.job.id for running in self.running]
        self.running.clear()
        self._latest = self.context_frame = self._stale_frame = self._bare_frame = None
        self._is_played = False
        self._begun = self.references.first_bars = None
        if self.references.notes is not None:
            self.references.notes.clear()
        if self.references.plan is not None:
            self.begin_plan(None)
        return stopped

    def begin_plan(self, origin: int | None) -> None:
        """Begin a plan, in place of one that there is. origin: the canvas frame of its beginning."""
        self.references.plan = self.references.plan or SessionPlan(self._model, self._clock, self.frames)
        seed = segment_seed(int(self._controls.defaults["seed"]), self.num_started)
        self.references.plan.restart(self._plan_options(), seed, origin)

    def settle(self) -> None:
        """An edit of the plan is complete once it is made, or of no effect any more; a note, once its bar is closed."""
        plan, notes = self.references.plan, self.references.notes
        if (plan is None or plan.is_idle or not plan.has_edits) and not (notes is not None and notes.is_waiting):
            super().settle()

    def due_s(self) -> float | None:
        """Also when a bar closes."""
        times, notes = [super().due_s()], self.references.notes
        if notes is not None and (frame := notes.next_bar_frame) is not None:
            frames = max(0.0, frame - self._close_frames() - self._exact_position())
            # One frame's rounding later it is closed for certain.
            times.append(self._clock.now_s + (frames + 1) / self._model.frame_rate_hz)
        return min((time for time in times if time is not None), default=None)

    def plan_work(self) -> MakeHints | None:
        """The plan is made anew where prompt, tempo or key have changed, and goes on ahead of what is generated."""
        plan = self.references.plan
        if plan is None or not self.references.is_planned:
            if plan is not None:
                plan.is_idle = True
            return None
        cut = self._cut()
        if plan.is_idle:
            self.begin_plan(cut)
        plan.move(cut)
        plan.follow(self._plan_options(), cut)
        first = self._position() - self.frames
        return plan.work(first, self._timeline.canvas.end if plan.origin is not None else 0)

    def plan_made(self, number: int, part: MadeHints) -> None:
        """Where what is known was made with other hints, or without, it is made again."""
        plan = self.references.plan
        changed = [None if plan is None else plan.made(number, part)]
        if plan is None or plan.origin is None:
            return
        if self._bare_frame is not None and plan.has_hints(self._bare_frame + 1):
            changed.append(self._bare_frame)
            self._bare_frame = None
        self._renew(*changed)

    def _renew(self, *frames: int | None) -> None:
        """What is known from these canvas frames on is made again; None: from none."""
        ends = [running.job.segment.start_frame + running.job.segment.frames for running in self.running]
        known = max([self._timeline.canvas.end, *ends])
        stale = [frame for frame in (*frames, self._stale_frame) if frame is not None and frame < known]
        self._stale_frame = min(stale, default=None)

    def _renew_played(self, frame: int | None) -> None:
        """What is known from this canvas frame on is made again with the notes that the client plays; None: nothing."""
        self._renew(frame)
        self._is_played |= frame is not None and self._stale_frame is not None  # else what comes next has them

    def _play(self, notes: GivenNotes, message: PlayNotes) -> None:
        """Echo and chord need the plan's bars."""
        bars = self.references.bars
        if not bars and message.mode != "at":
            fix = "wait for the message plan" if self.references.is_planned else 'mode "at", or a session with a plan'
            raise RequestError("the session has no bars", field="mode", fix=fix)
        if message.mode == "hold":
            earliest = self._earliest()
            first = next((bar for bar in bars if bar.start >= earliest), bar_at(bars, len(bars)))
            notes.hold(message, round(first.start))
            self._renew_played(round(first.start))
            return
        if not message.items:
            raise RequestError("there are no notes", field="items", fix="send what was played")
        times = [self._canvas_frame(message.at + item.start_s) for item in message.items]
        if message.mode == "at":
            self._renew_played(self._play_at(notes, message, times))
        else:
            self._echo(notes, message, times, bars)

    def _play_at(self, notes: GivenNotes, message: PlayNotes, times: Sequence[float]) -> int:
        earliest = self._earliest()
        if min(times) < earliest:
            late_s = (earliest - min(times)) / self._model.frame_rate_hz
            what = f"the first note is {late_s:.2f} s too early: what is played soon stays as it is"
            raise RequestError(what, field="at", fix=f"{message.at + late_s:.2f} or later")
        played = zip(message.items, times, strict=True)
        placed = [notes.placed(message, item, index, frame) for index, (item, frame) in enumerate(played)]
        return notes.add(placed, is_exact=message.exact)

    def _echo(self, notes: GivenNotes, message: PlayNotes, times: Sequence[float], bars: Sequence[Bar]) -> None:
        """What is played too late for its place is echoed one pass later; of a closed bar the rest is made anew."""
        position, late = self._exact_position(), list[int]()
        soonest, closed = position + self._made_frames(), position + self._close_frames()
        placed = []
        for index, (item, frame) in enumerate(zip(message.items, times, strict=True)):
            if frame > position + bars[-1].end - bars[-1].start:
                raise RequestError("that is not played yet", field=f"items.{index}", fix="send what was played")
            number, offset = echoed(bars, frame, message.bars, quantize=message.quantize)
            while bar_at(bars, number).start + offset <= soonest:
                number += message.bars
            bar = bar_at(bars, number)
            placed.append((notes.placed(message, item, index, bar.start + offset), bar))
        for note, bar in placed:
            is_late = bar.start <= closed
            notes.echo(note, bar, is_exact=message.exact, is_waiting=not is_late)
            late += [note.start_frame] if is_late else []
        self._renew_played(min(late, default=None))

    def _earliest(self) -> int:
        """The first canvas frame that a change now can reach."""
        return self._first_unplayed(self._playhead.reach + self._samples(self.times.estimate_s))

    def _close_frames(self) -> float:
        """How long before its beginning a bar closes."""
        return max(CLOSE_S * self._model.frame_rate_hz, self._made_frames())

    def _made_frames(self) -> float:
        """How long before it is heard a note has to be there: a generation follows the refresh in flight."""
        now_s, made_s = self._clock.now_s, self.times.estimate_s
        waits_s = (each.started_s + made_s - now_s for each in self.running if not each.is_append)
        return (REACH_S + made_s + CLOSE_MARGIN_S + max((0.0, *waits_s))) * self._model.frame_rate_hz

    def _exact_position(self) -> float:
        hop = self._model.hop_samples
        return self._position() + self._playhead.position % hop / hop

    def edit_plan(self, message: SetPlan) -> None:
        """An edit is played from its beginning: the time to make it has to be left."""
        plan = self.references.plan
        if plan is None:
            super().edit_plan(message)
            return
        until_s = 2 * self.times.estimate_s + plan.duration_s(self.frames)
        earliest = self._first_unplayed(self._playhead.reach + self._samples(until_s))
        plan.edit(message, earliest, self._model.frame_rate_hz)

    def grids(self) -> Sequence[BarGrid]:
        """The bars of the plan's sections; none where something else is played."""
        plan = self.references.played_plan
        return () if plan is None else plan.grids

    @property
    def lead_time_s(self) -> float:
        """A plan's part is made before what is played by it."""
        plan = self.references.plan
        return self.times.estimate_s + (0.0 if plan is None else plan.duration_s(self.frames))

    def _plan_options(self) -> GenerationOptions:
        """What the plan is for: the session's options once nothing moves."""
        if self._final_options is None or self._final_options[0] != self._controls.seq:
            self._final_options = (self._controls.seq, self._controls.final_options())
        return self._final_options[1]

    def _samples(self, seconds: float) -> int:
        return round(seconds * self._model.sample_rate_hz)

    def _is_dirty(self) -> bool:
        return self._stale_frame is not None or super()._is_dirty()

    def _is_wanted(self) -> bool:
        if self.running or not (self._is_dirty() or self._is_short()):
            return False
        return self._has_hints() or self._cannot_wait() or self._is_changed()

    def _is_changed(self) -> bool:
        """Whether the client has changed what is heard: that does not wait for a plan."""
        is_begun = self._timeline.newest is not None and self.context_frame is not None
        return is_begun and not self.waits_for_plan and (self._is_played or super()._is_dirty())

    def _has_hints(self) -> bool:
        """Whether the plan's hints of the next generation are there, or it has none."""
        plan = self.references.plan
        if plan is None or not self.references.is_planned:
            return True
        segment = self._segment()
        start = 0 if plan.origin is None else segment.start_frame
        return not plan.is_idle and plan.has_hints(start + segment.frames)

    def _hints_end(self) -> int:
        """The canvas frame that there are hints up to; 0 where none are in force."""
        plan = self.references.plan
        if plan is None or plan.is_idle or plan.origin is None:
            return 0
        return plan.origin + plan.end

    def _cannot_wait(self) -> bool:
        """Whether what is known ends so soon that it is continued without a plan; before the first audio it waits."""
        plan = self.references.plan
        if plan is not None and (self._timeline.newest is None or self.context_frame is None):
            return plan.is_late
        if plan is not None and self.waits_for_plan:
            return plan.has_failed
        left = self._timeline.canvas.end - self._position()
        return left < self._frames_s(self._playhead.lead_s + 3 * self.times.estimate_s)

    def _frames_s(self, seconds: float) -> int:
        return round(seconds * self._model.frame_rate_hz)

    def _is_short(self) -> bool:
        """Whether what is known ends within half a canvas, or within the time that some generations take."""
        newest = self._timeline.newest
        if newest is None or newest.band is not None:
            return newest is None
        horizon = max(self.frames // 2, self._frames_s(self._playhead.lead_s + 3 * self.times.estimate_s))
        return self._timeline.canvas.end - self._position() < horizon

    def _position(self) -> int:
        return self._frame_at(self._playhead.position)

    def _frame_at(self, sample: int) -> int:
        here = self._timeline.at(sample)
        return 0 if here is None else here.canvas_frame_at(sample // self._model.hop_samples)

    def _new(self, job_id: str, may_draft: bool) -> Running:
        canvas, is_dirty, has_hints = self._timeline.canvas, self._is_dirty(), self._has_hints()
        segment = self._segment()
        cut = segment.start_frame + segment.keep_frames
        if self._model.plan is None:
            self._note_first_bars(cut)
        if not has_hints:
            bare = max(cut, self._hints_end())
            self._bare_frame = bare if self._bare_frame is None else min(bare, self._bare_frame)
        running = self._running(
            job_id,
            segment,
            tail=canvas.rows(range(segment.start_frame, cut)) if segment.keep_frames else None,  # [keep_frames, C]
            noise=None,
            seed=segment_seed(int(self._controls.value("seed")), self.num_placed),
            is_refresh=cut < canvas.end,
        )
        running.is_append = not is_dirty
        running.is_beginning = self.context_frame is None
        self._stale_frame, self._is_played = None, False
        return running

    def _note_first_bars(self, cut: int) -> None:
        """Without a planner what follows has the beat of the first bars that prompts, tempo and key are the same of."""
        given, canvas, options = self.references, self._timeline.canvas, self._plan_options()
        basis, facts = basis_of(options), self._model.notes
        if self._begun is None and self.context_frame is not None:
            self._begun = _Begun(basis, max(self.context_frame, canvas.start), -1)
        elif self._begun is None or self._begun.basis != basis:
            self._begun, given.first_bars = _Begun(basis, cut, self.num_placed), None
        tempo = tempo_of(options, self._model.ranges.bpm)
        is_made = self.num_placed > self._begun.num_placed
        if given.first_bars is not None or not is_made or tempo is None or facts is None or not facts.takes_hints:
            return
        bar_frames = tempo.bar_frames(self._model.frame_rate_hz)
        start = max(self._begun.start_frame, canvas.start)
        known = range(start, min(canvas.end, start + math.ceil(MOST_BARS * bar_frames)))
        if len(known) >= bar_frames:
            latents = canvas.rows(known)  # [n, C]
            given.first_bars = FirstBars(facts.spec, facts.silence, latents, bar_frames, start)

    def _segment(self) -> Segment:
        """The frames of a generation that starts now."""
        canvas = self._timeline.canvas
        cut = self._cut() if self._is_dirty() else canvas.end
        context = 0 if self.context_frame is None else cut - max(self.context_frame, canvas.start)
        keep = max(0, min(self._model.overlap_frames, self.frames // 2, context))
        if context:
            keep += (cut - keep) % self._model.align_frames  # Its frames are in the groups of the canvas.
        return Segment(cut - keep, self.frames, keep)

    def _cut(self) -> int:
        """The first frame that is generated again: it will not have been played when the generation is finished."""
        canvas = self._timeline.canvas
        finished = self._playhead.reach + round(self.times.estimate_s * self._model.sample_rate_hz)
        wanted = self._first_unplayed(max(finished, self._controls.from_sample))
        if self._stale_frame is not None and not super()._is_dirty():
            wanted = max(wanted, self._stale_frame)
        return min(max(wanted, canvas.start), canvas.end)

    def _shaped(self, breath: Breath, done: Running, latents: Latents, marks: Marks) -> Latents:
        """Behind the canvas as it was when the generation began; what was made anew since has the same levels there."""
        keep, canvas = done.job.segment.keep_frames, self._timeline.canvas
        cut = done.job.segment.start_frame + keep
        if keep:
            breath.hear(canvas.rows(range(max(canvas.start, cut - HEARD_FRAMES), cut)))
        return np.concatenate((latents[:keep], breath.shaped(latents[keep:], marks.part(keep))))

    def _place(self, done: Running, piece: Piece) -> bool:
        """New frames in place of everything after the cut; where that has been played by now, only what comes after."""
        segment, canvas = done.job.segment, self._timeline.canvas
        if self._timeline.newest is None:
            start, from_sample = 0, 0
        else:
            from_sample = self._from_sample(done)
            start = self._first_unplayed(from_sample)
            if done.is_beginning:
                start = -(-start // self._model.align_frames) * self._model.align_frames
            else:
                start = max(segment.start_frame + segment.keep_frames, start)
            if start >= canvas.end:  # Nothing that is known changes.
                start, from_sample = canvas.end, min(self._playhead.reach, self._playhead.sent_until)
        row = 0 if done.is_beginning else start - segment.start_frame
        if row >= segment.frames:
            self._latest = None
            return False
        if done.is_beginning:
            self.context_frame = start
            if self.references.plan is not None:
                self.references.plan.origin = start
        end = start + segment.frames - row
        new = CanvasPart(piece, row, start, end, done.basis.first_seq, done.basis.full_seq)
        extended = Canvas((*canvas.cut(canvas.start, start).parts, new), moods=self._moods)
        if self._timeline.newest is None:
            self._timeline.place(self._first_placement(extended, None))
        else:
            self._timeline.place_canvas(from_sample, extended)
        return True

    def _first_unplayed(self, from_sample: int) -> int:
        """The first canvas frame of which nothing is played before `from_sample` and the reach."""
        hop = self._model.hop_samples
        frame = max(from_sample // hop, -(-self._playhead.reach // hop))
        before = self._end_of(self._playhead.position // hop, frame)
        return max(self.played_frame, before, self._frame_at(frame * hop))

    def _end_of(self, first: int, last: int) -> int:
        """The canvas frame after all that is played in play frames `first` .. `last`."""
        hop, end = self._model.hop_samples, 0
        for play_frame in range(first, last):
            # A placement may begin inside a frame.
            for sample in (play_frame * hop, play_frame * hop + hop - 1):
                here = self._timeline.at(sample)
                if here is not None and here.part_at(play_frame) is not None:
                    end = max(end, here.canvas_frame_at(play_frame) + 1)
        return end

    def _from_sample(self, done: Running) -> int:
        """Where new frames begin to hold: not after the last sample that the old ones can be decoded to."""
        from_sample = max(self._playhead.reach, done.from_sample)
        reach = self._model.margin_frames + self._model.align_frames - 1
        is_known = self._frame_at(from_sample) < self._timeline.canvas.end - reach
        return from_sample if is_known else min(from_sample, self._playhead.sent_until)

    def region(self, start: int, frames: int) -> int:
        """A write has to lie in what is known."""
        canvas = self._timeline.canvas
        if not canvas.start <= start <= canvas.end - frames:
            known = [f"{frame / self._model.frame_rate_hz:.2f}" for frame in (canvas.start, canvas.end)]
            raise RequestError(f"the canvas is known from {known[0]} to {known[1]} s", field="at_s")
        return start

    def _write(self, start: int, piece: Piece, seq: int) -> None:
        """What has been played, or is played before the change can arrive, stays."""
        reach = self._playhead.reach
        first = max(start, self._first_unplayed(reach))
        part = CanvasPart(piece, 0, start, start + len(piece.latents), seq, seq).cut(first, start + len(piece.latents))
        if part is not None:
            self._timeline.place_canvas(reach, self._timeline.canvas.with_part(part))
        self.references.put("source", PlacedSource(None, None, piece, start))
