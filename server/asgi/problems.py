"""Errors as RFC 9457 problem documents: what happened, what was expected, the fix."""

from __future__ import annotations

import logging
import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from runtime.base.errors import RequestError, TickError, did_you_mean
from runtime.base.untrusted import one_line
from runtime.config.explain import sentence

MEDIA_TYPE = "application/problem+json"
REQUEST_ID_HEADER = "X-Request-ID"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
CLIENT_CLOSED_REQUEST = 499
MAX_DETAIL_CHARACTERS = 1000
MAX_POINTER_CHARACTERS = 200
MAX_FINDINGS = 20
logger = logging.getLogger("tickrt.server")


class Finding(BaseModel):
    """One error and its place: `pointer` is a JSON pointer into the request body."""

    model_config = ConfigDict(extra="forbid")

    pointer: str = Field(examples=["/guidance"])
    detail: str

    def bounded(self) -> Finding:
        """The same on one line each, no longer than is sent."""
        return Finding(
            pointer=one_line(self.pointer, MAX_POINTER_CHARACTERS), detail=one_line(self.detail, MAX_DETAIL_CHARACTERS)
        )


class ProblemDocument(BaseModel):
    """RFC 9457 problem details. `code` is stable and machine-readable; `fix` is the remedy."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(examples=["urn:tickrt:problem:queue_full"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    code: str
    instance: str | None = None
    fix: str | None = None
    errors: list[Finding] | None = None


class ProblemError(Exception):
    """An error response. `what` and `fix` are sent to the client; `headers` are added to the response."""

    def __init__(
        self,
        status: int,
        code: str,
        what: str,
        *,
        fix: str = "",
        errors: Sequence[Finding] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.status = status
        self.code = code
        self.what = what
        self.fix = fix
        self.errors = list(errors)
        self.headers = dict(headers or {})

    def document(self, request_id: str = "") -> ProblemDocument:
        """The document that is sent."""
        return ProblemDocument(
            type=f"urn:tickrt:problem:{self.code}",
            title=self.code.replace("_", " ").capitalize(),
            status=self.status,
            detail=one_line(self.what, MAX_DETAIL_CHARACTERS),
            code=self.code,
            instance=f"urn:tickrt:request:{request_id}" if request_id else None,
            fix=one_line(self.fix, MAX_DETAIL_CHARACTERS) or None,
            errors=[finding.bounded() for finding in self.errors] or None,
        )


def as_problem(error: Exception) -> ProblemError:
    """An error of the runtime, of Starlette or of FastAPI as a ProblemError. Raises every other one."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        return validation_problem(error)
    if isinstance(error, HTTPException):
        return http_problem(error)
    if not isinstance(error, TickError):
        raise error
    wait_s: float | None = getattr(error, "retry_after_s", 1.0 if error.status == 503 else None)
    headers = {} if wait_s is None else {"Retry-After": retry_after(wait_s)}
    findings = []
    if isinstance(error, RequestError) and error.field:
        findings.append(Finding(pointer=pointer(error.field.split(".")), detail=error.what))
    return ProblemError(error.status, error.code, error.what, fix=error.fix, errors=findings, headers=headers)


def unavailable(code: str, what: str, *, retry_after_s: float = 1.0, fix: str = "") -> ProblemError:
    """503 with Retry-After."""
    return ProblemError(503, code, what, fix=fix, headers={"Retry-After": retry_after(retry_after_s)})


def model_not_found(known: str, name: str, pointer: str = "") -> ProblemError:
    """404 for a model that the server does not run. known: its own; pointer: the place in a body."""
    what = f"there is no model {name[:100]!r}, this server runs {known!r}"
    errors = [Finding(pointer=pointer, detail=what)] if pointer else []
    fix = did_you_mean(name, [known]) or "GET /v1/models lists the models"
    return ProblemError(404, "model_not_found", what, fix=fix, errors=errors)


def first_findings(findings: Iterable[Finding]) -> list[Finding]:
    """As many as a problem carries; no more are made."""
    return list(islice(findings, MAX_FINDINGS))


def invalid_request(findings: Iterable[Finding], fix: str) -> ProblemError:
    """422 that says the first of the findings, which are not none, and carries first_findings."""
    found = first_findings(findings)
    what = f"{found[0].pointer or 'the body'}: {found[0].detail}"
    return ProblemError(422, "invalid_request", what, fix=fix, errors=found)


def draining() -> ProblemError:
    """503 while the server shuts down."""
    return unavailable("draining", "the server is shutting down and takes no new work", retry_after_s=10)


def retry_after(seconds: float) -> str:
    """Whole seconds, from 1 to those of a day."""
    return str(max(1, math.ceil(min(seconds, 86_400))))


def pointer(parts: Sequence[str | int]) -> str:
    """JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def problem_response(problem: ProblemError, request_id: str = "") -> Response:
    """The response that carries a problem."""
    content = problem.document(request_id).model_dump_json(exclude_none=True)
    return Response(content, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


HTTP_CODES = {
    404: ("not_found", "no route has this path", "GET /openapi.json lists every route"),
    416: ("range_not_satisfiable", "the file has no such range", "see the Content-Range header"),
    405: ("method_not_allowed", "this path does not support this method", "see the Allow header"),
}


def http_problem(error: HTTPException) -> ProblemError:
    """One of Starlette's own errors as a ProblemError."""
    phrase = HTTPStatus(error.status_code).phrase
    code, what, fix = HTTP_CODES.get(error.status_code, (phrase.lower().replace(" ", "_"), phrase, ""))
    detail = what if error.detail in ("", phrase) else str(error.detail)
    return ProblemError(error.status_code, code, detail, fix=fix, headers=error.headers)


def allowed_methods(scope: Scope) -> str:
    """The methods that a path supports, for the header Allow: Starlette names those of the first route only."""
    routes = scope["app"].routes
    methods = [
        method
        for method in ("GET", "POST", "DELETE")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])


def validation_problem(error: RequestValidationError) -> ProblemError:
    """422 for query and path parameters. The values are not repeated: JSON cannot represent all of them."""
    findings = (Finding(pointer=pointer(item["loc"]), detail=sentence(item)) for item in error.errors())
    what = "the request has invalid parameters"
    return ProblemError(422, "invalid_request", what, errors=first_findings(findings))


def request_id_from(headers: Headers) -> str:
    """The request id that a client sent, if it is valid, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def request_id_of(request: HTTPConnection) -> str:
    """The id that RequestContextMiddleware gave this request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def install_handlers(app: FastAPI) -> None:
    """Answer every exception of an endpoint with a problem document."""
    handled: tuple[Any, ...] = (ProblemError, TickError, HTTPException, RequestValidationError)
    for kind in handled:
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(ClientDisconnect, _answer_disconnected)
    app.add_exception_handler(Exception, _answer_bug)


async def _answer(request: HTTPConnection, error: Exception) -> Response:
    problem = as_problem(error)
    if problem.status == 405:
        problem.headers["Allow"] = allowed_methods(request.scope)
    if problem.status == 405 and request.scope.get("method") == "OPTIONS":
        return Response(status_code=204, headers=problem.headers)
    return problem_response(problem, request_id_of(request))


async def _answer_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _answer_bug(request: Request, error: Exception) -> Response:
    request_id = request_id_of(request)
    logger.error("request %s failed: %s", request_id, type(error).__name__)
    problem = ProblemError(
        500, "internal_error", "internal error", fix="the server's log has the cause under this request's id"
    )
    response = problem_response(problem, request_id)
    response.headers[REQUEST_ID_HEADER] = request_id
    return response
