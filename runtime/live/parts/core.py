"""What all parts of a session share."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.live.parts.control_state import ControlState
from runtime.live.parts.references import References
from runtime.live.parts.running import RunningGenerations
from runtime.live.playback.canvas import Band, Canvas, Placement, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import Action, LiveModel


@dataclass(eq=False)
class SessionCore:
    """frames: T, those of a generation. slots: how many of them may be in flight. outbox: what is to be done once."""

    model: LiveModel
    frames: int
    slots: int
    controls: ControlState
    timeline: Timeline
    playhead: Playhead
    outbox: list[Action] = field(default_factory=list)
    references: References = field(init=False)
    flights: RunningGenerations = field(init=False)

    def __post_init__(self) -> None:
        self.references = References(self.model)
        self.flights = RunningGenerations(self.slots, self.controls, self.references, self.timeline, self.playhead)

    @property
    def clock(self) -> SessionClock:
        """That of all of them."""
        return self.playhead.clock

    def samples(self, seconds: float) -> int:
        """As many as these seconds have."""
        return round(seconds * self.model.sample_rate_hz)

    def canvas_frame(self, seconds: float) -> float:
        """The canvas frame, between frames, that is played at a second of the play axis."""
        frame, part = divmod(seconds * self.model.sample_rate_hz, self.model.hop_samples)
        here = self.timeline.at(self.samples(seconds))
        return part / self.model.hop_samples + (frame if here is None else here.canvas_frame_at(int(frame)))

    def place_first(self, canvas: Canvas, band: Band | None) -> None:
        """The first canvas begins where audio is missing."""
        start = self.playhead.sent_until
        self.timeline.place(Placement(start, canvas, start // self.model.hop_samples, 0, band))
