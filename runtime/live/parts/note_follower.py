"""Notes that a client plays to music without an end: where they are heard, and what is made again for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runtime.base.errors import RequestError
from runtime.live.parts.core import SessionCore
from runtime.live.parts.cut import Cut
from runtime.live.parts.given_notes import CLOSE_MARGIN_S, CLOSE_S, Bar, GivenNotes, bar_at, echoed
from runtime.live.playback.playhead import REACH_S
from runtime.live.protocol.messages import PlayNotes


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
