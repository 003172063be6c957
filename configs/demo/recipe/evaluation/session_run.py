"""A live session without sockets and in simulated time: what it plays, frame by frame."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.latents import FRAME_RATE_HZ, HOP_SAMPLES, SAMPLE_RATE_HZ, FloatArray
from runtime.live.hosting.services import live_model
from runtime.live.hosting.work import compose_job, make_part
from runtime.live.playback.note_stream import NoteStream
from runtime.live.protocol import actions
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import Ack, LivePrompt, Message, Open, client_message
from runtime.live.protocol.server_messages import Applied, ServerMessage, TrackedNotes
from runtime.live.session.live_session import LiveSession
from runtime.music.score import Note
from runtime.pipeline.songs.plan import SongPlan

STEP_S: Final = 0.05


class SessionRun:
    """A session of the bundle, whose work takes no time; its audio is not decoded.

    messages: what it has sent. played: latents `[frames, C]` of the play axis, with 0 where there were none. now_s: the
    time. step_s: what passes before it is looked at again.
    """

    generation_s = plan_s = 0.0

    def __init__(self, player: Player, step_s: float = STEP_S, **opened: Any) -> None:
        self._player, self.now_s, self._step_s, self._seq = player, 0.0, step_s, 0
        self._position = self._sent_until = 0
        self._form: SongPlan | None = None
        self._due: list[tuple[float, actions.SessionJob | actions.MakeHints]] = []
        self.num_generations = 0
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
        for _ in range(round(seconds / self._step_s)):
            self.step()

    def step(self) -> None:
        """Let a moment pass, and hear it."""
        self._advance()
        self.now_s += self._step_s
        if self._sent_until:
            self._position = min(self._position + round(self._step_s * SAMPLE_RATE_HZ), self._sent_until)
            self.session.handle(Ack(playhead_sample=self._position), self.now_s)

    def change(self, type_: str, **members: Any) -> Applied | None:
        """Send a message; returns the answer that names its first sample, where it has one."""
        self._seq += 1
        self.session.handle(client_message({"type": type_, "seq": self._seq, **members}), self.now_s)
        self._advance()
        return next((each for each in self.of(Applied) if each.seq == self._seq and each.at_sample is not None), None)

    def of(self, kind: type[Any]) -> list[Any]:
        """The messages of a kind that it has sent."""
        return [message for message in self.messages if isinstance(message, kind)]

    def _advance(self) -> None:
        """Carry out what the session asks for, until it asks for no more."""
        while [self._carry_out(action) for action in self.session.advance(self.now_s)].count(True) + self._finish():
            pass

    def _carry_out(self, action: actions.Action) -> bool:
        """Returns whether something has come of it."""
        match action:
            case actions.SessionJob():
                self._due.append((self.now_s + self.generation_s, action))
            case actions.MakeHints():
                self._due.append((self.now_s + self.plan_s, action))
            case actions.CancelJob(job_id):
                self._due = [item for item in self._due if getattr(item[1], "id", "") != job_id]
            case actions.DecodeWindow() as window:
                self._note(window)
                return True
            case AudioChunk() as chunk:
                self._sent_until = max(self._sent_until, chunk.end_sample)
            case Message() as message:
                self.messages.append(message)
        return False

    def _finish(self) -> int:
        """Hand over what is due; before the first audio, all is. Returns how much that is."""
        due = [work for due_s, work in self._due if due_s <= self.now_s or not self._sent_until]
        self._due = [item for item in self._due if item[1] not in due]
        for work in due:
            if isinstance(work, actions.MakeHints):
                self._make_plan(work)
            else:
                self.num_generations += 1
                request = compose_job(self._player.pipeline, work, self.session.seed)
                latents = self._player.run([request])[0]
                self.session.generation_finished(work.id, latents, 0, self.now_s, self.generation_s)
        return len(due)

    def _make_plan(self, work: actions.MakeHints) -> None:
        pipeline, seed = self._player.pipeline, self.session.seed
        planner, begin, change = pipeline.planner, work.begin, work.change
        assert planner is not None
        if begin is not None:
            self.close()
            drawn = pipeline.prompts.drawn(begin.options, seed)
            self._form = SongPlan(planner, drawn, begin.seed, state=begin.state)
        if change is not None and change.options is not None:
            drawn = pipeline.prompts.drawn(change.options, seed)
            work = replace(work, change=replace(change, options=drawn))
        assert self._form is not None
        self.session.plan_made(work.number, make_part(self._form, work), self.now_s)

    def _note(self, window: actions.DecodeWindow) -> None:
        """Keep a window's latents by play frame."""
        first, end = window.trim_begin // HOP_SAMPLES, -(-window.trim_end // HOP_SAMPLES)
        start = window.start_frame + first
        missing = max(0, window.start_frame + end - len(self.played))
        self.played = np.concatenate((self.played, np.zeros((missing, self.played.shape[1]), np.float32)))
        self.played[start : start + end - first] = window.values[first:end]
        self.session.decoded(window, np.zeros((window.num_samples, self.session.model.channels), np.float32))


class PlayedRun(SessionRun):
    """A session that notes are played to, planned and without an end. `now_s` is what is heard.

    Its work takes as long as on two cores; time begins with its first audio.
    """

    generation_s, plan_s = 0.16, 0.1

    def __init__(self, player: Player, prompt: str, seed: int) -> None:
        prompts = [LivePrompt(text=prompt)]
        super().__init__(player, 0.02, mode="extend", plan=True, seed=seed, events=["notes"], prompts=prompts)
        while not self._sent_until:
            self._advance()
        self._events, self._num_taken = NoteStream(), 0

    def play(self, until_s: float) -> None:
        """Let time pass, and hear it."""
        while self.now_s < until_s - 1e-9:
            self.step()

    @property
    def latents(self) -> FloatArray:
        """Those that were heard, `[frames, C]`, from the beginning on."""
        return self.played[: round(self.now_s * FRAME_RATE_HZ)]

    def send(self, notes: list[dict[str, float]], at_s: float, *, exact: bool, bars: int = 1) -> None:
        """Play notes of the melody, echoed so many bars later."""
        self.change("notes", items=notes, at=at_s, layer="melody", exact=exact, bars=bars)

    def bar_lines(self) -> list[float]:
        """Where the bars begin that are planned so far, in s."""
        assert self.session.plan is not None
        return [bar.start / FRAME_RATE_HZ for bar in self.session.plan.bars]

    def heard(self, layer: str) -> list[Note]:
        """The notes of a layer that have been heard up to now. It can be asked once."""
        self._events.clear(self._position)
        begun, found = dict[int, int](), list[Note]()
        for event in self._events.events:
            if event.layer != layer:
                continue
            if event.velocity:
                begun[event.pitch] = event.sample
            else:
                start = begun.pop(event.pitch)
                times = (start / SAMPLE_RATE_HZ, (event.sample - start) / SAMPLE_RATE_HZ)
                found.append(Note(layer, event.pitch, 100, *times))
        return found

    def step(self) -> None:
        """Let a moment pass, and hear it."""
        super().step()
        for message in self.messages[self._num_taken :]:
            if isinstance(message, TrackedNotes):
                self._events.take(message)
        self._num_taken = len(self.messages)
        self._events.advance(self._position)
