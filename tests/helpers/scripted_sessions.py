"""A session that asks for what a test tells it, and notes what its host tells it; a host that a test drives."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, ClassVar, Self

import numpy as np
from helpers.live_clients import ready
from helpers.panics import panic

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.hosted_session import HostedSession
from runtime.live.protocol.actions import Action, DecodeWindow, LiveModel, SessionJob
from runtime.live.protocol.client_seqs import ClientSeqs
from runtime.live.protocol.messages import Ack, ClientMessage, Open, Reply
from runtime.live.protocol.server_messages import Ready, ServerMessage
from runtime.live.storage.store import SessionSnapshot
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment
from runtime.tick.loop.events import Finished
from runtime.tick.loop.tick_loop import TickLoop

WAIT_S = 60.0
Until = Callable[[], bool] | None


class ScriptedSession:
    """`next_actions` are given by the next advance, and what is `waiting` begins with it.

    It wants a generation while `wants` is more than it has.
    """

    numbers = count()
    made: ClassVar[list[ScriptedSession]] = []

    def __init__(
        self, session_id: str, model: LiveModel, opened: Open, now_s: float, source: Any = None, token: str = ""
    ) -> None:
        self.id, self.model, self.opened, self.source, self.token = session_id, model, opened, source, token
        self.next_actions: list[Action] = []
        self.calls: list[tuple[Any, ...]] = []
        self.wants = self.playhead = 0
        self.waiting: list[dict[str, Any]] = []
        self.due: float | None = None
        self.outdated: set[int] = set()
        self.job_ids: list[str] = []
        self.may_draft: list[bool] = []  # of each slot that it could have
        self.is_idle = False  # it makes nothing of a slot that it wanted
        self.options: dict[str, Any] = {"prompt": "a", "seed": 1}
        self.client_seqs = ClientSeqs()
        self.next_seq, self.seed = 1, 0
        self.controls: dict[str, Any] = {"guidance": 3.0}
        self.made.append(self)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of a method."""
        return [call[1:] for call in self.calls if call[0] == name]

    def wait_for_plan(self) -> None:
        self.calls.append(("wait_for_plan",))

    def values(self) -> dict[str, Any]:
        return dict(self.controls)

    def attach(self, token: str, now_s: float, *, keep_s: float) -> Ready:
        self.token = token
        self.calls.append(("attach", now_s))
        rate_hz, channels = self.model.sample_rate_hz, self.model.channels
        return ready(
            session=self.id,
            resume_token=token,
            epoch=self.epoch,
            sample_rate_hz=rate_hz,
            channels=channels,
            format="f32",
        )

    @property
    def epoch(self) -> int:
        """How often a client has connected."""
        return len(self.of("attach"))

    def detach(self, now_s: float) -> None:
        self.calls.append(("detach", now_s))

    def has_token(self, token: str) -> bool:
        return token == self.token

    def handle(self, message: Any, now_s: float, latents: Any = None) -> None:
        self.calls.append(("handle", message, latents))
        if isinstance(message, Ack):
            self.due = now_s
        if getattr(message, "values", {}).get("guidance") == -1.0:
            raise RequestError("needs 0 or more", field="values.guidance")
        self.next_seq = getattr(message, "seq", self.next_seq - 1) + 1
        self.controls |= getattr(message, "values", {})

    def write_region(self, message: Any) -> tuple[int, Any]:
        return 0, np.zeros((4, self.model.latent_channels), np.float32)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def is_ending(self) -> bool:
        return False

    def wanted_s(self) -> float | None:
        return 0.0 if len(self.job_ids) < self.wants else None

    def playhead_sample(self, now_s: float) -> int:
        return self.playhead

    def is_current(self, window: DecodeWindow) -> bool:
        return window.index not in self.outdated

    def due_s(self) -> float | None:
        return self.due

    def advance(self, now_s: float, *, may_generate: bool = True, may_draft: bool = True) -> list[Action]:
        self.calls.append(("advance", now_s))
        if self.due is not None and self.due <= now_s:
            self.due = None
        for values in self.waiting:
            self.controls |= values
        self.waiting.clear()
        actions, self.next_actions = self.next_actions, []
        if may_generate and self.wanted_s() is not None:
            self.may_draft.append(may_draft)
            actions += [] if self.is_idle else [self.job()]
        return actions

    def job(self) -> SessionJob:
        job = SessionJob(
            id=f"job {next(self.numbers)}",
            options=parse_options(self.options),
            segment=Segment(0, 16),
            tail=None,
            source=None,
            noise=None,
            full_seq=0,
            is_refresh=True,
        )
        self.job_ids.append(job.id)
        return job

    def generation_finished(self, job_id: str, latents: Any, tick: int, now_s: float, took_s: float) -> None:
        self.job_ids.remove(job_id)
        self.wants -= 1
        self.calls.append(("finished", job_id, latents))

    def generation_failed(self, job_id: str, error: Any, now_s: float) -> None:
        self.job_ids.remove(job_id)
        self.wants -= 1
        self.calls.append(("failed", job_id, error))

    def step_applied(self, seq: int, job_ids: Any, tick: int) -> None:
        self.calls.append(("step_applied", seq, tuple(job_ids)))

    def words_found(self, seq: int, words: Any) -> None:
        self.calls.append(("words_found", seq, words))

    def decoded(self, window: DecodeWindow, pcm: Any) -> None:
        self.calls.append(("decoded", window.index, pcm))

    def snapshot(self, now_s: float) -> SessionSnapshot:
        return SessionSnapshot({"token": self.token, "calls": len(self.calls)}, {})

    @classmethod
    def restore(cls, snapshot: SessionSnapshot, model: LiveModel, now_s: float) -> Self:
        if snapshot.meta.get("panics"):
            panic()
        return cls("restored", model, Open(), now_s, token=snapshot.meta["token"])


