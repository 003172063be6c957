from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import httpx
import pytest
from helpers.http_harness import TIMEOUT_S, Serve, Served, connected, eventually, handshake, raw_request, read_all
from helpers.tls import make_certificate
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from runtime.base.errors import ConfigError
from server.asgi.connection import WRITE_BYTES
from server.asgi.fair_reads import TURN_S, FairReads
from server.asgi.tls import TlsTransport, tls_context
from server.asgi.websocket import MAX_FRAGMENTS, POLICY_VIOLATION
from server.process import TickServer

pytestmark = pytest.mark.anyio
GET = raw_request(path="/health/live", method="GET")
LAST_GET = raw_request(path="/health/live", method="GET", headers="connection: close\r\n")


@dataclass
class Secured:
    """A server with TLS, and a context that trusts it."""

    served: Served
    trusting: ssl.SSLContext

    @contextmanager
    def connect(self, session: ssl.SSLSession | None = None) -> Iterator[ssl.SSLSocket]:
        """A client whose handshake is complete. Reading raises ssl.SSLEOFError where the server ends without notice."""
        options: dict[str, Any] = {"server_hostname": "127.0.0.1", "session": session, "suppress_ragged_eofs": False}
        with connected(self.served) as connection, self.trusting.wrap_socket(connection, **options) as client:
            yield client


Secure = Callable[..., Secured]


@pytest.fixture
def secure(serve: Serve, tmp_path: Path) -> Secure:
    """`secure(max_connections=2)`: a server for this test."""
    certificate, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    return lambda **settings: Secured(serve(certificate=certificate, private_key=key, **settings), trusting)


@pytest.fixture
def secured(secure: Secure) -> Secured:
    return secure()


def test_https_and_wss_with_a_self_signed_certificate(secure: Secure) -> None:
    served, trusting = (secured := secure(api_key="k")).served, secured.trusting
    assert served.url.startswith("https://")
    with httpx.Client(base_url=served.url, verify=trusting, headers={"x-api-key": "k"}) as client:
        assert client.get("/health/ready").status_code == 200
        assert client.get("/health/ready", headers={"origin": served.url}).status_code == 200
        assert client.get("/health/ready", headers={"origin": "http://evil.example"}).status_code == 403
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        httpx.get(served.url + "/health/live")
    assert asyncio.run(refused_over_tls(served, "/nowhere?key=k", trusting)) == (404, "not_found")
    assert asyncio.run(refused_over_tls(served, "/nowhere", trusting))[0] == 401


async def refused_over_tls(served: Served, path: str, trusting: ssl.SSLContext) -> tuple[int, str]:
    """The status and the problem's code of a handshake that the server refuses.

    On one thread: before Python 3.13 one that reads from a TLS socket and one that writes to it can stop each other.
    """
    with pytest.raises(InvalidStatus) as error:
        async with connect(served.url.replace("http", "ws", 1) + path, ssl=trusting, proxy=None):
            pass
    return error.value.response.status_code, json.loads(error.value.response.body)["code"]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_has_the_deadline_of_headers(secure: Secure, sent: bytes) -> None:
    served = secure(header_timeout_s=0.3).served
    with connected(served, sent) as connection:
        connection.settimeout(TIMEOUT_S / 2)  # asyncio's own deadline is 60 s
        read_all(connection)
    eventually(lambda: not served.connections)


def test_handshakes_that_are_not_complete_make_room(secure: Secure) -> None:
    secured = secure(max_connections=2, header_timeout_s=600.0)
    served = secured.served
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(served)) for _ in range(8)]
        assert [read_all(connection) for connection in silent[:4]] == [b""] * 4
        eventually(lambda: len(served.connections) == 4)
        with secured.connect() as client:
            client.sendall(LAST_GET)
            assert received(client).startswith(b"HTTP/1.1 200 OK")
    eventually(lambda: not served.connections)


def test_a_request_that_comes_with_the_end_of_the_handshake_is_read(secured: Secured) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secured.trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with connected(secured.served) as connection:
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        connection.sendall(outgoing.read())
        while True:
            incoming.write(connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        client.write(GET)
        connection.sendall(outgoing.read())
        answer = b""
        while not answer:
            incoming.write(connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                answer = client.read()
    assert answer.startswith(b"HTTP/1.1 200 ")


def received(client: ssl.SSLSocket) -> bytes:
    """All until the server says that it ends."""
    return b"".join(iter(partial(client.recv, 65536), b""))


def test_a_client_without_tls_is_told_that(secured: Secured) -> None:
    with connected(secured.served) as connection:
        connection.sendall(GET)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["code"] == "no_tls"


def test_a_server_that_ends_leaves_handshakes_that_are_not_complete(secured: Secured) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(secured.served)) for _ in range(3)]
        for client, sent in zip(clients, (b"", client_hello()[:5], client_hello()), strict=True):
            client.sendall(sent)
        assert clients[2].recv(1) == b"\x16"
        secured.served.server.drain()
        assert read_all(clients[0]) == read_all(clients[1]) == b""
        read_all(clients[2])


