"""/v1/models in OpenAI's format, /v1/schema, the JSON schema of a generation's options, and /v1/adapters: its LoRAs.

POST /admin/adapters, which merges some into the decoder's weights, exists only where an admin key is set.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response, Security
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from runtime.config.bundle import BUNDLE_FILE
from runtime.config.sampler import GuidanceSpec, SamplerSpec
from runtime.engines.engine import EngineSet
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.option_types import AdapterOptions, Adapters
from server.asgi.openapi import REF, SCHEMA_TYPE, body_schema, formats_of, problem_responses
from server.asgi.problems import model_not_found
from server.asgi.request_body import read_upload, validate
from server.routes.tick_profile import check_admin
from server.service.service import Service, service_of

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


class AdapterCard(BaseModel):
    """One LoRA adapter: what to name in a generation's `adapters`."""

    id: str
    object: Literal["adapter"] = "adapter"
    rank: int
    modules: tuple[str, ...] = Field(description="Paths of the decoder's matrices that it changes.")
    base_model: str | None = Field(description="The model that it was trained on, as its file says.")
    trigger_words: tuple[str, ...] = Field(description="Words for prompts that it was trained with.")


class AdapterList(BaseModel):
    """Every adapter of the deployment. merged: those in the decoder's weights, which all generations have."""

    object: Literal["list"] = "list"
    data: list[AdapterCard]
    max_rank: int = Field(description="The ranks of all adapters in use at a time, in sum; 0: none can be used.")
    merged: list[AdapterOptions]


class MergedAdapters(BaseModel):
    """The body of POST /admin/adapters: all adapters that the decoder's weights get; none: its own weights."""

    model_config = ConfigDict(extra="forbid")

    adapters: Adapters = Field(description="Ids of /v1/adapters, each with its strength; none: the model as it is.")


admin_router = APIRouter(prefix="/admin", tags=["operation"])
BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": MergedAdapters.model_json_schema(ref_template=REF)}},
}


@router.get("/adapters", responses=problem_responses(401, 403, 503))
async def list_adapters(request: Request) -> AdapterList:
    """The LoRA adapters that generations can use."""
    return adapter_list(service_of(request).ready_pipeline().engines)


@admin_router.post(
    "/adapters",
    responses=problem_responses(400, 401, 403, 408, 413, 415, 422, 500, 503),
    openapi_extra={"requestBody": BODY},
)
async def merge_adapters(request: Request, service: Annotated[Service, Security(check_admin)]) -> AdapterList:
    """Put adapters into the decoder's weights, for all generations, in place of those that are there.

    New engines are opened beside the old ones, and the next tick after that runs them; on an error nothing changes. The
    folder of adapters is read again.
    """
    upload = await read_upload(request, service.settings, service.bodies)
    body = await service.bodies.run(request, upload.cost_bytes, validate, MergedAdapters, upload.values)
    pipeline = await service.replace_engines({item.id: item.strength for item in body.adapters})
    return adapter_list(pipeline.engines)


def adapter_list(engines: EngineSet) -> AdapterList:
    """The adapters of engines."""
    catalog = engines.adapters
    return AdapterList(
        data=[AdapterCard.model_validate(item, from_attributes=True) for item in catalog.adapters.values()],
        max_rank=catalog.max_rank,
        merged=[AdapterOptions(id=id_, strength=strength) for id_, strength in engines.merged.items()],
    )
