from __future__ import annotations

import io
import json
import struct
import threading
import wave
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import av
import httpx
import mido
import numpy as np
import pytest
import safetensors.numpy
import soundfile
from conftest import Built
from helpers.acestep_client import wav_file
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec
from helpers.http_harness import GENERATIONS, Serve, Served, connected, eventually, problem, raw_request, serving
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES, codes_of

from runtime.audio.codec import Codec
from runtime.audio.formats import FORMATS, FormatName
from runtime.audio.metadata import read_metadata
from runtime.base.errors import EngineError
from runtime.pipeline.generation import LongGeneration
from server.asgi.openapi import EXAMPLES
from server.service.admission import Permit
from server.service.generation_cards import MEANINGS_BYTES


def test_a_wav_has_its_sizes_in_the_header_and_comes_in_chunks_or_whole(served: Served) -> None:
    body = {"prompt": "a", "seed": 1, "seconds": 3}
    with served.client() as client, client.stream("POST", GENERATIONS, json=body) as response:
        chunks = list(response.iter_raw())
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    assert response.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in response.headers
    data = b"".join(chunks)
    assert struct.unpack("<I", data[4:8])[0] + 8 == len(data)
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnframes(), file.getnchannels(), file.getframerate()) == (3 * 8000, 2, 8000)
    assert len(chunks) >= 3
    assert len(chunks[0]) > 44
    whole = served.post(seconds=3, stream=False)
    assert int(whole.headers["content-length"]) == len(whole.content)
    is_the_same = whole.content == data
    assert is_the_same


def path_of(response: httpx.Response) -> str:
    return f"{GENERATIONS}/{response.headers['x-generation-id']}"


def test_unknown_words_are_in_a_header(built: Built) -> None:
    long = ", ".join(30 * chr(0x4E00 + index) for index in range(10))
    with serving(built(words=("calm", "drums"), more=FEW_VARIANTS)) as served:
        known = served.post(prompt="calm drums", steps=1)
        prompts = [{"text": "calm jazz"}, {"text": "schön, hip hop"}]
        some = served.post(prompt=prompts, negative_prompt="a\r\nX-Evil: 1", steps=1)
        many = served.post(prompt=f"more, {long}", steps=1)
        longest = served.post(prompt=long, steps=1)
        told = [served.card(response)["unknown"] for response in (many, longest)]
        caption = served.post(prompt="ukulele claps for a product video about cats", steps=1)
    assert "x-prompt-unknown" not in known.headers
    words = [unquote(word) for word in some.headers["x-prompt-unknown"].split(", ")]
    assert words == ["jazz", "schön", "hip hop", "a", "X-Evil", "1"]
    assert "x-evil" not in some.headers
    assert (many.headers["x-prompt-unknown"], many.headers["x-parameters"][:4]) == ("more", "/v1/")
    assert longest.headers["x-prompt-unknown"] == path_of(longest)
    assert caption.headers["x-prompt-unknown"] == "ukulele claps for a product video about cats"
    assert told == [["more", *long.split(", ")], long.split(", ")]


