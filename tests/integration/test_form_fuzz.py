"""Forms of any structure, MIDI files in them, against a whole server: no 500, no traceback, no work without an end."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections.abc import Iterator

import pytest
from conftest import Built
from helpers.form_bodies import FormRequest, form_requests, generation_form
from helpers.http_harness import TIMEOUT_S, Served, serving
from helpers.midi_files import NOTE, midi_file
from hypothesis import HealthCheck, given, seed, settings

FUZZ_S = float(os.environ.get("FUZZ_S", "600"))
# Of the process, which makes the request, too.
CPU_S, CPU_S_PER_BYTE = 0.5, 3e-6
MAY_FAIL = (501, 503, 504)


class Log(logging.Handler):
    """Keeps errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(self.format(record))


@pytest.fixture(scope="module")
def form_server(built: Built) -> Iterator[tuple[Served, Log]]:
    """A server whose model has notes, and its errors."""
    log = Log()
    logging.getLogger().addHandler(log)
    with serving(built(notes=True, structure=True, conditions=True), max_seconds=2.0, sources_bytes=2**24) as served:
        yield served, log
    logging.getLogger().removeHandler(log)


def is_refused(received: bytes) -> bool:
    """Whether the rest, which is sent slowly where the body was not read, is not needed."""
    return received[9:10] >= b"4" and b"\r\n\r\n" in received


def answered(served: Served, request: FormRequest) -> tuple[int, float]:
    """The status, and the CPU seconds of the process until the end of the answer."""
    started_s, received = time.process_time(), bytearray()
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.sendall(request.bytes())
            while not is_refused(received) and (data := connection.recv(65536)):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            assert received, "no answer"
    assert received.startswith(b"HTTP/1.1 "), bytes(received[:100])
    return int(received[9:12]), time.process_time() - started_s


def check(server: tuple[Served, Log], request: FormRequest) -> None:
    """One answer, with a second and third try for its time: the machine may have been busy for us."""
    served, log = server
    status, cpu_s = answered(served, request)
    assert status < 500 or status in MAY_FAIL
    assert log.errors == []
    limit_s = CPU_S + CPU_S_PER_BYTE * len(request.body)
    if status >= 400:
        assert cpu_s < limit_s or min(answered(served, request)[1] for _ in range(2)) < limit_s


def fuzz(server: tuple[Served, Log], examples: int, first: int) -> None:
    @seed(first)
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(form_requests())
    def run(request: FormRequest) -> None:
        check(server, request)

    run()


@pytest.mark.parametrize("num_bytes", [300, 300_000])
def test_a_time_of_many_bytes_is_refused_at_once(form_server: tuple[Served, Log], num_bytes: int) -> None:
    request = generation_form(midi_file(b"\xff" * num_bytes + b"\x7f" + NOTE[1:]))
    assert answered(form_server[0], request)[0] == 422
    check(form_server, request)


def test_forms_of_any_structure_are_answered(form_server: tuple[Served, Log]) -> None:
    fuzz(form_server, 40, 1)


@pytest.mark.slow
def test_forms_of_any_structure_are_answered_for_minutes(form_server: tuple[Served, Log]) -> None:
    """For FUZZ_S, from another seed each time; the seed is in the failure's locals."""
    ends_s = time.monotonic() + FUZZ_S
    while time.monotonic() < ends_s:
        first = random.randrange(2**32)
        fuzz(form_server, 300, first)
