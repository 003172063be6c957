"""A prompt at which native code panics, over every protocol: its caller is told, and all others play on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.acestep_client import AceStepClient
from helpers.http_harness import Served, open_websocket, problem, serving
from helpers.lyria_client import lyria
from helpers.mcp_client import problem_of, talk
from helpers.panics import PANIC, make_panic, panic
from mcp.client import Client
from websockets.sync.client import ClientConnection

from runtime.config.deployment import Deployment
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.store import SessionSnapshot

CANNOT_READ = "cannot be read by the model's tokenizer"


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny(), client_sessions=0) as served:
        text_encoder = served.pipeline.text_encoder
        assert text_encoder is not None
        make_panic(text_encoder._tokenizer)
        yield served


@pytest.fixture
def panicking(server: Served) -> Iterator[Served]:
    """The server; after the panic a further session plays, and it is live and ready."""
    yield server
    with live(server) as neighbour:
        play(neighbour)
    assert server.get("/health/live").status_code == server.get("/health/ready").status_code == 200


def live(served: Served, path: str = "/v1/live") -> ClientConnection:
    return open_websocket(served, path, subprotocols=["tickrt.live.v1"])


def tell(websocket: ClientConnection, kind: str, **members: Any) -> None:
    websocket.send(json.dumps({"type": kind, **members}))


def play(websocket: ClientConnection, prompt: str = "a") -> None:
    """Open a session and hear its first audio."""
    tell(websocket, "open", prompts=[{"text": prompt}])
    while isinstance(websocket.recv(60), str):
        pass


def message_of(websocket: ClientConnection, kind: str) -> Any:
    while not isinstance(data := websocket.recv(60), str) or (message := json.loads(data))["type"] != kind:
        pass
    return message


def test_of_a_generation(panicking: Served) -> None:
    assert CANNOT_READ in problem(panicking.post(prompt=PANIC, seconds=1), 422)["detail"]
    assert panicking.post(prompt="a", seconds=1).status_code == 200


def test_of_a_live_session(panicking: Served) -> None:
    with live(panicking) as websocket:
        play(websocket)
        tell(websocket, "prompts", seq=1, items=[{"text": PANIC}])
        assert CANNOT_READ in message_of(websocket, "problem")["detail"]
        tell(websocket, "prompts", seq=2, items=[{"text": "b"}])
        while message_of(websocket, "applied")["seq"] != 2:
            pass
    with live(panicking) as websocket:
        tell(websocket, "open", prompts=[{"text": PANIC}])
        assert CANNOT_READ in message_of(websocket, "problem")["detail"]


def test_of_lyrias_protocol(panicking: Served) -> None:
    with lyria(panicking) as client:
        client.send(clientContent={"weightedPrompts": [{"text": PANIC, "weight": 1}]})
        assert CANNOT_READ in client.receive_until("filteredPrompt")["filteredReason"]
        client.send(clientContent={"weightedPrompts": [{"text": "calm", "weight": 1}]})
        client.send(playbackControl="PLAY")
        client.audio(0.1)


def test_of_an_ace_step_task(panicking: Served) -> None:
    with httpx.Client(base_url=panicking.url, timeout=60) as http:
        refused = http.post("/release_task", json={"prompt": PANIC, "audio_duration": 1})
        assert CANNOT_READ in refused.text
        client = AceStepClient(http)
        client.wait(client.release(json={"prompt": "a", "audio_duration": 1}))


def test_of_an_assistant(panicking: Served) -> None:
    async def steps(client: Client) -> None:
        refused = await client.call_tool("generate", {"prompt": PANIC, "seconds": 1})
        assert CANNOT_READ in problem_of(refused, "invalid_request")
        assert not (await client.call_tool("generate", {"prompt": "a", "seconds": 1})).is_error

    talk(panicking, steps)


def test_of_what_is_restored_at_a_start(
    tiny: Callable[..., Deployment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server starts, the session is kept, and the start after that leaves it alone; its client may come back."""
    with serving(tiny(), state=tmp_path) as served, live(served) as websocket:
        tell(websocket, "open", prompts=[{"text": "a"}])
        ready = message_of(websocket, "ready")
    restored: list[str] = []
    restore = LiveSession.restore

    def note(snapshot: SessionSnapshot, *given: Any) -> LiveSession:
        restored.append(snapshot.meta["id"])
        return restore(snapshot, *given) if len(restored) > 1 else panic()

    monkeypatch.setattr(LiveSession, "restore", note)
    with serving(tiny(), state=tmp_path) as served, served.client() as client:
        assert client.get("/health/ready").json()["live_sessions"] == 0
    path = f"/v1/live/{ready['session']}"
    with serving(tiny(), state=tmp_path) as served, live(served, path) as websocket:
        assert restored == [ready["session"]]
        tell(websocket, "open", resume=ready["resume_token"])
        assert message_of(websocket, "ready")["resumed"]