def test_both_sides_say_that_they_end(secured: Secured) -> None:
    with secured.connect() as client:
        client.sendall(GET)
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        while not client.recv(4096).endswith(b"}"):
            pass
        client.unwrap()
    with secured.connect() as client:
        client.sendall(LAST_GET)
        assert received(client).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("has_notice", [False, True])
def test_a_client_that_sends_no_more_has_left(secured: Secured, has_notice: bool) -> None:
    with secured.connect() as client:
        client.sendall(raw_request(b'{"prompt": "a", "seconds": 10}'))
        eventually(lambda: secured.served.service.admission.permits)
        if has_notice:
            with suppress(ssl.SSLError):  # the server has sent something before its notice
                client.unwrap()
        else:
            client.shutdown(socket.SHUT_WR)
        eventually(lambda: not secured.served.connections)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_resumes_its_tls_session(secured: Secured, version: ssl.TLSVersion) -> None:
    secured.trusting.maximum_version = version
    session = None
    for is_resumed in (False, True):
        with secured.connect(session) as client:
            client.sendall(LAST_GET)
            assert received(client).startswith(b"HTTP/1.1 200 OK")
            assert (client.version(), client.session_reused) == (version.name.replace("_", "."), is_resumed)
            session = client.session


def test_a_record_that_is_none_ends_its_connection_only(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    with secured.connect() as client, secured.connect() as other:
        with socket.socket(fileno=os.dup(client.fileno())) as below:
            below.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            client.recv(1)
        other.sendall(GET)
        assert other.recv(15) == b"HTTP/1.1 200 OK"
    assert not caplog.records


@pytest.mark.parametrize(
    ("version", "command", "said", "is_answered"),
    [("-tls1_3", b"K\n", b"KEYUPDATE", True), ("-tls1_2", b"R\n", b"RENEGOTIATING", False)],
)
def test_keys_are_updated_but_nothing_is_negotiated_again(
    secured: Secured, version: str, command: bytes, said: bytes, is_answered: bool
) -> None:
    """OpenSSL's client takes a line of one letter as a command."""
    openssl = shutil.which("openssl")
    assert openssl is not None
    arguments = [openssl, "s_client", "-connect", f"127.0.0.1:{secured.served.port}", version]
    with subprocess.Popen(arguments, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=STDOUT) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(command)
        while said not in (line := client.stdout.readline()):
            assert line
        with suppress(BrokenPipeError):
            client.stdin.write(LAST_GET)
        assert (b"HTTP/1.1 200 OK" in client.stdout.read()) is is_answered


def test_little_waits_for_a_client_over_tls_that_does_not_read(secure: Secure) -> None:
    secured = secure(send_buffer_bytes=4096, send_timeout_s=600.0, drain_s=0.0)
    with secured.connect() as client:
        client.sendall(raw_request(path="/page/swagger/swagger-ui-bundle.js", method="GET"))
        (connection,) = secured.served.connections
        eventually(lambda: connection.flow is not None and connection.flow.write_paused)
        assert connection.transport.get_write_buffer_size() < 3 * WRITE_BYTES
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_a_websocket_is_told_why_it_ends_while_it_sends_more(secured: Secured) -> None:
    """The client is one thread: what it has not read yet is not lost where it still sends."""
    fragment = b"\x00\x81\x00\x00\x00\x00x"
    with secured.connect() as client:
        client.sendall(handshake())
        assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
        client.sendall(b"\x01\x80\x00\x00\x00\x00" + 2 * MAX_FRAGMENTS * fragment)
        closing = received(client)
    assert closing[:1] + closing[2:4] == b"\x88" + POLICY_VIOLATION.to_bytes(2, "big")


def test_a_tls_session_ends_with_its_connection(secured: Secured) -> None:
    """Protocols and transports know each other: without help they stay until cycles are collected."""
    gc.collect()
    gc.disable()
    try:
        with secured.connect() as client:
            client.sendall(LAST_GET)
            assert received(client).startswith(b"HTTP/1.1 200 OK")
        eventually(lambda: not any(isinstance(item, ssl.SSLObject) for item in gc.get_objects()))
    finally:
        gc.enable()


class Context:
    """An SSLContext that counts the TLS sessions that are made of it."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.num_sessions, self._context = 0, context

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool) -> ssl.SSLObject:
        self.num_sessions += 1
        return self._context.wrap_bio(incoming, outgoing, server_side)


def client_hello() -> bytes:
    """What a client sends first."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        believing().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def believing() -> ssl.SSLContext:
    """A client's context that believes every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """A TLS client of a TlsTransport without a socket; `data` is what the server's protocol gets."""

    def __init__(self, context: Any, reads: FairReads) -> None:
        self.raw, self.data = RawTransport(self), b""
        self.sizes = list[int]()
        self.transport = TlsTransport(self.raw, reads, context)
        self.is_at_end = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = believing().wrap_bio(self._incoming, self._outgoing)

    async def shake_hands(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        await self.deliver()
        self._incoming.write(self.raw.written)
        self.raw.written = b""
        self.tls.do_handshake()
        await self.deliver()

    async def deliver(self) -> None:
        """What the client has to send arrives, and has had its turns."""
        self.transport.take(self.sent())
        while self.transport.is_waiting:
            await asyncio.sleep(0)

    def sent(self) -> bytes:
        """What the client has to send."""
        return self._outgoing.read()

    def received(self) -> bytes:
        """What has arrived at the client."""
        self._incoming.write(self.raw.written)
        self.raw.written, parts = b"", []
        with suppress(ssl.SSLWantReadError):
            while part := self.tls.read(65536):
                parts.append(part)
        return b"".join(parts)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.sizes.append(len(data))

    def eof_received(self) -> None:
        self.is_at_end = True


class RawTransport:
    """A transport without a socket."""

    def __init__(self, protocol: Client) -> None:
        self._protocol, self.written = protocol, b""
        self.is_paused = self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1)}.get(name, default)

    def get_protocol(self) -> Client:
        return self._protocol

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    abort = close


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tls_context(*make_certificate(tmp_path)))


