from __future__ import annotations

import asyncio
import hashlib
import io
import json
import wave
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from helpers.factories import TinySpec
from helpers.http_harness import GENERATIONS, Serve, Served, problem, serving
from helpers.odd_audio import DAMAGED, LOSSLESS
from helpers.tones import tone

from runtime.audio.window_decoder import CROSSFADE_S
from runtime.config.deployment import Deployment
from server.asgi.problems import ProblemError
from server.asgi.request_body import Bodies
from server.routes.sources import store_source

SOURCES = "/v1/sources"


def wav(seconds: float = 1.0, rate_hz: int = 16000) -> bytes:
    pcm = (tone(int(seconds * rate_hz), rate_hz, 1) * 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate_hz, 0, "NONE", ""))
        out.writeframes(pcm.tobytes())
    return file.getvalue()


def upload(served: Served, data: bytes, **options: object) -> httpx.Response:
    return served.send("POST", SOURCES, content=data, **options)


def latents_of(served: Served, **body: object) -> np.ndarray:
    response = served.post(response_format="latents", **body)
    assert response.status_code == 200, response.text
    (latents,) = safetensors.numpy.load(response.content).values()
    return latents


def test_a_source_is_uploaded_once_listed_and_deleted(serve: Serve) -> None:
    served, data = serve(), wav(1.0)
    response = upload(served, data)
    assert response.status_code == 201
    card = response.json()
    assert card["id"] == hashlib.sha256(data).hexdigest()
    assert (card["object"], card["kind"], card["bytes"]) == ("source", "audio", len(data))
    assert card["seconds"] == pytest.approx(1.0, abs=0.1)
    with served.client() as client:
        assert client.get(response.headers["location"]).json() == card
        again = client.post(SOURCES, files={"source": ("a.wav", data)})
        assert (again.status_code, again.json()) == (200, card)
        assert client.get(SOURCES).json() == {"object": "list", "data": [card]}
        assert client.delete(f"{SOURCES}/{card['id']}").status_code == 204
        problem(client.delete(f"{SOURCES}/{card['id']}"), 404, "source_not_found")
        problem(client.get(f"{SOURCES}/{card['id']}"), 404, "source_not_found")
        assert client.get(SOURCES).json()["data"] == []


def test_a_generation_takes_a_source_by_id_as_by_upload(served: Served) -> None:
    data = wav(1.0)
    source_id = upload(served, data).json()["id"]
    by_id = latents_of(served, source_id=source_id, denoise=0.4)
    request = ("", '{"prompt": "a", "seed": 1, "denoise": 0.4, "response_format": "latents"}')
    by_upload = served.send("POST", GENERATIONS, files={"request": request, "source": ("a.wav", data)})
    (expected,) = safetensors.numpy.load(by_upload.content).values()
    assert np.array_equal(by_id, expected)
    assert not np.array_equal(by_id, latents_of(served, source_id=source_id, denoise=0.9))


@pytest.mark.parametrize("by_id", [True, False])
def test_a_repaint_keeps_the_samples_of_its_source(served: Served, by_id: bool) -> None:
    rate_hz, fade = TinySpec().sample_rate_hz, round(CROSSFADE_S * TinySpec().sample_rate_hz)
    data = wav(2.0, rate_hz)
    values: dict[str, object] = {"repaint": [{"start_s": 0.8, "end_s": 1.2}], "response_format": "pcm"}
    if by_id:
        response = served.post(**values, source_id=upload(served, data).json()["id"])
    else:
        form = {"request": ("", json.dumps({"prompt": "a", **values})), "source": ("a.wav", data)}
        response = served.send("POST", GENERATIONS, files=form)
    assert response.status_code == 200, response.text
    result = np.frombuffer(response.content, "<i2").reshape(-1, 2)
    source = np.frombuffer(data[44:], "<i2").repeat(2).reshape(-1, 2)
    begin, end = round(0.8 * rate_hz) - fade, round(1.2 * rate_hz) + fade
    assert np.array_equal(result[:begin], source[:begin])
    assert np.array_equal(result[end:], source[end:])
    assert not np.array_equal(result[begin:end], source[begin:end])


def test_a_generation_takes_a_target_by_id(served: Served) -> None:
    target_id = upload(served, wav(2.0)).json()["id"]
    drawn = latents_of(served, target_id=target_id, target_curve=1.0)
    target = served.service.sources.latents(target_id)
    assert np.abs(drawn[: len(target)] - target[: len(drawn)]).max() < 1e-4


def test_unknown_and_doubled_sources_are_refused(served: Served) -> None:
    for field in ("source_id", "target_id"):
        document = problem(served.post(**{field: "0" * 64}), 404, "source_not_found")
        assert document["errors"][0]["pointer"] == f"/{field}"
        problem(served.post(**{field: "../../etc/passwd"}), 422)
    source_id = upload(served, wav(0.5)).json()["id"]
    request = ("", f'{{"prompt": "a", "source_id": "{source_id}"}}')
    both = served.send("POST", GENERATIONS, files={"request": request, "source": ("a.wav", wav(0.5))})
    assert problem(both, 422)["errors"][0]["pointer"] == "/source_id"