class Client:
    """A listener that keeps what it gets. client: who it is, where it is a further one."""

    def __init__(self, client: str = "") -> None:
        self.client = client
        self.messages: list[ServerMessage] = []
        self.chunks: list[Any] = []

    def on_message(self, message: ServerMessage) -> None:
        self.messages.append(message)

    def on_audio(self, chunk: Any) -> None:
        self.chunks.append(chunk)

    def of(self, kind: type[Any]) -> list[Any]:
        """Every message of one kind."""
        return [message for message in self.messages if isinstance(message, kind)]


def seqs(session: ScriptedSession) -> list[int | None]:
    """Of the messages that it has handled."""
    return [getattr(message, "seq", None) for message, _ in session.of("handle")]


class Driven:
    """A host without a thread, with a clock that the test sets, and scripted sessions.

    What sessions cost is none of the machine's time: the time that passes while they work where `has_costs`, else
    none, so that the host handles all messages that are there.
    """

    def __init__(self, pipeline: Pipeline, *, has_costs: bool = False, **options: Any) -> None:
        self.now_s = 100.0
        options = {"session_type": ScriptedSession, **options, "thread_clock": lambda: self.now_s if has_costs else 0.0}
        self.host = SessionHost(pipeline, clock=lambda: self.now_s, **options)
        self.made = ScriptedSession.made = []

    def open(self, client: str = "", **members: Any) -> tuple[ScriptedSession, Client]:
        """An open, connected session and its client."""
        listener = Client()
        self.host.open(Open(**members), listener, client)
        self.run()
        return self.made[-1], listener

    def post(self, session: ScriptedSession, *messages: ClientMessage, reply: Reply | None = None) -> None:
        """Messages of a session's client, and what is to be done then."""
        for message in messages:
            self.host.post(session.id, message, reply=reply)
        self.run()

    def hosted(self, session: ScriptedSession) -> HostedSession:
        """A session as the host has it."""
        found = self.host.directory.find(session.id)
        assert found is not None
        return found

    def poke(self, session: ScriptedSession, *asks: Action, until: Until = None) -> None:
        """Let a session be advanced, which then asks for something; then wait as `run` does."""
        session.next_actions += asks
        self.post(session, Ack(playhead_sample=0))
        self.run(until)

    def generate(self, *sessions: ScriptedSession, until: Until = None) -> None:
        """Let each of these sessions want a generation."""
        for session in sessions:
            session.wants = 1
            self.host.post(session.id, Ack(playhead_sample=0))
        self.run(until)

    def end(self, session: ScriptedSession, reason: str = "deleted") -> None:
        self.host.end(session.id, reason)
        self.run()

    def detach(self, session: ScriptedSession) -> None:
        self.host.detach(session.id)
        self.run()

    def close(self, reason: str = "restart") -> None:
        self.host.close(reason)
        self.host.loop.run_once(0.0)

    def run(self, until: Until = None) -> None:
        """Do what is to be done; then wait for calls until the condition holds."""
        self.host.loop.run_once(0.0)
        ends_s = time.monotonic() + WAIT_S
        while until is not None and not until():
            assert time.monotonic() < ends_s, "the condition does not hold"
            self.host.loop.run_once(WAIT_S)


Drive = Callable[..., Driven]
Opened = Callable[..., tuple[Driven, ScriptedSession, Client]]


def wait_for(loop: TickLoop, request: GenerationRequest) -> Latents:
    """Run a generation in a loop; returns its latents."""
    done: Future[Latents] = Future()
    loop.submit(request, lambda event: done.set_result(event.latents) if isinstance(event, Finished) else None)
    return done.result(WAIT_S)
