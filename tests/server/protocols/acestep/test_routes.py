"""None"""

from __future__ import annotations

import asyncio
import io
import json
import wave
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest
from helpers.acestep_client import AceStepClient, refusal, wav_file, wrapped
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import GENERATIONS, Serve, Served, eventually, serving

from runtime.audio.codec import Codec
from runtime.base.errors import EngineError
from runtime.config.deployment import Deployment
from server.asgi.problems import ProblemError
from server.asgi.shares import Shares
from server.protocols.acestep import tasks as acestep_tasks
from server.protocols.acestep.tasks import Task, TaskStore

SHORT = {"prompt": "a", "batch_size": 1, "audio_duration": 0.5, "audio_format": "wav"}
SOURCE = wav_file(1.28)
UPLOAD = {"src_audio": ("src_audio.wav", SOURCE, "audio/wav")}


def folder_path(served: Served) -> Path:
    return served.app.state.acestep._folder.path  # type: ignore[no-any-return]


def folder_of(served: Served) -> list[Path]:
    return list(folder_path(served).iterdir())


def test_a_task_that_fails_says_why(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()

    def failing(codec: Codec, *arguments: Any) -> Any:
        raise EngineError("the codec is broken")

    with served.client() as http, monkeypatch.context() as patch:
        patch.setattr(Codec, "_decode", failing)
        client = AceStepClient(http)
        (result,) = client.wait(client.release(json=SHORT), status=2)
        assert (result["error"], result["file"], result["stage"]) == ("the codec is broken", "", "failed")
        patch.undo()
        assert client.wait(client.release(json=SHORT))
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=engine_error}"] == 1
    assert counted["tickrt_generations_total{outcome=ok}"] == 1
    assert counted["tickrt_generations_in_flight"] == 0


def test_audio_that_is_not_fetched_is_removed_in_time_and_for_room(serve: Serve) -> None:
    served = serve(results_bytes=2**20, result_keep_s=600.0)
    long = {**SHORT, "audio_duration": 20, "inference_steps": 1}  # 640 kB
    with served.client() as http:
        client = AceStepClient(http)
        assert "the limit is 1 MiB" in refusal(http.post("/release_task", json={**long, "audio_duration": 60}), 422)
        first, second = (client.wait(client.release(json=long)) for _ in range(2))
        assert len(client.audio(second[0])) > 600_000
        assert "make room" in refusal(http.get(first[0]["file"]), 404)
        assert len(folder_of(served)) == 1
        served.pause()
        running = client.release(json=long)
        assert "keeps bytes of results" in refusal(http.post("/release_task", json=long), 503)
        served.resume()
        client.wait(running)
    folder = folder_path(served)
    served.server.drain()
    eventually(lambda: not folder.exists())


def test_audio_expires_and_its_task_says_so(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acestep_tasks, "MAX_TASKS", 2)
    served = serve(result_keep_s=0.05)
    with served.client() as http:
        client = AceStepClient(http)
        task_id = client.release(json=SHORT)
        eventually(lambda: client.query(task_id)[0]["status"] == 2)
        assert "kept for 0.05 s" in client.wait(task_id, status=2)[0]["error"]
        assert folder_of(served) == []
        for _ in range(2):
            later = client.release(json=SHORT)
            eventually(lambda later=later: client.query(later)[0]["status"] == 2)
        assert "not any more" in client.wait(task_id, status=2)[0]["error"]
        assert wrapped(http.get("/v1/stats"))["jobs"]["total"] == 2


def test_no_task_is_taken_while_the_server_drains(serve: Serve) -> None:
    served = serve(depth=1, drain_s=60.0)
    served.pause()
    with served.client() as http:
        AceStepClient(http).release(json=SHORT)
        eventually(lambda: len(served.service.admission.permits) == 1)
        served.server.drain()
        assert "shutting down" in refusal(http.post("/release_task", json=SHORT), 503)
    served.resume()


def test_a_task_ends_when_the_server_stops(serve: Serve) -> None:
    served = serve(depth=1, drain_s=0.2)
    served.tick_s = 0.05
    metrics, folder = served.service.metrics, folder_path(served)
    with served.client() as http:
        AceStepClient(http).release(json={**SHORT, "audio_duration": 60})
        eventually(lambda: len(served.service.admission.permits) == 1)
        served.server.drain()
    eventually(lambda: not served.service.admission.permits)
    eventually(lambda: not folder.exists())
    drained = metrics.registry.get_sample_value("tickrt_generations_total", {"outcome": "drained"})
    assert drained == metrics.registry.get_sample_value("tickrt_generations_started_total") == 1


