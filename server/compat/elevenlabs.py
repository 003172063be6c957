"""ElevenLabs' music and sound effects: its SDK plays this server's model."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from runtime.audio.formats import FORMATS
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.validation import plan_text_options, plans_texts, untaken_options
from server.asgi.access_control import client_of
from server.asgi.openapi import json_body, their_responses
from server.asgi.problems import Finding, ProblemError, model_not_found, request_id_of
from server.asgi.request_body import Upload, read_json, validate
from server.compat.elevenlabs_bodies import ChunkPlan, MusicBody, Section, SectionPlan, SoundBody
from server.routes.generations import GenerationResponse
from server.service.service import service_of

router = APIRouter(prefix="/v1", tags=["ElevenLabs"])
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


BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The audio",
        "content": {item.media_type: BINARY for item in FORMATS.values() if item.rates_hz != ()},
    },
    **their_responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504),
}
DETAILED = {
    **AUDIO,
    200: {"description": "The plan as JSON, then the audio", "content": {"multipart/mixed": BINARY}},
}
MUSIC, SOUND = {"requestBody": json_body(MusicBody)}, {"requestBody": json_body(SoundBody)}
OutputFormat = Annotated[str, Query(description="ElevenLabs' name of a format: " + ", ".join(OUTPUT_FORMATS))]
ERROR_SHAPES = dict.fromkeys(("/v1/music", "/v1/music/", "/v1/sound-generation"), error_body)


@router.post("/music/stream", response_class=Response, responses=AUDIO, openapi_extra=MUSIC)
async def stream_music(request: Request, output_format: OutputFormat = "auto") -> Response:
    """Music, sent while it is made."""
    _, values = await _music(request, output_format)
    return await _generation(request, values | {"stream": True})


@router.post("/music", response_class=Response, responses=AUDIO, openapi_extra=MUSIC)
async def compose_music(request: Request, output_format: OutputFormat = "auto") -> Response:
    """Music, sent whole."""
    _, values = await _music(request, output_format)
    return await _generation(request, values)


@router.post("/music/detailed", response_class=Response, responses=DETAILED, openapi_extra=MUSIC)
async def compose_detailed(request: Request, output_format: OutputFormat = "auto") -> Response:
    """Music, sent whole after a JSON part that describes it."""
    body, values = await _music(request, output_format)
    return _Detailed(await _generation(request, values), details_of(body))


@router.post("/sound-generation", response_class=Response, responses=AUDIO, openapi_extra=SOUND)
async def generate_sound(request: Request, output_format: OutputFormat = "mp3_44100_128") -> Response:
    """A sound effect, sent whole."""
    service = service_of(request)
    pipeline = service.ready_pipeline()
    encoding = encoding_of(output_format)
    body = validate(SoundBody, await read_json(request, service.settings, service.budget), fix="")
    check_model(pipeline, body.model_id)
    canvas_s = pipeline.canvas_frames / pipeline.bundle.latents.frame_rate_hz
    bundle = pipeline.bundle
    options = body.options(min(canvas_s, MAX_SOUND_S), bundle.sampler.guidance, bundle.options.guidance)
    return await _generation(request, options | encoding)


async def _music(request: Request, output_format: str) -> tuple[MusicBody, dict[str, Any]]:
    """A request for music, and the members of the generation's. Raises ProblemError."""
    service = service_of(request)
    pipeline = service.ready_pipeline()
    encoding = encoding_of(output_format)
    values = await read_json(request, service.settings, service.budget)
    body, options = await run_in_threadpool(_music_options, pipeline, values)
    return body, options | encoding


def _music_options(pipeline: Pipeline, values: dict[str, Any]) -> tuple[MusicBody, dict[str, Any]]:
    body = validate(MusicBody, values, fix="")
    check_model(pipeline, body.model_id)
    sings = "lyrics" not in untaken_options(pipeline.bundle) | plan_text_options(pipeline.bundle)
    plan = {"plan": False} if body.composition_plan is not None and plans_texts(pipeline.bundle) else {}
    return body, body.options(_parts(body), takes_lyrics=sings) | plan


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
        raise model_not_found(pipeline.bundle.name, str(model_id), pointer="/model_id")


async def _generation(request: Request, values: dict[str, Any]) -> Response:
    """The generation of these members, sent whole where they do not say `stream`. Raises ProblemError."""
    service = service_of(request)
    if values.get("seconds", 0.0) > service.settings.max_seconds:
        raise ProblemError(422, "invalid_request", f"this server makes at most {service.settings.max_seconds:g} s")
    body = await run_in_threadpool(validate, service.body_model, {"stream": False, **values}, "")
    client = client_of(request.scope)
    return GenerationResponse(service, service.ready_pipeline(), body, Upload({}), client, request_id_of(request))


def details_of(body: MusicBody) -> dict[str, Any]:
    """What ElevenLabs' SDK calls the details of a song: its plan, one style for all of it where it had none."""
    plan = {"positive_global_styles": [body.prompt], "negative_global_styles": [], "sections": []}
    song: dict[str, Any] = {
        "title": None,
        "description": body.prompt,
        "genres": [],
        "languages": [],
        "is_explicit": None,
    }
    return {"composition_plan": body.composition_plan or plan, "song_metadata": song}


class _Detailed(Response):
    """Audio as the second part of a multipart body, after what it is as JSON."""

    def __init__(self, audio: Response, details: dict[str, Any]) -> None:
        super().__init__()
        self._audio, self._details = audio, details

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send both parts. Raises TickError and ProblemError as long as nothing has been sent."""
        await self._audio(scope, receive, _MultipartSend(self._details, send))


@dataclass
class _MultipartSend:
    """Sends a response of known length as the second part of a multipart body."""

    details: dict[str, Any]
    send: Send
    boundary: str = field(default_factory=lambda: uuid.uuid4().hex)
    head: bytes = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            self.head = self._head(headers)
            length = int(headers["content-length"]) + len(self.head) + len(self._tail)
            headers["content-length"] = str(length)
            headers["content-type"] = f"multipart/mixed; boundary={self.boundary}"
            message = {**message, "headers": headers.raw}
        else:
            tail = b"" if message.get("more_body", False) else self._tail
            message = {**message, "body": self.head + message["body"] + tail}
            self.head = b""
        await self.send(message)

    def _head(self, audio: MutableHeaders) -> bytes:
        lines = (
            f"--{self.boundary}",
            "Content-Type: application/json",
            "",
            json.dumps(self.details),
            f"--{self.boundary}",
            f"Content-Type: {audio['content-type']}",
            f"Content-Disposition: {audio['content-disposition']}",
            "\r\n",
        )
        return "\r\n".join(lines).encode()

    @property
    def _tail(self) -> bytes:
        return f"\r\n--{self.boundary}--\r\n".encode()
