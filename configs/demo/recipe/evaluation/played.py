"""A client that plays notes to a live session: real generations, in simulated time, without a decoder."""

from typing import Final

import numpy as np

from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.latents import FRAME_RATE_HZ, HOP_SAMPLES, FloatArray
from runtime.notes.score import Note
from runtime.pipeline.form.plan import FormPlan
from runtime.sessions.hosting.services import live_model
from runtime.sessions.hosting.work import compose_job, make_part
from runtime.sessions.playback.note_stream import NoteStream
from runtime.sessions.protocol import actions, messages
from runtime.sessions.session.live_session import LiveSession

STEP_S: Final = 0.02
GENERATION_S: Final = 0.16  # of one generation, from submit to finish, as on two cores
PLAN_S: Final = 0.1


class LiveClient:
    """One session of a prompt, planned and without an end. `now_s` is what is heard, and the time."""

    def __init__(self, player: Player, prompt: str, seed: int) -> None:
        self.now_s = 0.0
        self._player, self._pipeline, self._seed = player, player.pipeline, seed
        opened = messages.Open(
            mode="extend", plan=True, seed=seed, events=["notes"], prompts=[messages.LivePrompt(text=prompt)]
        )
        self.session = LiveSession("played", live_model(self._pipeline), opened, 0.0)
        self.session.attach("", 0.0, keep_s=1.0)
        self.events = NoteStream()
        self._form: FormPlan | None = None
        self._due: list[tuple[float, actions.SessionJob | actions.MakePlan]] = []
        self._rate_hz, self._sent, self._seq = self.session.model.sample_rate_hz, False, 0
        self.num_generations = 0
        self._played: dict[int, FloatArray] = {}

    def play(self, until_s: float) -> None:
        """Let time pass, and hear it."""
        while self.now_s < until_s - 1e-9:
            self._step()

    @property
    def latents(self) -> FloatArray:
        """Those that were heard, `[frames, C]`, from the beginning on."""
        return np.stack([self._played[frame] for frame in range(round(self.now_s * FRAME_RATE_HZ))])

    def send(self, notes: list[dict[str, float]], at_s: float, *, exact: bool, bars: int = 1) -> None:
        """Play notes of the melody, echoed so many bars later."""
        self._seq += 1
        items = [messages.NoteItem.model_validate(note) for note in notes]
        message = messages.PlayNotes(seq=self._seq, items=items, at=at_s, layer="melody", exact=exact, bars=bars)
        self.session.handle(message, self.now_s)

    def bar_lines(self) -> list[float]:
        """Where the bars begin that are planned so far, in s."""
        assert self.session.plan is not None
        return [bar.start / self.session.model.frame_rate_hz for bar in self.session.plan.bars]

    def heard(self, layer: str) -> list[Note]:
        """The notes of a layer that have been heard up to now. It can be asked once."""
        self.events.clear(round(self.now_s * self._rate_hz))
        begun, found = dict[int, int](), list[Note]()
        for event in self.events.events:
            if event.layer != layer:
                continue
            if event.velocity:
                begun[event.pitch] = event.sample
            else:
                start = begun.pop(event.pitch)
                times = (start / self._rate_hz, (event.sample - start) / self._rate_hz)
                found.append(Note(layer, event.pitch, 100, *times))
        return found

    def close(self) -> None:
        """End its plan."""
        if self._form is not None:
            self._form.close()

    def _step(self) -> None:
        for action in self.session.advance(self.now_s):
            self._carry_out(action)
        self._finish()
        if self._sent:
            self.now_s += STEP_S
            sample = round(self.now_s * self._rate_hz)
            self.session.handle(messages.Ack(playhead_sample=sample, worst_lead_s=0.3), self.now_s)
            self.events.advance(sample)

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case actions.SessionJob():
                self._due.append((self.now_s + GENERATION_S, action))
            case actions.MakePlan():
                self._due.append((self.now_s + PLAN_S, action))
            case actions.CancelJob(job_id):
                self._due = [item for item in self._due if getattr(item[1], "id", "") != job_id]
            case actions.FindWords(seq):
                self.session.words_found(seq, [])
            case actions.DecodeWindow() as window:
                self._note(window)
                silence = np.zeros((window.num_samples, self.session.model.channels), np.float32)
                self.session.decoded(window, silence)
            case messages.TrackedNotes():
                self.events.take(action)
                self._sent = True
            case _:
                pass

    def _finish(self) -> None:
        """What is due; before the first audio time stands still, and all is."""
        due = [work for due_s, work in self._due if due_s <= self.now_s or not self._sent]
        self._due = [item for item in self._due if item[1] not in due]
        for work in due:
            if isinstance(work, actions.MakePlan):
                self.session.plan_made(work.number, make_part(self._form_of(work), work), self.now_s)
            else:
                self.num_generations += 1
                (latents,) = self._player.run([compose_job(self._pipeline, work, self._seed)])
                self.session.generation_finished(work.id, latents, 0, self.now_s, GENERATION_S)

    def _note(self, window: actions.DecodeWindow) -> None:
        """Keep a window's latents by play frame: what comes later replaces what is not heard yet."""
        first, end = window.trim_begin // HOP_SAMPLES, -(-window.trim_end // HOP_SAMPLES)
        for row in range(first, end):
            self._played[window.start_frame + row] = window.values[row]

    def _form_of(self, work: actions.MakePlan) -> FormPlan:
        if (begin := work.begin) is not None:
            assert self._pipeline.planner is not None
            options = self._pipeline.with_drawn(begin.options, self._seed)
            self._form = self._pipeline.planner.form_plan(options, begin.seed, state=begin.state)
        assert self._form is not None
        return self._form
