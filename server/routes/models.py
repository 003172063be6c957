"""/v1/models in OpenAI's format, and /v1/schema, the JSON schema of a generation's options."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from runtime.config.bundle import BUNDLE_FILE
from runtime.config.sampler import GuidanceSpec, SamplerSpec
from runtime.pipeline.pipeline import Pipeline
from server.asgi.openapi import SCHEMA_TYPE, body_schema, formats_of, problem_responses
from server.asgi.problems import model_not_found
from server.service.service import service_of

router = APIRouter(prefix="/v1", tags=["models"])


class EngineCard(BaseModel):
    """One engine in use."""

    target: str
    sha256: str


class ModelCard(BaseModel):
    """One model: OpenAI's four fields, its audio format, limits, defaults and engines."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tickrt"
    version: str
    license: str
    description: str
    target: str
    sample_rate_hz: int | None
    audio_channels: int | None
    latent_channels: int
    frame_rate_hz: float
    canvas_seconds: float
    max_seconds: float
    takes_text: bool
    vocabulary: tuple[str, ...] | None = Field(
        description="Every word that prompts may have, where that is a closed list."
    )
    takes_source: bool
    slots: int
    queue: int
    response_formats: list[str]
    defaults: SamplerSpec
    guidance: GuidanceSpec = Field(description="The rule that guidance follows, and its numbers.")
    engines: dict[str, EngineCard]


class ModelList(BaseModel):
    """The list of models; a server runs one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def model_card(pipeline: Pipeline, max_seconds: float) -> ModelCard:
    """The description of a pipeline's model."""
    bundle, deployment = pipeline.bundle, pipeline.deployment
    return ModelCard(
        id=bundle.name,
        created=_modified_s(bundle.folder / BUNDLE_FILE),
        version=bundle.version,
        license=bundle.license,
        description=bundle.description,
        target=deployment.target,
        sample_rate_hz=bundle.codec.sample_rate_hz if bundle.codec else None,
        audio_channels=bundle.codec.channels if bundle.codec else None,
        latent_channels=bundle.latents.channels,
        frame_rate_hz=bundle.latents.frame_rate_hz,
        canvas_seconds=bundle.latents.canvas_frames / bundle.latents.frame_rate_hz,
        max_seconds=max_seconds,
        takes_text=bundle.text_encoder is not None,
        vocabulary=pipeline.text_encoder.vocabulary if pipeline.text_encoder else None,
        takes_source=bundle.codec is not None and bundle.codec.encode is not None,
        slots=deployment.runtime.depth,
        queue=deployment.runtime.queue,
        response_formats=formats_of(bundle),
        defaults=bundle.sampler,
        guidance=bundle.guidance,
        engines={
            engine.name: EngineCard(target=engine.manifest.target, sha256=engine.manifest.engine_sha256)
            for engine in pipeline.all_engines()
        },
    )


@cache
def _modified_s(path: Path) -> int:
    """When a file was changed last, in seconds since 1970, as of the first call."""
    return int(path.stat().st_mtime)


@router.get("/models", responses=problem_responses(401, 403, 503))
async def list_models(request: Request) -> ModelList:
    """The models that this server runs."""
    service = service_of(request)
    return ModelList(data=[model_card(service.ready_pipeline(), service.settings.max_seconds)])


@router.get("/models/{model_id}", responses=problem_responses(401, 403, 404, 422, 503))
async def get_model(request: Request, model_id: str) -> ModelCard:
    """One model by its id."""
    service = service_of(request)
    pipeline = service.ready_pipeline()
    if model_id != pipeline.bundle.name:
        raise model_not_found(pipeline.bundle.name, model_id)
    return model_card(pipeline, service.settings.max_seconds)


@router.get(
    "/schema",
    response_class=Response,
    responses={200: {"content": {SCHEMA_TYPE: {"schema": {"type": "object"}}}}, **problem_responses(401, 403)},
)
async def get_schema(request: Request) -> Response:
    """JSON schema of the body of POST /v1/audio/generations."""
    return JSONResponse(body_schema(service_of(request).body_model), media_type=SCHEMA_TYPE)