class Job:
    """A job whose audio is `size_bytes` long and made when it is told to be."""

    def __init__(self, size_bytes: int) -> None:
        self.go, self.size_bytes = asyncio.Event(), size_bytes
        pipeline = SimpleNamespace(codec=SimpleNamespace(channels=1))
        self.request = SimpleNamespace(pipeline=pipeline, body=SimpleNamespace(response_format="wav"), client="me")
        self.generation = SimpleNamespace(total_samples=size_bytes // 2, seed=7, num_steps=1)


def in_store(limit_bytes: int, steps: Callable[[TaskStore], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    async def make(job: Any, path: Path) -> str:
        await job.go.wait()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(job.size_bytes))
        return ""

    async def run() -> None:
        store = TaskStore(limit_bytes, 600.0, 0)
        try:
            async with asyncio.timeout(60):
                await steps(store)
        finally:
            await store.close()

    patch.setattr(acestep_tasks, "_make", make)
    patch.setattr(acestep_tasks, "HEADER_BYTES", 0)
    asyncio.run(run())


def start(store: TaskStore, size_bytes: int) -> tuple[Task, Job]:
    job: Any = Job(size_bytes)
    return store.start([job], {}), job


async def end(task: Task, job: Job) -> None:
    job.go.set()
    while task.is_running:
        await asyncio.sleep(0)


def test_what_ended_first_makes_room_also_where_it_was_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(store: TaskStore) -> None:
        slow, quick = start(store, 300), start(store, 450)
        await end(*quick)
        await end(*slow)
        start(store, 576)
        assert slow[0].files
        assert not quick[0].files
        assert "make room" in quick[0].error

    in_store(1000, steps, monkeypatch)


def test_audio_that_just_fits_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(store: TaskStore) -> None:
        first = start(store, 400)
        await end(*first)
        second = start(store, 600)
        await end(*second)
        assert first[0].files
        assert second[0].files
        whole = start(store, 1000)
        await end(*whole)
        assert [bool(task.files) for task, _ in (first, second, whole)] == [False, False, True]
        with pytest.raises(ProblemError) as caught:
            start(store, 1002)
        assert caught.value.code == "results_too_large"
        assert whole[0].files

    in_store(1000, steps, monkeypatch)


def test_a_task_that_is_removed_for_its_age_makes_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acestep_tasks, "MAX_TASKS", 2)

    async def steps(store: TaskStore) -> None:
        oldest, newer = start(store, 300), start(store, 300)
        await end(*oldest)
        await end(*newer)
        latest = start(store, 300)
        assert [task.error for task, _ in (oldest, newer, latest)] == ["the task is too old", "", ""]
        assert newer[0].files

    in_store(1000, steps, monkeypatch)


def test_tasks_are_counted_while_they_run_and_timed_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(store: TaskStore) -> None:
        assert (store.num_running, store.mean_duration_s) == (0, 0.0)
        monkeypatch.setattr(acestep_tasks, "time", SimpleNamespace(time=lambda: 100.0))
        (slow, slow_job), (quick, quick_job) = start(store, 2), start(store, 2)
        slow.created_s, quick.created_s = 40.0, 90.0
        assert (store.num_running, store.counts()) == (2, {"running": 2})
        await end(slow, slow_job)
        while store.num_running > 1:
            await asyncio.sleep(0)
        assert store.counts() == {"running": 1, "succeeded": 1}
        assert store.mean_duration_s == 60.0
        await end(quick, quick_job)
        assert store.mean_duration_s == 35.0

    in_store(1000, steps, monkeypatch)


def test_progress_is_the_share_of_all_steps_that_are_done() -> None:
    jobs: Any = [
        SimpleNamespace(generation=SimpleNamespace(num_steps=total), permit=SimpleNamespace(remaining_steps=left))
        for total, left in ((10, 2), (30, 30))
    ]
    held = Shares("keeps results", 2).take("me")
    assert Task({}, jobs, held, held).progress == pytest.approx(8 / 40)
    assert Task({}, (), held, held).progress == 1.0


@pytest.fixture(scope="module")
def served(built: Callable[..., Deployment]) -> Iterator[Served]:
    """A server of a model with lyrics, metadata, tasks, timbre and structure."""
    with serving(built(conditions=True, structure=True, more=FEW_VARIANTS)) as server:
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[AceStepClient]:
    with served.client() as http:
        yield AceStepClient(http)


def samples(data: bytes) -> bytes:
    """The samples of a wav file; its tags do not count."""
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels()) == (8000, 2)
        return file.readframes(file.getnframes())


