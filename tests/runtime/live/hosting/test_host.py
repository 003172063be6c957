"""The host with scripted sessions, a real pipeline, and a clock that the tests set."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.http_harness import eventually
from helpers.live_clients import state
from helpers.panics import Panic, panic
from helpers.scripted_sessions import WAIT_S, Client, Drive, Driven, Opened, ScriptedSession, seqs, wait_for

from runtime.base.errors import (
    ConfigError,
    DrainingError,
    EngineDeadError,
    QueueFullError,
    RequestError,
    SessionsFullError,
    StoreUnavailableError,
    UnknownSessionError,
)
from runtime.live.hosting.host import MESSAGES_S, SessionHost
from runtime.live.hosting.hosted_session import LEFT_KEEP_S
from runtime.live.hosting.inbox import MAX_UNHANDLED, MAX_WAITING, SHARE
from runtime.live.hosting.slots import RETRY_AFTER_S, HostLimits
from runtime.live.protocol.actions import Commit, DecodeWindow, End
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import Ack, Open, SetControls, SetSource
from runtime.live.protocol.server_messages import Applied, Closed, Problem, Ready, State
from runtime.live.storage.store import SessionSnapshot
from runtime.pipeline.compose import RequestComposer
from runtime.pipeline.pipeline import Pipeline, open_pipeline


class Store:
    """A session store in memory."""

    failure: str | None = None

    def __init__(self) -> None:
        self.saved: dict[str, SessionSnapshot] = {}
        self.taken: list[str] = []
        self.aside: list[str] = []
        self.num_saves = 0

    def save(self, session_id: str, snapshot: SessionSnapshot) -> None:
        self.saved[session_id] = snapshot
        self.num_saves += 1

    def delete(self, session_id: str) -> None:
        self.saved.pop(session_id, None)

    def load(self, session_id: str) -> SessionSnapshot | None:
        return self.saved.get(session_id)

    def take(self, session_id: str) -> SessionSnapshot | None:
        self.taken.append(session_id)
        return self.load(session_id)

    def release(self, session_id: str, then: Callable[[bool], None]) -> None:
        then(self.failure is None)

    def on_lost(self, call: Callable[[str], None]) -> None:
        self.lose = call

    def ids(self) -> list[str]:
        return [name for name in self.saved if name not in self.aside]

    def set_aside(self, session_id: str) -> None:
        self.aside.append(session_id)


class FailingStore(Store):
    """One that cannot be read."""

    def load(self, session_id: str) -> SessionSnapshot | None:
        raise StoreUnavailableError("disk I/O error")


class TestConnections:
    def test_ready_is_the_first_message_and_actions_reach_the_client(self, opened: Opened) -> None:
        driven, session, client = opened()
        chunk = AudioChunk(1, 0, np.zeros((4, 2), np.float32))
        driven.poke(session, chunk, Applied(seq=3))
        assert isinstance(client.messages[0], Ready)
        assert client.of(Applied) == [Applied(seq=3)]
        assert client.chunks == [chunk]

    def test_a_state_gets_the_figures_of_the_loop(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        driven = drive()
        loop, times = driven.host.pipeline.loop, driven.host.services.tick_times
        stats = replace(loop.stats(), ticks=7, slots_active=3)
        monkeypatch.setattr(loop, "stats", lambda: stats)
        times.note(1, 5.0)
        times.note(3, 12.0)
        session, client = driven.open()
        driven.poke(session, state(underruns=2))
        assert client.of(State) == [state(underruns=2, ticks=7, tick_ms=12.0)]
        assert driven.host.sessions()[0].state == client.of(State)[0]
        assert driven.host.stats().underruns == 2

    def test_a_session_without_connection_is_kept_and_then_ended(self, opened: Opened) -> None:
        driven, session, _ = opened(limits=HostLimits(keep_s=60.0))
        driven.detach(session)
        assert session.of("detach")
        driven.now_s += 59.0
        assert driven.host.loop.timeout_s() == pytest.approx(1.0)
        driven.run()
        assert driven.host.stats().open == 1
        driven.now_s += 2.0
        driven.run()
        assert driven.host.stats().ended == {"expired": 1}
        with pytest.raises(UnknownSessionError):
            driven.host.resume(session.id, session.token, Client())

    def test_a_session_whose_client_has_left_ends_soon_unless_it_is_back(self, opened: Opened) -> None:
        driven, session, _ = opened(limits=HostLimits(keep_s=60.0))
        left = session.epoch
        driven.host.release(session.id, left + 1)  # of no connection that it has had
        driven.run()
        assert not session.of("detach")
        driven.host.release(session.id, left)
        driven.run()
        assert session.of("detach")
        driven.host.resume(session.id, session.token, Client())
        driven.run()
        driven.host.release(session.id, left)  # comes late: the client is back
        driven.now_s += 2 * LEFT_KEEP_S
        driven.run()
        assert driven.host.stats().open == 1
        driven.host.release(session.id, session.epoch)
        driven.run()
        driven.now_s += LEFT_KEEP_S + 0.1
        driven.run()
        assert driven.host.stats().ended == {"expired": 1}

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

    def test_a_wrong_token_or_id_resumes_nothing(self, opened: Opened) -> None:
        driven, session, _ = opened()
        for session_id, token in ((session.id, "wrong"), ("unknown", session.token)):
            with pytest.raises(UnknownSessionError):
                driven.host.resume(session_id, token, Client())

    def test_the_client_can_close_its_session(self, opened: Opened) -> None:
        driven, session, client = opened()
        driven.poke(session, End())
        assert client.of(Closed) == [Closed(reason="closed", resumable=False)]
        assert driven.host.stats().ended == {"closed": 1}

    def test_every_opened_session_is_open_or_ended(self, drive: Drive) -> None:
        driven = drive()
        sessions = [driven.open()[0] for _ in range(5)]
        for session, reason in zip(sessions, ("deleted", "deleted", "closed"), strict=False):
            driven.host.end(session.id, reason)
            driven.end(session, reason)
        stats = driven.host.stats()
        assert stats.ended == {"deleted": 2, "closed": 1}
        assert (stats.opened, stats.open) == (5, 2)


class TestLimits:
    def test_the_wrong_member_of_open_is_named(self, drive: Drive) -> None:
        driven = drive()
        with pytest.raises(RequestError) as found:
            driven.host.open(Open(source_id="a"), Client())
        assert found.value.field == "source_id"

    @pytest.mark.parametrize(
        ("limits", "match"),
        [
            (HostLimits(max_sessions=2, client_sessions=0), "2 sessions are open"),
            (HostLimits(client_sessions=1), "the limit per client"),
        ],
    )
    def test_number_of_sessions(self, limits: HostLimits, match: str, drive: Drive) -> None:
        driven = drive(limits=limits)
        driven.open("a")
        driven.open("b")
        with pytest.raises(SessionsFullError, match=match) as refused:
            driven.host.open(Open(), Client(), "a")
        assert refused.value.retry_after_s == RETRY_AFTER_S
        assert driven.host.session_wait_s == (RETRY_AFTER_S if limits.max_sessions == 2 else 0.0)

    def test_a_session_without_a_client_makes_room(self, drive: Drive) -> None:
        driven = drive(limits=HostLimits(max_sessions=2, keep_s=60.0))
        (kept, _), (playing, _) = driven.open("a"), driven.open("b")
        driven.detach(kept)
        assert driven.host.session_wait_s == 0.0
        newest, _ = driven.open("c")
        driven.run()
        assert [info.id for info in driven.host.sessions()] == [playing.id, newest.id]
        assert driven.host.stats().ended == {"expired": 1}
        with pytest.raises(SessionsFullError, match="2 sessions are open"):
            driven.host.open(Open(), Client(), "d")

    def test_projected_refresh_time(self, drive: Drive, pipeline: Pipeline) -> None:
        driven = drive(limits=HostLimits(max_refresh_s=1e-6))
        with driven.host:
            wait_for(pipeline.loop, pipeline.request("a", seed=0))
            driven.host.open(Open(), Client())
            with pytest.raises(SessionsFullError, match="a change would take"):
                driven.host.open(Open(), Client())

    def test_a_session_without_a_connection_takes_no_room_of_others(self, drive: Drive) -> None:
        driven = drive(limits=HostLimits(max_refresh_s=1e-6))
        driven.host.services.tick_times.note(1, 10.0)
        session, _ = driven.open()
        driven.detach(session)
        driven.open()
        with pytest.raises(SessionsFullError, match="a change would take"):
            driven.host.open(Open(), Client())


class TestTime:
    def test_sessions_are_advanced_when_they_are_due(self, opened: Opened) -> None:
        driven, session, _ = opened()
        assert driven.host.loop.timeout_s() is None
        session.due = driven.now_s + 3.0
        driven.open()[0].due = driven.now_s + 4.0
        assert driven.host.loop.timeout_s() == pytest.approx(3.0)
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
        assert driven.host.loop.timeout_s() is None
        assert session.of("attach") == [(7.0,)]

    def test_a_message_is_handled_before_windows_that_wait_for_the_codec(self, opened: Opened) -> None:
        (driven, session, _), go = opened(), threading.Event()
        codec = driven.host.pipeline.codec
        for _ in range(codec.queue.size):
            codec.queue.submit(partial(go.wait, 60))
        values = np.zeros((8, 8), np.float32)
        driven.poke(session, *(DecodeWindow(i, 0, values, 0, 0, 100, i * 100, 0, 0) for i in range(20)))
        driven.post(session, SetControls(seq=1, values={}))
        assert len(session.of("handle")) == 2
        assert session.of("decoded") == []
        session.outdated = set(range(10, 20))
        go.set()
        driven.run(lambda: len(session.of("decoded")) == 10)
        assert sorted(index for index, _ in session.of("decoded")) == list(range(10))


class TestStore:
    def test_a_commit_is_saved_once_and_an_end_deletes_it(self, opened: Opened) -> None:
        store = Store()
        driven, session, _ = opened(store=store)
        driven.poke(session, Commit(), Commit())
        assert (list(store.saved), store.num_saves) == ([session.id], 1)
        driven.end(session, "deleted")
        assert not store.saved

    def test_sessions_stay_in_the_store_when_the_host_is_closed_and_resume_in_another(
        self, drive: Drive, opened: Opened
    ) -> None:
        store = Store()
        driven, session, client = opened(store=store)
        driven.close()
        assert client.of(Closed) == [Closed(reason="restart", resumable=True)]
        other, new = drive(store=store), Client()
        with pytest.raises(UnknownSessionError):
            other.host.resume(session.id, "wrong", new)
        assert store.taken == []
        assert other.host.resume(session.id, session.token, new) == session.id
        other.run()
        assert len(new.of(Ready)) == 1
        assert other.host.stats().open == 1

    def test_who_resumes_a_session_of_the_store_counts_as_its_client(self, drive: Drive) -> None:
        store = Store()
        driven = drive(store=store)
        session, _ = driven.open("first")
        driven.host.resume(session.id, session.token, Client(), "second")
        assert [each.client for each in driven.host.sessions()] == ["first"]
        driven.run()
        driven.close()
        other = drive(store=store)
        other.host.resume(session.id, session.token, Client(), "second")
        assert [each.client for each in other.host.sessions()] == ["second"]

    def test_two_connections_that_resume_at_a_time_get_the_same_session(self, drive: Drive, opened: Opened) -> None:
        class SlowStore(Store):
            def take(self, session_id: str) -> SessionSnapshot | None:
                both.wait(WAIT_S)
                return super().take(session_id)

        both, store = threading.Barrier(2), SlowStore()
        driven, session, _ = opened(store=store)
        driven.close()
        other = drive(store=store)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: other.host.resume(session.id, session.token, Client()), range(2)))
        assert (other.host.stats().opened, other.host.stats().open) == (1, 1)

    def test_a_session_that_another_server_has_taken_ends_here_and_stays_in_the_store(self, opened: Opened) -> None:
        store = Store()
        driven, session, client = opened(store=store)
        store.lose(session.id)
        driven.run()
        assert client.of(Closed) == [Closed(reason="taken", resumable=False)]
        assert driven.host.stats().ended == {"taken": 1}

    @pytest.mark.parametrize("failure", [None, "gone"])
    def test_a_session_is_stored_before_its_client_is_told_to_go_elsewhere(
        self, opened: Opened, failure: str | None
    ) -> None:
        store = Store()
        driven, session, client = opened(store=store)
        store.failure = failure
        client.on_message = lambda message: told.append((message, session.id in store.saved))  # type: ignore[method-assign]
        told: list[Any] = []
        driven.host.hand_over(session.id)
        driven.run()
        assert told == [(Closed(reason="moved", resumable=failure is None), True)]
        assert driven.host.stats().ended == {"moved": 1}

    def test_a_state_says_whether_the_session_is_stored(self, opened: Opened) -> None:
        store = Store()
        driven, session, client = opened(store=store)
        for store.failure in (None, "gone"):
            driven.poke(session, state())
        assert [message.stored for message in client.of(State)] == [True, False]

    def test_stored_sessions_are_kept_after_a_start_as_after_a_lost_connection(self, drive: Drive) -> None:
        store = Store()
        driven = drive(store=store)
        resumed, forgotten = driven.open()[0], driven.open()[0]
        driven.close()
        other = drive(store=store, limits=HostLimits(keep_s=60.0))
        other.run()
        assert {info.id: info.is_connected for info in other.host.sessions()} == {
            resumed.id: False,
            forgotten.id: False,
        }
        other.host.resume(resumed.id, resumed.token, Client(), "me")
        other.now_s += 61.0
        other.run()
        assert [(info.id, info.client) for info in other.host.sessions()] == [(resumed.id, "me")]
        assert other.host.stats().ended == {"expired": 1}
        assert store.ids() == [resumed.id]

    def test_a_session_that_cannot_be_restored_stays_in_the_store(
        self, drive: Drive, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = FailingStore()
        store.saved["a"] = SessionSnapshot({}, {})
        driven = drive(store=store)
        driven.run()
        assert "session a is not restored: disk I/O error" in caplog.text
        assert driven.host.stats().open == 0
        assert store.ids() == ["a"]


METHODS = (  # of a session
    "attach", "handle", "due_s", "advance", "wanted_s", "snapshot", "playhead_sample", "is_current", "decoded",
    "generation_finished",
)  # fmt: skip
WINDOW = DecodeWindow(0, 0, np.zeros((8, 8), np.float32), 0, 0, 9, 0, 0, 0)


def is_settled(host: SessionHost) -> bool:
    """Whether every generation that was started has ended."""
    stats = host.stats()
    return stats.generations_started == sum(stats.generations_ended.values())


class TestDefects:
    """An error that nothing expects, in the work of one session."""

    @pytest.mark.parametrize("method", METHODS)
    def test_of_a_session_ends_it_alone(self, method: str, drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
        driven = drive(store=Store())
        (bad, client), (good, other) = driven.open(), driven.open()
        setattr(bad, method, panic)
        for session in (bad, good):
            session.next_actions = [Commit(), WINDOW]
            driven.host.resume(session.id, session.token, client if session is bad else other)
        driven.generate(
            bad, good, until=lambda: bool(driven.host.stats().ended and good.of("finished") and good.of("decoded"))
        )
        assert [message.code for message in client.of(Problem)] == ["internal_error"]
        assert client.of(Closed)[-1] == Closed(reason="internal", resumable=False)
        assert driven.host.stats().ended == {"internal": 1}
        (line,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert (line.getMessage(), line.exc_info[0]) == (f"session {bad.id} has failed", Panic)
        driven.run(lambda: is_settled(driven.host))
        assert [info.id for info in driven.host.sessions()] == [good.id]

    @pytest.mark.parametrize("owner", ["codec", "composer", "listener"])
    def test_of_what_serves_it_ends_it_alone(
        self, owner: str, drive: Drive, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driven = drive()
        (bad, client), (good, _) = driven.open(), driven.open()
        bad.wants = owner == "composer"
        bad.next_actions = [WINDOW]
        with monkeypatch.context() as patch:
            if owner == "listener":
                bad.next_actions = [Applied(seq=1)]
            owned = {"codec": (pipeline.codec, "decode"), "composer": (RequestComposer, "compose")}
            patch.setattr(*owned.get(owner, (client, "on_message")), panic)
            driven.poke(bad, until=lambda: driven.host.stats().ended == {"internal": 1})
        assert is_settled(driven.host)
        driven.poke(good, WINDOW, until=lambda: bool(good.of("decoded")))

    def test_replies_that_wait_are_given(self, opened: Opened) -> None:
        driven, session, _ = opened(sources=panic)
        replies: list[Any] = []
        driven.post(session, SetSource(seq=1, id="a"), SetControls(seq=2, values={}), reply=replies.append)
        driven.run(lambda: len(replies) == 2)
        assert driven.host.stats().ended == {"internal": 1}
        session, _ = driven.open()
        session.handle = panic  # type: ignore[method-assign]
        driven.post(session, SetControls(seq=1, values={}), reply=replies.append)
        assert [error.code for error in replies] == ["draining", "draining", "internal_error"]

    def test_of_the_thread_of_its_plan_ends_a_session(self, drive: Drive) -> None:
        driven = drive()
        bad, good = (driven.open()[0] for _ in range(2))
        thread = driven.hosted(bad).hints.thread
        ident = thread.submit(threading.get_ident).result()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Panic))
        thread.submit(int)  # it takes that, and dies of it
        eventually(lambda: thread.has_died)
        driven.host.post(bad.id, SetControls(seq=1, values={}))
        driven.run(lambda: driven.host.stats().ended == {"internal": 1})
        assert [info.id for info in driven.host.sessions()] == [good.id]

    def test_of_a_session_that_is_handed_over_closes_it(self, opened: Opened) -> None:
        driven, session, client = opened(store=Store())
        driven.run()
        session.snapshot = panic  # type: ignore[method-assign]
        driven.host.hand_over(session.id)
        driven.run(lambda: bool(client.of(Closed)))
        assert client.of(Closed) == [Closed(reason="moved", resumable=False)]
        assert driven.host.sessions() == []

    def test_of_what_follows_a_message_is_its_reply(self, opened: Opened) -> None:
        driven, session, _ = opened()
        replies: list[Any] = []
        driven.hosted(session).controllers.note = panic  # type: ignore[method-assign]
        driven.post(session, SetControls(seq=1, values={}), reply=replies.append)
        assert [error.code for error in replies] == ["internal_error"]

    def test_of_one_stored_session_leaves_the_others(self, drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
        store = Store()
        store.saved = {"a": SessionSnapshot({"panics": True}, {}), "b": SessionSnapshot({"token": "b"}, {})}
        driven = drive(store=store)
        driven.run()
        assert [info.id for info in driven.host.sessions()] == ["b"]
        assert "session a is not restored" in caplog.text
        assert (store.ids(), list(store.saved)) == (["b"], ["a", "b"])

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_of_the_host_ends_all_sessions_and_shows(self, opened: Opened) -> None:
        driven, session, client = opened()
        assert not driven.host.threads[0].has_died
        driven.host.loop.run_once = panic  # type: ignore[method-assign]
        driven.host.post(session.id, Ack(playhead_sample=0))
        driven.host.start()
        eventually(lambda: driven.host.threads[0].has_died and client.of(Closed))
        assert client.of(Closed) == [Closed(reason="engine", resumable=False)]
        with pytest.raises(EngineDeadError):
            driven.host.open(Open(), Client())


class TestEnd:
    def test_nothing_is_opened_after_the_end(self, opened: Opened) -> None:
        driven, _, client = opened()
        driven.close("shutdown")
        assert client.of(Closed) == [Closed(reason="shutdown", resumable=False)]
        with pytest.raises(DrainingError):
            driven.host.open(Open(), Client())

    def test_a_session_that_is_opened_while_the_host_is_closed_is_refused(self, drive: Drive) -> None:
        class ClosingLimits(HostLimits):
            def check(self, *given: Any) -> None:
                driven.host.close()

        driven = drive(limits=ClosingLimits())
        with pytest.raises(DrainingError):
            driven.host.open(Open(prompts=[{"text": "drums"}]), Client())

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
        (one, first), (other, second) = driven.open(), driven.open()
        monkeypatch.setattr(pipeline.loop, "submit", fail)
        driven.generate(one, other, until=lambda: not driven.host.sessions())
        for client in (first, second):
            assert client.of(Closed) == [Closed(reason="engine", resumable=False)]
        with pytest.raises(EngineDeadError):
            driven.host.open(Open(), Client())


def test_a_bundle_without_codec_has_no_live_sessions(built: Any) -> None:
    with open_pipeline(built(codec=False)) as pipeline, pytest.raises(ConfigError, match="no \\[codec\\]"):
        SessionHost(pipeline)


class TestMessages:
    """What clients send, and how much of the host's time it gets; the thread's work is scripted."""

    def test_each_session_in_turn_and_results_and_advances_are_not_behind_messages(self, drive: Drive) -> None:
        driven = drive()
        sessions = [driven.open()[0] for _ in range(3)]
        order: list[str] = []
        for session in sessions:
            self.cost(driven, session, order, MESSAGES_S / 4)
            for seq in range(1, 21):
                driven.host.post(session.id, SetControls(seq=seq, values={}))
        driven.host.services.mailbox.put(lambda: order.append("result"))
        driven.run()
        assert order[0] == "result"
        assert order[1:] == [sessions[index % 3].id for index in range(4)]
        assert [len(session.of("advance")) > 1 for session in sessions] == [True, True, True]
        for _ in range(20):
            driven.run()
        assert order[1:] == [session.id for _ in range(20) for session in sessions]
        assert [seqs(session) for session in sessions] == [list(range(1, 21))] * 3

    @pytest.mark.parametrize(("num_others", "share"), [(1, 0.25), (7, SHARE)])
    def test_messages_that_cost_much_get_a_share_and_do_not_delay_those_of_others(
        self, drive: Drive, num_others: int, share: float
    ) -> None:
        driven = drive(has_costs=True)
        (costly, _), (other, _), *_ = [driven.open() for _ in range(1 + num_others)]
        self.cost(driven, costly, [], 0.02)
        for seq in range(1, MAX_UNHANDLED + 1):
            driven.host.post(costly.id, SetControls(seq=seq, values={}))
        started_s, num_sent = driven.now_s, 0
        while driven.now_s < started_s + 4.0:
            num_sent += 1
            driven.post(other, SetControls(seq=num_sent, values={}))
            assert len(seqs(other)) >= num_sent - 1
            driven.now_s += driven.host.loop.timeout_s() or 0.02
        handled = seqs(costly)
        assert handled == list(range(1, len(handled) + 1))
        assert 0.5 * share < len(handled) * 0.02 / 4.0 < 1.5 * share

    def test_what_does_not_fit_is_answered(self, opened: Opened) -> None:
        driven, session, client = opened()
        replies: list[Any] = []
        for seq in range(1, MAX_WAITING + 2):
            driven.host.post(session.id, SetControls(seq=seq, values={}))
        driven.host.post(session.id, Ack(playhead_sample=0), reply=replies.append)
        with pytest.raises(QueueFullError):
            driven.host.resume(session.id, session.token, Client())
        room = driven.host.room(session.id)
        driven.detach(session)
        assert room.done()
        assert [problem.seq for problem in client.of(Problem)] == [MAX_WAITING + 1]
        assert [error.code for error in replies] == ["queue_full"]
        assert len(seqs(session)) == MAX_WAITING
        assert session.of("detach")
        assert driven.host.room(session.id) is driven.host.room("unknown") is None

    def test_further_clients_neither_displace_nor_delay_the_client_nor_each_other(self, opened: Opened) -> None:
        driven, session, client = opened(has_costs=True)
        flood, other = Client("flood"), Client("other")
        self.cost(driven, session, [], 0.002)
        started_s, num_sent, num_refused = driven.now_s, 0, 0
        while driven.now_s < started_s + 4.0:
            for _ in range(20):
                try:
                    driven.host.change(session.id, lambda values: SetControls(seq=1, values={"shift": 1.0}), flood)
                except QueueFullError:
                    num_refused += 1
            num_sent += 1
            driven.host.post(session.id, SetControls(seq=num_sent, values={"guidance": float(num_sent)}))
            driven.host.change(
                session.id, lambda values, seq=num_sent: SetControls(seq=1, values={"steps": seq}), other
            )
            driven.run()
            driven.run()
            assert session.controls["guidance"] >= num_sent - 1.0
            assert session.controls.get("steps", 0) >= num_sent - 2
            driven.now_s += 0.05
        assert num_refused > 500
        assert not client.of(Problem)
        assert driven.host.room(session.id) is None

    def test_what_others_say_of_its_client_takes_no_place_in_its_inbox(self, opened: Opened) -> None:
        driven, session, _ = opened(has_costs=True)
        for _ in range(MAX_WAITING + 1):
            driven.host.release(session.id, session.epoch + 1)
        assert driven.host.room(session.id) is None
        driven.host.post(session.id, SetControls(seq=1, values={}))
        driven.host.loop.run_once(0.0)
        assert seqs(session) == [1]

    def test_what_further_clients_change_is_advanced_at_their_cost(self, opened: Opened) -> None:
        driven, session, _ = opened(has_costs=True)
        advance, surface = session.advance, Client("surface")

        def slow(now_s: float, **options: bool) -> list[Any]:
            driven.now_s += 0.1
            return advance(now_s, **options)

        session.advance = slow  # type: ignore[method-assign,assignment]
        driven.host.change(session.id, lambda values: SetControls(seq=1, values={}), surface)
        driven.run()
        driven.host.change(session.id, lambda values: SetControls(seq=1, values={"shift": 1.0}), surface)
        driven.post(session, SetControls(seq=1, values={"guidance": 1.0}))
        assert session.controls == {"guidance": 1.0}

    @staticmethod
    def cost(driven: Driven, session: ScriptedSession, order: list[str], cost_s: float) -> None:
        """Let every message of a session take so long."""
        handle = session.handle

        def slow(message: Any, now_s: float, latents: Any = None) -> None:
            driven.now_s += cost_s
            order.append(session.id)
            handle(message, now_s, latents)

        session.handle = slow  # type: ignore[method-assign]
