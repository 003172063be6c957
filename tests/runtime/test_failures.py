"""Panics of native code and errors of units of work: what they become, and what passes."""

import asyncio
import re

import pytest
from helpers.factories import tiny_tokenizer
from helpers.panics import PANIC, make_panic
from helpers.paths import ROOT

from runtime.errors import CheckpointError, EngineError, InternalError, RequestError
from runtime.failures import failure_of, native_call


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