def test_what_of_prompts_is_played_is_in_a_header(served: Served, built: Built) -> None:
    assert "x-prompt-meaning" not in served.post(prompt="drums", steps=1).headers
    with serving(built(meaning=True, words=("calm", "chant"), more=FEW_VARIANTS)) as telling:
        prompts = [{"text": "fast jazz drums"}, {"text": "chant"}]
        response = telling.post(prompt=prompts, seed=5, steps=1)
        again = telling.post(prompt=prompts, seed=5, steps=1)
        empty = telling.post(prompt="", steps=1)
        near = telling.post(prompt="drumss, drams, jaz", steps=1)
        many = telling.post(prompt=8 * [{"text": "fast jazz drums bass"}], blend="tokens", steps=1)
        first, second = telling.card(response)["meanings"]
        assert len(telling.card(many)["meanings"]) == 8
    assert json.loads(response.headers["x-prompt-meaning"]) == [first]
    assert first == {
        "plays": "drums; jazz; 150 bpm",
        "meaning": {"layers": ["drums"], "genre": ["jazz"], "tempo": ["150 bpm"]},
        "drawn": {},
        "bound": [],
    }
    genre = second["drawn"]["genre"]
    assert second == {
        "plays": f"{genre} · genre drawn by the seed: {genre}",
        "meaning": {"genre": [genre]},
        "drawn": {"genre": genre},
        "bound": [],
    }
    assert json.loads(response.headers["x-parameters"])["prompt"] == prompts
    assert again.headers["x-prompt-meaning"] == response.headers["x-prompt-meaning"]
    assert json.loads(empty.headers["x-prompt-meaning"]) == [{"plays": "", "meaning": {}, "drawn": {}, "bound": []}]
    assert json.loads(near.headers["x-prompt-near"]) == {"drams": ["drums"]}
    assert near.headers["x-prompt-unknown"] == "drams, jaz", "what is played as another word is understood"
    assert "x-prompt-near" not in response.headers
    assert 100 < len(many.headers["x-prompt-meaning"]) <= MEANINGS_BYTES
    assert json.loads(many.headers["x-prompt-meaning"])[0]["meaning"]["genre"] == ["jazz"]


def test_headers_say_what_made_the_body_and_repeat_it(served: Served) -> None:
    first = served.post(prompt="naïve \u007f piano", seed=None, guidance=[1.0, 2.0], response_format="pcm")
    assert first.headers["x-model"] == "tiny"
    assert first.headers["x-model-version"] == "1.0.0"
    parameters = json.loads(first.headers["x-parameters"])
    seed = int(first.headers["x-seed"])
    assert parameters == {"prompt": "naïve \u007f piano", "guidance": [1.0, 2.0], "seed": seed}
    assert "x-parameters-omitted" not in first.headers
    is_the_same = served.post(**parameters, response_format="pcm").content == first.content
    assert is_the_same


def test_parameters_that_are_too_long_for_a_header_are_where_it_says(served: Served) -> None:
    given = {"prompt": "a", "seed": 1, "guidance": [1.5] * 4000, "momentum": -0.5}
    response = served.post(**given, response_format="pcm")
    assert response.headers["x-parameters"] == path_of(response)
    card = served.card(response)
    assert set(card) == set(EXAMPLES["get_generation"]["answer"])
    assert (card["options"], card["seed"], card["response_format"], card["estimated"]) == (given, 1, "pcm", False)
    assert (card["model"], card["sample_rate_hz"], card["channels"], card["bit_depth"]) == ("tiny", 8000, 2, 16)
    is_the_same = served.post(**card["options"], response_format="pcm").content == response.content
    assert is_the_same


def test_a_generation_that_is_not_known_any_more_is_a_problem(serve: Serve) -> None:
    served = serve(result_keep_s=0.05)
    with served.client() as client:
        path = path_of(served.post(steps=1))
        eventually(lambda: client.get(path).is_error)
        for gone in (path, f"{GENERATIONS}/nonsense"):
            assert "ask within 0.05 s" in problem(client.get(gone), 404, "generation_not_found")["fix"]


def test_a_planned_response_says_its_plan_and_is_repeated(built: Built, tmp_path: Path) -> None:
    with serving(built(planner={"capacity": 512}, conditions=True)) as served:
        whole = served.post(seconds=3.0, stream=False, plan_guidance=2.0)
        plan = served.card(whole)["plan"]
        (tmp_path / "a.wav").write_bytes(whole.content)
        assert read_metadata(tmp_path / "a.wav").plan == plan
        assert (len(plan["codes"]), 30 <= int(plan["bpm"]) <= 300) == (26, True)
        assert json.loads(whole.headers["x-plan"]).items() < plan.items()
        again = served.post(**json.loads(whole.headers["x-parameters"]), response_format="pcm")
        assert served.card(again)["plan"] == plan, "after its end"
        given = {"bpm": int(plan["bpm"]), "language": plan["language"], "codes": plan["codes"]}
        explicit = served.post(seconds=3.0, response_format="pcm", **given)
        without = served.post(seconds=3.0, response_format="pcm", plan=False)
        assert {"x-plan"} & (explicit.headers.keys() | without.headers.keys()) == set()
        assert (again.content == explicit.content, again.content == without.content) == (True, False)


