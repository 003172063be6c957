"""A live session without sockets and in simulated time: what it plays, frame by frame."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.latents import HOP_SAMPLES, SAMPLE_RATE_HZ, FloatArray
from runtime.pipeline.form.plan import FormPlan
from runtime.sessions.hosting.services import live_model
from runtime.sessions.hosting.work import compose_job, make_part
from runtime.sessions.protocol import actions
from runtime.sessions.protocol.frames import AudioChunk
from runtime.sessions.protocol.messages import Ack, Applied, Message, Open, ServerMessage, client_message
from runtime.sessions.session.live_session import LiveSession

STEP_S: Final = 0.05


class SessionRun:
    """A session of the bundle, whose work takes no time; its audio is not decoded.

    messages: what it has sent. played: latents `[frames, C]` of the play axis, with 0 where there were none.
    """

    def __init__(self, player: Player, **opened: Any) -> None:
        self._player, self._now_s, self._seq = player, 0.0, 0
        self._position = self._sent_until = 0
        self._form: FormPlan | None = None
        self.messages: list[ServerMessage] = []
        model = live_model(player.pipeline)
        self.played: FloatArray = np.zeros((0, model.latent_channels), np.float32)
        self.session = LiveSession("run", model, Open(**opened), 0.0)
        self.session.wait_for_plan()
        self.session.attach("token", 0.0, keep_s=1.0)

    def close(self) -> None:
        """End its plan."""
        if self._form is not None:
            self._form.close()

    def run(self, seconds: float) -> None:
        """Play."""
        for _ in range(round(seconds / STEP_S)):
            self._advance()
            self._now_s += STEP_S
            if self._sent_until:
                self._position = min(self._position + round(STEP_S * SAMPLE_RATE_HZ), self._sent_until)
                self.session.handle(Ack(playhead_sample=self._position), self._now_s)

    def change(self, type_: str, **members: Any) -> Applied | None:
        """Send a message; returns the answer that names its first sample, where it has one."""
        self._seq += 1
        self.session.handle(client_message({"type": type_, "seq": self._seq, **members}), self._now_s)
        self._advance()
        return next((each for each in self.of(Applied) if each.seq == self._seq and each.at_sample is not None), None)

    def of(self, kind: type[Any]) -> list[Any]:
        """The messages of a kind that it has sent."""
        return [message for message in self.messages if isinstance(message, kind)]

    def _advance(self) -> None:
        """Carry out what the session asks for, until it asks for no more."""
        while [self._carry_out(action) for action in self.session.advance(self._now_s)].count(True):
            pass

    def _carry_out(self, action: actions.Action) -> bool:
        """Returns whether something has come of it."""
        match action:
            case actions.SessionJob() as job:
                request = compose_job(self._player.pipeline, job, self.session.seed)
                self.session.generation_finished(job.id, self._player.run([request])[0], 0, self._now_s)
            case actions.MakePlan() as work:
                self._make_plan(work)
            case actions.DecodeWindow() as window:
                self._note(window)
            case AudioChunk() as chunk:
                self._sent_until = max(self._sent_until, chunk.end_sample)
                return False
            case Message() as message:
                self.messages.append(message)
                return False
            case _:
                return False
        return True

    def _make_plan(self, work: actions.MakePlan) -> None:
        pipeline, seed = self._player.pipeline, self.session.seed
        planner, begin, change = pipeline.planner, work.begin, work.change
        assert planner is not None
        if begin is not None:
            self.close()
            drawn = pipeline.with_drawn(begin.options, seed)
            self._form = planner.form_plan(drawn, begin.seed, state=begin.state)
        if change is not None and change.options is not None:
            drawn = pipeline.with_drawn(change.options, seed)
            work = replace(work, change=replace(change, options=drawn))
        assert self._form is not None
        self.session.plan_made(work.number, make_part(self._form, work), self._now_s)

    def _note(self, window: actions.DecodeWindow) -> None:
        """Keep a window's latents by play frame."""
        first, end = window.trim_begin // HOP_SAMPLES, -(-window.trim_end // HOP_SAMPLES)
        start = window.start_frame + first
        missing = max(0, window.start_frame + end - len(self.played))
        self.played = np.concatenate((self.played, np.zeros((missing, self.played.shape[1]), np.float32)))
        self.played[start : start + end - first] = window.values[first:end]
        self.session.decoded(window, np.zeros((window.num_samples, self.session.model.channels), np.float32))