def ours(served: Served, files: dict[str, Any] | None = None, **body: Any) -> bytes:
    """The samples of a generation by our own route."""
    form = {"request": (None, json.dumps({"prompt": "a", **body})), **(files or {})}
    response = served.send("POST", GENERATIONS, files=form)
    assert response.status_code == 200, response.text
    return samples(response.content)


def test_the_documented_exchange_makes_two_mp3_files(client: AceStepClient) -> None:
    request = {"prompt": "upbeat pop song", "lyrics": "Hello world", "inference_steps": 2, "audio_duration": 1}
    first, second = client.wait(client.release(json=request))
    assert first["file"] != second["file"]
    assert client.audio(first) != client.audio(second)
    with av.open(io.BytesIO(client.audio(first))) as file:
        assert file.streams.audio[0].codec_context.name.startswith("mp3")
        assert sum(frame.samples for frame in file.decode(audio=0)) >= 8000
    assert (first["prompt"], first["lyrics"], first["status"], first["wave"]) == (*list(request.values())[:2], 1, "")
    assert first["metas"] == {"bpm": None, "duration": 1.0, "genres": "", "keyscale": "", "timesignature": ""}
    assert (first["dit_model"], first["stage"], first["progress"]) == ("tiny", "succeeded", 1.0)
    assert len(set(first["seed_value"].split(","))) == 2


def test_a_form_without_files_and_json_without_a_type_are_read(client: AceStepClient) -> None:
    as_form = {name: str(value) for name, value in SHORT.items()}
    assert client.wait(client.release(data=as_form))
    assert client.wait(client.release(content=json.dumps(SHORT).encode()))
    typed = {"content-type": "application/x-www-form-urlencoded"}  # as `curl -d` sends JSON
    task_id = client.release(content=json.dumps(SHORT).encode(), headers=typed)
    assert client.wait(task_id)
    listed = client.http.post("/query_result", data={"task_id_list": json.dumps([task_id])})
    assert wrapped(listed)[0]["status"] == 1


def test_the_daws_silence_in_text2music_is_ignored(client: AceStepClient, served: Served) -> None:
    silence = wav_file(1.28, level=0.0)
    (result,) = client.daw("text2music", silence, use_random_seed="false", seed="7")
    options = {"seconds": 1.28, "steps": 8, "bpm": 120, "key": "C major", "time_signature": 4}
    assert samples(client.audio(result)) == ours(served, seed=7, **{**options, "prompt": "calm melody"})
    assert result["metas"]["bpm"] == 120
    assert (result["metas"]["keyscale"], result["metas"]["timesignature"]) == ("C major", "4")
    assert not [source for source in served.service.sources.all() if source.size_bytes == len(silence)]


@pytest.mark.parametrize(
    ("task", "theirs", "options"),
    [
        ("cover", {}, {"prompt": "slow strings", "structure_strength": 0.5}),
        ("cover", {"caption": "a", "coverNoiseStrength": "0.4"}, {"structure_strength": 0.5, "denoise": 0.6}),
        ("repaint", {}, {"prompt": "drums", "repaint": [{"start_s": 0.32, "end_s": 0.64}]}),
        (
            "repaint",
            {"repainting_start": "1.28", "repainting_end": "2"},
            {"prompt": "drums", "repaint": [{"start_s": 1.28, "end_s": 2.0}], "seconds": 2.0},
        ),
        ("repaint", {"repainting_end": "-1"}, {"prompt": "drums", "repaint": [{"start_s": 0.32, "end_s": 1.28}]}),
        ("extract", {"prompt": "a", "track_name": "drums"}, {"track": "drums"}),
        ("extract", {"prompt": "a", "instruction": "Get drums"}, {"instruction": "Get drums"}),
        ("complete", {"prompt": "a", "track_classes": "drums,bass"}, {"track_classes": ["drums", "bass"]}),
    ],
)  # fmt: skip
def test_a_task_is_the_same_generation_as_ours(
    client: AceStepClient, served: Served, task: str, theirs: dict[str, str], options: dict[str, Any]
) -> None:
    (result,) = client.daw(task, SOURCE, **{"use_random_seed": "false", "seed": "7", **theirs})
    same = ours(served, {"source": ("s.wav", SOURCE)}, task=task, seed=7, steps=8, **options)
    assert samples(client.audio(result)) == same


