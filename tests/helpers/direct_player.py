"""A client of a live session with real engines that takes audio as fast as it comes, without threads and clocks."""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np

from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.services import live_model
from runtime.live.hosting.work import compose_job
from runtime.live.protocol import actions, messages
from runtime.live.protocol.actions import DecodeWindow, SessionJob
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import LivePrompt
from runtime.live.session.live_session import LiveSession
from runtime.pipeline.pipeline import Pipeline
from runtime.tick.loop.events import Event, Failed, Finished

STEPS = 4
BUFFERED_S = 0.2
MOST_S = 60.0  # of the session's time, for what is played at once


class DirectPlayer:
    """Carries out a session's actions at once; its playhead is what it was sent."""

    def __init__(self, pipeline: Pipeline, **opened: object) -> None:
        self.pipeline = pipeline
        self.model = live_model(pipeline)
        always = {"controls": {"steps": STEPS}, "prompts": [LivePrompt(text="calm piano")], "seed": 3, "plan": False}
        opened = {**always, **opened}
        self.session = LiveSession("live", self.model, messages.Open(**opened), 0.0)  # type: ignore[arg-type]
        self.session.attach("token", 0.0, keep_s=60.0)
        self.jobs: list[SessionJob] = []
        self.latents: list[Latents] = []
        self.pcm = np.empty((0, self.model.channels), np.float32)
        self.replaced: list[tuple[int, int]] = []
        self.now_s = 0.0

    def play(self, seconds: float) -> Pcm:
        """All audio up to this time."""
        end_s = self.now_s + MOST_S
        while len(self.pcm) < seconds * self.model.sample_rate_hz:
            assert self.now_s < end_s, f"no audio after {len(self.pcm)} samples"
            for action in self.session.advance(self.now_s):
                self._carry_out(action)
            self.now_s += 0.01
            played = max(0, len(self.pcm) - round(BUFFERED_S * self.model.sample_rate_hz))
            self.session.handle(messages.Ack(playhead_sample=played), self.now_s)
        return self.pcm

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case SessionJob() as job:
                self.jobs.append(job)
                self.latents.append(generated(self.pipeline, job))
                self.session.generation_finished(job.id, self.latents[-1], 0, self.now_s)
            case DecodeWindow() as window:
                self.session.decoded(window, decoded(self.pipeline, window))
            case AudioChunk() as chunk:
                if chunk.is_replacing:
                    self.replaced.append((chunk.start_sample, chunk.end_sample))
                    _overwrite(self.pcm, chunk.start_sample, chunk.pcm, round(0.025 * self.model.sample_rate_hz))
                else:
                    assert chunk.start_sample == len(self.pcm)
                    self.pcm = np.concatenate((self.pcm, chunk.pcm))


def generated(pipeline: Pipeline, job: SessionJob) -> Latents:
    """What a session's generation gives."""
    events: SimpleQueue[Event] = SimpleQueue()
    pipeline.loop.submit(compose_job(pipeline, job, seed=0, client="live"), events.put)
    while True:
        match events.get():
            case Finished(latents=latents):
                return latents
            case Failed(error=error):
                raise error


def decoded(pipeline: Pipeline, window: DecodeWindow) -> Pcm:
    """The audio of a window."""
    return pipeline.codec.decode(window.values, window.start_frame)[window.trim_begin : window.trim_end]


def _overwrite(pcm: Pcm, start: int, new: Pcm, fade: int) -> None:
    """As clients do: crossfade from the old audio, then the new."""
    share = np.clip(np.arange(1, len(new) + 1) / fade, 0, 1).astype(np.float32)[:, None]
    pcm[start : start + len(new)] = (1 - share) * pcm[start : start + len(new)] + share * new
