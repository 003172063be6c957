"""ACE-Step 1.5's REST API: its DAW, its VST and scripts."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from runtime.audio.formats import FORMATS
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.tasks import known_tasks
from server.asgi.access_control import check_body_key
from server.asgi.openapi import their_responses
from server.asgi.problems import ProblemError, model_not_found
from server.asgi.request_body import Upload, validate
from server.asgi.shares import client_of
from server.protocols.acestep.fields import FILES, FORM, Fields, error_text, read_fields, refuse_field
from server.protocols.acestep.request import MODEL_PREFIX, TaskRequest, task_request
from server.protocols.acestep.tasks import Task, TaskStore
from server.protocols.errors import ErrorBody
from server.routes.generation_job import MAX_TOLD_WORDS, CheckedRequest, GenerationJob
from server.routes.sources import store_source
from server.service.admission import Permit
from server.service.service import Service, check_ready, service_of

ENVIRONMENT = "tickrt"
# What bodies may have, for the API documentation: more names and forms than these are taken.
BODIES: dict[str, Any] = json.loads(Path(__file__).with_name("bodies.json").read_text(encoding="utf-8"))
# Tasks that one request may ask for: results repeat prompts and lyrics.
MAX_QUERIED = 100
STATUS = {"running": 0, "succeeded": 1, "failed": 2}
# Theirs waits for ever: clients ask again until a task succeeds or fails.
UNKNOWN_TASK = "there is no task with this id, or not any more: start it again with /release_task"
MEDIA_TYPES = {item.suffix: item.media_type for item in FORMATS.values()}
NOT_AVAILABLE = {
    "/format_input": "it has no language model that rewrites prompts",
    "/create_random_sample": "it has no examples",
    "/v1/create_sample": "it has no language model that writes songs",
    "/v1/lora/{action}": "adapters are an option of POST /v1/audio/generations, and of POST /admin/adapters for all",
}


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Tasks live as long as the app."""
    settings = app.state.service.settings
    app.state.acestep = TaskStore(settings.results_bytes, settings.result_keep_s, app.state.service.client_share)
    yield
    await app.state.acestep.close()


def _body(name: str, files: Iterable[str] = ()) -> dict[str, Any]:
    """The OpenAPI entry of a request body: JSON, a form, or a form with files."""
    properties, file = BODIES[name], BODIES["file"]
    parts = {"type": "object", "properties": {**properties, **dict.fromkeys(files, file)}}
    content = {kind: {"schema": {"type": "object", "properties": properties}} for kind in ("application/json", FORM)}
    return {"requestBody": {"required": True, "content": {**content, "multipart/form-data": {"schema": parts}}}}


router = APIRouter(tags=["ACE-Step"], lifespan=_lifespan)
ERRORS = their_responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 501, 503)


def envelope(data: Any, code: int = 200, error: str | None = None) -> dict[str, Any]:
    """What every answer of this API is, but audio."""
    return {"data": data, "code": code, "error": error, "timestamp": round(1000 * time.time()), "extra": None}


