from __future__ import annotations

import io
import json
import threading
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from helpers.http_harness import (
    GENERATIONS,
    TIMEOUT_S,
    Serve,
    Served,
    connected,
    eventually,
    problem,
    raw_request,
    read_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from server.asgi.problems import ProblemError
from server.asgi.request_body import parse_object, validate
from server.asgi.turns import Turns
from server.routes.generations import add_notes

JSON = {"content-type": "application/json"}


def post(served: Served, content: bytes, headers: dict[str, str] = JSON) -> httpx.Response:
    return served.send("POST", GENERATIONS, content=content, headers=headers)


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"", 400, "not valid JSON"),
        (b"{", 400, "not valid JSON"),
        (b'{"prompt": "a"} x', 400, "not valid JSON"),
        (b'{"prompt": "\xff\xfe"}', 400, "unicode"),
        (b"\xff\xfe{\x00}\x00", 400, "not valid JSON"),
        (b"[" * 200_000 + b"]" * 200_000, 400, "arrays and objects"),
        (b"[" * 5_000 + b"]" * 5_000, 400, "recursion limit"),
        (b'{"a":' * 250 + b"1" + b"}" * 250, 400, "recursion limit"),
        (b"[]", 422, "JSON object"),
        (b'"prompt"', 422, "JSON object"),
        (b"null", 422, "JSON object"),
        (b"{}", 422, "prompt"),
        (b'{"prompt": null}', 422, "prompt"),
        (b'{"prompt": "a", "guidance": NaN}', 400, "column"),
        (b'{"prompt": "a", "guidance": Infinity}', 400, "column"),
        (b'{"prompt": "a", "guidance": -Infinity}', 400, "column"),
        (b'{"prompt": "a", "guidance": 1e999}', 422, "/guidance"),
        (b'{"prompt": "a", "guidance": [1, 1e999]}', 422, "/guidance"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", 400, "number out of range"),
        (b'{"prompt": "a", "seed": ' + b"9" * 4000 + b"}", 422, "/seed"),
        (b'{"prompt": "a", "prompt": "b"}', 422, "occurs more than once"),
        (b'{"prompt": "a", "dcw": {"low": 1, "low": 2}}', 422, "occurs more than once"),
        (b'{"prompt": "\\ud800"}', 400, "not valid JSON"),
        (b'{"prompt": "a", "\\udfff": 1}', 400, "surrogate"),
        (b'{"prompt": "a", "nonsense": 1}', 422, "nonsense"),
        (b'{"prompt": "a", "steps": 201}', 422, "/steps"),
        (b'{"prompt": "a", "steps": 9223372036854775808}', 422, "/steps"),
        (b'{"prompt": "a", "steps": "8"}', 422, "/steps"),
        (b'{"prompt": "a", "steps": true}', 422, "/steps"),
        (b'{"prompt": "a", "seed": -1}', 422, "/seed"),
        (b'{"prompt": "a", "seconds": 1e300}', 422, "/seconds"),
        (b'{"prompt": "a", "seconds": -1}', 422, "/seconds"),
        (b'{"prompt": "a", "guidance": [' + b"1," * 5000 + b"1]}", 422, "/guidance"),
        (b'{"prompt": "a", "guidance": []}', 422, "/guidance"),
        (b'{"prompt": "a", "response_format": "mp4"}', 422, "/response_format"),
        (b'{"prompt": "a", "stream": 1}', 422, "/stream"),
        (b'{"prompt": "a", "channel_gain": [1, 2]}', 422, "channel_gain"),
        (b'{"prompt": "' + b"a" * 2001 + b'"}', 422, "/prompt"),
        (b'{"prompt": "' + b"a" * 1000 + b'"}', 422, "prompt"),
        (b'{"prompt": "a", "guidance": ' + b"[" * 90 + b"]" * 90 + b"}", 422, '"pointer": "/guidance"'),
        ('{"prompt": "ü"}'.encode("utf-16"), 400, "it is UTF-16, expected UTF-8"),
        (json.dumps({"prompt": "a", **{f"k{n}": 1 for n in range(1000)}}).encode(), 400, "more than 1000 members"),
        (json.dumps({"prompt": "a", **{f"k{n}": 1 for n in range(999)}}).encode(), 422, "/k19"),
        (b'{"prompt": "a", "%b": 1}' % (3000 * b"n"), 422, "nnn"),
    ],
)
def test_an_invalid_body_is_refused_with_a_problem(served: Served, content: bytes, status: int, word: str) -> None:
    document = problem(post(served, content), status)
    assert word in (text := json.dumps(document, ensure_ascii=False))
    assert len(document.get("errors", ())) <= 20
    assert len(text) < 2500


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_content_types_are_refused_by_name(served: Served, headers: dict[str, str]) -> None:
    response = post(served, b'{"prompt": "a"}', headers)
    problem(response, 415)
    if "content-encoding" not in headers:
        assert "application/json" in response.headers["accept"]


