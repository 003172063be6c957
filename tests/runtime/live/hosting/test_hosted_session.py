"""One session in its host: its messages, its generations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from helpers.scripted_sessions import WAIT_S, Client, Drive, Opened, seqs, wait_for

from runtime.base.errors import RequestError, UnknownSessionError
from runtime.config.codec import Pcm
from runtime.live.hosting.services import CodecWork
from runtime.live.protocol.actions import CancelJob, DecodeWindow, FindWords, UpdateSteps
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import (
    MAX_SEQ,
    Ack,
    GetCanvas,
    LivePrompt,
    Open,
    Pause,
    Play,
    SetControls,
    SetSource,
    SetStructure,
    SetTimbre,
    WriteAudio,
)
from runtime.live.protocol.server_messages import Applied, Changed, Closed, Problem
from runtime.live.session.live_session import LiveSession
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options
from runtime.requests.prompt_words import PromptWords
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment
from runtime.tick.loop.events import Finished
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop


class Ticks:
    """Lets a test hold the tick thread at the end of a tick."""

    def __init__(self, loop: TickLoop) -> None:
        self._loop = loop
        self._may_go_on = threading.Event()

    def hold(self) -> None:
        """Stop after the next tick."""
        self._loop.observers.append(self._wait)

    def release(self) -> None:
        """Go on."""
        self._may_go_on.set()
        if self._wait in self._loop.observers:
            self._loop.observers.remove(self._wait)

    def _wait(self, record: TickRecord) -> None:
        self._may_go_on.wait(WAIT_S)


@pytest.fixture
def ticks(pipeline: Pipeline) -> Iterator[Ticks]:
    held = Ticks(pipeline.loop)
    yield held
    held.release()


def test_a_refused_message_gives_a_problem_with_its_seq_or_its_reply_the_error(opened: Opened) -> None:
    (driven, session, client), replies = opened(), list[Any]()
    driven.host.post(session.id, SetControls(seq=1, values={"guidance": 1.0}), reply=replies.append)
    driven.host.post(session.id, SetControls(seq=2, values={"guidance": -1.0}), reply=replies.append)
    driven.host.post("unknown", SetControls(seq=3, values={}), reply=replies.append)
    driven.run()
    assert [type(reply) for reply in replies] == [UnknownSessionError, type(None), RequestError]
    assert not client.of(Problem)
    driven.post(session, SetControls(seq=3, values={"guidance": -1.0}))
    (problem,) = client.of(Problem)
    assert (problem.seq, problem.code, problem.field) == (3, "invalid_request", "values.guidance")


def test_a_further_client_changes_what_the_client_plays_and_the_client_counts_on(opened: Opened) -> None:
    """Seqs of both stay apart, in what is handled and in what comes back; a refused change leaves no trace."""
    (driven, session, client), surface = opened(), Client()
    host = driven.host
    host.post(session.id, SetControls(seq=1, values={"guidance": 4.0}))
    driven.run()
    host.join(session.id, surface)
    host.change(session.id, lambda values: SetControls(seq=1, values={"shift": values["guidance"]}), surface)
    host.change(session.id, lambda values: SetControls(seq=1, values={"guidance": -1.0}), surface)
    host.change(session.id, lambda values: Pause(), surface)
    driven.run()
    host.post(session.id, SetControls(seq=2, values={"guidance": 5.0}))
    driven.run()
    assert seqs(session) == [1, 2, 3, None, 3]
    assert [problem.field for problem in surface.of(Problem)] == ["values.guidance"]
    assert not client.of(Problem)
    assert [message.values for message in client.of(Changed)] == [{"shift": 4.0}]
    assert [message.values for message in surface.of(Changed)] == [{"guidance": 4.0}, {"guidance": 5.0}]
    session.next_actions = [Applied(seq=number, full_sample=0) for number in (1, 2, 3)]
    session.next_actions.append(AudioChunk(1, 0, np.zeros((4, 2), np.float32), 3, 2))
    host.post(session.id, Play())
    driven.run()
    assert [message.seq for message in client.of(Applied)] == [1, 1, 2]
    assert [(chunk.first_seq, chunk.full_seq) for chunk in client.chunks] == [(2, 1)]
    host.leave(session.id, surface)
    host.end(session.id, "deleted")
    driven.run()
    assert not surface.of(Closed)


def test_a_change_has_the_times_of_its_update_of_its_generation_and_of_its_audio(opened: Opened) -> None:
    driven, session, client = opened()
    job = session.job
    session.job = lambda: replace(job(), full_seq=2)  # type: ignore[method-assign]
    for seq, values in enumerate(({"guidance": 5.0}, {"shift": 2.0}), 1):
        driven.post(session, SetControls(seq=seq, values=values))
    driven.now_s += 0.1
    session.next_actions = [UpdateSteps((), {"guidance": 5.0}, 1)]
    driven.post(session, Play())
    driven.now_s += 0.2
    session.wants = 1
    driven.post(session, Play())
    driven.now_s += 0.3
    driven.run(lambda: bool(session.of("finished")))
    driven.now_s += 0.4
    pcm = np.zeros((4, 2), np.float32)
    session.next_actions = [AudioChunk(1, 0, pcm, full_seq=2, first_seq=2), Applied(seq=1, first_sample=0)]
    session.next_actions.append(Applied(seq=2, first_sample=0))
    driven.post(session, Play())
    stages = [message.stages_ms for message in client.of(Applied)]
    found = [(each.submitted, each.finished, each.decoded) for each in stages]
    assert found == [pytest.approx((100, 600, 1000)), pytest.approx((300, 600, 1000))]


def test_all_clients_are_told_when_a_change_begins_that_has_waited(opened: Opened) -> None:
    (driven, session, client), surface = opened(), Client()
    driven.host.join(session.id, surface)
    driven.run()
    session.waiting = [{"guidance": 5.0}]
    driven.post(session, GetCanvas())
    for listener in (client, surface):
        assert listener.of(Changed)[-1].values == {"guidance": 5.0}


def test_a_further_client_that_fails_ends_not_its_session(opened: Opened) -> None:
    class Failing(Client):
        def on_message(self, message: Any) -> None:
            raise ValueError("the surface is gone")

    def fail(values: Any) -> NoReturn:
        raise KeyError("no such value")

    (driven, session, client), failing, surface = opened(), Failing(), Client()
    for listener in (failing, surface):
        driven.host.join(session.id, listener)
    driven.host.change(session.id, lambda values: SetControls(seq=1, values={"guidance": -1.0}), failing)
    driven.host.change(session.id, fail, failing)
    driven.run()
    driven.post(session, SetControls(seq=1, values={"guidance": 4.0}))
    assert [message.values for message in surface.of(Changed)] == [{"guidance": 3.0}, {"guidance": 4.0}]
    assert not client.of(Closed)
    assert driven.host.stats().open == 1


def test_further_clients_of_a_session_that_ends(opened: Opened) -> None:
    (driven, session, _), surface = opened(), Client()
    driven.host.join(session.id, surface)
    driven.run()
    driven.host.end(session.id, "deleted")
    driven.host.join(session.id, surface)
    driven.run()
    assert {closed.reason for closed in surface.of(Closed)} == {"deleted", "ended"}
    with pytest.raises(UnknownSessionError):
        driven.host.join(session.id, surface)
    driven.host.change(session.id, lambda values: Pause(), surface)


def test_no_number_is_larger_than_the_protocol_has(opened: Opened) -> None:
    (driven, session, client), surface = opened(), Client()
    driven.host.post(session.id, SetControls(seq=MAX_SEQ - 1, values={}))
    driven.host.change(session.id, lambda values: SetControls(seq=1, values={}), surface)
    driven.host.change(session.id, lambda values: SetControls(seq=1, values={}), surface)
    driven.post(session, SetControls(seq=MAX_SEQ, values={}))
    assert [problem.field for problem in [*surface.of(Problem), *client.of(Problem)]] == ["seq", "seq"]


def test_a_window_is_decoded_by_the_time_that_is_left_until_it_is_played(opened: Opened) -> None:
    class Codec(CodecWork):
        def decode(self, window: DecodeWindow, lead_s: float, is_wanted: Callable[[], bool]) -> Future[Pcm]:
            leads_s.append(lead_s)
            return super().decode(window, lead_s, is_wanted)

    (driven, session, _), leads_s = opened(), list[float]()
    assert driven.host.pipeline.codec is not None
    driven.host.services.codec_work = Codec(driven.host.pipeline.codec)
    session.playhead = session.model.sample_rate_hz
    start = 3 * session.model.sample_rate_hz
    driven.poke(session, DecodeWindow(0, 0, np.zeros((8, 8), np.float32), 0, 0, 100, start, 0, 0))
    assert leads_s == [2.0]


def test_written_audio_is_encoded(opened: Opened, pipeline: Pipeline) -> None:
    driven, session, _ = opened()
    pcm = np.full((500, 2), 0.1, np.float32)
    driven.host.post(session.id, WriteAudio(seq=1, at_s=0.0, samples=500), pcm)
    driven.run(lambda: bool(session.of("handle")))
    ((_, latents),) = session.of("handle")
    assert latents.shape == (4, pipeline.bundle.latents.channels)


def test_references_that_cannot_be_loaded_are_refused(drive: Drive, opened: Opened) -> None:
    driven, session, client = opened(sources=lambda id_: np.zeros((4, 8), np.float32))
    for seq, kind in enumerate((SetSource, SetTimbre, SetStructure), start=1):
        driven.host.post(session.id, kind(seq=seq, id="a"))
    driven.run(lambda: len(client.of(Problem)) == 2)
    assert [latents.shape for _, latents in session.of("handle")] == [(4, 8)]
    assert [problem.seq for problem in client.of(Problem)] == [2, 3]
    assert "has no [timbre]" in client.of(Problem)[0].detail
    other = drive()
    session, client = other.open()
    other.host.post(session.id, SetSource(seq=1, id="a"))
    other.run(lambda: bool(client.of(Problem)))
    assert (client.of(Problem)[0].field, client.of(Problem)[0].seq) == ("id", 1)


def test_a_generation_gives_the_latents_of_its_options(opened: Opened, pipeline: Pipeline) -> None:
    driven, session, _ = opened()
    driven.generate(session, until=lambda: bool(session.of("finished")))
    request = pipeline.composer.compose(parse_options(session.options), Segment(0, 16), GenerationInputs())
    np.testing.assert_allclose(session.of("finished")[0][1], wait_for(pipeline.loop, request), atol=1e-5)


def test_sessions_never_hold_more_slots_than_theirs_and_each_gets_one_first(drive: Drive) -> None:
    driven = drive()
    sessions = [driven.open()[0] for _ in range(5)]
    most: list[int] = []
    for session in sessions:
        session.wants = 2
        driven.host.post(session.id, Ack(playhead_sample=0))
    while any(session.wants for session in sessions):
        driven.run()
        most.append(sum(len(session.job_ids) for session in sessions))
        if most[-1]:
            driven.host.loop.run_once(WAIT_S)
        if sum(len(session.of("finished")) for session in sessions) < 3:
            assert [len(session.job_ids) for session in sessions[:3]] <= [1, 1, 1]
    assert max(most) == 3
    assert all(len(session.of("finished")) == 2 for session in sessions)


def test_only_while_half_of_the_slots_are_free_there_are_drafts_and_who_takes_no_slot_is_not_asked_again(
    drive: Drive, ticks: Ticks
) -> None:
    driven = drive()
    ticks.hold()
    sessions = [driven.open()[0] for _ in range(4)]
    for session in sessions:
        session.is_idle = session is sessions[0]
        driven.now_s += 1.0
        driven.generate(session)
    assert [session.may_draft for session in sessions] == [[True, True, True, False], [True], [True], [False]]


def test_a_session_waits_from_when_it_wants_what_it_did_not_want_before(opened: Opened) -> None:
    (driven, session, _), found = opened(), []
    hosted = driven.hosted(session)
    for wants, may_generate in ((0, False), (2, False), (2, False), (2, True), (2, False), (1, False), (2, False)):
        driven.now_s += 1.0
        session.wants = wants
        hosted.advance(may_generate=may_generate)
        found.append((hosted.demand.held, hosted.demand.wanted_s))
    assert found == [(0, None), (0, 102.0), (0, 102.0), (1, 104.0), (1, 104.0), (1, None), (1, 107.0)]


def test_a_job_takes_the_options_of_the_moment_when_it_gets_its_slot(drive: Drive, ticks: Ticks) -> None:
    driven = drive()
    ticks.hold()
    others = [driven.open()[0] for _ in range(3)]
    session, _ = driven.open()
    for other in (*others, session):
        other.options["steps"] = 50
        driven.now_s += 1.0
        driven.generate(other)
    assert not session.job_ids
    session.options["seed"] = 2
    ticks.release()
    driven.run(lambda: bool(session.of("finished")))
    latents = [made.of("finished")[0][1] for made in (others[0], session)]
    assert not np.array_equal(*latents)


def test_a_step_parameter_that_reaches_a_generation_is_reported(drive: Drive, ticks: Ticks) -> None:
    driven = drive()
    ticks.hold()
    session, _ = driven.open()
    session.options["steps"] = 200
    driven.generate(session)
    (job_id,) = session.job_ids
    driven.poke(session, UpdateSteps((job_id,), {"velocity_scale": 0.5}, 7))
    ticks.release()
    driven.run(lambda: bool(session.of("finished")))
    assert session.of("step_applied") == [(7, (job_id,))]


def test_an_error_of_one_generation_ends_only_that(opened: Opened) -> None:
    driven, session, _ = opened()
    session.options["prompt"] = "a" * 500
    driven.generate(session, until=lambda: bool(session.of("failed")))
    assert isinstance(session.of("failed")[0][1], RequestError)
    session.options["prompt"] = "a"
    driven.generate(session, until=lambda: bool(session.of("finished")))
    assert driven.host.stats().generations_ended == {"failed": 1, "finished": 1}


def test_live_generations_go_before_those_that_wait(opened: Opened, pipeline: Pipeline) -> None:
    (driven, session, _), order = opened(), list[str]()
    depth = pipeline.deployment.runtime.depth
    for index in range(2 * depth):
        request = pipeline.request("a", steps=50, seed=index)
        pipeline.loop.submit(request, lambda event: order.append("http") if isinstance(event, Finished) else None)
    driven.generate(session, until=lambda: bool(session.of("finished")))
    assert len(order) < 2 * depth


def test_ending_a_session_frees_its_slots(opened: Opened, pipeline: Pipeline) -> None:
    driven, session, _ = opened()
    session.options["steps"] = 200
    driven.generate(session)
    driven.host.loop.run_once(WAIT_S)  # It is composed.
    before = pipeline.loop.stats().outcomes["cancelled"]
    driven.host.end(session.id, "deleted")
    # The end and its outcome may be two calls of one run.
    driven.run(lambda: driven.host.stats().generations_ended == {"cancelled": 1})
    assert pipeline.loop.stats().outcomes["cancelled"] == before + 1
    assert driven.host.stats().generations_started == 1


def test_a_session_without_a_client_holds_no_slot(drive: Drive, pipeline: Pipeline, ticks: Ticks) -> None:
    driven = drive(session_type=LiveSession)
    ticks.hold()
    clients = [Client() for _ in range(pipeline.deployment.runtime.depth)]
    left = [driven.host.open(Open(), client) for client in clients[:-1]]
    driven.run()
    for session_id in left:
        driven.host.detach(session_id)
    driven.run(lambda: driven.host.stats().connected == 0)
    driven.host.open(Open(), clients[-1])
    driven.run()
    ticks.release()
    driven.run(lambda: bool(clients[-1].chunks))
    assert driven.host.stats().generations_ended == {"cancelled": len(left), "finished": 1}


def test_a_generation_is_changed_and_cancelled_while_it_is_composed(
    drive: Drive, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose, may_compose = pipeline.composer.compose, threading.Event()

    def wait(*given: Any) -> GenerationRequest:
        may_compose.wait(WAIT_S)
        return compose(*given)

    monkeypatch.setitem(vars(pipeline), "composer", SimpleNamespace(compose=wait, has_null=True))
    driven = drive()
    (one, _), (other, _) = driven.open(), driven.open()
    driven.generate(one, other)
    driven.poke(one, UpdateSteps((one.job_ids[0],), {"guidance": 2.0}, 5))
    driven.poke(other, CancelJob(other.job_ids[0]))
    may_compose.set()
    driven.run(lambda: sum(driven.host.stats().generations_ended.values()) == 2)
    assert driven.host.stats().generations_ended == {"finished": 1, "cancelled": 1}
    assert one.of("step_applied") == [(5, (one.of("finished")[0][0],))]


def test_words_of_the_newest_texts_are_found_in_another_thread(drive: Drive) -> None:
    may_find, found = threading.Event(), list[list[str]]()

    def find(texts: Iterable[str]) -> PromptWords:
        may_find.wait(WAIT_S)
        assert threading.current_thread().name.startswith("live-words")
        found.append(list(texts))
        return PromptWords()

    driven = drive()
    driven.host.services.model = replace(driven.host.model, words=find)
    may_find.set()
    session, _ = driven.open(prompts=[LivePrompt(text="calm piano", weight=1.0)])
    may_find.clear()
    for seq in (1, 2, 3):
        driven.poke(session, FindWords(seq, (f"text {seq}",)))
    assert not session.of("words_found")
    may_find.set()
    driven.run(lambda: len(session.of("words_found")) == 2)
    assert [seq for seq, _ in session.of("words_found")] == [1, 3]
    assert found == [["calm piano"], ["text 1"], ["text 3"]]