def test_a_reference_has_its_strength(client: AceStepClient, served: Served) -> None:
    form = {**SHORT, "audio_cover_strength": "0.5", "use_random_seed": "false", "seed": "3"}
    files = {"reference_audio": ("voice.wav", SOURCE, "audio/wav")}
    (result,) = client.wait(client.release(data=form, files=files))
    same = ours(served, {"timbre": ("v.wav", SOURCE)}, seconds=0.5, seed=3, timbre_strength=0.5)
    assert samples(client.audio(result)) == same != ours(served, seconds=0.5, seed=3)


def test_the_vsts_codes_are_those_of_a_cover(client: AceStepClient, served: Served) -> None:
    codes = "<|audio_code_3|><|audio_code_7|><|audio_code_1|><|audio_code_7|>"
    vst = {
        "prompt": "", "lyrics": "", "task_type": "text2music", "audio_duration": 0.48, "batch_size": 1,
        "audio_format": "wav", "thinking": False, "use_random_seed": False, "seed": 4, "inference_steps": 6,
        "guidance_scale": 7.0, "model": "acestep-v15-turbo", "audio_code_string": codes, "audio_cover_strength": 0.8,
    }  # fmt: skip
    (result,) = client.wait(client.release(json=vst))
    options = {"prompt": "", "codes": codes, "seconds": 0.48, "steps": 6, "structure_strength": 0.8}
    assert samples(client.audio(result)) == ours(served, seed=4, **options)


def test_a_batch_has_a_seed_for_each(client: AceStepClient, served: Served) -> None:
    given = {**SHORT, "batch_size": 4, "use_random_seed": False, "seed": "5,11"}
    results = client.wait(client.release(json=given))
    assert results[0]["seed_value"] == "5,11,12,13"
    assert samples(client.audio(results[3])) == ours(served, seconds=0.5, seed=13)


def test_what_has_no_effect_is_named(client: AceStepClient) -> None:
    (result,) = client.wait(client.release(json={**SHORT, "thinking": True, "use_format": "true"}))
    assert result["generation_info"].endswith("without effect: thinking, use_format")


@pytest.mark.parametrize(("name", "suffix", "codec"), [("flac", ".flac", "flac"), ("opus", ".ogg", "opus")])
def test_other_formats(client: AceStepClient, name: str, suffix: str, codec: str) -> None:
    (result,) = client.wait(client.release(json={**SHORT, "audio_format": name}))
    assert result["file"].endswith(suffix)
    with av.open(io.BytesIO(client.audio(result))) as file:
        assert file.streams.audio[0].codec_context.name == codec


def test_the_vst_sees_a_healthy_server(client: AceStepClient) -> None:
    assert wrapped(client.http.get("/health"))["status"] == "ok"
    assert wrapped(client.http.get("/v1/lora/status"))["lora_loaded"] is False


def test_the_daw_sees_the_model_in_the_inventory_and_in_the_models(client: AceStepClient) -> None:
    inventory = wrapped(client.http.get("/v1/model_inventory"))
    (model,) = inventory["models"]
    assert (model["name"], model["is_loaded"], inventory["default_model"]) == ("tiny", True, "tiny")
    assert model["supported_task_types"] == ["text2music", "cover", "repaint", "extract", "complete"]
    listed = client.http.get("/v1/models").json()  # where the inventory is missing, the DAW takes the ids of `data`
    assert [item["id"].strip() for item in listed["data"]] == ["tiny"]
    assert wrapped(client.http.post("/v1/init", json={"model": "tiny"}))["loaded_model"] == "tiny"
    assert "language model" in refusal(client.http.post("/v1/init", json={"init_llm": True}), 501)