FORM = {"content-type": "multipart/form-data; boundary=x"}


def part(name: str, content: bytes, headers: str = "") -> bytes:
    """One part of a form with the boundary x."""
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{headers}\r\n\r\n'.encode() + content + b"\r\n"


def request_part(kind: str = "", content: bytes = b'{"prompt": "a", "seconds": 0.4, "steps": 1}') -> bytes:
    return part("request", content, f"\r\n{kind}" if kind else "")


REQUEST, END = request_part(), b"--x--\r\n"
SOURCE = part("source", b"RIFF" * 100, '; filename="s.wav"')
JSON_IN_UTF8 = {"content-type": "Application/JSON; charset=utf-8"}


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"prompt": "a"}', JSON_IN_UTF8),
        (b'{"prompt": "a"}', {**JSON, "content-encoding": "Identity"}),
        ('{"prompt": "ü"}'.encode("utf-8-sig"), JSON),  # with the mark of Windows
        ([bytes([byte]) for byte in b'{"prompt": "a"}' + b" " * 5000], JSON),
        (REQUEST + b"--x--", FORM),
        (REQUEST + END, FORM),
        (REQUEST + END + b"an epilogue", FORM),
        (request_part("Content-Type: application/json; charset=utf-8") + END, FORM),
        (request_part("Content-Type: text/plain") + END, FORM),
        (request_part("Content-Transfer-Encoding: 8bit") + END, FORM),
    ],
)
def test_what_is_taken(served: Served, content: Any, headers: dict[str, str]) -> None:
    assert post(served, content, headers).status_code == 200


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (SOURCE, 422, "request"),
        (request_part(content=b"{") + SOURCE, 400, "not valid JSON"),
        (request_part(content=b'{"prompt": "\xff"}'), 400, "unicode"),
        (REQUEST + part("source", b"RIFF"), 422, "filename"),
        (REQUEST + part("other", b"1"), 422, "other"),
        (REQUEST + part("n" * 3000, b"1"), 422, "nnn"),
        (REQUEST + REQUEST, 422, "occurs more than once"),
        (request_part(content=b'{"prompt": "a", "seed": NaN}'), 400, "column"),
        (b"".join(part(f"f{number}", b"") for number in range(50)), 400, "Too many"),
        (request_part("Content-Type: audio/wav"), 415, "audio/wav"),
        (request_part("Content-Transfer-Encoding: base64"), 415, "base64"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n", 400, "name"),
        (b"--x\r\n\r\n", 400, "name"),
    ],
)
def test_an_invalid_form_is_refused(served: Served, content: bytes, status: int, words: str) -> None:
    document = problem(post(served, content + END, FORM), status)
    assert words in (text := json.dumps(document))
    assert len(text) < 1500


@pytest.mark.parametrize("content", [b"", b"--x", b"--x\r\n\r\n", REQUEST + END])
def test_a_form_without_its_boundary_is_refused(served: Served, content: bytes) -> None:
    problem(post(served, content, {"content-type": "multipart/form-data"}), 400)


WHOLE = REQUEST + SOURCE


@pytest.mark.parametrize(
    "body", [b"", REQUEST, WHOLE, WHOLE[:-50], WHOLE + b"--x", WHOLE + b"--x-", WHOLE + b"--x\r\n"]
)
@pytest.mark.parametrize("path", [GENERATIONS, "/v1/sources"])
def test_a_form_without_its_end_is_refused(served: Served, path: str, body: bytes) -> None:
    document = problem(served.send("POST", path, content=body, headers=FORM), 400, "malformed_multipart")
    assert "does not end with its boundary" in document["detail"]


def test_a_declared_length_over_the_limit_is_refused_before_the_body_is_read(serve: Serve) -> None:
    server = serve(json_bytes=4096, upload_bytes=8192)
    for kind, length in (("application/json", 4097), ("multipart/form-data; boundary=x", 4096 + 8192 + 1)):
        head = raw_request().replace(b"application/json", kind.encode()).replace(b"length: 0", b"length: %d" % length)
        with connected(server, head) as connection:
            answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()
        assert b"application/problem+json" in answer
    assert server.post().status_code == 200


@pytest.mark.parametrize("limit", [4096, 4095])
def test_the_size_limit_is_exact(serve: Serve, limit: int) -> None:
    server = serve(json_bytes=limit)
    body = b'{"prompt": "a", "negative_prompt": ""}'
    body += b" " * (4096 - len(body))
    assert post(server, body).status_code == (200 if limit == 4096 else 413)
    chunked = post(server, iter([body[:1000], body[1000:]]), JSON)  # type: ignore[arg-type]
    assert chunked.status_code == (200 if limit == 4096 else 413)


