"""GET /v1/adapters: the LoRA adapters of the deployment; POST /admin/adapters: those in the decoder's weights.

The second one exists only where an admin key is set.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Security
from pydantic import BaseModel, ConfigDict, Field

from runtime.engines.engine import EngineSet
from runtime.requests.option_types import AdapterOptions, Adapters
from server.asgi.openapi import REF, problem_responses
from server.asgi.request_body import read_upload, validate
from server.routes.tick_profile import check_admin
from server.service.service import Service, service_of


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


router = APIRouter(prefix="/v1", tags=["models"])
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