def test_the_statistics_count_tasks(client: AceStepClient) -> None:
    before = wrapped(client.http.get("/v1/stats"))["jobs"]
    client.wait(client.release(json=SHORT))
    stats = wrapped(client.http.get("/v1/stats"))
    assert stats["jobs"]["succeeded"] == before["succeeded"] + 1
    assert stats["jobs"]["total"] == before["total"] + 1
    assert stats["avg_job_seconds"] > 0


@pytest.mark.parametrize(
    "path", ["/format_input", "/create_random_sample", "/v1/create_sample", "/v1/lora/load", "/v1/lora/scale"]
)
def test_what_needs_another_model_is_refused(client: AceStepClient, path: str) -> None:
    assert "cannot" in refusal(client.http.post(path, json={}), 501)


@pytest.mark.parametrize(
    ("request_", "status", "word"),
    [
        ({}, 415, "content type"),
        ({"content": b"{"}, 400, "not valid JSON"),
        ({"content": b"[]"}, 422, "JSON object"),
        ({"content": b'{"prompt": NaN}'}, 400, "not valid JSON"),
        ({"content": b'{"seed": ' + b"9" * 5000 + b"}"}, 400, "number out of range"),
        ({"content": b"prompt=%ff", "headers": {"content-type": "application/x-www-form-urlencoded"}}, 400, "UTF-8"),
        ({"content": b"a=1&a=2", "headers": {"content-type": "application/x-www-form-urlencoded"}}, 422, "a: occurs"),
        ({"data": {f"x{i}": "" for i in range(200)}}, 400, "100 fields"),
        ({"json": {"prompt": ["a"]}}, 422, "prompt: expected a text"),
        ({"json": {"prompt": "a" * 2001}}, 422, "prompt: "),
        ({"json": {"prompt": "a" * 200}}, 422, "prompt: the text has"),
        ({"json": {"metas": "{"}}, 422, "metas: not valid JSON"),
        ({"json": {"param_obj": [1]}}, 422, "param_obj: expected a JSON object"),
        ({"json": {"param_obj": "[]"}}, 422, "param_obj: expected a JSON object"),
        ({"json": {"lyrics": {}}}, 422, "lyrics: expected a text"),
        ({"json": {"bpm": True}}, 422, "bpm: expected"),
        ({"json": {"bpm": {}}}, 422, "bpm: expected a text"),
        ({"json": {"shift": "1e999"}}, 422, "shift: expected a number"),
        ({"json": {"thinking": 2}}, 422, "thinking: expected true or false"),
        ({"json": {"inference_steps": "many"}}, 422, "inference_steps: expected a number"),
        ({"json": {"inference_steps": 2.5}}, 422, "inference_steps: expected a whole number"),
        ({"json": {"inference_steps": 0}}, 422, "inference_steps: expected at least 1"),
        ({"json": {"guidance_scale": 700}}, 422, "guidance_scale: expected a number from 0 to 50"),
        ({"json": {"guidance_scale": "inf"}}, 422, "guidance_scale: expected a number"),
        ({"json": {"audio_duration": 700}}, 422, "audio_duration: expected at most 600"),
        ({"json": {"timesteps": "1,x"}}, 422, "timesteps: expected numbers"),
        ({"json": {"timesteps": "0.2,0.9"}}, 422, "timesteps descend"),
        ({"json": {"infer_method": "heun"}}, 422, "infer_method: "),
        ({"json": {"bpm": 10000}}, 422, "bpm: expected at most 300"),
        ({"json": {"key_scale": "H Major"}}, 422, "key_scale: expected a key"),
        ({"json": {"time_signature": "5"}}, 422, "time_signature: expected 2, 3, 4 or 6"),
        ({"json": {"vocal_language": "??"}}, 422, "vocal_language: "),
        ({"json": {"audio_format": "aac"}}, 422, "audio_format: expected mp3, wav, flac"),
        ({"json": {"batch_size": 9}}, 422, "batch_size: expected 1 to 8"),
        ({"json": {"batch_size": 0}}, 422, "batch_size: expected 1 to 8"),
        ({"json": {"use_random_seed": "perhaps"}}, 422, "use_random_seed: expected true or false"),
        ({"json": {"use_random_seed": False, "seed": "x"}}, 422, "seed: expected a whole number"),
        ({"json": {"use_random_seed": False, "seed": -5}}, 422, "seed: expected 0 to"),
        ({"json": {"use_random_seed": False, "seed": 2**64, "batch_size": 1}}, 422, "seed: expected 0 to"),
        ({"json": {"use_random_seed": False, "seed": 2**64 - 1, "batch_size": 2}}, 422, "seed: expected 0 to"),
        ({"json": {"use_adg": True}}, 422, "use_adg: this server cannot do that"),
        ({"json": {"sampler_mode": "heun"}}, 422, "sampler_mode: this server cannot do that"),
        ({"json": {"latent_shift": 0.5}}, 422, "latent_shift: this server cannot do that"),
        ({"json": {"latent_rescale": "0"}}, 422, "latent_rescale: this server cannot do that"),
        ({"json": {"guidance_variant": "cfg"}}, 422, "guidance_variant: this server cannot do that"),
        ({"json": {"extract_codes_only": 1}}, 422, "extract_codes_only: this server cannot do that"),
        ({"json": {"model": "gpt"}}, 404, "model: there is no model 'gpt'"),
        ({"json": {"task_type": "stem_separation"}}, 422, "task_type: expected text2music, cover"),
        ({"json": {"task_type": "lego"}}, 422, "task_type: expected text2music, cover"),
        ({"json": {"task_type": "cover"}}, 422, "src_audio: task cover needs a source"),
        ({"json": {"task_type": "cover", "src_audio_path": "/a.wav"}}, 422, "src_audio_path: files of the server"),
        ({"json": {"reference_audio_path": "C:\\a.wav"}}, 422, "reference_audio_path: files of the server"),
        ({"data": {"task_type": "cover"}, "files": {"src_audio": ("a", b"nothing")}}, 415, "src_audio: not audio"),
        ({"data": {"task_type": "cover"}, "files": {"src_audio": ("a", b"RIFF")}}, 415, "src_audio: "),
        ({"files": {"reference_audio": ("a", b"RIFF")}}, 415, "reference_audio: "),
        ({"files": {"voice": ("a", b"RIFF")}}, 422, "voice: expected a text"),
        ({"files": [("src_audio", ("a", b"RIFF")), ("ctx_audio", ("a", b"RIFF"))]}, 422, "src_audio: occurs more"),
        ({"data": {"task_type": "repaint", "repainting_start": "5"}, "files": UPLOAD}, 422, "repainting_start: 5 to"),
        ({"data": {"task_type": "repaint", "repainting_start": "-1"}, "files": UPLOAD}, 422, "repainting_start: -1 to"),
        ({"data": {"task_type": "repaint", "repainting_end": "900"}, "files": UPLOAD}, 422, "audio_duration: "),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_the_clients_shape(
    client: AceStepClient, served: Served, request_: dict[str, Any], status: int, word: str
) -> None:
    assert word in refusal(client.http.post("/release_task", **request_), status)
    assert not served.service.admission.permits
    assert client.http.get("/health").status_code == 200


@pytest.mark.parametrize("ids", ["[", "5", [5], {"a": 1}, ["a"] * 101, "[" * 4000, json.dumps(["a" * 5000])])
def test_a_list_of_tasks_is_checked(client: AceStepClient, ids: Any) -> None:
    response = client.http.post("/query_result", json={"task_id_list": ids})
    assert "task_id_list: expected a list" in refusal(response, 422)


@pytest.mark.parametrize("task_id", ["nonsense", "", "0" * 36])
def test_a_task_that_is_not_known_has_failed(client: AceStepClient, task_id: str) -> None:
    (entry,) = client.query(task_id)
    (result,) = client.wait(task_id, status=2)
    assert (entry["task_id"], result["file"], result["error"]) == (task_id, "", entry["progress_text"])
    assert "start it again with /release_task" in result["error"]
    assert client.query() == []


@pytest.mark.parametrize("path", ["", "/etc/passwd", "/../../etc/passwd", "%2e%2e", "\0", "/" + "0" * 36 + "/0.wav"])
def test_only_audio_of_tasks_can_be_fetched(client: AceStepClient, path: str) -> None:
    assert "no audio" in refusal(client.http.get("/v1/audio", params={"path": path}), 404)


def test_the_path_of_audio_is_needed(client: AceStepClient) -> None:
    assert refusal(client.http.get("/v1/audio"), 422) == "path: is missing"


def test_a_model_without_lyrics_and_metadata(serve: Serve) -> None:
    server = serve()
    with server.client() as http:
        client = AceStepClient(http)
        (result,) = client.daw("text2music", b"RIFF", lyrics="[Instrumental]")
        assert result["generation_info"].endswith("without effect: bpm, key_scale, time_signature")
        assert "lyrics: this model does not sing" in refusal(http.post("/release_task", json={"lyrics": "la"}), 422)
        (cover,) = client.daw("cover", SOURCE, use_random_seed="false", seed="7")
        same = ours(server, {"source": ("s.wav", SOURCE)}, prompt="slow strings", steps=8, seed=7, denoise=0.85)
        assert samples(client.audio(cover)) == same


def test_a_client_has_its_share_of_the_places(serve: Serve) -> None:
    served = serve(depth=1, queue=1, client_in_flight=None)
    with served.client() as http:
        client = AceStepClient(http)
        served.pause()
        task_id = client.release(json={**SHORT, "batch_size": None})
        response = http.post("/release_task", json=SHORT)
        assert "1 at a time for one client" in refusal(response, 429)
        assert int(response.headers["retry-after"]) >= 1
        assert "at most 1" in refusal(http.post("/release_task", json={**SHORT, "batch_size": 2}), 422)
        running = json.loads(client.query(task_id)[0]["result"])[0]
        assert (running["stage"], running["file"], running["progress"]) == ("running", "", 0.0)
        stats = wrapped(http.get("/v1/stats"))
        assert (stats["jobs"]["running"], stats["queue_size"], stats["queue_maxsize"]) == (1, 1, 2)
        served.resume()
        assert len(client.wait(task_id)) == 1
    eventually(lambda: not served.service.admission.permits)


def test_a_full_queue_admits_no_part_of_a_batch(serve: Serve) -> None:
    served = serve(depth=1, queue=2)
    with served.client() as http:
        served.pause()
        task_id = AceStepClient(http).release(json={**SHORT, "batch_size": 2})
        assert "places are taken" in refusal(http.post("/release_task", json={**SHORT, "batch_size": 2}), 503)
        assert len(served.service.admission.permits) == 2
        served.resume()
        AceStepClient(http).wait(task_id)


def test_the_key_comes_in_a_header_or_in_a_small_body_and_the_daws_page_may_call(serve: Serve) -> None:
    origin = "http://localhost:5174"
    served = serve(api_key="secret", allowed_origins=(origin,))
    bearer = {"Authorization": "Bearer secret"}
    with served.client() as http:
        for request in (
            {"json": SHORT},
            {"json": {**SHORT, "ai_token": "wrong"}},
            {"data": {"ai_token": "wrong"}},
            {"json": {**SHORT, "ai_token": "secret"}, "headers": {"Authorization": "Bearer wrong"}},
            {"json": {**SHORT, "ai_token": "secret", "lyrics": "a" * 70_000}},
            {"content": (part for part in [b'{"ai_token": "secret"}'])},
        ):
            assert "API key" in refusal(http.post("/release_task", **request), 401)
        for path in ("/health", "/v1/stats", "/v1/audio?path=x", "/v1/model_inventory"):
            assert "API key" in refusal(http.get(path), 401)
        assert "API key" in refusal(http.post("/query_result", json={"task_id_list": []}), 401)
        assert not served.service.admission.permits
        assert wrapped(http.post("/release_task", json={**SHORT, "ai_token": "secret"}))["task_id"]
        assert wrapped(http.post("/release_task", data={**SHORT, "ai_token": "secret"}))["task_id"]
        task_id = wrapped(http.post("/release_task", data=SHORT, files=UPLOAD, headers=bearer))["task_id"]
        listed = http.post("/query_result", json={"task_id_list": [task_id], "ai_token": "secret"})
        assert wrapped(listed)[0]["task_id"] == task_id
        response = http.get("/health", headers={**bearer, "origin": origin})
        assert response.headers["access-control-allow-origin"] == origin
        asked = {"origin": origin, "access-control-request-method": "POST"}
        assert http.options("/release_task", headers=asked).status_code == 200
        assert refusal(http.get("/health", headers={**bearer, "origin": "http://elsewhere"}), 403)
