"""How far ahead of its playback a generation is, and its plan."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import Served, connected, eventually, problem, raw_request, serving

from runtime.base.errors import DrainingError, EngineError, GenerationCancelledError, NonFiniteError, RequestError
from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import open_pipeline
from runtime.pipeline.songs.planner import Planner
from runtime.requests.options import parse_options
from runtime.tick.language.sequence import SequenceRequest
from server.asgi.openapi import GenerationBody
from server.asgi.problems import ProblemError, unavailable
from server.asgi.request_body import Upload
from server.routes import generation_job
from server.routes.generation_job import AHEAD_BYTES, CheckedRequest, GenerationJob, ReadRequest, outcome_of
from server.routes.generations import GenerationResponse
from server.service.metrics import Metrics, Outcome


@pytest.mark.parametrize(("format_", "is_streamed"), [("wav", True), ("latents", False)])
def test_a_stream_is_ahead_by_what_it_has_not_played(
    monkeypatch: pytest.MonkeyPatch, format_: str, is_streamed: bool
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(generation_job.time, "monotonic", lambda: now_s[0])
    seen: list[str] = []
    metric: Any = SimpleNamespace(observe=lambda seconds: seen.append(f"{seconds:g}"))
    metrics = SimpleNamespace(time_to_first_audio=metric, chunk_interval=metric)
    tracker = SimpleNamespace(discard=lambda id_: seen.append(id_))
    service: Any = SimpleNamespace(metrics=metrics, first_audio_tracker=tracker)
    nothing: Any = None
    pipeline: Any = SimpleNamespace(codec=SimpleNamespace(channels=2))
    body = GenerationBody(prompt="a", stream=True, response_format=format_)
    request = CheckedRequest(service, pipeline, body, Upload({}), "", "id", started_s=99.0)
    job = GenerationJob(request, nothing, nothing)
    assert request.is_streamed == is_streamed
    assert job.lead_s() == 0.0
    job.record_sent()
    job.sent_audio_s, now_s[0] = 2.0, 100.5
    job.record_sent()
    now_s[0] = 101.5
    job.record_sent()
    assert job.lead_s() == 0.5
    assert seen == ["1", "id", "0.5", "1"]


@pytest.mark.parametrize(
    ("names", "is_cached", "is_limited"),
    [((), True, False), (("source",), True, True), (("timbre",), True, True), ((), False, True)],
)
def test_audio_that_is_read_counts_against_what_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], is_cached: bool, is_limited: bool
) -> None:
    async def refuse(client: str, function: object) -> None:
        raise unavailable("busy", "too much audio is being read")

    async def prepare() -> None:
        body = GenerationBody(prompt="a", source_id=None if is_cached else "a" * 64)
        upload = Upload({}, **dict.fromkeys(names, b"audio"))
        await GenerationJob.prepare(CheckedRequest(service, pipeline, body, upload, ""), permit)

    def read(*found: object) -> None:
        raise RequestError("read")

    service: Any = SimpleNamespace(
        sources=SimpleNamespace(are_cached=lambda *ids: ids == (None,) * 3),
        file_turns=SimpleNamespace(run=refuse),
        settings=SimpleNamespace(queue_timeout_s=1.0),
    )
    permit: Any = None
    pipeline: Any = SimpleNamespace(codec=SimpleNamespace(channels=2))
    monkeypatch.setattr(CheckedRequest, "read", read)
    with pytest.raises(ProblemError if is_limited else RequestError):
        asyncio.run(prepare())


def test_a_format_that_cannot_hold_the_models_channels_is_refused_before_anything_is_read() -> None:
    nothing: Any = None
    pipeline: Any = SimpleNamespace(codec=SimpleNamespace(channels=6))
    body = GenerationBody(prompt="a", response_format="mp3")
    with pytest.raises(RequestError, match="mp3 has 1 or 2 channels") as caught:
        CheckedRequest(nothing, pipeline, body, Upload({}), "")
    assert caught.value.field == "response_format"


def test_a_format_that_is_refused_takes_no_place_and_counts_as_rejected() -> None:
    nothing: Any = None
    metrics = Metrics()
    service: Any = SimpleNamespace(metrics=metrics, admission=None)
    pipeline: Any = SimpleNamespace(codec=None)
    response = GenerationResponse(service, pipeline, GenerationBody(prompt="a"), Upload({}), "", "id")
    with pytest.raises(ProblemError, match="makes latents, not audio"):
        asyncio.run(response({}, nothing, nothing))
    outcomes = {"outcome": "rejected"}
    assert metrics.registry.get_sample_value("tickrt_generations_total", outcomes) == 1
    assert metrics.registry.get_sample_value("tickrt_generations_in_flight") == 0


@pytest.mark.parametrize("is_cancelled", [True, False])
@pytest.mark.anyio
async def test_a_response_that_is_sent_whole_waits_for_its_plan_and_takes_it_along(
    built: Built, is_cancelled: bool
) -> None:
    pipeline = open_pipeline(built(planner={"capacity": 512}, conditions=True))  # its loop ticks by hand
    assert pipeline.planner is not None
    assert pipeline.structure is not None
    spec = pipeline.planner.spec.model_copy(update={"thinking": None})
    planner = Planner(pipeline.bundle, spec, pipeline.loop, pipeline.structure)
    nothing: Any = None
    generation = LongGeneration(replace(pipeline, planner=planner), parse_options({"prompt": "a", "seed": 1}))
    request = CheckedRequest(nothing, pipeline, GenerationBody(prompt="a", seed=1), Upload({}), "")
    job = GenerationJob(request, nothing, ReadRequest(generation, generation.metadata()))
    tokens: list[int] = []
    planner.observers.append(tokens.append)

    waiting = asyncio.create_task(job.finish_plan())
    while not len(pipeline.loop._shared.registry):
        await asyncio.sleep(0.001)
    if is_cancelled:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    while pipeline.loop.tick():
        pass
    if not is_cancelled:
        await waiting
    assert pipeline.loop.stats().outcomes["cancelled"] == is_cancelled
    if not is_cancelled:
        assert len(job.read.metadata.plan["codes"]) == 11
        assert '"codes"' in job.read.tag
        assert sum(tokens) >= 11
    pipeline.close()


@pytest.mark.anyio
async def test_a_request_that_is_cancelled_while_it_thinks_ends_its_sequence(built: Built) -> None:
    """As when the client leaves: the thread that thinks has nothing to wait for any more."""
    pipeline = open_pipeline(built(planner={"capacity": 512}, conditions=True))  # its loop ticks by hand
    settings = SimpleNamespace(queue_timeout_s=60.0)
    sources = SimpleNamespace(are_cached=lambda *ids: True)
    service: Any = SimpleNamespace(settings=settings, sources=sources)
    nothing: Any = None
    body = GenerationBody(prompt="a", seed=1)
    request = CheckedRequest(service, pipeline, body, Upload({}), "")

    preparing = asyncio.create_task(GenerationJob.prepare(request, nothing))
    while pipeline.loop.tick() is None:
        await asyncio.sleep(0.001)
    preparing.cancel()
    while not preparing.done():
        await asyncio.sleep(0.001)
        pipeline.loop.tick()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert pipeline.loop.stats().outcomes["cancelled"] == 1
    pipeline.close()


@pytest.fixture(scope="module")
def planning(built: Built) -> Deployment:
    """A bundle whose generations are planned, one at a time."""
    deployment = built(planner={"capacity": 1024, "plan": True}, more=FEW_VARIANTS)
    runtime = deployment.runtime.model_copy(update={"planner_sequences": 1, "queue": 1})
    return deployment.model_copy(update={"runtime": runtime})


@pytest.mark.parametrize("num_others", [1, 2], ids=["waits for a slot", "waits for a waiting place"])
def test_the_wait_for_the_planner_is_bounded(planning: Deployment, num_others: int) -> None:
    with serving(planning, queue_timeout_s=0.3) as served:
        served.pause()
        for number in range(num_others):
            other = SequenceRequest(f"other {number}", (1,), max_tokens=5)
            served.pipeline.loop.submit_sequence(other, lambda event: None)
        late = served.post(seconds=3.0)
        assert "within 0.3 s" in problem(late, 504, "queue_timeout")["detail"]
        assert late.headers["retry-after"] == "1"
        assert served.metrics()["tickrt_generations_total{outcome=expired}"] == 1
        served.resume()
        eventually(lambda: served.post(seconds=3.0).status_code == 200)


def test_a_plan_is_refused_where_the_bundle_has_no_planner(served: Served) -> None:
    assert problem(served.post(plan=True), 422)["errors"][0]["pointer"] == "/plan"
    assert served.post(plan=False, response_format="pcm").content == served.post(response_format="pcm").content


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_disconnect_while_a_plan_is_written_frees_its_sequence(planning: Deployment, how: str, stream: bool) -> None:
    with serving(planning) as served:
        served.tick_s, loop = 0.02, served.pipeline.loop
        with connected(served) as connection:
            body = {"prompt": "a", "seed": 1, "seconds": 60, "stream": stream}
            connection.sendall(raw_request(json.dumps(body).encode()))
            eventually(lambda: loop.stats().ticks > 3)
            assert not loop.is_empty
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            eventually(lambda: loop.is_empty)
        eventually(lambda: not served.service.admission.permits)
        assert loop.stats().ticks < 200, "the plan of a minute has more"
        assert served.metrics()["tickrt_generations_total{outcome=cancelled}"] == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ProblemError(504, "queue_timeout", "late"), Outcome.EXPIRED),
        (GenerationCancelledError("left"), Outcome.CANCELLED),
        (NonFiniteError("NaN"), Outcome.NONFINITE),
        (DrainingError("drains"), Outcome.DRAINED),
        (EngineError("broken"), Outcome.ENGINE_ERROR),
        (RequestError("wrong"), Outcome.REJECTED),
        (ProblemError(503, "busy", "full"), Outcome.REJECTED),
    ],
)
def test_every_error_has_its_outcome(error: Any, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def job_of(total_frames: int = 100, total_samples: int = 32_000, **options: Any) -> GenerationJob:
    """Of a model with 8 channels of latents, two of audio at 8 kHz, and windows of a second; 10 bytes were uploaded."""
    settings = SimpleNamespace(window_s=1.0)
    metrics = SimpleNamespace(audio_seconds=SimpleNamespace(inc=None), realtime=SimpleNamespace(observe=None))
    service: Any = SimpleNamespace(settings=settings, metrics=metrics)
    bundle = SimpleNamespace(latents=SimpleNamespace(channels=8))
    pipeline: Any = SimpleNamespace(codec=SimpleNamespace(channels=2, sample_rate_hz=8000), bundle=bundle)
    body = GenerationBody(prompt="a", **options)
    generation = SimpleNamespace(total_frames=total_frames, total_samples=total_samples)
    read: Any = SimpleNamespace(generation=generation, uploaded_bytes=10)
    nothing: Any = None
    return GenerationJob(CheckedRequest(service, pipeline, body, Upload({}), "", "id", started_s=90.0), nothing, read)


@pytest.mark.parametrize(
    ("options", "size_bytes"),
    [
        ({"response_format": "latents"}, 10 + 2 * 3200),
        ({"stream": True}, 10 + 3200 + 2 * 2 * 16_000),
        ({"stream": True, "total_samples": 9000}, 10 + 3200 + 2 * 2 * 9000),
        ({"stream": False}, 10 + 3200 + 2 * 2 * 32_000),
        ({"stream": False, "sample_rate_hz": 16_000}, 10 + 3200 + 2 * 2 * 64_000),
        ({"stream": True, "sample_rate_hz": 16_000}, 10 + 3200 + 2 * 2 * 32_000),
        ({"stream": False, "sample_rate_hz": 8000}, 10 + 3200 + 2 * 2 * 32_000),
        ({"stream": False, "total_frames": 1_000_000}, 10 + AHEAD_BYTES + 2 * 2 * 32_000),
    ],
    ids=str,
)
def test_the_memory_of_a_response_is_that_of_latents_ahead_and_of_audio_in_the_server(
    options: dict[str, Any], size_bytes: int
) -> None:
    assert job_of(**options).response_bytes() == size_bytes


def test_audio_that_was_sent_counts_and_its_pace_where_all_of_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_job.time, "monotonic", lambda: 92.0)
    seen: list[tuple[str, float]] = []
    for options, outcome in (
        ({}, Outcome.OK), ({}, Outcome.CANCELLED), ({"response_format": "latents"}, Outcome.OK)
    ):  # fmt: skip
        job = job_of(**options)
        metrics: Any = job.request.service.metrics
        metrics.audio_seconds.inc = lambda seconds: seen.append(("s", seconds))
        metrics.realtime.observe = lambda factor: seen.append(("x", factor))
        job.sent_audio_s = 3.0
        job.record_end(outcome)
    assert seen == [("s", 3.0), ("x", 1.5), ("s", 3.0), ("s", 3.0)]