@pytest.mark.parametrize(
    "path",
    ["../generations", "..%2f..%2fetc%2fpasswd", "%2e%2e/secret", "A" * 64, "0" * 63, "0" * 65, "x" * 5000, "%00"],
)
def test_paths_outside_the_store_are_refused(served: Served, path: str) -> None:
    with served.client() as client:
        for method in ("GET", "DELETE"):
            response = client.request(method, f"{SOURCES}/{path}")
            assert response.status_code in (404, 405, 422)
            problem(response, response.status_code)


def test_every_file_that_the_command_line_reads_is_taken(served: Served) -> None:
    """One file of every kind of container; what is read from a path is judged in test_decoding.py."""
    by_magic = {data[:4]: name for name, data in LOSSLESS.items()}
    files = {name: LOSSLESS[name] for name in by_magic.values()} | {name: data for name, (data, _) in DAMAGED.items()}
    with served.client() as client:
        answers = {name: client.post(SOURCES, content=data) for name, data in files.items()}
    assert {name: answer.text for name, answer in answers.items() if answer.status_code not in (200, 201)} == {}
    told = {name for name, answer in answers.items() if answer.json()["losses"]}
    assert told == DAMAGED.keys() - {"two flac", "junk before mp3"}


def test_a_generation_tells_what_of_its_source_could_not_be_decoded(served: Served) -> None:
    for name in ("cut flac", "two flac"):
        form = {"request": (None, json.dumps({"prompt": "a"})), "source": (name, DAMAGED[name][0])}
        response = served.send("POST", GENERATIONS, files=form)
        (*losses,) = served.card(response)["losses"]
        assert response.headers.get("x-damaged") == ("true" if losses else None)
        assert [text.endswith("s of the audio cannot be decoded and are left out") for text in losses] == [True] * (
            name == "cut flac"
        )


@pytest.mark.parametrize("data", [b"", b"nothing", b"{}", b"RIFF" + bytes(100), wav(1.0)[:20]])
def test_what_is_not_audio_is_refused_and_counted(served: Served, data: bytes) -> None:
    name = "tickrt_source_uploads_total{outcome=refused}"
    before = served.metrics().get(name, 0)
    problem(upload(served, data), 415)
    assert served.metrics()[name] == before + 1


def test_forms_with_other_parts_are_refused(served: Served) -> None:
    problem(served.send("POST", SOURCES, files={"file": ("a.wav", wav(0.1))}), 422)
    problem(served.send("POST", SOURCES, data={"source": "text"}, files={"source": ("a", b"x")}), 422)
    problem(served.send("POST", SOURCES, content=wav(0.1), headers={"content-encoding": "gzip"}), 415)


def test_uploads_are_limited_in_size_and_duration(serve: Serve) -> None:
    served = serve(upload_bytes=20_000, max_seconds=0.5)
    problem(upload(served, bytes(20_001)), 413)
    problem(upload(served, wav(0.6)), 422)
    assert upload(served, wav(0.4)).status_code == 201
    assert served.service.bodies.memory.used == 0


def test_a_client_at_its_limit_may_not_upload(serve: Serve) -> None:
    served = serve(client_in_flight=1)
    with served.service.admission.limit_client("127.0.0.1"):
        refused = upload(served, wav(0.1))
        problem(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
    assert upload(served, wav(0.1)).status_code == 201


def test_sources_survive_a_restart_and_make_room_for_others(tiny: Callable[..., Deployment], tmp_path: Path) -> None:
    settings = {"state": tmp_path, "sources_bytes": 2**20}
    with serving(tiny(), **settings) as served:
        ids = [upload(served, wav(5.0 + number)).json()["id"] for number in range(3)]
    with serving(tiny(), **settings) as served:
        with served.client() as client:
            assert [card["id"] for card in client.get(SOURCES).json()["data"]] == ids[::-1]
        assert upload(served, wav(18.0)).status_code == 201
        metrics = served.metrics()
        assert metrics["tickrt_sources"] == 3
        assert metrics["tickrt_sources_size_bytes"] <= 2**20
        assert metrics["tickrt_source_evictions_total"] == 1
        problem(served.post(source_id=ids[0]), 404, "source_not_found")
        assert served.post(source_id=ids[2], seconds=1).status_code == 200


def test_a_file_counts_against_what_is_read_at_once_until_it_is_stored() -> None:
    used: list[float] = []
    bodies = Bodies(100, 0)

    async def run(client: str, work: Any, data: bytes, owner: str) -> Any:
        used.append(bodies.memory.used_by(client))
        return "a source", work

    data = b"RIFF" + bytes(60)
    service: Any = SimpleNamespace(
        bodies=bodies, file_turns=SimpleNamespace(run=run), sources=SimpleNamespace(add=None)
    )
    assert asyncio.run(store_source(service, "me", data, "src_audio")) == "a source"
    assert (used, bodies.memory.used) == ([64], 0)
    bodies.memory.take("other", 40)
    with pytest.raises(ProblemError, match="keeps bytes of requests"):
        asyncio.run(store_source(service, "me", data, "src_audio"))
    assert (len(used), bodies.memory.used) == (1, 40)
