from __future__ import annotations

import email
import email.policy
import io
import json
from collections.abc import Callable
from typing import Any

import av
import httpx
import numpy as np
import pytest
from helpers.http_harness import Served

from runtime.audio.encoding import AudioWriter
from server.compat.elevenlabs import OUTPUT_FORMATS, encoding_of

# The tiny model makes 8 kHz stereo.
SECONDS = 3


def post(served: Served, path: str = "/v1/music", output_format: str = "pcm_8000", **body: Any) -> httpx.Response:
    values = body if body else {"prompt": "a", "music_length_ms": 1000 * SECONDS, "seed": 1}
    with served.client() as client:
        return client.post(path, params={"output_format": output_format}, json=values)


def refused(response: httpx.Response, status: int, code: str) -> str:
    """The message of an error in ElevenLabs' shape."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    detail = response.json()["detail"]
    assert set(detail) == {"status", "message"}
    assert detail["status"] == code
    return str(detail["message"])


def decoded(data: bytes) -> tuple[int, float]:
    """Sample rate and seconds of a file."""
    with av.open(io.BytesIO(data)) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        return container.streams.audio[0].rate, samples / container.streams.audio[0].rate


def test_stream_compose_and_our_own_route_are_the_same_music(served: Served) -> None:
    stream, whole = post(served, "/v1/music/stream"), post(served)
    assert stream.headers["transfer-encoding"] == "chunked"
    assert int(whole.headers["content-length"]) == len(whole.content) == 2 * 2 * 8000 * SECONDS
    assert stream.content == whole.content == served.post(seconds=SECONDS, response_format="pcm").content
    assert np.abs(np.frombuffer(whole.content, "<i2")).max() > 1000


@pytest.mark.parametrize("output_format", ["auto", "mp3_22050_32", "mp3_44100_192", "opus_48000_64", "wav_16000"])
def test_files_have_the_rate_of_their_name(served: Served, output_format: str) -> None:
    rate_hz, seconds = decoded(post(served, "/v1/music/stream", output_format).content)
    assert rate_hz == (8000 if output_format == "auto" else int(output_format.split("_")[1]))
    assert SECONDS <= seconds < SECONDS + 0.3


def test_every_format_has_a_writer() -> None:
    for name in OUTPUT_FORMATS:
        encoding = encoding_of(name)
        rate_hz, kbps = encoding.get("sample_rate_hz"), encoding.get("bit_rate_kbps")
        assert name == "auto" or str(rate_hz) in name
        assert AudioWriter(
            encoding["response_format"], 48_000, 2, file_rate_hz=rate_hz, bit_rate_kbps=kbps
        ).close() or (encoding["response_format"] in ("pcm", "ulaw", "alaw"))


def test_a_plan_is_played_for_its_time(served: Served) -> None:
    part = {"positive_local_styles": ["b"], "negative_local_styles": ["c"], "duration_ms": 3000, "lines": []}
    plan = {
        "positive_global_styles": ["a"],
        "negative_global_styles": [],
        "sections": [{"section_name": "Intro", **part}, {"section_name": "End", **part, "positive_local_styles": []}],
    }
    assert len(post(served, composition_plan=plan).content) == 2 * 2 * 8000 * 6
    message = refused(post(served, composition_plan={**plan, "sections": []}), 422, "invalid_request")
    assert message.startswith("/sections: expected at least 1 item(s)")
    chunk = {"text": "", "duration_ms": 3000, "positive_styles": ["a"]}
    assert len(post(served, composition_plan={"chunks": [chunk]}).content) == 2 * 2 * 8000 * 3


def test_details_come_before_the_audio(served: Served) -> None:
    response = post(served, "/v1/music/detailed", prompt="a", music_length_ms=3000, seed=1)
    head = f"content-type: {response.headers['content-type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + response.content, policy=email.policy.HTTP)
    details, audio = message.iter_parts()
    assert json.loads(details.get_content())["composition_plan"]["positive_global_styles"] == ["a"]
    assert audio.get_content_type() == "audio/pcm"
    assert audio.get_filename().endswith(".pcm")
    assert audio.get_payload(decode=True) == post(served).content
    refused(post(served, "/v1/music/detailed", prompt="a", with_timestamps=True), 422, "invalid_request")


def test_a_sound_has_its_length(served: Served) -> None:
    def sound(**more: Any) -> bytes:
        return post(served, "/v1/sound-generation", text="rain", duration_seconds=0.5, **more).content

    assert len(sound()) == len(sound(prompt_influence=0.3)) == 2 * 2 * 4000
    canvas_s = served.pipeline.canvas_frames / served.pipeline.bundle.latents.frame_rate_hz
    assert len(post(served, "/v1/sound-generation", text="rain").content) == 2 * 2 * round(8000 * canvas_s)


@pytest.mark.parametrize(
    ("values", "status", "code", "message"),
    [
        ({"prompt": "a", "music_length_ms": 100}, 422, "invalid_request", "/music_length_ms: expected at least 3000"),
        ({"seed": 3}, 422, "invalid_request", "expected prompt or composition_plan"),
        ({"prompt": "a", "store_for_inpainting": True}, 422, "invalid_request", "keeps no songs"),
        ({"prompt": "a", "composition_plan": {"sections": 3}}, 422, "invalid_request", "prompt or composition_plan"),
        ({"composition_plan": {"sections": 3}}, 422, "invalid_request", "is missing"),
        ({"prompt": "a", "model_id": "music_v9"}, 404, "model_not_found", "this server runs 'tiny'"),
        ({"prompt": "a", "finetune_id": "none"}, 422, "invalid_request", "adapter"),
        ({"prompt": "a", "unknown": 1}, 422, "invalid_request", "/unknown: is not a known name"),
    ],
)
def test_bad_bodies_are_errors_in_the_clients_shape(
    served: Served, values: dict[str, Any], status: int, code: str, message: str
) -> None:
    for path in ("/v1/music", "/v1/music/stream"):
        assert message in refused(post(served, path, **values), status, code)


def test_sounds_are_of_the_model_that_is_named(served: Served) -> None:
    answer = post(served, "/v1/sound-generation", text="rain", model_id="eleven_v9")
    assert "this server runs 'tiny'" in refused(answer, 404, "model_not_found")


def test_bad_requests_are_errors_in_the_clients_shape(served: Served) -> None:
    assert "expected one of auto, mp3_22050_32" in refused(post(served, output_format="mp3"), 422, "invalid_request")
    with served.client() as client:
        form = client.post("/v1/music", files={"prompt": b"a"})
        assert "expected content type application/json" in refused(form, 415, "unsupported_media_type")
        broken = client.post("/v1/music", content=b"{", headers={"content-type": "application/json"})
        refused(broken, 400, "malformed_json")
        refused(client.get("/v1/music"), 405, "method_not_allowed")
        refused(client.post("/v1/music/plan", json={}), 404, "not_found")
    for values in ({"duration_seconds": 3}, {"text": "a", "duration_seconds": 31}, {"text": "a", "loop": True}):
        refused(post(served, "/v1/sound-generation", **values), 422, "invalid_request")


def test_limits_and_switches_are_the_servers(serve: Callable[..., Served]) -> None:
    served = serve(max_seconds=5.0, clients=("elevenlabs",))
    assert "at most 5 s" in refused(post(served, prompt="a", music_length_ms=6000), 422, "invalid_request")
    assert post(served).status_code == 200
    with served.client() as client:
        other = client.post("/release_task", json={})
        assert other.headers["content-type"] == "application/problem+json"
