"""What a client's messages do to its live session, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from helpers.http_harness import Serve, Served, eventually, open_websocket, serving
from helpers.lyria_client import PATH, LyriaClient, lyria
from websockets.exceptions import InvalidStatus

from runtime.live.hosting.inbox import SHARE
from runtime.live.protocol.messages import Ack, ClientMessage, Reset, SetControls, SetPrompts
from server.protocols.lyria import connection as lyria_connection
from server.protocols.lyria.routes import error_body

CONTROLS = """
[controls]
density = { words = ["sparse", "", "dense"] }
mute_drums = { words = ["", "quiet"] }
temperature = { option = "ode_noise", range = [0.0, 0.3] }
"""
WORDS = ("calm", "loud", "sparse", "dense", "quiet")


def refused(served: Served, path: str, **options: object) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as error, open_websocket(served, path, **options):
        pass
    response = error.value.response
    assert response.headers["content-type"] == "application/json"
    return response.status_code, json.loads(response.body)


@pytest.mark.parametrize("path", [PATH, f"/{PATH}", PATH.replace("v1alpha", "v1beta"), f"/{PATH}?key=a"])
def test_every_way_to_the_path(served: Served, path: str) -> None:
    with lyria(served, path):
        pass


def test_a_key_comes_in_the_header_or_the_query(serve: Serve) -> None:
    served = serve(api_key="secret")
    with lyria(served, additional_headers={"x-goog-api-key": "secret"}), lyria(served, f"/{PATH}?key=secret"):
        pass
    for path, headers in ((PATH, {"x-goog-api-key": "no"}), (f"/{PATH}?key=no", {})):
        status, body = refused(served, path, additional_headers=headers)
        message = "this server needs an API key; send Authorization: Bearer KEY"
        assert (status, body) == (401, {"error": {"code": 401, "message": message, "status": "UNAUTHENTICATED"}})


def test_pages_of_allowed_origins_only(serve: Serve) -> None:
    served = serve(allowed_origins=("https://page.example",))
    with lyria(served, origin="https://page.example"):
        pass
    status, body = refused(served, PATH, origin="https://other.example")
    assert (status, body["error"]["status"]) == (403, "PERMISSION_DENIED")


def test_while_the_engines_are_opened_it_is_unavailable(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service, "pipeline", None)
    status, body = refused(served, PATH)
    assert (status, body["error"]["code"], body["error"]["status"]) == (503, 503, "UNAVAILABLE")


@pytest.mark.parametrize(("status", "name"), [(422, "INVALID_ARGUMENT"), (503, "UNAVAILABLE"), (500, "INTERNAL")])
def test_a_problem_is_googles_error(status: int, name: str) -> None:
    body = error_body({"status": status, "detail": "what", "fix": None})
    assert body == {"error": {"code": status, "message": "what", "status": name}}


@pytest.fixture(scope="module")
def server(built: Built) -> Iterator[Served]:
    """A mono model at 8 kHz that knows a few words."""
    deployment = built(words=WORDS, audio_channels=1, max_rows=16)
    path = deployment.bundle / "bundle.toml"
    if CONTROLS not in path.read_text():
        path.write_text(path.read_text() + CONTROLS)
    with serving(deployment, max_sessions=2, client_sessions=0) as served:
        yield served


@pytest.fixture
def posted(server: Served, monkeypatch: pytest.MonkeyPatch) -> list[ClientMessage]:
    """What sessions get, without reports of the playhead."""
    return noted(server, monkeypatch)


def noted(server: Served, monkeypatch: pytest.MonkeyPatch) -> list[ClientMessage]:
    host, messages = server.service.live_host(), list[ClientMessage]()
    post = host.post

    def note(session: str, message: ClientMessage, *more: Any) -> None:
        if not isinstance(message, Ack):
            messages.append(message)
        post(session, message, *more)

    monkeypatch.setattr(host, "post", note)
    return messages


@pytest.fixture
def client(server: Served, posted: list[ClientMessage]) -> Iterator[LyriaClient]:
    with lyria(server) as connected:
        yield connected
    eventually(lambda: not server.service.live_host().sessions())


def settle(client: LyriaClient) -> str:
    """Wait until all that was sent is handled: the warning that answers a wrong message."""
    client.send(musicGenerationConfig={"bpm": 1})
    return str(client.receive_until("warning"))


def ask(client: LyriaClient) -> None:
    """Send what is answered by a filteredPrompt and changes nothing."""
    client.send(clientContent={"weightedPrompts": [{"text": "blorf", "weight": 1}]})


def types(messages: list[ClientMessage]) -> list[str]:
    return [message.type for message in messages]


def test_messages_before_the_setup_is_complete_and_audio(server: Served) -> None:
    with open_websocket(server, PATH) as websocket:
        client = LyriaClient(websocket)
        client.send(setup={"model": "models/lyria-realtime-exp"})
        client.send(client_content={"weighted_prompts": [{"text": "calm", "weight": "2"}]})
        client.send(music_generation_config={"temperature": "1.5", "mute_drums": True})
        client.send(playback_control="PLAY")
        pcm = client.audio(1.0)
    assert client.messages == [{"setupComplete": {}}]
    assert np.abs(pcm).max() > 0.0
    assert np.array_equal(pcm[:, 0], pcm[:, 1])
    assert client.metadata == {
        "clientContent": {"weightedPrompts": [{"text": "calm", "weight": 2.0}]},
        "musicGenerationConfig": {"temperature": 1.5, "muteDrums": True},
    }


def test_playback(client: LyriaClient, posted: list[ClientMessage]) -> None:
    expected: list[str] = []
    for control, more in (
        ("PLAY", ["play"]),
        ("PAUSE", ["pause"]),
        ("PLAY", ["play"]),
        ("RESET_CONTEXT", ["reset"]),
        ("STOP", ["pause"]),
        ("STOP", []),
        ("PLAY", ["reset", "play"]),
        ("PLAY", []),
        ("PAUSE", ["pause"]),
        ("RESET_CONTEXT", []),
        ("PLAY", ["reset", "play"]),
    ):
        client.send(playbackControl=control)
        ask(client)
        client.receive_until("filteredPrompt")
        expected += more
        assert types(posted) == expected, control
        if posted[-1].type == "pause":
            ask(client)
            assert "filteredPrompt" in client.receive(), "audio while nothing plays"
        else:
            client.audio(0.2)


def test_after_a_reset_the_client_waits_for_new_music_as_long_as_it_has_audio(
    client: LyriaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lyria_connection, "LEAST_AHEAD_S", -1e6)  # It always has.
    client.send(playbackControl="PLAY")
    client.audio(0.2)
    client.send(playbackControl="RESET_CONTEXT")
    client.send(musicGenerationConfig={"seed": 5})
    client.send(playbackControl="RESET_CONTEXT")
    ask(client)
    client.receive_until("filteredPrompt")
    heard = []
    for _ in range(8):  # It begins with what can no longer be replaced; without the wait, there are 2 s of it.
        client.audio(0.2)
        heard.append(client.metadata["musicGenerationConfig"])
    assert {"seed": 5} in heard
    first = heard.index({"seed": 5})
    assert heard[first:] == [{"seed": 5}] * (8 - first)


def test_what_plays_after_a_stop_is_new_music(client: LyriaClient) -> None:
    """What was made before the stop and not sent is not sent any more."""
    client.send(playbackControl="PLAY")
    client.audio(3.0)
    client.send(playbackControl="STOP")
    client.send(musicGenerationConfig={"seed": 6})
    settle(client)
    client.send(playbackControl="PLAY")
    client.audio(0.2)
    assert client.metadata["musicGenerationConfig"] == {"seed": 6}


def test_a_config_replaces_the_whole_config(client: LyriaClient, posted: list[ClientMessage]) -> None:
    client.send(clientContent={"weightedPrompts": [{"text": "calm", "weight": 1}]})
    client.send(musicGenerationConfig={"guidance": 4, "seed": 3, "density": 0.9, "temperature": 3, "topK": 4})
    client.send(musicGenerationConfig={"density": 0.5, "muteDrums": True})
    client.send(musicGenerationConfig={})
    settle(client)
    controls = [message.values for message in posted if isinstance(message, SetControls)]
    texts = [[item.text for item in message.items] for message in posted if isinstance(message, SetPrompts)]
    nothing = {"guidance": None, "seed": None, "ode_noise": None}
    assert controls == [{"guidance": 4.0, "seed": 3, "ode_noise": pytest.approx(0.3)}, nothing]
    assert texts == [["calm"], ["calm, dense"], ["calm, quiet"], ["calm"]]


def test_many_configs_before_it_plays(client: LyriaClient) -> None:
    for seed in range(50):
        client.send(musicGenerationConfig={"seed": seed})
    client.send(playbackControl="PLAY")
    client.audio(0.2)
    assert client.metadata["musicGenerationConfig"] == {"seed": 49}


def test_a_config_is_heard_without_prompts(client: LyriaClient, posted: list[ClientMessage]) -> None:
    client.send(musicGenerationConfig={"density": 0.0})
    settle(client)
    (prompts,) = (message for message in posted if isinstance(message, SetPrompts))
    assert [item.text for item in prompts.items] == ["sparse"]


def test_weights_are_relative_and_what_is_refused_is_told_once(
    client: LyriaClient, posted: list[ClientMessage]
) -> None:
    long = " ".join(["calm"] * 40)
    given = [("calm", 0.01), ("loud", 0.02), ("quiet", 0.0), ("blorf", 1.0), (long, 1.0)]
    client.send(clientContent={"weightedPrompts": [{"text": text, "weight": weight} for text, weight in given]})
    client.send(musicGenerationConfig={"density": 1.0})
    settle(client)
    prompts = [message for message in posted if isinstance(message, SetPrompts)][-1]
    assert [(item.text, item.weight) for item in prompts.items] == [("loud, dense", 1.0), ("calm, dense", 0.5)]
    reasons = [m["filteredPrompt"] for m in client.messages if "filteredPrompt" in m]
    assert len(reasons) == 2
    told = {item["text"]: item["filteredReason"] for item in reasons}
    assert told == {
        "blorf": "this model understands no word of it",
        long: "it is too long: 41 tokens, this model takes 32",
    }


def test_the_heaviest_8_prompts_play(client: LyriaClient, posted: list[ClientMessage]) -> None:
    texts = [" ".join(["calm"] * count) for count in range(1, 10)]
    prompts = [{"text": text, "weight": index + 1} for index, text in enumerate(texts)]
    client.send(clientContent={"weightedPrompts": prompts})
    assert "heaviest" in client.receive_until("warning")
    settle(client)
    (message,) = (message for message in posted if isinstance(message, SetPrompts))
    assert {item.text for item in message.items} == set(texts[1:])


CONFIG, CONTENT = "musicGenerationConfig", "clientContent"
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({CONFIG: {"bpm": 300}}, "musicGenerationConfig.bpm: expected at most 200"),
    ({CONFIG: {"bpm": "fast"}}, "musicGenerationConfig.bpm: expected an integer"),
    ({CONFIG: {"density": "NaN"}}, "musicGenerationConfig.density: expected a finite number"),
    ({CONFIG: {"scale": "H_MAJOR"}}, "musicGenerationConfig.scale: expected 'C_MAJOR_A_MINOR'"),
    ({CONFIG: {"topK": 0}}, "musicGenerationConfig.topK: expected at least 1"),
    ({CONTENT: {"weightedPrompts": [{"text": "a", "weight": -1}]}}, "weight: expected at least 0"),
    ({CONTENT: {"weightedPrompts": [{"weight": 1}]}}, "weightedPrompts.0.text: is missing"),
    ({CONTENT: {"weightedPrompts": [{"text": "a"}] * 101}}, "weightedPrompts: expected at most 100 items"),
    ({CONTENT: {"weightedPrompts": [{"text": "calm", "weight": 0}]}}, "weight"),
    ({CONTENT: {"weightedPrompts": []}}, ""),
    ({CONTENT: {}}, "weightedPrompts: is missing"),
    ({"playbackControl": "LOUDER"}, "playbackControl: expected 'PLAY', 'PAUSE', 'STOP' or 'RESET_CONTEXT'"),
)


def test_wrong_values_are_warnings_and_change_nothing(
    server: Served, client: LyriaClient, posted: list[ClientMessage]
) -> None:
    with lyria(server) as neighbour:
        neighbour.send(playbackControl="PLAY")
        client.send(playbackControl="PLAY")
        client.audio(0.2)
        before = list(posted)
        for members, words in WRONG:
            client.send(**members)
            assert words in client.receive_until("warning")
        assert posted == before
        client.audio(0.5)
        neighbour.audio(0.4)
        assert neighbour.messages == [{"setupComplete": {}}]


NO_MESSAGE = "Invalid JSON payload received."


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        ("{", 1007, f"{NO_MESSAGE} not valid JSON"),
        (b"\xff\xfe", 1007, f"{NO_MESSAGE} not valid JSON"),
        ("[]", 1007, f"{NO_MESSAGE} expected a JSON object"),
        ("[" * 100_000, 1007, NO_MESSAGE),
        ('{"musicGenerationConfig": {"density": NaN}}', 1007, f"{NO_MESSAGE} not valid JSON"),
        (
            "{}",
            1007,
            f"{NO_MESSAGE} Expected exactly one of setup, clientContent, musicGenerationConfig, playbackControl",
        ),
        ('{"playbackControl": "PLAY", "setup": {"model": "m"}}', 1007, f"{NO_MESSAGE} Expected exactly one of"),
        (
            '{"playbackControl": "PLAY", "playbackControl": "STOP"}',
            1007,
            f"{NO_MESSAGE} the key 'playbackControl' occurs",
        ),
        ('{"setup": {"model": "again"}}', 1007, "setup is only in the first message."),
        ('{"setup": {"model": "m", "voice": 1}}', 1007, f"{NO_MESSAGE} Unknown name \"voice\" at 'setup': Cannot find"),
        ('{"tempo": 3}', 1007, f'{NO_MESSAGE} Unknown name "tempo": Cannot find field.'),
        (" " * (2**20 + 1), 1009, "The message is larger than 1048576 bytes."),
    ],
)
def test_what_is_no_message_closes_the_connection(
    client: LyriaClient, data: str | bytes, code: int, reason: str
) -> None:
    client.websocket.send(data)
    closed = client.closed()
    assert closed[0] == code
    assert closed[1].startswith(reason)


@pytest.mark.parametrize("first", [{"playbackControl": "PLAY"}, {"setup": {}}, {"setup": {"model": ""}}])
def test_the_first_message_is_the_setup(server: Served, first: dict[str, Any]) -> None:
    with open_websocket(server, PATH) as websocket:
        client = LyriaClient(websocket)
        client.send(**first)
        code, reason = client.closed()
    assert (code, "setup" in reason) == (1007 if "playbackControl" in first else 1008, True)


STEERED = """
[options]
bpm = { min = 60, max = 180 }
guidance = { max = 4 }
[controls]
bpm = { option = "bpm" }
scale = { option = "key" }
"""


@pytest.fixture(scope="module")
def steered(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model with a tempo and a key, and fewer of them than Lyria's clients may send."""
    folder = tmp_path_factory.mktemp("steered")
    path = tiny_deployment(folder, conditions=True, max_rows=16, more=FEW_VARIANTS)
    bundle = folder / "tiny" / "bundle.toml"
    bundle.write_text(bundle.read_text(encoding="utf-8") + STEERED, encoding="utf-8")
    with serving(built(path), max_sessions=2, client_sessions=0) as served:
        yield served


