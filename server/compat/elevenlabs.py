"""ElevenLabs' music and sound effects: its SDK plays this server's model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from runtime.pipeline.pipeline import Pipeline
from runtime.requests.validation import untaken_options
from server.asgi.problems import Finding, ProblemError, request_id_of
from server.asgi.request_body import Upload, read_json, validate
from server.compat.elevenlabs_bodies import ChunkPlan, MusicBody, Section, SectionPlan, SoundBody
from server.routes.generations import GenerationResponse
from server.routes.models import model_not_found
from server.service import Service, service_of

router = APIRouter(prefix="/v1", include_in_schema=False)
# ElevenLabs' names of models, each of them this server's.
MODELS = ("music_v1", "music_v2", "music_v2_5", "eleven_text_to_sound_v2", "eleven_text_to_sound_v3")
MAX_SOUND_S = 30.0
AUTO_KBPS = 192
PCM_RATES_HZ = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
# Codec, samples per second, kbit per second. auto is mp3 at the model's rate.
OUTPUT_FORMATS = (
    "auto",
    "mp3_22050_32",
    "mp3_24000_48",
    *(f"mp3_44100_{kbps}" for kbps in (32, 64, 96, 128, 192)),
    *(f"mp3_48000_{kbps}" for kbps in (128, 192, 240, 320)),
    *(f"{codec}_{rate_hz}" for codec in ("pcm", "wav") for rate_hz in PCM_RATES_HZ),
    *(f"opus_48000_{kbps}" for kbps in (32, 64, 96, 128, 192)),
    "ulaw_8000",
    "alaw_8000",
)


def error_body(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem document as ElevenLabs' SDK shows errors: a status in words, and a message."""
    message = problem["detail"] + (f" ({problem['fix']})" if "fix" in problem else "")
    return {"detail": {"status": problem["code"], "message": message}}


ERROR_SHAPES = dict.fromkeys(("/v1/music", "/v1/music/", "/v1/sound-generation"), error_body)


@router.post("/music/stream", response_class=Response)
async def stream_music(request: Request, output_format: str = "auto") -> Response:
    """Music, sent while it is made."""
    return await _music(request, output_format, is_streamed=True)


@router.post("/music", response_class=Response)
async def compose_music(request: Request, output_format: str = "auto") -> Response:
    """Music, sent whole."""
    return await _music(request, output_format, is_streamed=False)


@router.post("/sound-generation", response_class=Response)
async def generate_sound(request: Request, output_format: str = "mp3_44100_128") -> Response:
    """A sound effect, sent whole."""
    service = service_of(request)
    pipeline = service.ready_pipeline()
    encoding = encoding_of(output_format)
    body = validate(SoundBody, await read_json(request, service.settings, service.budget), fix="")
    check_model(pipeline, body.model_id)
    canvas_s = pipeline.canvas_frames / pipeline.bundle.latents.frame_rate_hz
    options = body.options(min(canvas_s, MAX_SOUND_S), pipeline.bundle.sampler.guidance)
    return await _generation(request, pipeline, {**options, **encoding, "stream": False})


async def _music(request: Request, output_format: str, *, is_streamed: bool) -> Response:
    service = service_of(request)
    pipeline = service.ready_pipeline()
    encoding = encoding_of(output_format)
    body = validate(MusicBody, await read_json(request, service.settings, service.budget), fix="")
    check_model(pipeline, body.model_id)
    options = body.options(_parts(body), takes_lyrics="lyrics" not in untaken_options(pipeline.bundle))
    return await _generation(request, pipeline, {**options, **encoding, "stream": is_streamed})


def _parts(body: MusicBody) -> list[Section]:
    plan = body.composition_plan
    if plan is None:
        return []
    fix = "the place is that in composition_plan"
    return (validate(ChunkPlan, plan, fix) if "chunks" in plan else validate(SectionPlan, plan, fix)).parts()


def encoding_of(output_format: str) -> dict[str, Any]:
    """ElevenLabs' name of a format as members of a request. Raises ProblemError 422."""
    if output_format not in OUTPUT_FORMATS:
        what = f"expected one of {', '.join(OUTPUT_FORMATS)}"
        finding = Finding(pointer="/output_format", detail=what)
        raise ProblemError(422, "invalid_request", f"output_format: {what}", errors=[finding])
    if output_format == "auto":
        return {"response_format": "mp3", "bit_rate_kbps": AUTO_KBPS}
    codec, *rates = output_format.split("_")
    members = dict(zip(("sample_rate_hz", "bit_rate_kbps"), map(int, rates), strict=False))
    return {"response_format": "ogg" if codec == "opus" else codec, **members}


def check_model(pipeline: Pipeline, model_id: str | None) -> None:
    """Refuse a model that is neither the server's nor ElevenLabs'. Raises ProblemError 404."""
    if model_id not in (None, pipeline.bundle.name, *MODELS):
        raise model_not_found(pipeline, str(model_id), pointer="/model_id")


async def _generation(request: Request, pipeline: Pipeline, values: dict[str, Any]) -> Response:
    service = service_of(request)
    _check_length(service, values)
    body = await run_in_threadpool(validate, service.body_model, values, "")
    client = request.client.host if request.client else ""
    return GenerationResponse(service, pipeline, body, Upload({}), client, request_id_of(request))


def _check_length(service: Service, values: dict[str, Any]) -> None:
    if values.get("seconds", 0.0) > service.settings.max_seconds:
        raise ProblemError(422, "invalid_request", f"this server makes at most {service.settings.max_seconds:g} s")
