"""The family of errors: codes, texts, which of them end the process, and what native code's panics become."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re

import pytest
from helpers.factories import tiny_tokenizer
from helpers.panics import PANIC, make_panic
from helpers.paths import ROOT

from runtime.base import errors
from runtime.base.errors import (
    CheckpointError,
    EngineError,
    InternalError,
    RequestError,
    TickError,
    did_you_mean,
    failure_of,
    native_call,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__ and issubclass(kind, BaseException)
]


def test_every_error_is_a_tick_error_with_a_code_of_its_own() -> None:
    assert all(issubclass(kind, TickError) for kind in KINDS)
    assert issubclass(errors.EngineDeadError, EngineError)
    assert len({kind.code for kind in KINDS}) == len(KINDS)


def test_statuses_are_what_clients_act_on() -> None:
    """404 and 409: not again like this; 422: other values; 503 and 504: later; all else is the server's own fault."""
    statuses = {kind.code: kind.status for kind in KINDS}
    assert {code: status for code, status in statuses.items() if status != 500} == {
        "invalid_request": 422, "no_notes": 422, "shape_out_of_range": 422, "source_not_found": 404,
        "unknown_session": 404, "stale_seq": 409, "cancelled": 409, "checkpoint_error": 409, "engine_not_built": 503,
        "engine_dead": 503, "queue_full": 503, "sessions_full": 503, "draining": 503, "store_unavailable": 503,
        "entry_unavailable": 503,
        "queue_timeout": 504, "unsupported_media_type": 415,
    }  # fmt: skip


@pytest.mark.parametrize(("fix", "text"), [("", "no engine"), ("build it", "no engine\n  fix: build it")])
def test_the_text_has_the_fix_where_there_is_one(fix: str, text: str) -> None:
    error = EngineError("no engine", fix=fix)
    assert (error.what, error.fix, str(error)) == ("no engine", fix, text)


def test_a_request_error_names_the_field() -> None:
    error = RequestError("must be finite", field="guidance.scale")
    assert (error.field, error.what) == ("guidance.scale", "guidance.scale: must be finite")
    assert RequestError("is empty").what == "is empty"


def test_an_error_of_another_field_keeps_what_it_says_and_its_fix() -> None:
    error = RequestError("is no source", field="source", fix="upload it").renamed("timbre", fix="leave it out")
    assert (error.what, error.field, error.fix) == ("timbre: is no source", "timbre", "upload it")
    assert RequestError("is no source").renamed("timbre", fix="leave it out").fix == "leave it out"


def test_a_similar_name_is_asked_for() -> None:
    assert did_you_mean("guidnce", ["steps", "guidance"]) == "did you mean guidance?"
    assert did_you_mean("colour", ["steps", "guidance"]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes_as_it_is(kind: type[TickError]) -> None:
    """Also one whose constructor takes other arguments than the text."""
    parameters = [each for each in inspect.signature(kind).parameters.values() if each.default is each.empty]
    error = kind(*["a" for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD])
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(found), str(found), found.__dict__) == (kind, str(error), error.__dict__)


def test_a_panic_is_the_error_of_its_call(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = tiny_tokenizer()
    make_panic(tokenizer)
    expected = pytest.raises(RequestError, match=r"^prompt: no text \(.*retry-limit")
    with expected as caught, native_call("no text", field="prompt", fix="shorten it"):
        tokenizer.encode(PANIC)
    assert not isinstance(caught.value.__cause__, Exception), "it is one that no `except Exception` holds"
    assert (caught.value.field, caught.value.fix) == ("prompt", "shorten it")
    assert len(caplog.records) == 1
    with pytest.raises(CheckpointError), native_call("no file", kind=CheckpointError):
        raise MemoryError


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), EngineError("a")])
def test_what_ends_on_purpose_and_tickrts_own_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, native_call("no text"):
        raise error
    assert caught.value is error


def test_the_failure_of_a_unit_of_work_is_logged_unless_it_is_one_of_tickrt(caplog: pytest.LogCaptureFixture) -> None:
    known = EngineError("a")
    assert failure_of(known, "it") is known
    assert not caplog.records
    assert isinstance(failure_of(BaseException("b"), "the launch"), InternalError)
    assert "the launch has failed" in caplog.text
    with pytest.raises(SystemExit):
        failure_of(SystemExit(), "it")


def test_what_holds_any_error_holds_panics_too() -> None:
    """`except Exception` lets them pass."""
    found = [
        str(path)
        for package in ("runtime", "server")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"except Exception\b", path.read_text(encoding="utf-8"))
    ]
    assert found == []