def test_an_endless_chunked_body_is_refused_at_the_limit(serve: Serve) -> None:
    server = serve(json_bytes=64 * 1024)
    memory = psutil.Process()
    before = memory.memory_info().rss
    with connected(server) as connection:
        head = f"POST {GENERATIONS} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        connection.sendall(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        answers: list[bytes] = []
        reader = threading.Thread(target=lambda: answers.append(read_all(connection)))
        reader.start()
        sent = 0
        with pytest.raises(OSError):  # noqa: PT011, PT012
            while sent < 2**30:
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        reader.join(TIMEOUT_S)
    assert sent < 128 * 2**20
    assert answers[0].startswith(b"HTTP/1.1 413 ")
    assert memory.memory_info().rss - before < 24 * 2**20
    assert server.service.bodies.memory.used == 0
    assert server.post().status_code == 200


def test_an_upload_over_its_limit_is_refused(serve: Serve) -> None:
    server = serve(upload_bytes=8192, json_bytes=64 * 1024)
    form = {"request": (None, b'{"prompt": "a"}'), "source": ("s.wav", io.BytesIO(b"RIFF" + bytes(8192)))}
    problem(server.send("POST", GENERATIONS, files=form), 413)
    form["request"] = (None, b" " * 70_000)
    form["source"] = ("s.wav", b"")
    problem(server.send("POST", GENERATIONS, files=form), 413)


def test_the_body_has_a_deadline(serve: Serve) -> None:
    server = serve(body_timeout_s=0.2)
    with connected(server, raw_request(b"x" * 100)[:-50]) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
    assert server.service.bodies.memory.used == 0


def test_a_client_that_disconnects_while_sending_releases_its_budget(serve: Serve) -> None:
    server = serve()
    for _ in range(5):
        with connected(server, raw_request(b"x" * 100)[:-50]):
            pass
    assert server.post().status_code == 200
    assert server.service.bodies.memory.used == 0


def test_stalled_uploads_make_room(serve: Serve) -> None:
    server = serve(body_budget_bytes=2**20)
    stalled = raw_request(bytes(2**21), path="/v1/sources")[: 2**20]
    with connected(server, stalled) as connection:
        eventually(lambda: server.service.bodies.memory.used > 2**19)
        assert server.post().status_code == 200
        problem(server.send("POST", "/v1/sources", content=bytes(2**20)), 415, "unsupported_media_type")
        assert b" 408 " in connection.recv(4096)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """What was done in turns: what they are for, for which client, and the work."""
    done, run = list[tuple[str, str, Any]](), Turns.run

    async def watched(self: Turns, client: str, work: Any, *arguments: Any) -> Any:
        done.append((self._what, client, work))
        return await run(self, client, work, *arguments)

    monkeypatch.setattr(Turns, "run", watched)
    return done


@pytest.mark.parametrize(("size", "kind"), [(10, "reads requests"), (70_000, "reads large requests")])
def test_json_is_parsed_and_validated_in_the_turn_of_its_client(
    served: Served, turned: list[tuple[str, str, Any]], size: int, kind: str
) -> None:
    body = b'{"prompt": "", "x": 1%s}' % (b" " * size)
    problem(post(served, body), 422, "invalid_request")
    files = {"request": ("request.json", body, "application/json")}
    problem(served.send("POST", GENERATIONS, files=files), 422, "invalid_request")
    assert turned == 2 * [(kind, "127.0.0.1", parse_object), (kind, "127.0.0.1", validate)]


@pytest.mark.parametrize(("size", "kind"), [(10, "reads requests"), (2200, "reads large requests")])
def test_midi_files_cost_as_much_as_many_times_as_many_bytes_of_json(
    served: Served, turned: list[tuple[str, str, Any]], size: int, kind: str
) -> None:
    files = {"request": ("request.json", b"{}", "application/json"), "notes": ("a.mid", bytes(size))}
    problem(served.send("POST", GENERATIONS, files=files), 422)
    assert [item for item in turned if item[2] is add_notes] == [(kind, "127.0.0.1", add_notes)]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
@settings(max_examples=60, deadline=None)
def test_valid_json_objects_are_parsed(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_raise_only_problems(data: bytes) -> None:
    with suppress(ProblemError):
        assert isinstance(parse_object(data), dict)


def test_an_object_that_is_none_is_a_finding_where_it_stands_and_text_that_is_no_json_is_not() -> None:
    with pytest.raises(ProblemError) as wrong:
        parse_object(b"[1]", "/request")
    assert (wrong.value.status, [finding.pointer for finding in wrong.value.errors]) == (422, ["/request"])
    assert wrong.value.errors[0].detail == wrong.value.what == "expected a JSON object"
    with pytest.raises(ProblemError) as malformed:
        parse_object(b"[1", "/request")
    assert (malformed.value.status, malformed.value.errors) == (400, [])
