"""The host with scripted sessions, a real pipeline, and a clock that the tests set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from helpers.scripted_sessions import WAIT_S, Client, Driven

from runtime.errors import DrainingError, EngineDeadError, RequestError, SessionsFullError, UnknownSessionError
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options
from runtime.requests.segments import Segment
from runtime.sessions.actions import Commit, Decode, DecodeWindow, End, SendAudio, SendMessage, UpdateSteps
from runtime.sessions.frames import AudioChunk
from runtime.sessions.hosting.host import HostLimits, SessionHost
from runtime.sessions.messages import (
    Ack,
    Applied,
    Closed,
    Open,
    Problem,
    Ready,
    SetControls,
    SetSource,
    State,
    WriteAudio,
)
from runtime.sessions.store import SessionSnapshot
from runtime.tick.events import Event, Finished

Drive = Callable[..., Driven]
NO_LIMITS = HostLimits(client_sessions=0, max_refresh_s=float("inf"))


@pytest.fixture
def drive(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    with ExitStack() as closing:

        def make(**options: Any) -> Driven:
            driven = Driven(pipeline, monkeypatch, **{"limits": NO_LIMITS, **options})
            closing.callback(driven.host.close)
            return driven

        yield make


def state(**members: Any) -> State:
    values = dict.fromkeys(("playhead_sample", "sent_until_sample", "generations_in_flight", "underruns", "ticks"), 0)
    times = dict.fromkeys(("lead_s", "generation_s", "tick_ms", "canvas_position_s"), 0.0)
    return State(**{**values, **times, "playing": True, **members})


class Store:
    """A session store in memory."""

    failure: str | None = None

    def __init__(self) -> None:
        self.saved: dict[str, SessionSnapshot] = {}
        self.num_saves = 0

    def save(self, session_id: str, snapshot: SessionSnapshot) -> None:
        self.saved[session_id] = snapshot
        self.num_saves += 1

    def delete(self, session_id: str) -> None:
        self.saved.pop(session_id, None)

    def load(self, session_id: str) -> SessionSnapshot | None:
        return self.saved.get(session_id)


class TestConnections:
    def test_ready_is_the_first_message_and_actions_reach_the_client(self, drive: Drive) -> None:
        driven = drive()
        session, client = driven.open()
        chunk = AudioChunk(1, 0, np.zeros((4, 2), np.float32))
        session.next_actions = [SendAudio(chunk), SendMessage(Applied(seq=3))]
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        assert isinstance(client.messages[0], Ready)
        assert client.of(Applied) == [Applied(seq=3)]
        assert client.chunks == [chunk]

    def test_a_state_gets_the_figures_of_the_loop(self, drive: Drive) -> None:
        driven = drive()
        session, client = driven.open()
        session.next_actions = [SendMessage(state(underruns=2))]
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        assert client.of(State)[0].ticks == driven.host.sessions()[0].state.ticks  # type: ignore[union-attr]
        assert driven.host.stats().underruns == 2

    def test_a_session_without_connection_is_kept_and_then_ended(self, drive: Drive) -> None:
        driven = drive(limits=HostLimits(keep_s=60.0))
        session, _ = driven.open()
        driven.host.detach(session.id)
        driven.run()
        assert session.of("detach")
        driven.now_s += 59.0
        assert driven.host.timeout_s() == pytest.approx(1.0)
        driven.run()
        assert driven.host.stats().open == 1
        driven.now_s += 2.0
        driven.run()
        assert driven.host.stats().ended == {"expired": 1}
        with pytest.raises(UnknownSessionError):
            driven.host.resume(session.id, session.token, Client())

    def test_a_resumed_session_has_a_new_connection_and_the_old_one_is_closed(self, drive: Drive) -> None:
        driven = drive()
        session, old = driven.open()
        new = Client()
        assert driven.host.resume(session.id, session.token, new) == session.id
        driven.run()
        assert len(old.of(Closed)) == 1
        assert len(new.of(Ready)) == 1
        driven.host.detach(session.id, old)
        driven.run()
        assert driven.host.stats().connected == 1

    def test_a_wrong_token_or_id_resumes_nothing(self, drive: Drive) -> None:
        driven = drive()
        session, _ = driven.open()
        for session_id, token in ((session.id, "wrong"), ("unknown", session.token)):
            with pytest.raises(UnknownSessionError):
                driven.host.resume(session_id, token, Client())

    def test_the_client_can_close_its_session(self, drive: Drive) -> None:
        driven = drive()
        session, client = driven.open()
        session.next_actions = [End()]
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        assert client.of(Closed) == [Closed(reason="closed", resumable=False)]
        assert driven.host.stats().ended == {"closed": 1}

    def test_every_opened_session_is_open_or_ended(self, drive: Drive) -> None:
        driven = drive()
        sessions = [driven.open()[0] for _ in range(5)]
        for session, reason in zip(sessions, ("deleted", "deleted", "closed"), strict=False):
            driven.host.end(session.id, reason)
            driven.host.end(session.id, reason)
        driven.run()
        stats = driven.host.stats()
        assert stats.ended == {"deleted": 2, "closed": 1}
        assert (stats.opened, stats.open) == (5, 2)


class TestLimits:
    def test_number_of_sessions(self, drive: Drive) -> None:
        driven = drive(limits=HostLimits(max_sessions=2, client_sessions=0))
        driven.open()
        driven.open()
        with pytest.raises(SessionsFullError, match="2 sessions are open") as refused:
            driven.host.open(Open(), Client())
        assert refused.value.retry_after_s > 0

    def test_sessions_per_client(self, drive: Drive) -> None:
        driven = drive(limits=HostLimits(client_sessions=1))
        driven.open("a")
        driven.open("b")
        with pytest.raises(SessionsFullError, match="the limit per client"):
            driven.host.open(Open(), Client(), "a")

    def test_projected_refresh_time(self, drive: Drive, pipeline: Pipeline) -> None:
        driven = drive(limits=HostLimits(max_refresh_s=1e-6))
        with driven.host:
            done = threading.Event()
            pipeline.loop.submit(pipeline.request("a", seed=0), lambda event: note_end(event, done))
            assert done.wait(WAIT_S)
            driven.host.open(Open(), Client())
            with pytest.raises(SessionsFullError, match="a change would take"):
                driven.host.open(Open(), Client())


def note_end(event: Event, done: threading.Event) -> None:
    if isinstance(event, Finished):
        done.set()


class TestGenerations:
    def test_a_generation_gives_the_latents_of_its_options(self, drive: Drive, pipeline: Pipeline) -> None:
        driven = drive()
        session, _ = driven.open()
        session.wants = 1
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run(lambda: bool(session.of("finished")))
        request = pipeline.compose(parse_options(session.options), Segment(0, 16), GenerationInputs())
        done, events = threading.Event(), list[Any]()

        def listen(event: Event) -> None:
            events.append(event)
            note_end(event, done)

        pipeline.loop.submit(request, listen)
        assert done.wait(WAIT_S)
        np.testing.assert_allclose(session.of("finished")[0][1], events[-1].latents, atol=1e-5)

    def test_sessions_never_hold_more_slots_than_theirs_and_each_gets_one_first(self, drive: Drive) -> None:
        driven = drive()
        sessions = [driven.open()[0] for _ in range(5)]
        most: list[int] = []
        for session in sessions:
            session.wants = 2
        while any(session.wants for session in sessions):
            driven.run()
            most.append(driven.host.stats().generations_in_flight)
            if most[-1]:
                driven.host.run_once(WAIT_S)
            if sum(len(session.of("finished")) for session in sessions) < 3:
                assert [len(session.job_ids) for session in sessions[:3]] <= [1, 1, 1]
        assert max(most) == 3
        assert all(len(session.of("finished")) == 2 for session in sessions)

    def test_a_job_takes_the_options_of_the_moment_when_it_gets_its_slot(self, drive: Drive) -> None:
        driven = drive()
        others = [driven.open()[0] for _ in range(3)]
        session, _ = driven.open()
        for other in (*others, session):
            other.options["steps"] = 50
            other.wants = 1
            driven.now_s += 1.0
            driven.run()
        assert not session.job_ids
        session.options["seed"] = 2
        driven.run(lambda: bool(session.of("finished")))
        latents = [made.of("finished")[0][1] for made in (others[0], session)]
        assert not np.array_equal(*latents)

    def test_a_step_parameter_that_reaches_a_generation_is_reported(self, drive: Drive) -> None:
        driven = drive()
        session, _ = driven.open()
        session.options["steps"] = 200
        session.wants = 1
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        session.next_actions = [UpdateSteps(tuple(session.job_ids), {"velocity_scale": 0.5}, 7)]
        (job_id,) = session.job_ids
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run(lambda: bool(session.of("finished")))
        assert session.of("step_applied") == [(7, (job_id,))]

    def test_an_error_of_one_generation_ends_only_that(self, drive: Drive) -> None:
        driven = drive()
        session, _ = driven.open()
        session.options["prompt"] = "a" * 500
        session.wants = 1
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        assert isinstance(session.of("failed")[0][1], RequestError)
        session.options["prompt"] = "a"
        session.wants = 1
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run(lambda: bool(session.of("finished")))

    def test_live_generations_go_before_those_that_wait(self, drive: Drive, pipeline: Pipeline) -> None:
        driven, order = drive(), list[str]()
        session, _ = driven.open()
        session.wants = 1
        depth = pipeline.deployment.runtime.depth
        for index in range(2 * depth):
            request = pipeline.request("a", steps=50, seed=index)
            pipeline.loop.submit(request, lambda event: order.append("http") if isinstance(event, Finished) else None)
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run(lambda: bool(session.of("finished")))
        assert len(order) < 2 * depth

    def test_ending_a_session_frees_its_slots(self, drive: Drive, pipeline: Pipeline) -> None:
        driven = drive()
        session, _ = driven.open()
        session.options["steps"] = 200
        session.wants = 1
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        before = pipeline.loop.stats().outcomes["cancelled"]
        driven.host.end(session.id, "deleted")
        driven.host.run_once(0.0)
        driven.host.run_once(WAIT_S)
        assert pipeline.loop.stats().outcomes["cancelled"] == before + 1


class TestMessages:
    def test_a_refused_message_gives_a_problem_with_its_seq(self, drive: Drive) -> None:
        driven = drive()
        session, client = driven.open()
        driven.host.post(session.id, SetControls(seq=3, values={"guidance": -1.0}))
        driven.run()
        (problem,) = client.of(Problem)
        assert (problem.seq, problem.code, problem.field) == (3, "invalid_request", "values.guidance")

    def test_a_reply_gets_the_error_instead(self, drive: Drive) -> None:
        driven, replies = drive(), list[Any]()
        session, client = driven.open()
        driven.host.post(session.id, SetControls(seq=1, values={"guidance": 1.0}), reply=replies.append)
        driven.host.post(session.id, SetControls(seq=2, values={"guidance": -1.0}), reply=replies.append)
        driven.host.post("unknown", SetControls(seq=3, values={}), reply=replies.append)
        driven.run()
        assert [type(reply) for reply in replies] == [UnknownSessionError, type(None), RequestError]
        assert not client.of(Problem)

    def test_messages_keep_their_order_while_a_source_is_loaded(self, drive: Drive, pipeline: Pipeline) -> None:
        loading = threading.Event()

        def load(source_id: str) -> Any:
            assert loading.wait(WAIT_S)
            if source_id == "missing":
                raise RequestError("there is no such source", field="id")
            return np.full((4, 8), 0.5, np.float32)

        driven = drive(sources=load)
        session, client = driven.open()
        for message in (
            SetSource(seq=1, id="a"),
            SetControls(seq=2, values={}),
            SetSource(seq=3, id="missing"),
            SetSource(seq=4, id=None),
            Ack(playhead_sample=5),
        ):
            driven.host.post(session.id, message)
        driven.run()
        assert [message.type for message, _ in session.of("handle")] == ["ack"]
        loading.set()
        driven.run(lambda: len(session.of("handle")) == 4)
        handled = [(message.seq, latents is not None) for message, latents in session.of("handle")[1:]]
        assert handled == [(1, True), (2, False), (4, False)]
        assert client.of(Problem)[0].seq == 3

    def test_written_audio_is_encoded(self, drive: Drive, pipeline: Pipeline) -> None:
        driven = drive()
        session, _ = driven.open()
        pcm = np.full((500, 2), 0.1, np.float32)
        driven.host.post(session.id, WriteAudio(seq=1, at_s=0.0, samples=500), pcm)
        driven.run(lambda: bool(session.of("handle")))
        ((_, latents),) = session.of("handle")
        assert latents.shape == (4, pipeline.bundle.latents.channels)


class TestTime:
    def test_sessions_are_advanced_when_they_are_due(self, drive: Drive) -> None:
        driven = drive()
        session, _ = driven.open()
        assert driven.host.timeout_s() is None
        session.due = driven.now_s + 3.0
        assert driven.host.timeout_s() == pytest.approx(3.0)
        before = len(session.of("advance"))
        driven.run()
        assert len(session.of("advance")) == before
        driven.now_s += 3.0
        driven.run()
        assert len(session.of("advance")) > before

    def test_a_clock_of_a_session_s_own_moves_by_calls_only(self, drive: Drive) -> None:
        driven = drive()
        driven.host.open(Open(), Client(), clock=lambda: 7.0)
        driven.run()
        session = driven.made[-1]
        session.due = 8.0
        assert driven.host.timeout_s() is None
        assert session.of("attach") == [(7.0,)]

    def test_a_message_is_handled_before_windows_that_wait_for_the_codec(self, drive: Drive) -> None:
        driven = drive()
        session, _ = driven.open()
        values = np.zeros((8, 8), np.float32)
        session.next_actions = [Decode(DecodeWindow(i, 0, values, 0, 0, 100, i * 100, 0, 0)) for i in range(20)]
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        driven.host.post(session.id, SetControls(seq=1, values={}))
        driven.run()
        assert len(session.of("handle")) == 2
        assert len(session.of("decoded")) < 2
        session.outdated = set(range(10, 20))
        driven.run(lambda: len(session.of("decoded")) == 10)
        assert [index for index, _ in session.of("decoded")] == list(range(10))


class TestStore:
    def test_a_commit_is_saved_once_and_an_end_deletes_it(self, drive: Drive) -> None:
        store = Store()
        driven = drive(store=store)
        session, _ = driven.open()
        session.next_actions = [Commit(), Commit()]
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.run()
        assert (list(store.saved), store.num_saves) == ([session.id], 1)
        driven.host.end(session.id, "deleted")
        driven.run()
        assert not store.saved

    def test_sessions_stay_in_the_store_when_the_host_is_closed_and_resume_in_another(self, drive: Drive) -> None:
        store = Store()
        driven = drive(store=store)
        session, client = driven.open()
        driven.host.close("restart")
        driven.host.run_once(0.0)
        assert client.of(Closed) == [Closed(reason="restart", resumable=True)]
        other, new = drive(store=store), Client()
        with pytest.raises(UnknownSessionError):
            other.host.resume(session.id, "wrong", new)
        assert other.host.resume(session.id, session.token, new) == session.id
        other.run()
        assert len(new.of(Ready)) == 1
        assert other.host.stats().open == 1


class TestEnd:
    def test_nothing_is_opened_after_the_end(self, drive: Drive) -> None:
        driven = drive()
        _, client = driven.open()
        driven.host.close()
        driven.host.run_once(0.0)
        assert client.of(Closed) == [Closed(reason="shutdown", resumable=False)]
        with pytest.raises(DrainingError):
            driven.host.open(Open(), Client())

    def test_no_thread_is_left(self, drive: Drive) -> None:
        before = set(threading.enumerate())
        driven = drive()
        with driven.host:
            assert len(set(threading.enumerate()) - before) >= 1
        assert not set(threading.enumerate()) - before

    def test_a_dead_engine_ends_all_sessions(
        self, drive: Drive, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> str:
            raise EngineDeadError("the device is lost")

        driven = drive()
        (one, first), (_, second) = driven.open(), driven.open()
        monkeypatch.setattr(pipeline.loop, "submit", fail)
        one.wants = 1
        driven.host.post(one.id, Ack(playhead_sample=0))
        driven.run()
        for client in (first, second):
            assert client.of(Closed) == [Closed(reason="engine", resumable=False)]
        with pytest.raises(EngineDeadError):
            driven.host.open(Open(), Client())


def test_a_bundle_without_codec_has_no_live_sessions(built: Any) -> None:
    from runtime.errors import ConfigError
    from runtime.pipeline.pipeline import open_pipeline

    with open_pipeline(built(codec=False)) as pipeline, pytest.raises(ConfigError, match="no \\[codec\\]"):
        SessionHost(pipeline)
