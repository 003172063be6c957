"""Live sessions on a real server: WebSockets, /v1/sessions, limits, fuzz."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress

import jsonschema_rs
import numpy as np
import pytest
import safetensors.numpy
import soundfile
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec
from helpers.http_harness import TIMEOUT_S, Served, eventually, open_websocket, problem, refused_websocket, serving
from helpers.live_player import is_audio, player
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from runtime.config.deployment import Deployment
from runtime.live.protocol.messages import SUBPROTOCOL
from runtime.live.protocol.server_messages import Problem, State, messages_schema
from server.asgi.problems import unavailable

Serve = Callable[..., Served]


def test_a_session_plays_and_closes(served: Served) -> None:
    with player(served, subprotocols=[SUBPROTOCOL]) as client:
        ready = client.open(prompts=[{"text": "a"}], seed=3)
        first = client.receive_until(is_audio)
        assert (first.epoch, first.start_sample) == (ready.epoch, ready.next_sample)
        client.send(type="set", seq=1, values={"guidance": 2.0})
        client.receive_until(lambda item: is_audio(item) and item.full_seq == 1)
        state = client.receive_until(lambda item: isinstance(item, State))
        assert state.client_time_s == 12.5
        client.send(type="close")
        closed, code = client.receive_end()
    assert (closed.reason, closed.resumable, code) == ("closed", False, 1000)


def test_a_session_that_its_client_has_left_is_kept_for_its_return(served: Served) -> None:
    with player(served) as client, served.client() as http:
        ready = client.open(prompts=[{"text": "a"}])
        path = f"/v1/sessions/{ready.session}"
        assert http.delete(f"{path}/epochs/{ready.epoch + 1}").status_code == 204
        assert http.get(path).json()["connected"]
        assert http.delete(f"{path}/epochs/{ready.epoch}").status_code == 204
        eventually(lambda: not http.get(path).json()["connected"])
        assert http.delete(path).status_code == 204
        problem(http.delete("/v1/sessions/none/epochs/0"), 404, "unknown_session")


def test_sessions_are_listed_and_ended(served: Served) -> None:
    with player(served) as client, served.client() as http:
        session = client.open(prompts=[{"text": "a"}]).session
        assert session in [item["id"] for item in http.get("/v1/sessions").json()["data"]]
        card = http.get(f"/v1/sessions/{session}").json()
        assert (card["object"], card["connected"]) == ("live.session", True)
        assert http.delete(f"/v1/sessions/{session}").status_code == 204
        closed, code = client.receive_end()
        assert (closed.reason, closed.resumable, code) == ("deleted", False, 1000)
        eventually(lambda: http.get(f"/v1/sessions/{session}").status_code == 404)
        problem(http.delete(f"/v1/sessions/{session}"), 404, "unknown_session")


def test_stems_of_a_loop_are_one_pass_of_it(built: Built) -> None:
    with serving(built(stems=True, more=FEW_VARIANTS)) as served, player(served) as client, served.client() as http:
        ready = client.open(prompts=[{"text": "a"}], seed=3, paused=True)
        assert ready.stems
        path = f"/v1/sessions/{ready.session}/stems"
        assert "nothing was played yet" in problem(http.get(path), 422)["detail"]
        client.send(type="play")
        client.receive_until(lambda item: is_audio(item) and item.start_sample > ready.canvas.frames * 320)
        response = http.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/zip"), response.text
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        assert list(files) == ["mix.flac", "bass.flac", "drums.flac", "notes.mid", "options.json"]
        assert json.loads(files["options.json"]) == {"model": "tiny", "exact": True, "estimated": False}
        mix, bass, drums = (soundfile.read(io.BytesIO(files[f"{name}.flac"]))[0] for name in ("mix", "bass", "drums"))
        assert len(mix) == ready.canvas.frames * 320
        assert np.abs(bass + drums - mix).max() < 3 * 2**-23
        assert np.abs(bass).max() > 0.01
        assert served.service.admission.memory.used == served.service.admission.num_pending == 0
        problem(http.get("/v1/sessions/none/stems"), 404, "unknown_session")


def test_stems_of_a_session_without_an_end_are_what_was_played(built: Built) -> None:
    with serving(built(stems=True, more=FEW_VARIANTS)) as served, player(served) as client, served.client() as http:
        ready = client.open(mode="extend", prompts=[{"text": "a"}], seed=3)
        client.receive_until(lambda item: isinstance(item, State) and item.playhead_sample > 3 * 8000)
        response = http.get(f"/v1/sessions/{ready.session}/stems")
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            mix = soundfile.read(io.BytesIO(archive.read("mix.flac")))[0]
        assert len(mix) % 320 == 0
        pcm = np.zeros((max(chunk.end_sample for chunk in client.chunks), 2), np.float32)
        for chunk in client.chunks:
            pcm[chunk.start_sample : chunk.end_sample] = chunk.pcm
        size = 3 * 8000 // 320 * 320
        assert len(mix) >= size
        assert np.abs(mix[:size] - pcm[:size]).max() < 2**-14


def test_a_model_that_tells_no_layers_apart_has_no_stems_of_sessions(served: Served) -> None:
    with player(served) as client, served.client() as http:
        ready = client.open(prompts=[{"text": "a"}])
        assert not ready.stems
        document = problem(http.get(f"/v1/sessions/{ready.session}/stems"), 422)
        assert "does not tell the layers" in document["detail"]
        client.send(type="close")
        client.receive_end()


def test_a_session_is_resumed_after_an_abrupt_disconnect(served: Served) -> None:
    with player(served) as client:
        ready = client.open(prompts=[{"text": "a"}], mode="extend")
        client.receive_until(is_audio)
        client.reset()
    with player(served, f"/v1/live/{ready.session}") as client:
        again = client.open(resume=ready.resume_token)
        assert (again.session, again.resumed) == (ready.session, True)
        assert again.epoch > ready.epoch
        chunk = client.receive_until(is_audio)
        assert (chunk.epoch, chunk.start_sample) == (again.epoch, again.next_sample)
    with player(served, f"/v1/live/{ready.session}") as client:
        client.send(type="open", resume="wrong")
        refused = client.receive_until(lambda item: isinstance(item, Problem))
        assert refused.code == "unknown_session"
        assert client.receive_end()[1] == 1008


def test_references_are_heard_and_wrong_ones_are_answered(built: Built) -> None:
    file = safetensors.numpy.save({"latents": np.ones((20, TinySpec().channels), np.float32)})
    conditioned = built(conditions=True, structure=True, more=FEW_VARIANTS)
    with serving(conditioned) as served, served.client() as http, player(served) as client:
        id_ = http.post("/v1/sources", content=file).json()["id"]
        ready = client.open(prompts=[{"text": "a"}], seed=3)
        assert "codes" not in ready.controls.values
        assert {"structure_strength", "timbre_strength", "lyrics"} < set(ready.controls.values)
        client.receive_until(is_audio)
        client.send(type="set", seq=1, values={"codes": [1]})
        client.send(type="structure", seq=2, id="none")
        for field, seq in (("values.codes", 1), ("id", 2)):
            refused = client.receive_until(lambda item: isinstance(item, Problem))
            assert (refused.field, refused.seq) == (field, seq)
        for seq, reference in enumerate(("structure", "timbre"), 3):
            client.send(type=reference, seq=seq, id=id_, strength=0.5)
            client.receive_until(lambda item, seq=seq: is_audio(item) and item.full_seq == seq)


def test_many_abrupt_disconnects_leave_nothing_behind(serve: Serve) -> None:
    served = serve(client_sessions=0, session_keep_s=0.05)
    for index in range(30):
        with player(served) as client:
            client.open(prompts=[{"text": "a"}])
            if index % 3:
                client.receive_until(is_audio)
            client.reset()
    eventually(lambda: served.metrics()["tickrt_live_sessions"] == 0)
    metrics = served.metrics()
    ended = sum(value for name, value in metrics.items() if name.startswith("tickrt_live_sessions_ended_total"))
    assert metrics["tickrt_live_sessions_started_total"] == ended == 30
    assert metrics["tickrt_slots_active"] == 0


def test_limits_of_sessions(serve: Serve) -> None:
    served = serve(client_sessions=2, max_sessions=8)
    with player(served) as one, player(served) as two, player(served) as three:
        one.open()
        two.open()
        three.send(type="open")
        refused = three.receive_until(lambda item: isinstance(item, Problem))
        assert (refused.status, refused.code) == (503, "sessions_full")
        assert refused.retry_after_s >= 1
        closed, code = three.receive_end()
        assert (closed.reason, code) == ("unavailable", 1013)
        assert served.post().status_code == 200


def test_what_an_edge_can_send_on_is_refused_before_the_handshake(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: str) -> None:
        raise unavailable(code, "another one takes it")

    with monkeypatch.context() as full:
        full.setattr(served.service, "check_room", lambda: refuse("sessions_full"))
        assert refused_websocket(served, "/v1/live") == (503, "sessions_full")
        with player(served, "/v1/live/a-session-that-is-kept-here") as client:
            client.send(type="open", resume="a-token")
            assert client.receive_until(lambda item: isinstance(item, Problem)).code != "sessions_full"
    monkeypatch.setattr(served.service, "check_draining", lambda: refuse("draining"))
    for path in ("/v1/live", "/v1/live/a-session-that-is-kept-here"):
        assert refused_websocket(served, path) == (503, "draining")


def test_a_client_that_does_not_read_is_disconnected(serve: Serve) -> None:
    served = serve(send_timeout_s=0.2, send_buffer_bytes=4096)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        # Without pings: their answers wait unread, too, and the client would end the connection itself.
        limits = {"max_queue": 1, "close_timeout": 0.1, "ping_interval": None}
        with open_websocket(served, "/v1/live", sock=connection, **limits) as websocket:
            websocket.send(json.dumps({"type": "open", "prompts": [{"text": "a"}]}))
            with suppress(ConnectionClosed):
                while True:  # each one after an answer: of answers that wait, only the newest is kept
                    websocket.send('{"type": "canvas"}')
                    time.sleep(0.005)
    eventually(lambda: served.metrics()["tickrt_live_connected"] == 0)
    metrics = served.metrics()
    assert metrics["tickrt_live_send_timeouts_total"] == 1
    assert metrics["tickrt_live_sessions"] == 1


@pytest.mark.parametrize("path", ["/v1/live", "/v1/live/session"])
@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null"])
def test_a_page_of_another_site_is_refused(served: Served, origin: str, path: str) -> None:
    assert refused_websocket(served, path, headers={"Origin": origin}) == (403, "origin_not_allowed")


def test_without_the_key_nothing_is_shown(serve: Serve) -> None:
    served = serve(api_key="secret")
    for path in ("/v1/live", "/v1/live/session", "/v1/live?key=wrong"):
        assert refused_websocket(served, path) == (401, "unauthorized")
    with served.client() as http:
        for path in ("/v1/sessions", "/v1/sessions/a", "/v1/schema/live"):
            problem(http.get(path), 401, "unauthorized")
        problem(http.delete("/v1/sessions/a"), 401, "unauthorized")
    with player(served, "/v1/live?key=secret") as client:
        assert client.open().session


def test_another_subprotocol_is_refused(served: Served) -> None:
    assert refused_websocket(served, "/v1/live", subprotocols=["other"])[0] == 400


def test_the_schema_of_the_messages(served: Served) -> None:
    with served.client() as http:
        schema = http.get("/v1/schema/live").json()
    assert schema == messages_schema()
    jsonschema_rs.validator_for(schema)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["seq", "values", "items", "at_s", "samples", "to_s", "start_s", "end_s", "playhead_sample", "id"]),
    JSON,
    max_size=5,
)
TYPES = st.sampled_from(
    ["set", "prompts", "source", "timbre", "structure", "write", "band", "seek", "reset", "ack", "canvas", "open", "no"]
)
MESSAGES = st.builds(lambda name, members: {**members, "type": name}, TYPES, MEMBERS) | JSON


@pytest.fixture(scope="module")
def fuzzed(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny(), client_sessions=0, session_keep_s=0.05) as server:
        yield server


@settings(max_examples=20, deadline=None)
@given(messages=st.lists(MESSAGES.map(json.dumps) | st.text(max_size=20) | st.binary(max_size=40), max_size=10))
def test_no_message_harms_the_server(fuzzed: Served, messages: list[str | bytes]) -> None:
    with player(fuzzed) as client:
        client.open()
        num_binary = 0
        for message in messages:
            client._websocket.send(message)
            num_binary += isinstance(message, bytes)
            if num_binary > 1:
                break
        is_violation = num_binary > 1
        if not is_violation:
            client.send(type="canvas")
            client.receive_until(lambda item: getattr(item, "type", "") == "canvas")
            client.send(type="close")
        closed, code = client.receive_end()
    problems = [message for message in client.messages if isinstance(message, Problem)]
    assert all(item.status < 500 for item in problems)
    assert (closed.reason, code) in (("closed", 1000), ("violation", 1008))
    with fuzzed.client() as http:
        assert http.get("/health/live").status_code == 200


def test_a_model_without_a_codec_has_no_sessions(built: Callable[..., Deployment]) -> None:
    with serving(built(codec=False)) as served, player(served) as client, served.client() as http:
        problem(http.get("/v1/sessions"), 501, "no_codec")
        refused = client.receive_until(lambda item: isinstance(item, Problem))
        assert (refused.code, client.receive_end()[1]) == ("no_codec", 1013)


def test_a_session_plays_on_after_a_reload(serve: Serve) -> None:
    served = serve()
    with player(served) as client:
        client.open(prompts=[{"text": "a"}])
        client.receive_until(is_audio)
        asyncio.run_coroutine_threadsafe(served.service.reload(), served.event_loop).result(TIMEOUT_S)
        client.send(type="set", seq=1, values={"guidance": 2.0})
        client.receive_until(lambda item: is_audio(item) and item.full_seq == 1)


def test_a_session_that_ends_while_its_plan_is_written_frees_the_sequence(built: Built) -> None:
    with serving(built(planner={"capacity": 1024, "plan": True}, more=FEW_VARIANTS)) as served, served.client() as http:
        served.tick_s, loop = 0.02, served.pipeline.loop
        with player(served) as client:
            ready = client.open(prompts=[{"text": "a"}], mode="extend")
            assert ready.plan is not None
            eventually(lambda: loop.stats().ticks > 3)
            assert not loop.is_empty
            assert http.delete(f"/v1/sessions/{ready.session}").status_code == 204
            eventually(lambda: loop.is_empty)
        assert loop.stats().outcomes["cancelled"] > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_tick_loop_ends_sessions(serve: Serve) -> None:
    served = serve()
    with player(served) as client:
        client.open(prompts=[{"text": "a"}])
        client.receive_until(is_audio)

        def die(_: object) -> None:
            raise RuntimeError("the device fell off the bus")

        served.pipeline.loop.observers.append(die)
        client.send(type="set", seq=1, values={"seed": 5})
        closed, code = client.receive_end()
    assert (closed.reason, code) == ("engine", 1011)