@pytest.fixture
def client(context: Context) -> Client:
    return Client(context, FairReads())


async def test_there_is_no_tls_session_before_the_first_byte(context: Context, client: Client) -> None:
    assert context.num_sessions == 0
    client.transport.write(b"too early")
    client.transport.take(client_hello()[:5])
    assert context.num_sessions == 1
    assert client.raw.written == b""
    client.transport.close()
    assert client.raw.is_closed


async def test_records_are_decrypted_in_turns_and_nothing_is_read_meanwhile(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = count(step=TURN_S)  # every step of a turn takes as long as a turn may
    await client.shake_hands()
    monkeypatch.setattr("server.asgi.fair_reads.thread_time", lambda: next(now_s))
    for index in range(512):
        client.tls.write(bytes([index % 256]))
    client.transport.take(client.sent())
    assert client.raw.is_paused
    while len(client.data) < 512:
        await asyncio.sleep(0.001)
    assert client.data == bytes(range(256)) * 2
    assert max(client.sizes) < 256
    while client.raw.is_paused:
        await asyncio.sleep(0.001)


async def test_handshake_and_decryption_are_charged(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    charged, reads = list[float](), FairReads()
    monkeypatch.setattr(reads, "charge", lambda connection, used_s: charged.append(used_s))
    client = Client(context, reads)
    await client.shake_hands()
    client.tls.write(b"x" * 16384)
    before = len(charged)
    assert before
    await client.deliver()
    assert len(charged) > before
    assert client.data == b"x" * 16384


async def test_what_arrives_behind_the_servers_end_is_read(client: Client) -> None:
    await client.shake_hands()
    client.transport.write(b"the last")
    client.transport.write_eof()
    client.transport.write(b"too late")
    client.tls.write(b"heard")
    await client.deliver()
    assert client.data == b"heard"
    assert client.received() == b"the last"
    client.transport.close()
    assert client.raw.is_closed


async def test_what_comes_before_the_clients_end_is_parsed_first(client: Client) -> None:
    await client.shake_hands()
    client.transport.pause_reading()
    client.tls.write(b"the last")
    with suppress(ssl.SSLError):
        client.tls.unwrap()
    client.transport.take(client.sent())
    assert (client.data, client.is_at_end) == (b"", False)
    client.transport.resume_reading()
    while not client.is_at_end:
        await asyncio.sleep(0.001)
    assert client.data == b"the last"
    while not client.raw.is_closed:
        await asyncio.sleep(0.001)


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
        ((certificate, tmp_path), r"cannot be read: it is a folder"),
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
