from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from helpers.http_harness import (
    TIMEOUT_S,
    Served,
    connected,
    eventually,
    open_websocket,
    raw_request,
    read_all,
    refused_websocket,
)
from helpers.tls import make_certificate
from websockets.exceptions import InvalidStatus

from runtime.errors import ConfigError
from server.asgi.tls import tls_context
from server.process import TickServer

Serve = Callable[..., Served]


def test_https_and_wss_with_a_self_signed_certificate(serve: Serve, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    served = serve(certificate=certificate, private_key=key, api_key="k")
    assert served.url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=served.url, verify=trusting, headers={"x-api-key": "k"}) as client:
        assert client.get("/health/ready").status_code == 200
        own_origin = client.get("/health/ready", headers={"origin": served.url})
        assert own_origin.status_code == 200
        assert client.get("/health/ready", headers={"origin": "http://evil.example"}).status_code == 403
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        httpx.get(served.url + "/health/live")
    assert refused_websocket(served, "/nowhere?key=k", ssl=trusting) == (404, "not_found")
    with pytest.raises(InvalidStatus), open_websocket(served, "/nowhere", ssl=trusting):
        pass


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_has_the_deadline_of_headers(serve: Serve, tmp_path: Path, sent: bytes) -> None:
    certificate, key = make_certificate(tmp_path)
    served = serve(certificate=certificate, private_key=key, header_timeout_s=0.3)
    with connected(served) as connection:
        connection.settimeout(TIMEOUT_S / 2)  # asyncio's own deadline is 60 s
        connection.sendall(sent)
        read_all(connection)
    eventually(lambda: not served.server.server_state.connections)


def test_handshakes_that_are_not_complete_make_room(serve: Serve, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    served = serve(certificate=certificate, private_key=key, max_connections=2, header_timeout_s=600.0)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(served)) for _ in range(8)]
        assert [read_all(connection) for connection in silent[:4]] == [b""] * 4
        eventually(lambda: len(served.server.server_state.connections) == 4)
        with httpx.Client(base_url=served.url, verify=trusting) as client:
            assert client.get("/health/live").status_code == 200
    eventually(lambda: not served.server.server_state.connections)


def test_a_request_that_comes_with_the_end_of_the_handshake_is_read(serve: Serve, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    served = serve(certificate=certificate, private_key=key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with connected(served) as connection:
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        connection.sendall(outgoing.read())
        while True:
            incoming.write(connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        client.write(raw_request(path="/health/live", method="GET"))
        connection.sendall(outgoing.read())
        answer = b""
        while not answer:
            incoming.write(connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                answer = client.read()
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_the_key_may_be_part_of_the_certificates_file(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    assert tls_context(both, None).get_ca_certs() == []


def test_unusable_files_are_errors_that_name_them(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "a")
    _, other_key = make_certificate(tmp_path / "b")
    _, locked_key = make_certificate(tmp_path / "c", "-passout", "pass:secret")
    text = tmp_path / "text.pem"
    text.write_text("nothing")
    for arguments, message in (
        ((tmp_path / "missing.pem", key), r"missing\.pem cannot be read: No such file"),
        ((certificate, tmp_path), r"cannot be read: Is a directory"),
        ((certificate, other_key), r"key\.pem is not the key of .*cert\.pem"),
        ((certificate, locked_key), r"without a password"),
        ((text, key), r"text\.pem and .* are not a PEM certificate"),
        ((certificate, None), r"are not a PEM certificate and its key"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            tls_context(*arguments)
        assert "openssl" in error.value.fix


def test_a_server_does_not_start_without_its_certificate(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    settings = served.service.settings.model_copy(update={"certificate": tmp_path / "missing.pem"})
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        TickServer(served.app, settings)