def _error_body(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Clients read `error` or `detail`; `extra` is the problem document."""
    text = error_text(problem)
    return {**envelope(None, problem["status"], text), "detail": text, "extra": problem}


PATHS = (
    "/health", "/release_task", "/query_result", "/v1/audio", "/v1/model_inventory", "/v1/init", "/v1/stats",
    "/format_input", "/create_random_sample", "/v1/create_sample", "/v1/lora/",
)  # fmt: skip
ERROR_SHAPES: dict[str, ErrorBody] = dict.fromkeys(PATHS, _error_body)
# Documented for these: the key as `ai_token` in the body.
BODY_KEY_PATHS = ("/release_task", "/query_result")


@router.get("/health", responses=their_responses(401, 403, 503))
async def get_health(request: Request) -> dict[str, Any]:
    """Whether new tasks are accepted."""
    service = service_of(request)
    check_ready(service)
    model = service.ready_pipeline().bundle.name
    data = {"status": "ok", "service": "TickRT", "models_initialized": True, "llm_initialized": False}
    return envelope({**data, "loaded_model": model, "loaded_lm_model": None})


@router.get("/v1/model_inventory", responses=their_responses(401, 403, 503))
async def get_models(request: Request) -> dict[str, Any]:
    """The model, and what it can do."""
    return envelope(_inventory(service_of(request).ready_pipeline()))


@router.post("/v1/init", responses=ERRORS, openapi_extra=_body("init"))
async def init_model(request: Request) -> dict[str, Any]:
    """The model that runs; no other can be loaded."""
    pipeline = service_of(request).ready_pipeline()
    fields, _ = await _read(request)
    _check_model(pipeline, fields)
    if fields.flag("init_llm"):
        raise _not_available("it has no language model")
    name = pipeline.bundle.name
    return envelope({"message": f"{name} is loaded", "loaded_model": name, **_inventory(pipeline)})


@router.get("/v1/stats", responses=their_responses(401, 403, 503))
async def get_stats(request: Request) -> dict[str, Any]:
    """How many tasks there are, and how long they take."""
    admission, tasks = service_of(request).admission, _tasks_of(request)
    counts = tasks.counts()
    jobs = {"total": counts.total(), "queued": 0, **{state: counts[state] for state in STATUS}}
    queue = {"queue_size": admission.num_pending, "queue_maxsize": admission.capacity}
    return envelope({"jobs": jobs, **queue, "avg_job_seconds": tasks.mean_duration_s})


@router.post("/release_task", responses=ERRORS, openapi_extra=_body("task", FILES))
async def release_task(request: Request) -> dict[str, Any]:
    """Start a task. Everything that it takes is checked before."""
    service, tasks = service_of(request), _tasks_of(request)
    pipeline = service.ready_pipeline()
    fields, files = await _read(request)
    _check_model(pipeline, fields)
    wanted = await service.bodies.run(request, fields.cost_bytes, _wanted, service, fields, files, pipeline)
    client, seeds = client_of(request.scope), _seeds(service, wanted, fields)
    with ExitStack() as stack:
        permits = [_admit(service, client, stack) for _ in seeds]
        values = await _with_uploads(service, client, wanted, files)
        body = await service.bodies.run(request, fields.cost_bytes, validate, service.body_model, values)
        bodies = [body.model_copy(update={"seed": seed}) for seed in seeds]
        requests = [CheckedRequest(service, pipeline, body, Upload({}), client) for body in bodies]
        jobs = [await GenerationJob.prepare(found, permit) for found, permit in zip(requests, permits, strict=True)]
        await run_in_threadpool(jobs[0].generation.next_request)  # errors of texts are answered, too
        task = tasks.start(jobs, _facts(wanted, jobs[0]))
        stack.pop_all()
    return envelope({"task_id": task.id, "status": "queued", "queue_position": tasks.num_running})


@router.post("/query_result", responses=ERRORS, openapi_extra=_body("query"))
async def query_result(request: Request) -> dict[str, Any]:
    """The state of tasks, and where their audio is."""
    tasks = _tasks_of(request)
    fields, _ = await _read(request)
    ids = fields.get("task_id_list") or []
    if isinstance(ids, str):
        ids = _json_list(ids)
    if not isinstance(ids, list) or len(ids) > MAX_QUERIED or not all(isinstance(one, str) for one in ids):
        refuse_field("task_id_list", f"expected a list of at most {MAX_QUERIED} task ids")
    return envelope([_state(task_id, tasks.get(task_id)) for task_id in ids])


def _wanted(service: Service, fields: Fields, files: Mapping[str, bytes], pipeline: Pipeline) -> TaskRequest:
    """What the parameters ask for. Raises ProblemError, RequestError."""
    wanted = task_request(fields, files, pipeline.bundle)
    validate(service.body_model, wanted.values)
    return wanted


def _json_list(text: str) -> Any:
    """The value of a text of JSON that is no longer than a list of ids; None where it is none."""
    try:
        return json.loads(text) if len(text) <= 50 * MAX_QUERIED else None
    except (ValueError, RecursionError):
        return None


@router.get(
    "/v1/audio",
    response_class=FileResponse,
    responses={
        200: {
            "description": "The audio",
            "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in MEDIA_TYPES.values()},
        },
        **their_responses(401, 403, 404, 422, 503),
    },
)
async def get_audio(
    request: Request, path: Annotated[str, Query(description="The path that a result's `file` has.")]
) -> FileResponse:
    """The audio at a result's path."""
    file = _tasks_of(request).file(path)
    return FileResponse(file, media_type=MEDIA_TYPES[file.suffix], headers={"Cache-Control": "no-store"})


@router.get("/v1/lora/status", responses=their_responses(401, 403, 503))
async def get_lora_status(request: Request) -> dict[str, Any]:
    """No adapter applies to all tasks."""
    service_of(request).ready_pipeline()
    state = {"lora_loaded": False, "use_lora": False, "lora_scale": 1.0, "active_adapter": None}
    return envelope({**state, "adapters": []})


async def _refuse_unavailable(request: Request) -> None:
    raise _not_available(NOT_AVAILABLE[request.scope["route"].path])


for path in NOT_AVAILABLE:
    router.add_api_route(path, _refuse_unavailable, methods=["POST"], include_in_schema=False)


def _not_available(why: str) -> ProblemError:
    return ProblemError(501, "not_available", f"this server cannot do that: {why}")


async def _read(request: Request) -> tuple[Fields, dict[str, bytes]]:
    """The parameters and files of a request. Raises ProblemError, 401 where the key is missing."""
    service = service_of(request)
    fields, files = await read_fields(request, service.settings, service.bodies)
    check_body_key(request, service.settings, fields.text("ai_token"))
    return fields, files


def _tasks_of(request: Request) -> TaskStore:
    tasks: TaskStore = request.app.state.acestep
    return tasks


def _inventory(pipeline: Pipeline) -> dict[str, Any]:
    name = pipeline.bundle.name
    model = {"name": name, "is_default": True, "is_loaded": True, "supported_task_types": known_tasks(pipeline.bundle)}
    lm: dict[str, Any] = {"lm_models": [], "loaded_lm_model": None, "llm_initialized": False}
    return {"models": [model], "default_model": name, **lm}


def _check_model(pipeline: Pipeline, fields: Fields) -> None:
    """ACE-Step's names, which clients have built in, mean the model that runs. Raises ProblemError 404."""
    name = fields.text("model")
    if name and name != pipeline.bundle.name and not name.startswith(MODEL_PREFIX):
        raise model_not_found(pipeline.bundle.name, name, pointer="/model")


def _seeds(service: Service, wanted: TaskRequest, fields: Fields) -> tuple[int, ...]:
    """Those of the batch; the default's size is what a client may have. Raises ProblemError 422."""
    admission = service.admission
    most = min(admission.places_per_client or admission.capacity, admission.capacity)
    if len(wanted.seeds) > most and fields.get("batch_size") is not None:
        refuse_field("batch_size", f"this server makes at most {most} at a time for one client")
    return wanted.seeds[:most]


def _admit(service: Service, client: str, stack: ExitStack) -> Permit:
    """A permit, which `stack` releases. Raises ProblemError 429 or 503."""
    permit = service.admission.admit(client)
    stack.callback(permit.release)
    return permit


async def _with_uploads(
    service: Service, client: str, wanted: TaskRequest, files: Mapping[str, bytes]
) -> dict[str, Any]:
    """The values of a body, with the ids of the files that were sent: generations of a batch share them."""
    values = wanted.values
    if wanted.needs_source and "src_audio" in files:
        source = await store_source(service, client, files["src_audio"], "src_audio")
        rate_hz = service.ready_pipeline().bundle.latents.frame_rate_hz
        values = wanted.with_source(source.id, round(source.milliseconds / 1000 * rate_hz) / rate_hz)
    if "reference_audio" in files:
        reference = await store_source(service, client, files["reference_audio"], "reference_audio")
        values = {**values, "timbre_id": reference.id}
    return values


def _facts(wanted: TaskRequest, job: GenerationJob) -> dict[str, Any]:
    """What every result of a task repeats."""
    values, codec = wanted.values, job.request.pipeline.codec
    assert codec is not None
    metas = {
        "bpm": values.get("bpm"),
        "duration": (job.generation.total_samples or 0) / codec.sample_rate_hz,
        "genres": "",
        "keyscale": values.get("key", ""),
        "timesignature": str(values.get("time_signature", "")),
    }
    unknown = job.read.words.unknown[:MAX_TOLD_WORDS]
    plays = [str(meaning) for meaning in job.read.meanings if str(meaning)]
    said = {"without effect": wanted.ignored, "words that the model does not know": unknown, "plays": plays}
    said["of the files"] = job.read.losses
    info = [f"{wanted.task}, {job.generation.num_steps} steps", *(f"{k}: {', '.join(v)}" for k, v in said.items() if v)]
    return {
        "prompt": values["prompt"],
        "lyrics": wanted.lyrics,
        "metas": metas,
        "generation_info": "; ".join(info),
        "lm_model": "",
        "dit_model": job.request.pipeline.bundle.name,
    }


def _state(task_id: str, task: Task | None) -> dict[str, Any]:
    """A task's entry of /query_result, its results as a text of JSON."""
    if task is None:
        failed = STATUS["failed"]
        result = json.dumps([{"file": "", "wave": "", "status": failed, "stage": "failed", "error": UNKNOWN_TASK}])
        return {"task_id": task_id, "result": result, "status": failed, "progress_text": UNKNOWN_TASK}
    status = STATUS[task.state]
    common = {
        "wave": "",
        "status": status,
        "create_time": int(task.created_s),
        "env": ENVIRONMENT,
        **task.facts,
        "seed_value": ",".join(map(str, task.seeds)),
        "progress": task.progress,
        "stage": task.state,
        "error": task.error or None,
    }
    files = [f"/v1/audio?path={path.replace('/', '%2F')}" for path in task.files] or [""]
    result = json.dumps([{"file": file, **common} for file in files])
    return {"task_id": task_id, "result": result, "status": status, "progress_text": task.error}