def test_a_response_in_sections_says_them_and_words_to_sing_are_refused(built: Built) -> None:
    with serving(built(planner={"capacity": 1024, "plan": True})) as served:
        whole = served.post(seconds=3.0, stream=False, lyrics="[break] [drop]", plan_guidance=2.0)
        plan = served.card(whole)["plan"]
        assert plan["sections"][0]["kind"] == "break"
        assert (plan["sections"][-1]["end_s"], len(plan["codes"])) == (3.04, 26), "76 frames"
        refused = served.post(lyrics="[break] la la").json()
        assert (refused["errors"][0]["pointer"], "does not sing" in refused["detail"]) == ("/lyrics", True)


@pytest.mark.parametrize("response_format", ["wav", "flac", "ogg", "mp3", "latents"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_file_contains_what_made_it_unless_the_client_wants_that_not(
    served: Served, response_format: FormatName, stream: bool, tmp_path: Path
) -> None:
    path, given = tmp_path / f"a{FORMATS[response_format].suffix}", {"prompt": "violin", "seed": 1, "steps": 3}
    options = {"response_format": response_format, "stream": stream}
    path.write_bytes(served.post(**given, **options).content)
    found = read_metadata(path)
    assert (found.model, found.model_version, found.options) == ("tiny", "1.0.0", given)
    assert b"violin" in path.read_bytes()
    assert b"violin" not in served.post(**given, **options, metadata=False).content


@pytest.mark.parametrize(
    ("given", "media_type", "rate_hz", "bits", "spare"),
    [
        ({"response_format": "wav"}, "audio/wav", 8000, "16", 0),
        ({"response_format": "flac"}, "audio/flac", 8000, "16", 0),
        ({"response_format": "mp3"}, "audio/mpeg", 8000, None, 4000),
        ({"response_format": "mp3", "sample_rate_hz": 22_050, "bit_rate_kbps": 32}, "audio/mpeg", 22_050, None, 5000),
        ({"response_format": "ogg"}, "audio/ogg", 48_000, None, 960),
        ({"response_format": "wav", "sample_rate_hz": 48_000}, "audio/wav", 48_000, "16", 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [True, False])
def test_audio_has_the_format_the_rate_and_the_length_that_were_asked_for(
    served: Served, given: dict[str, Any], media_type: str, rate_hz: int, bits: str | None, spare: int, stream: bool
) -> None:
    response = served.post(seconds=2, seed=77, stream=stream, **given)
    names = ("content-type", "x-seed", "x-channels", "x-sample-rate", "x-bit-depth")
    assert [response.headers.get(name) for name in names] == [media_type, "77", "2", str(rate_hz), bits]
    pcm, found_hz = decoded(response.content)
    assert (found_hz, pcm.shape[1]) == (rate_hz, 2)
    assert 2 * rate_hz <= len(pcm) <= 2 * rate_hz + spare
    if "bit_rate_kbps" in given:
        assert 7_500 < len(response.content) < 9_500
    if spare == 0 and rate_hz == 8000:
        np.testing.assert_array_equal(pcm, np.frombuffer(pcm_of(served), "<i2").reshape(-1, 2))


def pcm_of(served: Served) -> bytes:
    return served.post(seconds=2, seed=77, response_format="pcm").content


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    pcm, rate = soundfile.read(io.BytesIO(data), dtype="int16", always_2d=True)
    return pcm, rate


def test_mp3_is_refused_where_the_installation_has_no_encoder(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", {"flac"})
    document = problem(served.post(response_format="mp3"), 422)
    assert document["errors"][0]["pointer"] == "/response_format"
    assert "no encoder for mp3" in document["detail"]
    assert "mp3" not in served.get("/v1/models/tiny").json()["response_formats"]


def test_notes_are_played_from_the_body_and_from_a_midi_file(built: Built) -> None:
    note = {"layer": "bass", "pitch": 40, "start_s": 0.4, "seconds": 0.4}
    with serving(built(notes=True, structure=True), max_seconds=3.0) as served, served.client() as client:
        late = problem(client.post(GENERATIONS, json={"prompt": "a", "notes": [{**note, "start_s": 2.8}]}), 422)
        assert "this server makes at most 3 s" in late["detail"]
        body = {"prompt": "a", "seed": 1, "seconds": 1.28, "notes_exact": True, "response_format": "mid"}
        made = client.post(GENERATIONS, json={**body, "notes": [note]})
        assert made.status_code == 200, made.text
        assert json.loads(made.headers["x-parameters"])["notes"] == [note]
        form = {"request": (None, json.dumps(body), "application/json"), "notes": ("a.mid", made.content)}
        again = client.post(GENERATIONS, files=form)
        assert again.status_code == 200, again.text
        assert 40 in {given["pitch"] for given in served.card(again)["options"]["notes"]}
        for changes, status, field in (
            ({"notes": ("a.mid", b"MThd")}, 422, "/notes"),
            ({"notes": ("a.mid", b"MThd" + bytes(2**20))}, 422, "/notes"),
            ({"request": (None, json.dumps({**body, "notes": [note]}), "application/json")}, 422, "/notes"),
        ):
            document = problem(client.post(GENERATIONS, files={**form, **changes}), status)
            assert document["errors"][0]["pointer"] == field


@pytest.mark.parametrize("stream", [True, False])
def test_notes_are_a_midi_file(built: Built, stream: bool, tmp_path: Path) -> None:
    with serving(built(notes=True)) as served, served.client() as client:
        assert "mid" in client.get("/v1/models/tiny").json()["response_formats"]
        response = served.post(response_format="mid", seconds=2, stream=stream)
        assert (response.status_code, response.headers["content-type"]) == (200, "audio/midi")
        assert "x-sample-rate" not in response.headers
        (tmp_path / "a.mid").write_bytes(response.content)
        assert mido.MidiFile(tmp_path / "a.mid").length == pytest.approx(2.0, abs=0.002)
        assert read_metadata(tmp_path / "a.mid").options == {"prompt": "a", "seed": 1, "seconds": 2}
        document = problem(served.post(response_format="mid", quantize=True), 422)
        assert (document["errors"][0]["pointer"], document["fix"]) == ("/quantize", "generate with a plan")


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_stems_are_an_archive_whose_layers_sum_to_the_mix(built: Built, format: str) -> None:
    with serving(built(stems=True)) as served:
        response = served.post(stems=format, seconds=2)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/zip")
        assert (response.headers["x-bit-depth"], response.headers["x-sample-rate"]) == ("24", "8000")
        assert response.headers["content-disposition"].endswith('.zip"')
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        assert list(files) == [f"{name}.{format}" for name in ("mix", "bass", "drums")] + ["notes.mid", "options.json"]
        made = json.loads(files["options.json"])
        assert (made["exact"], made["options"]) == (True, {"prompt": "a", "seed": 1, "seconds": 2})
        mix, bass, drums = (
            soundfile.read(io.BytesIO(files[f"{name}.{format}"]))[0] for name in ("mix", "bass", "drums")
        )
        assert mix.shape == (16_000, 2)
        assert np.abs(bass + drums - mix).max() < 3 * 2**-23
        assert served.post(stems=format, seconds=2).content == response.content
        assert served.metrics()["tickrt_audio_seconds_total"] == 4.0
        for name, value in (("response_format", "wav"), ("sample_rate_hz", 16_000), ("bit_rate_kbps", 64)):
            document = problem(served.post(stems=format, **{name: value}), 422)
            assert document["errors"][0]["pointer"] == f"/{name}"


@pytest.mark.parametrize("limit", [0, 1])
def test_tracks_are_extracted_where_layers_are_not_told(built: Built, limit: int) -> None:
    tracks = ("drums", "vocals", "bass", "guitar", "synth")
    config = built(conditions=True, tracks=tracks, more=FEW_VARIANTS)
    with serving(config, client_in_flight=limit) as served:
        response = served.post(stems="wav", seconds=2)
        assert response.status_code == 200, response.text
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        assert list(files) == [f"{name}.wav" for name in ("mix", *tracks)] + ["options.json"]
        made = json.loads(files["options.json"])
        assert (made["exact"], made["estimated"]) == (False, False)
        assert {len(decoded(files[f"{name}.wav"])[0]) for name in ("mix", *tracks)} == {16_000}
        assert len(set(files.values())) == len(files)
        again = served.post(stems="wav", seconds=2).content
        with zipfile.ZipFile(io.BytesIO(again)) as archive:
            for name in (f"{name}.wav" for name in ("mix", *tracks)):
                pair = [soundfile.read(io.BytesIO(data))[0] for data in (files[name], archive.read(name))]
                assert np.abs(pair[0] - pair[1]).max() < 1e-5, name
        admission = served.service.admission
        eventually(lambda: (admission.num_pending, admission.memory.used, admission.permits) == (0, 0, set()))
        assert served.send("POST", GENERATIONS, json={"prompt": "a", "seconds": 2}).status_code == 200
        refused = served.send("POST", GENERATIONS, json={"prompt": "a", "stems": "wav", "response_format": "mid"})
        assert problem(refused, 422)["errors"][0]["pointer"] == "/response_format"


def test_a_client_that_leaves_ends_what_is_extracted_for_it(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    config = built(conditions=True, tracks=("drums", "vocals"), more=FEW_VARIANTS)
    with serving(config) as served:
        extractions, is_made = LongGeneration.extractions, threading.Event()

        def paused(generation: LongGeneration, latents: np.ndarray) -> dict[str, LongGeneration]:
            served.pause()
            is_made.set()
            return extractions(generation, latents)

        monkeypatch.setattr(LongGeneration, "extractions", paused)
        with connected(served, raw_request(json.dumps({"prompt": "a", "stems": "wav"}).encode())) as connection:
            assert is_made.wait(20.0)
            eventually(lambda: not served.pipeline.loop.is_empty)
            connection.close()
            eventually(lambda: not served.service.admission.permits)
        served.resume()
        eventually(lambda: served.pipeline.loop.is_empty)
        eventually(lambda: served.service.admission.num_pending == 0)
        assert served.metrics()["tickrt_generations_total{outcome=cancelled}"] == 1
        assert served.post(seconds=1).status_code == 200


def test_stems_and_notes_of_an_upload_are_marked_as_estimates(built: Built) -> None:
    with serving(built(stems=True)) as served, served.client() as client:
        files = {"wav": served.post(seconds=2).content, "safetensors": served.post(response_format="latents").content}
        ids = {
            name: client.post("/v1/sources", files={"source": (f"a.{name}", data)}).json()["id"]
            for name, data in files.items()
        }
        repaint = {"repaint": [{"start_s": 0.4, "end_s": 0.8}]}

        def described(**values: Any) -> tuple[bool, bool, str | None]:
            response = served.post(stems="wav", **values)
            assert response.status_code == 200, response.text
            with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
                made = json.loads(archive.read("options.json"))
            return made["exact"], made["estimated"], response.headers.get("x-estimated")

        assert described(source_id=ids["wav"], **repaint) == (False, True, "true")
        assert described(source_id=ids["wav"]) == (True, True, "true")
        assert described(source_id=ids["wav"], denoise=1.0) == (True, False, None)
        assert described(source_id=ids["safetensors"], **repaint) == (True, False, None)
        assert described(target_id=ids["wav"], x0_strength=0.5) == (True, True, "true")
        assert described() == (True, False, None)
        notes = served.post(response_format="mid", source_id=ids["wav"])
        assert notes.headers["x-estimated"] == "true"
        texts = [
            event.text for event in mido.MidiFile(file=io.BytesIO(notes.content)).tracks[0] if event.type == "text"
        ]
        assert "notes of uploaded audio are estimated" in texts
        assert "x-estimated" not in served.post(source_id=ids["wav"]).headers


@pytest.mark.parametrize("stream", [True, False])
def test_latents_are_safetensors_and_accepted_as_a_source(served: Served, stream: bool) -> None:
    response = served.post(response_format="latents", seconds=2, stream=stream)
    assert response.headers["content-type"] == "application/vnd.safetensors"
    assert int(response.headers["content-length"]) == len(response.content)
    latents = safetensors.numpy.load(response.content)["latents"]
    assert (latents.dtype, latents.shape) == (np.float32, (50, 8))
    form = {"request": (None, json.dumps({"prompt": "a", "seed": 1, "denoise": 0.0, "response_format": "latents"}))}
    cover = served.send("POST", GENERATIONS, files={**form, "source": ("s.safetensors", response.content)})
    np.testing.assert_array_equal(safetensors.numpy.load(cover.content)["latents"], latents)


def test_the_windows_of_a_stream_equal_one_decode(served: Served) -> None:
    """The streamed audio equals one decode of all latents."""
    latents = safetensors.numpy.load(served.post(response_format="latents", seconds=5).content)["latents"]
    codec = served.pipeline.codec
    assert codec is not None
    expected = np.minimum(np.rint(np.clip(codec.decode(latents), -1, 1) * 32768), 32767)[: 5 * 8000]
    response = served.post(response_format="pcm", seconds=5, finish=False)
    pcm = np.frombuffer(response.content, "<i2").reshape(-1, 2)
    assert pcm.shape == expected.shape
    assert np.abs(pcm - expected).max() <= 1


def multipart(served: Served, source: object, **body: object) -> httpx.Response:
    form = {"request": (None, json.dumps({"prompt": "a", "seed": 1, **body})), "source": source}
    return served.send("POST", GENERATIONS, files=form)


NOTES = [{"pitch": 40, "start_s": 0.4, "seconds": 0.4}]


@pytest.mark.parametrize(
    ("body", "status", "pointer", "words"),
    [
        ({"model": "tinny"}, 404, "/model", "did you mean tiny?"),
        ({"model": ""}, 404, "/model", ""),
        ({"model": 3}, 422, "/model", ""),
        ({"response_format": "ogg", "sample_rate_hz": 44_100}, 422, "/sample_rate_hz", ""),
        ({"response_format": "latents", "sample_rate_hz": 8_000}, 422, "/sample_rate_hz", ""),
        ({"response_format": "wav", "bit_rate_kbps": 128}, 422, "/bit_rate_kbps", ""),
        ({"notes": NOTES}, 422, "/notes", "no_notes"),
        ({"response_format": "mid"}, 422, "", "no [notes]"),
        ({"stems": "flac"}, 422, "/stems", "no [stems]"),
        ({"quantize": True}, 422, "/quantize", ""),
    ],
    ids=str,
)
def test_what_the_model_or_a_format_does_not_have_is_refused(
    served: Served, body: dict[str, Any], status: int, pointer: str, words: str
) -> None:
    document = problem(served.post(**body), status)
    assert [error["pointer"] for error in document.get("errors", [])] == [pointer] * bool(pointer)
    assert words in str(document)


def array_file(shape: tuple[int, int], value: float) -> bytes:
    return safetensors.numpy.save({"latents": np.full(shape, value, np.float32)})


@pytest.mark.parametrize(
    ("part", "content", "status", "words"),
    [
        ("source", b"this is a text", 415, ""),
        ("source", b"", 415, ""),
        ("source", b"\x89PNG\r\n\x1a\n" + bytes(100), 415, ""),
        ("source", b"RIFF\x24\x00\x00\x00WAVE", 415, ""),
        ("source", b"fLaC" + bytes(64), 415, ""),
        ("source", bytes([16, 0, 0, 0, 0, 0, 0, 0]) + b'{"a": 1}', 415, ""),
        ("source", struct.pack("<Q", 2**62) + b"{" + bytes(50), 415, ""),
        ("source", array_file((10, 9), 0.0), 422, "[T, 8]"),
        ("source", array_file((10, 8), np.nan), 422, "finite"),
        ("timbre", wav_file(0.1), 422, "has no [timbre]"),
        ("structure", wav_file(0.1), 422, "has no [structure]"),
    ],
)
def test_a_part_that_is_not_audio_or_not_taken_is_refused(
    served: Served, part: str, content: bytes, status: int, words: str
) -> None:
    form = {"request": (None, '{"prompt": "a"}'), part: ("s", content)}
    document = problem(served.send("POST", GENERATIONS, files=form), status)
    assert words in document["detail"]
    assert part in document["detail"] or document["errors"][0]["pointer"] == f"/{part}"


def test_a_source_is_limited_by_its_duration(serve: Serve) -> None:
    with serve(max_seconds=3.0).client() as client:
        silence = io.BytesIO()
        soundfile.write(silence, np.zeros(4_000_000), 8000, format="FLAC")
        assert len(silence.getvalue()) < 200_000
        form = {"request": (None, '{"prompt": ""}'), "source": ("s.flac", silence.getvalue())}
        assert "longer than 3 seconds" in problem(client.post(GENERATIONS, files=form), 422)["detail"]


def test_seconds_beyond_the_servers_limit_are_refused_before_admission(serve: Serve) -> None:
    server = serve(max_seconds=3.0)
    document = problem(server.post(seconds=3.5), 422)
    assert document["errors"] == [{"pointer": "/seconds", "detail": "expected at most 3"}]
    assert server.metrics()["tickrt_generations_started_total"] == 0


def test_nonfinite_latents_end_only_their_own_generation(serve: Serve) -> None:
    served = serve(depth=2)
    huge = safetensors.numpy.save({"latents": np.full((32, 8), 3e38, np.float32)})
    alone = served.post(seed=3, steps=50).content
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(served.post, seed=3, steps=50)
        blown = multipart(served, ("s", huge), denoise=0.5, channel_gain=8.0)
        document = problem(blown, 500, "nonfinite")
        beside = neighbour.result().content
    # In another batch shape latents are equal within 1e-4.
    difference = np.abs(decoded(beside)[0].astype(int) - decoded(alone)[0])
    assert difference.max() <= 4
    assert document["fix"]
    assert served.metrics()["tickrt_generations_total{outcome=nonfinite}"] == 1


def test_a_failure_after_the_first_chunk_aborts_the_body(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    decode, calls = Codec._decode, count()

    def failing(codec: Codec, *arguments: Any) -> Any:
        if next(calls) == 4:
            raise EngineError("the codec is broken")
        return decode(codec, *arguments)

    monkeypatch.setattr(Codec, "_decode", failing)
    with served.client() as client, pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked"):
        client.post(GENERATIONS, json={"prompt": "a", "seconds": 10})
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=engine_error}"] == 1
    assert counted["tickrt_generations_in_flight"] == counted["tickrt_slots_active"] == 0
    assert served.post().status_code == 200


@pytest.fixture(scope="module")
def conditioned(built: Built) -> Iterator[Served]:
    """A server of a model with lyrics, metadata, tasks, timbre and structure."""
    with serving(built(conditions=True, structure=True, more=FEW_VARIANTS)) as served:
        yield served


def form_latents(served: Served, /, *, files: Mapping[str, bytes] = MappingProxyType({}), **body: object) -> np.ndarray:
    """The latents of a generation with these parts of the form."""
    request = json.dumps({"prompt": "a", "seed": 1, "response_format": "latents", **body})
    form = {"request": (None, request), **{name: (name, data) for name, data in files.items()}}
    response = served.send("POST", GENERATIONS, files=form)
    assert response.status_code == 200, response.text
    return safetensors.numpy.load(response.content)["latents"]


def latents_file(frames: int, seed: int = 5) -> tuple[bytes, np.ndarray]:
    latents = np.random.default_rng(seed).standard_normal((frames, TinySpec().channels)).astype(np.float32)
    return safetensors.numpy.save({"latents": latents}), latents


def source_id(served: Served, data: bytes) -> str:
    return str(served.send("POST", "/v1/sources", content=data).json()["id"])


@pytest.mark.parametrize("part", ["timbre", "structure"])
def test_a_reference_is_uploaded_or_named(conditioned: Served, part: str) -> None:
    audio = wav_file(1.0)
    plain = form_latents(conditioned, seconds=1.28)
    by_upload = form_latents(conditioned, files={part: audio}, seconds=1.28)
    by_id = form_latents(conditioned, seconds=1.28, **{f"{part}_id": source_id(conditioned, audio)})
    assert np.array_equal(by_upload, by_id)
    assert np.abs(by_upload - plain).max() > 1e-3
    assert len(form_latents(conditioned, files={part: audio})) == (26 if part == "structure" else 32)


def test_an_uploaded_structure_counts_as_memory(conditioned: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(Permit, "reserve", lambda permit, size_bytes: sizes.append(size_bytes))
    file, latents = latents_file(24)
    form_latents(conditioned, structure_id=source_id(conditioned, file))
    form_latents(conditioned, files={"structure": file})
    assert sizes[1] - sizes[0] == latents.nbytes


def test_the_codes_of_a_structure_give_what_it_gives(conditioned: Served) -> None:
    file, latents = latents_file(8 * FRAMES_PER_CODE)
    codes = codes_of(latents).tolist()
    text = "".join(f"<|audio_code_{code}|>" for code in codes)
    by_file = form_latents(conditioned, files={"structure": file})
    assert len(by_file) == 8 * FRAMES_PER_CODE
    assert np.array_equal(by_file, form_latents(conditioned, codes=codes))
    assert np.array_equal(by_file, form_latents(conditioned, codes=text))
    assert np.abs(by_file - form_latents(conditioned, files={"structure": file}, structure_strength=0.5)).max() > 1e-3


@pytest.mark.parametrize(
    ("files", "body", "status", "message"),
    [
        ({"timbre": b"this is a text"}, {}, 415, "timbre: not audio"),
        ({"structure": b"this is a text"}, {}, 415, "structure: not audio"),
        ({"timbre": b"fLaC" + bytes(64)}, {}, 415, "timbre: not audio"),
        ({"structure": b"fLaC" + bytes(64)}, {}, 415, "structure: not audio"),
        ({"timbre": wav_file(0.1)}, {"timbre_id": 64 * "0"}, 422, "timbre_id: the form has a part `timbre`"),
        ({"structure": wav_file(0.1)}, {"structure_id": 64 * "0"}, 422, "the form has a part `structure`"),
        ({}, {"timbre_id": 64 * "0"}, 404, "timbre_id: there is no source"),
        ({}, {"structure_id": 64 * "0"}, 404, "structure_id: there is no source"),
        ({"structure": wav_file(0.1)}, {"codes": [1]}, 422, "structure: has no effect beside codes"),
        ({}, {"codes": [NUM_CODES]}, 422, f"codes: code 0 is {NUM_CODES}, the model has 0 to {NUM_CODES - 1}"),
        ({}, {"codes": "12, 7"}, 422, "codes: expected codes"),
    ],
)
def test_wrong_references_are_refused(
    conditioned: Served, files: dict[str, bytes], body: dict[str, object], status: int, message: str
) -> None:
    form = {"request": (None, json.dumps({"prompt": "a", **body})), **{name: (name, f) for name, f in files.items()}}
    assert message in problem(conditioned.send("POST", GENERATIONS, files=form), status)["detail"]
    assert conditioned.post(steps=1).status_code == 200
