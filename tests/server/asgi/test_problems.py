from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from runtime.base import errors
from runtime.base.errors import (
    EngineDeadError,
    EngineMismatchError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    ShapeError,
    TickError,
)
from server.asgi.problems import ProblemError, http_problem, pointer, problem_of, problem_response


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("no"), 422),
        (ShapeError("no"), 422),
        (QueueFullError("no"), 503),
        (EngineDeadError("no"), 503),
        (EngineMismatchError("no"), 500),
        (TickError("no"), 500),
    ],
)
def test_status_of_runtime_errors(error: TickError, status: int) -> None:
    assert error.status == status
    document = problem_of(error).document("id")
    assert (document.status, document.code, document.detail) == (status, error.code, "no")


def test_every_runtime_error_has_a_status() -> None:
    family = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TickError)]
    assert len(family) > 10
    assert {cls.status for cls in family} <= {404, 409, 415, 422, 500, 503, 504}


def test_a_field_becomes_a_pointer_and_the_fix_is_kept() -> None:
    document = problem_of(RequestError("too big", field="dcw.low", fix="make it smaller")).document()
    assert document.errors is not None
    assert (document.errors[0].pointer, document.fix) == ("/dcw/low", "make it smaller")


def test_a_full_queue_has_retry_after() -> None:
    assert problem_of(QueueFullError("full", retry_after_s=2.3)).headers["Retry-After"] == "3"
    assert problem_of(QueueTimeoutError("late")).headers["Retry-After"] == "1"
    assert problem_of(EngineDeadError("no")).headers["Retry-After"] == "1", "as all that may be over later"
    assert problem_of(EngineMismatchError("no")).headers == problem_of(RequestError("no")).headers == {}


def test_pointers_are_escaped() -> None:
    assert pointer(["a/b", "c~d", 0]) == "/a~1b/c~0d/0"
    assert pointer([]) == ""


def test_lone_surrogates_do_not_break_the_document() -> None:
    response = problem_response(ProblemError(400, "bad", "has \ud800"), "id")
    assert response.body.count(rb"has \\ud800") == 1


def test_an_error_of_starlette_says_what_it_says_itself_or_what_its_status_means() -> None:
    for detail, expected in (("", "no route has this path"), ("Not Found", "no route has this path"), ("gone", "gone")):
        document = http_problem(HTTPException(404, detail)).document()
        assert (document.code, document.detail) == ("not_found", expected)
        assert document.fix == "GET /openapi.json lists every route"
    document = http_problem(HTTPException(426)).document()
    assert (document.code, document.detail, document.fix) == ("upgrade_required", "Upgrade Required", None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 426, 501])
def test_starlettes_errors_become_problems(status: int) -> None:
    document = http_problem(HTTPException(status, headers={"X-A": "b"})).document()
    assert document.status == status
    assert document.detail
    assert document.code.replace("_", "").isalpha()
