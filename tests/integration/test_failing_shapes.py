"""Graphs that fail for one shape: who asked for it is told, neighbours and the next request are served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.acestep_client import wav_file
from helpers.factories import tiny_deployment
from helpers.failing_graph import fail_at
from helpers.http_harness import Served, open_websocket, problem, serving

from engine_build.compile.builder import build_deployment
from runtime.config.deployment import load_deployment

FRAME_S = 0.04
# Graph -> its input and axis, and the size that it fails for; and what a request asks for that has it.
FAILING = {
    "decoder": ("hidden_states", 1, 24),
    "codec_decode": ("latents", 1, 8),
    "codec_encode": ("audio", 2, 14 * 320),
    "text_encoder": ("input_ids", 1, 8),
}
GOOD: dict[str, Any] = {"prompt": "abc", "seconds": 10 * FRAME_S}
BAD: dict[str, dict[str, Any]] = {
    "decoder": {"seconds": 20 * FRAME_S},
    "codec_decode": {"seconds": 14 * FRAME_S},
    "text_encoder": {"prompt": "abcdefg"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("failing")
    path = tiny_deployment(folder, more='[build]\nstep_variants = ["plain", "guidance"]\n')
    for graph, place in FAILING.items():
        fail_at(folder / "tiny" / f"{graph}.onnx", *place)
    deployment = load_deployment(path)
    build_deployment(deployment)
    with serving(deployment) as served:
        yield served


def assert_told(refused: dict[str, Any], role: str) -> None:
    assert f"{role} with {FAILING[role][0]}" in refused["detail"]
    assert "fails_at_one_size" in refused["detail"]


@pytest.mark.parametrize("role", BAD)
def test_its_request_fails_and_others_do_not(role: str, server: Served) -> None:
    request = GOOD | BAD[role]
    alone = [server.post(**GOOD, seed=seed).content for seed in range(3)]
    before = server.metrics()
    with ThreadPoolExecutor(4) as pool:
        neighbours = [pool.submit(server.post, **GOOD, seed=seed) for seed in range(3)]
        refused = problem(pool.submit(server.post, **request).result(), 500, "engine_error")
        assert [each.result().content for each in neighbours] == alone
    assert_told(refused, role)
    after = server.metrics()
    counted = {name: after[f"tickrt_generations_total{{outcome={name}}}"] for name in ("ok", "engine_error")}
    assert counted == {
        name: before[f"tickrt_generations_total{{outcome={name}}}"] + more
        for name, more in {"ok": 3, "engine_error": 1}.items()
    }
    problem(server.post(**request), 500, "engine_error")
    assert server.post(**GOOD, seed=1).content == alone[1]
    assert server.get("/health/live").status_code == server.get("/health/ready").status_code == 200


def test_a_source_of_that_shape_is_refused_and_others_are_not(server: Served) -> None:
    with server.client() as client:
        for frames in (14, 10, 14):
            answer = client.post("/v1/sources", content=wav_file(frames * FRAME_S))
            if frames == 14:
                assert_told(problem(answer, 500, "engine_error"), "codec_encode")
            else:
                assert server.post(**GOOD, source_id=answer.json()["id"]).status_code == 200


def test_a_live_session_of_that_shape_is_told_and_may_close(server: Served) -> None:
    with open_websocket(server, "/v1/live", subprotocols=["tickrt.live.v1"]) as websocket:
        websocket.send(json.dumps({"type": "open", "prompts": [{"text": "a"}], "seconds": 24 * FRAME_S}))
        messages = iter(lambda: json.loads(websocket.recv(60)), None)
        told = next(message for message in messages if message["type"] == "problem")
    assert (told["code"], told["status"]) == ("engine_error", 500)
    assert server.post(**GOOD).status_code == 200
