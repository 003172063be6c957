"""Where music without an end can still be changed: what of its canvas was played, and what is to be made again."""

from __future__ import annotations

from runtime.live.parts.core import SessionCore


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
