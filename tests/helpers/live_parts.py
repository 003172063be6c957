"""The parts of a session without the session: its generations, what is in flight, controls, timeline and playhead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from helpers.live_simulation import CHANNELS, HOP, MODEL, RATE
from numpy.typing import NDArray

from runtime.live.parts.control_state import ControlState
from runtime.live.parts.core import SessionCore
from runtime.live.parts.extend import ExtendMode
from runtime.live.parts.generations import Generations
from runtime.live.parts.loop import LoopMode
from runtime.live.playback.canvas import Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import CancelJob, LiveModel
from runtime.live.protocol.messages import Ack, ClientMessage, WriteAudio


def session_core(model: LiveModel = MODEL, frames: int = 64, slots: int = 2, **controls: Any) -> SessionCore:
    """At time 0, with seed 1 and a client at sample 0."""
    clock = SessionClock(0.0)
    playhead = Playhead(clock, RATE)
    playhead.attach()
    state = ControlState(model, clock, controls, [], "velocity", 1)
    return SessionCore(model, frames, slots, state, Timeline(), playhead)


class Parts:
    """Generations whose latents are what a test says; by default the number of the generation."""

    def __init__(self, core: SessionCore, mode: LoopMode | ExtendMode) -> None:
        self.core, self.controls, self.timeline, self.playhead = core, core.controls, core.timeline, core.playhead
        self.flights, self.generations = core.flights, Generations(core, mode)
        self.count = 0

    def at(self, now_s: float) -> Self:
        """The time is this from now on."""
        self.core.clock.now_s = now_s
        return self

    def play_to(self, sample: int) -> float:
        """The client is at a sample; returns the time, at real speed."""
        self.at(sample / RATE).playhead.ack(Ack(playhead_sample=sample))
        self.generations.mode.note()
        return sample / RATE

    def latents(self, value: float) -> NDArray[np.float32]:
        """Those of a generation, all of one value."""
        return np.full((self.core.frames, CHANNELS), value, np.float32)

    def generate(self, latents: NDArray[np.float32] | None = None) -> bool:
        """Start and finish a generation, behind the latents that it keeps."""
        job = self.generations.start("s")
        self.count += 1
        latents = self.latents(self.count) if latents is None else latents
        if job.tail is not None:
            latents = np.concatenate((job.tail, latents[len(job.tail) :]))
        return self.generations.finish(job.id, latents)

    def handle(self, message: ClientMessage, latents: NDArray[np.float32] | None = None) -> list[str]:
        """Take a message; returns the ids of the generations that are cancelled."""
        self.generations.handle(message, latents, None)
        stopped, self.core.outbox = self.core.outbox, []
        return [action.job_id for action in stopped if isinstance(action, CancelJob)]

    def write(self, seq: int, frame: int, values: Sequence[float]) -> list[str]:
        """Write a frame of each of these values; returns as `handle`."""
        latents = np.tile(np.array(values, np.float32)[:, None], CHANNELS)
        return self.handle(WriteAudio(seq=seq, at_s=frame * HOP / RATE, samples=len(values) * HOP), latents)

    def cancelled(self) -> list[str]:
        """The ids of the generations that are cancelled now; none starts."""
        actions = self.generations.advance("s", may_generate=False, may_draft=False)
        return [action.job_id for action in actions if isinstance(action, CancelJob)]

    def numbers(self) -> list[tuple[int, int]]:
        """(first frame, number of the generation) of each part of the canvas."""
        return [(part.start, int(part.piece.latents[part.row, 0])) for part in self.timeline.canvas.parts]


class Loop(Parts):
    """Of 16 frames, that plays."""

    mode: LoopMode

    def __init__(self, slots: int = 2, model: LiveModel = MODEL, **controls: Any) -> None:
        core = session_core(model, 16, slots, **controls)
        core.playhead.ack(Ack(playhead_sample=0))
        self.mode = LoopMode(core)
        super().__init__(core, self.mode)

    @classmethod
    def played(cls, **options: Any) -> Self:
        """One that has a canvas from time 0 on."""
        loop = cls(**options)
        loop.generate()
        return loop


class Extension(Parts):
    """Of 64 frames without an end, of which the first are generated; a generation takes 0.1 s."""

    mode: ExtendMode

    def __init__(self, model: LiveModel = MODEL, latents: NDArray[np.float32] | None = None) -> None:
        core = session_core(model)
        self.mode = ExtendMode(core)
        super().__init__(core, self.mode)
        self.flights.times.newest_s.append(0.1)
        self.generate(latents)
        self.playhead.sent_until = 10**9
