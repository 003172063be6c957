"""Adapters over HTTP: the list, generations that use them, and those merged into the decoder's weights."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from helpers.adapters import adapter_deployment, add_adapter
from helpers.http_harness import GENERATIONS, Served, eventually, problem, serving
from helpers.live_player import is_audio, player

from runtime.config.deployment import Deployment
from runtime.live.protocol.server_messages import Problem
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.record import TickRecord
from server.service.service import warm_up_pipeline

KEY = "only-for-admins"
PATH = "/admin/adapters"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A tiny model with the adapters "hard" and "soft" of rank 4; a tick takes both."""
    return adapter_deployment(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def served(deployment: Deployment) -> Iterator[Served]:
    with serving(deployment, admin_key=KEY) as server:
        yield server


def latents(served: Served, adapters: list[dict[str, Any]]) -> np.ndarray:
    body = {"prompt": "a", "seed": 1, "response_format": "latents", "adapters": adapters}
    response = served.send("POST", GENERATIONS, json=body)
    assert response.status_code == 200, response.text
    (found,) = safetensors.numpy.load(response.content).values()
    return found


def listed(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.get("/v1/adapters").json()
    return found


def merge(served: Served, *adapters: dict[str, Any], key: str = KEY) -> httpx.Response:
    return served.send("POST", PATH, json={"adapters": list(adapters)}, headers={"x-admin-key": key})


def test_adapters_are_listed_and_used(served: Served) -> None:
    found = listed(served)
    assert (found["max_rank"], found["merged"], len(found["data"])) == (8, [], 2)
    card = found["data"][1]
    assert (card["id"], card["rank"], card["base_model"]) == ("soft", 4, "tiny")
    assert card["trigger_words"] == ["soft", "felt"]
    assert np.abs(latents(served, [{"id": "soft", "strength": 0.7}]) - latents(served, [])).max() > 0.01
    wrong = served.send("POST", GENERATIONS, json={"prompt": "a", "adapters": [{"id": "sofd"}]})
    assert problem(wrong, 422, "invalid_request")["fix"] == "did you mean soft?"


def test_both_decoders_run_before_the_first_request(deployment: Deployment) -> None:
    with open_pipeline(deployment) as pipeline:
        assert [request.parameters.adapters for request in pipeline.warm_up_requests()] == [None, {"hard": 1.0}]
        warm_up_pipeline(pipeline)
        assert pipeline.loop.stats().ticks == 2


def test_a_live_session_and_a_generation_with_different_adapters_share_a_tick(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, loop = latents(served, [{"id": "hard"}]), served.pipeline.loop
    seen: list[tuple[int, set[str]]] = []
    submitted: set[str] = set()
    submit = loop.submit

    def submit_and_note(request: GenerationRequest, *listeners: Any) -> str:
        name = submit(request, *listeners)
        submitted.update(request.parameters.adapters or ())
        return name

    monkeypatch.setattr(loop, "submit", submit_and_note)
    monkeypatch.setattr(loop._ticks.scheduler, "shares_ticks", True)  # as on a GPU

    def observe(record: TickRecord) -> None:
        part = loop._ticks._denoise._part
        seen.append((record.executes, {adapter.id for adapter in part.adapters} if part else set()))

    loop.observers.insert(0, observe)
    served.pause()
    with player(served) as client, ThreadPoolExecutor(1) as pool:
        client.open(prompts=[{"text": "a"}], seed=3, controls={"adapters": [{"id": "soft", "strength": 0.7}]})
        eventually(lambda: "soft" in submitted)
        other = pool.submit(latents, served, [{"id": "hard"}])
        eventually(lambda: "hard" in submitted)
        served.resume()
        np.testing.assert_allclose(other.result(), alone, atol=1e-4)
        assert (1, {"soft", "hard"}) in seen
        client.receive_until(is_audio)
        client.send(type="adapter", seq=1, id="sofd", strength=1.0)
        refused = client.receive_until(lambda item: isinstance(item, Problem))
        assert "no adapter 'sofd'" in refused.detail
        client.send(type="adapter", seq=2, id="soft", strength=None, ramp_ms=50.0)
        client.receive_until(lambda item: is_audio(item) and item.full_seq == 2)
        client.send(type="close")
    loop.observers.remove(observe)


def test_merged_adapters_are_in_all_generations_until_others_are_merged(served: Served) -> None:
    plain, soft = latents(served, []), latents(served, [{"id": "soft", "strength": 0.7}])
    answer = merge(served, {"id": "soft", "strength": 0.7})
    assert answer.status_code == 200, answer.text
    assert answer.json() == listed(served)
    assert answer.json()["merged"] == [{"id": "soft", "strength": 0.7}]
    assert 'tickrt_merged_adapter_strength{adapter="soft"} 0.7' in served.get("/metrics").text
    np.testing.assert_allclose(latents(served, []), soft, atol=1e-4)
    served.pipeline.reload()
    np.testing.assert_allclose(latents(served, []), soft, atol=1e-4)
    assert merge(served).json()["merged"] == []
    np.testing.assert_array_equal(latents(served, []), plain)
    assert "tickrt_merged_adapter_strength{" not in served.get("/metrics").text


def test_live_sessions_take_an_adapter_that_came_with_a_reload(served: Served, deployment: Deployment) -> None:
    folder = add_adapter(deployment, "late", seed=3)
    with player(served) as client:
        client.open(prompts=[{"text": "a"}], seed=3)
        merge(served)
        client.send(type="adapter", seq=1, id="late", strength=1.0)
        found = client.receive_until(lambda item: isinstance(item, Problem) or (is_audio(item) and item.full_seq == 1))
        client.send(type="close")
    shutil.rmtree(folder)
    merge(served)
    assert is_audio(found), found


def test_a_name_of_unicode_is_an_id_in_every_form(served: Served, deployment: Deployment) -> None:
    """As macOS stores it, and as people type it."""
    name, stored = "été 🎹 (2)", unicodedata.normalize("NFD", "été 🎹 (2)")
    folder = add_adapter(deployment, stored, seed=3)
    answer = merge(served, {"id": stored, "strength": 0.7})
    assert (answer.status_code, answer.json()["merged"]) == (200, [{"id": name, "strength": 0.7}]), answer.text
    assert name in [card["id"] for card in listed(served)["data"]]
    assert f'{{adapter="{name}"}} 0.7' in served.get("/metrics").text
    merge(served)
    found = [latents(served, [{"id": typed}]) for typed in (name, stored)]
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0] - latents(served, [])).max() > 0.01
    with player(served) as client:
        client.open(prompts=[{"text": "a"}], seed=3, controls={"adapters": [{"id": stored}]})
        client.send(type="adapter", seq=1, id=name, strength=None)
        live = client.receive_until(lambda item: isinstance(item, Problem) or (is_audio(item) and item.full_seq == 1))
        client.send(type="close")
    shutil.rmtree(folder)
    merge(served)
    assert is_audio(live), live


def test_what_cannot_be_merged_changes_nothing(served: Served, deployment: Deployment) -> None:
    merge(served, {"id": "soft"})
    before, engines = latents(served, []), served.pipeline.engines
    found = problem(merge(served, {"id": "sofd"}), 422, "invalid_request")
    assert (found["fix"], found["errors"][0]["pointer"]) == ("did you mean soft?", "/adapters")
    problem(merge(served, {"id": "soft", "strength": 5.0}), 422, "invalid_request")
    problem(merge(served, {"id": "soft"}, {"id": "soft"}), 422, "invalid_request")
    problem(merge(served, {"id": "soft"}, key="wrong"), 403, "admin_key_needed")
    wrong = add_adapter(deployment, "wrong", rank=3)
    assert "[4, 8]" in problem(merge(served, {"id": "wrong"}), 500, "adapter_error")["detail"]
    shutil.rmtree(wrong)
    assert served.pipeline.engines is engines
    np.testing.assert_array_equal(latents(served, []), before)
    merge(served)
