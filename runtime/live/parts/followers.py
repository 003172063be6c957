"""What music without an end follows: the playhead, a song's plan whose hints are ahead of it, notes of its client."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runtime.base.errors import RequestError
from runtime.live.parts.core import SessionCore
from runtime.live.parts.given_notes import CLOSE_MARGIN_S, CLOSE_S, GivenNotes, bar_at, echoed
from runtime.live.parts.song import SongMaker
from runtime.live.playback.bars import Bar
from runtime.live.playback.playhead import REACH_S
from runtime.live.protocol.actions import MadeHints, MakeHints
from runtime.live.protocol.messages import PlayNotes, SetPlan
from runtime.requests.seeds import segment_seed
from runtime.requests.segments import Segment


class Cut:
    """Canvas frames before `played_frame` have been played and never change.

    `stale_frame`: from there on what is known has other hints or notes than it is to have; None: nothing.
    """

    def __init__(self, core: SessionCore) -> None:
        self.played_frame = 0
        self.stale_frame: int | None = None
        self._core, self._model, self._flights = core, core.model, core.flights
        self._timeline, self._playhead = core.timeline, core.playhead
        self._noted_frame = core.playhead.sent_until // core.model.hop_samples

    def note(self) -> None:
        """Note which canvas frames the playhead has reached."""
        frame = self._playhead.position // self._model.hop_samples
        first = max(self._noted_frame, frame - self._core.frames)
        self.played_frame = max(self.played_frame, self._end_of(first, frame + 1))
        self._noted_frame = frame

    @property
    def position(self) -> int:
        """The canvas frame that is played."""
        return self._frame_at(self._playhead.position)

    @property
    def exact_position(self) -> float:
        """The same, between frames."""
        hop = self._model.hop_samples
        return self.position + self._playhead.position % hop / hop

    @property
    def left(self) -> int:
        """How many frames are known behind the position."""
        return self._timeline.canvas.end - self.position

    @property
    def soon(self) -> int:
        """So many frames are played while some generations are made."""
        return round((self._playhead.lead_s + 3 * self._flights.times.estimate_s) * self._model.frame_rate_hz)

    @property
    def frame(self) -> int:
        """The first frame that is generated again: it will not have been played when the generation is finished."""
        canvas = self._timeline.canvas
        finished = self._playhead.reach + self._core.samples(self._flights.times.estimate_s)
        wanted = self.first_unplayed(max(finished, self._core.controls.from_sample))
        if self.stale_frame is not None and not self._flights.is_changed:
            wanted = max(wanted, self.stale_frame)
        return min(max(wanted, canvas.start), canvas.end)

    def renew(self, *frames: int | None) -> None:
        """What is known, or in flight, from these canvas frames on is made again; None: from none."""
        ends = [each.job.segment.start_frame + each.job.segment.frames for each in self._flights.running]
        known = max([self._timeline.canvas.end, *ends])
        stale = [frame for frame in (*frames, self.stale_frame) if frame is not None and frame < known]
        self.stale_frame = min(stale, default=None)

    def reached_in(self, seconds: float) -> int:
        """The first canvas frame that can still be changed after so long."""
        return self.first_unplayed(self._playhead.reach + self._core.samples(seconds))

    def first_unplayed(self, from_sample: int) -> int:
        """The first canvas frame of which nothing is played before `from_sample` and the reach."""
        hop = self._model.hop_samples
        frame = max(from_sample // hop, -(-self._playhead.reach // hop))
        before = self._end_of(self._playhead.position // hop, frame)
        return max(self.played_frame, before, self._frame_at(frame * hop))

    def from_sample(self, at_least: int) -> int:
        """Where new frames begin to hold: not after the last sample that the old ones can be decoded to."""
        from_sample = max(self._playhead.reach, at_least)
        reach = self._model.margin_frames + self._model.align_frames - 1
        is_known = self._frame_at(from_sample) < self._timeline.canvas.end - reach
        return from_sample if is_known else min(from_sample, self._playhead.sent_until)

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

    def _frame_at(self, sample: int) -> int:
        here = self._timeline.at(sample)
        return 0 if here is None else here.canvas_frame_at(sample // self._model.hop_samples)


class SongFollower:
    """The song of one session. waits: time stands still while it is made."""

    def __init__(self, core: SessionCore, cut: Cut) -> None:
        self.maker = SongMaker(core.model, core.clock, core.frames)
        self.outline = core.references.song = self.maker.outline
        self.waits = False
        self._core, self._references, self._flights, self._cut = core, core.references, core.flights, cut
        self._bare_frame: int | None = None  # From here on what is known was made without hints.

    def begin(self, origin: int | None) -> None:
        """Begin a song, in place of one that there is. origin: the canvas frame of its beginning."""
        controls = self._core.controls
        seed = segment_seed(int(controls.defaults["seed"]), self._flights.num_started)
        self.maker.restart(controls.final_options(), seed, origin)

    def reset(self) -> None:
        """Begin a song with the next generation."""
        self._bare_frame = None
        self.begin(None)

    def work(self) -> MakeHints | None:
        """What to make now: anew where prompt, tempo or key have changed, else ahead of what is generated."""
        if not self._references.is_planned:
            self.outline.is_idle = True
            return None
        cut, core = self._cut.frame, self._core
        if self.outline.is_idle:
            self.begin(cut)
        self.maker.move(cut)
        self.maker.follow(core.controls.final_options(), cut)
        known = core.timeline.canvas.end if self.outline.origin is not None else 0
        return self.maker.work(self._cut.position - core.frames, known)

    def made(self, number: int, part: MadeHints) -> None:
        """Take what was made. Where what is known was made with other hints, or without, it is made again."""
        changed = [self.maker.made(number, part)]
        if self.outline.origin is None:
            return
        if self._bare_frame is not None and self.outline.has_hints(self._bare_frame + 1):
            changed.append(self._bare_frame)
            self._bare_frame = None
        self._cut.renew(*changed)

    def edit(self, message: SetPlan) -> None:
        """An edit is played from its beginning: the time to make it has to be left. Raises RequestError."""
        until_s = 2 * self._flights.times.estimate_s + self.maker.duration_s()
        options = self._core.controls.final_options()
        self.maker.follow(options, self._cut.frame)
        if not self.maker.is_for(options):
            what = "it is planned anew, for another prompt, tempo or key"
            raise RequestError(what, field="type", fix="wait for the message plan")
        self.maker.edit(message, self._cut.reached_in(until_s))

    @property
    def has_edits(self) -> bool:
        """Whether an edit that has an effect is not made yet."""
        return self.maker.has_edits and not self.outline.is_idle

    def has_hints(self, segment: Segment) -> bool:
        """Whether the hints of a generation are there, or it has none."""
        if not self._references.is_planned:
            return True
        start = 0 if self.outline.origin is None else segment.start_frame
        return not self.outline.is_idle and self.outline.has_hints(start + segment.frames)

    def note_bare(self, cut: int) -> None:
        """A generation without hints has new frames from this canvas frame on."""
        song = self.outline
        hints_end = 0 if song.is_idle or song.origin is None else song.origin + song.end
        bare = max(cut, hints_end)
        self._bare_frame = bare if self._bare_frame is None else min(bare, self._bare_frame)


class NoteFollower:
    """Places notes by the plan's bars. is_played: notes are not in a generation yet."""

    def __init__(self, core: SessionCore, notes: GivenNotes, cut: Cut) -> None:
        self.is_played = False
        self._core, self._model, self._references, self._flights = core, core.model, core.references, core.flights
        self._notes, self._cut = notes, cut

    def note(self) -> None:
        """Close bars, and forget the notes of those that are long ago."""
        self._renew(self._notes.close(self._cut.exact_position + self._close_frames()))
        self._notes.forget(self._cut.position - self._core.frames)

    @property
    def due_s(self) -> float:
        """When a bar closes; inf: none waits."""
        if (frame := self._notes.next_bar_frame) is None:
            return math.inf
        frames = max(0.0, frame - self._close_frames() - self._cut.exact_position)
        # One frame's rounding later it is closed for certain.
        return self._core.clock.now_s + (frames + 1) / self._model.frame_rate_hz

    def play(self, message: PlayNotes) -> None:
        """Take notes; echo and chord need the plan's bars. Raises RequestError."""
        self._notes.check_room(len(message.items), "are not played yet", "send them later")
        bars = self._references.bars
        if not bars and message.mode != "at":
            fix = "wait for the message plan" if self._references.is_planned else 'mode "at", or a session with a plan'
            raise RequestError("the session has no bars", field="mode", fix=fix)
        if message.mode == "hold":
            earliest = self._cut.reached_in(self._flights.times.estimate_s)
            first = next((bar for bar in bars if bar.start >= earliest), bar_at(bars, len(bars)))
            self._notes.hold(message, round(first.start))
            self._renew(round(first.start))
            return
        if not message.items:
            raise RequestError("there are no notes", field="items", fix="send what was played")
        times = [self._core.canvas_frame(message.at + item.start_s) for item in message.items]
        self._renew(self._play_at(message, times) if message.mode == "at" else self._echo(message, times, bars))

    def _play_at(self, message: PlayNotes, times: Sequence[float]) -> int:
        """Returns the first canvas frame that changes."""
        earliest = self._cut.reached_in(self._flights.times.estimate_s)
        if min(times) < earliest:
            late_s = (earliest - min(times)) / self._model.frame_rate_hz
            what = f"the first note is {late_s:.2f} s too early: what is played soon stays as it is"
            raise RequestError(what, field="at", fix=f"{message.at + late_s:.2f} or later")
        played = zip(message.items, times, strict=True)
        placed = [self._notes.placed(message, item, index, frame) for index, (item, frame) in enumerate(played)]
        return self._notes.add(placed, is_exact=message.exact)

    def _echo(self, message: PlayNotes, times: Sequence[float], bars: Sequence[Bar]) -> int | None:
        """What is played too late for its place is echoed one pass later; of a closed bar the rest is made anew.

        Returns the first canvas frame that changes.
        """
        position = self._cut.exact_position
        soonest, closed = position + self._made_frames(), position + self._close_frames()
        placed, late = [], list[int]()
        for index, (item, frame) in enumerate(zip(message.items, times, strict=True)):
            if frame > position + bars[-1].end - bars[-1].start:
                raise RequestError("that is not played yet", field=f"items.{index}", fix="send what was played")
            number, offset = echoed(bars, frame, message.bars, quantize=message.quantize)
            while bar_at(bars, number).start + offset <= soonest:
                number += message.bars
            bar = bar_at(bars, number)
            placed.append((self._notes.placed(message, item, index, bar.start + offset), bar))
        for note, bar in placed:
            is_late = bar.start <= closed
            self._notes.echo(note, bar, is_exact=message.exact, is_waiting=not is_late)
            late += [note.start_frame] if is_late else []
        return min(late, default=None)

    def _renew(self, frame: int | None) -> None:
        """What is known from this canvas frame on is made again; None: nothing. What is not known will have them."""
        self._cut.renew(frame)
        self.is_played |= frame is not None and self._cut.stale_frame is not None

    def _close_frames(self) -> float:
        """How long before its beginning a bar closes."""
        return max(CLOSE_S * self._model.frame_rate_hz, self._made_frames())

    def _made_frames(self) -> float:
        """How long before it is heard a note has to be there: a generation follows the refresh in flight."""
        now_s, made_s = self._core.clock.now_s, self._flights.times.estimate_s
        waits_s = (each.started_s + made_s - now_s for each in self._flights.running if not each.is_append)
        return (REACH_S + made_s + CLOSE_MARGIN_S + max((0.0, *waits_s))) * self._model.frame_rate_hz