def test_what_the_model_cannot_play_is_the_nearest_and_said_to_be(
    steered: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk's metadata have what it was made with."""
    messages = noted(steered, monkeypatch)
    with lyria(steered) as connected:
        connected.send(musicGenerationConfig={"bpm": 200, "guidance": 5, "density": 0.5})
        first, second = (connected.receive_until("warning") for _ in range(2))
        assert first == "guidance is 5, this model takes 0 to 4 ([options.guidance] of its bundle); 4 is played"
        takes = "this model takes whole numbers from 60 to 180 ([options.bpm] of its bundle)"
        assert second == f"bpm is 200, {takes}; 180 is played"
        connected.send(clientContent={"weightedPrompts": [{"text": "calm", "weight": 1}]})
        connected.send(playbackControl="PLAY")
        chunk = connected.receive_until("serverContent")["audioChunks"][0]
        made = chunk["sourceMetadata"]["musicGenerationConfig"]
        assert made == {"bpm": 180, "guidance": 4, "density": 0.5}
        (values,) = [message.values for message in messages if isinstance(message, SetControls)]
        assert (values["bpm"], values["guidance"]) == (180, 4)


def test_a_reset_begins_anew_with_the_tempo_and_the_scale_that_were_set_before_it(
    steered: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = noted(steered, monkeypatch)
    with lyria(steered) as connected:
        connected.send(musicGenerationConfig={"bpm": 120, "scale": "C_MAJOR_A_MINOR"})
        connected.send(clientContent={"weightedPrompts": [{"text": "calm", "weight": 1}]})
        connected.send(playbackControl="PLAY")
        connected.audio(0.5)
        changed = {"bpm": 90, "scale": "D_FLAT_MAJOR_B_FLAT_MINOR"}
        connected.send(musicGenerationConfig=changed)
        connected.send(playbackControl="RESET_CONTEXT")
        while connected.metadata["musicGenerationConfig"] != changed:
            connected.audio(0.2)
        connected.audio(1.0)
        assert connected.metadata["musicGenerationConfig"] == changed
    steering = [message for message in messages if isinstance(message, SetControls | Reset)]
    assert types(steering) == ["set", "set", "reset"]
    found = [(each.values["bpm"], each.values["key"], each.at) for each in steering if isinstance(each, SetControls)]
    assert found == [(120, "C major", None), (90, "Db major", None)]


def test_warnings_without_an_end_close_the_connection(client: LyriaClient) -> None:
    for _ in range(16):
        client.send(playbackControl="LOUDER")
    assert client.closed() == (1008, "more than 15 warnings in 5 s")


def test_more_sessions_than_there_may_be_are_refused_with_a_reason(server: Served, client: LyriaClient) -> None:
    with lyria(server), open_websocket(server, PATH) as websocket:
        third = LyriaClient(websocket)
        third.send(setup={"model": "m"})
        code, reason = third.closed()
    assert code == 1013
    assert "2" in reason


def test_a_session_that_is_deleted_closes_its_connection(server: Served, client: LyriaClient) -> None:
    settle(client)
    eventually(lambda: all(info.is_connected for info in server.service.live_host().sessions()))
    (info,) = server.service.live_host().sessions()
    assert server.send("DELETE", f"/v1/sessions/{info.id}").status_code == 204
    assert client.closed() == (1000, "the session has ended: deleted")


def test_a_shutdown_says_so(serve: Serve) -> None:
    with lyria(served := serve()) as client:
        served.server.drain()
        assert client.closed()[0] == 1001


def test_new_prompts_take_a_share_of_a_thread_and_known_ones_nothing(
    client: LyriaClient, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s, counted, sleep = list[float](), list[str](), asyncio.sleep
    encoder = server.service.ready_pipeline().text_encoder
    num_tokens = encoder.num_tokens  # type: ignore[union-attr]
    monkeypatch.setattr(lyria_connection, "timed", lambda work: (work(), 100.0))
    monkeypatch.setattr(encoder, "num_tokens", lambda text: counted.append(text) or num_tokens(text))

    async def note(delay_s: float, *result: Any) -> Any:
        slept_s.append(delay_s)
        return await sleep(min(delay_s, 0.01), *result)

    monkeypatch.setattr(lyria_connection.asyncio, "sleep", note)
    for weight in (1, 2):
        client.send(clientContent={"weightedPrompts": [{"text": "calm", "weight": weight}]})
        settle(client)
    assert counted == ["calm"]
    assert sum(delay_s >= 100.0 * (1.0 / SHARE - 1.0) for delay_s in slept_s) == 2


def connection() -> lyria_connection.LyriaConnection:
    """What waits to be sent of a connection, without one."""
    bare = lyria_connection.LyriaConnection.__new__(lyria_connection.LyriaConnection)
    bare._outgoing, bare._wake, bare._end = deque(), asyncio.Event(), None
    return bare


def test_a_client_that_reads_no_messages_is_disconnected_after_those_that_wait() -> None:
    bare = connection()
    for number in range(lyria_connection.MAX_WAITING):
        bare._send(warning=f"{number}")
    assert (len(bare._outgoing), bare._end) == (lyria_connection.MAX_WAITING, None)
    bare._wake.clear()
    bare._send(warning="one too many")
    assert (len(bare._outgoing), bare._wake.is_set()) == (lyria_connection.MAX_WAITING, True)
    assert bare._end == (lyria_connection.CLOSE_CODES["refused"], "messages are not read")


def test_the_first_reason_to_close_is_the_one_that_is_said_and_it_fits_into_a_frame() -> None:
    bare = connection()
    bare._close("a reason of no code", "\u00e4" * 200)
    bare._close("shutdown", "later")
    assert bare._end == (1000, "\u00e4" * 61), "123 bytes, without half a character"


def test_what_was_made_before_the_newest_configuration_that_is_heard_is_forgotten() -> None:
    bare = connection()
    bare._metadata = {0: {"at": 0}, 3: {"at": 3}, 5: {"at": 5}, 9: {"at": 9}}
    assert [bare._made_with(seq)["at"] for seq in (2, 5, 7)] == [0, 5, 5]
    assert list(bare._metadata) == [5, 9]
    assert bare._made_with(1) == {"at": 5}, "of the oldest that is known"
