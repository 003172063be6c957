"""The server process: signals, exit codes, ports."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import safetensors.numpy
from helpers.http_harness import GENERATIONS, TIMEOUT_S, Serve, connected, eventually, problem, raw_request, read_all
from helpers.paths import ROOT

from runtime.base.errors import ConfigError
from runtime.commands.terminal import EXIT_ENGINE, EXIT_INTERRUPTED
from runtime.config.deployment import Deployment, load_deployment
from server import process as server_process
from server.app import create_app
from server.asgi.problems import ProblemError
from server.asgi.websocket import WebSocketProtocol
from server.config import ServerSettings
from server.process import (
    ABORT_TIMEOUT_S,
    HANG_TIMEOUT_S,
    RESERVED_FILES,
    TickServer,
    connection_limit,
    open_socket,
    serve,
    url_of,
)
from server.service.service import SWITCH_INTERVAL_S, Service


@contextmanager
def process(*arguments: object, files: int | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m server ...`, killed at the end if it still runs. files: its limit of open files."""
    limited = [] if files is None else ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"]
    child = subprocess.Popen(
        [*limited, sys.executable, "-m", "server", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def ready_url(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.search(r"ready on (http://\S+)", line):
            return found.group(1)
    raise AssertionError(f"ended with {child.wait()}: {child.stderr.read() if child.stderr else ''}")


@pytest.fixture(scope="module")
def config(built: Callable[..., Deployment]) -> Path:
    return built(max_rows=16).path


def stream(url: str, steps: int, seconds: float) -> socket.socket:
    """A connection that has sent a request."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    connection.sendall(raw_request(f'{{"prompt": "a", "steps": {steps}, "seconds": {seconds}}}'.encode()))
    return connection


@pytest.mark.shipped
def test_an_idle_server_exits_with_0_on_sigint(config: Path) -> None:
    with process(config, "--port", 0, TICKRT_DRAIN_S="600") as child:
        url = ready_url(child)
        assert httpx.get(url + "/health/ready").status_code == 200
        child.send_signal(signal.SIGINT)
        assert child.wait(TIMEOUT_S) == 0


@pytest.mark.shipped
def test_a_busy_server_refuses_new_work_finishes_work_in_flight_and_exits_with_0(config: Path) -> None:
    with process(config, "--port", 0, TICKRT_DRAIN_S="60") as child:
        url = ready_url(child)
        with stream(url, 100, 60) as busy:
            assert busy.recv(15) == b"HTTP/1.1 200 OK"
            child.send_signal(signal.SIGTERM)
            eventually(lambda: httpx.get(url + "/health/ready").status_code == 503)
            refused = httpx.post(url + GENERATIONS, json={"prompt": "a"})
            assert int(refused.headers["retry-after"]) >= 1
            problem(refused, 503, "draining")
            assert httpx.get(url + "/health/live").status_code == 200
            assert child.poll() is None
            is_whole = read_all(busy).endswith(b"\r\n0\r\n\r\n")
        assert is_whole
        assert child.wait(TIMEOUT_S) == 0


def test_generations_that_outlast_the_drain_time_are_aborted_and_counted(serve: Serve) -> None:
    served = serve(depth=1, drain_s=0.2)
    served.tick_s = 0.05
    metrics = served.service.metrics
    with connected(served) as streaming, connected(served) as waiting:
        streaming.sendall(raw_request(b'{"prompt": "a", "seconds": 60}'))
        assert streaming.recv(15) == b"HTTP/1.1 200 OK"
        waiting.sendall(raw_request(b'{"prompt": "a", "steps": 200}'))
        eventually(lambda: len(served.service.admission.permits) == 2)
        served.server.drain()
        is_whole = read_all(streaming).endswith(b"\r\n0\r\n\r\n")
        assert not is_whole
        answer = read_all(waiting)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"draining" in answer
    eventually(lambda: not served.service.admission.permits)
    drained = metrics.registry.get_sample_value("tickrt_generations_total", {"outcome": "drained"})
    assert drained == metrics.registry.get_sample_value("tickrt_generations_started_total") == 2
    assert served.server.exit_code == 0


@pytest.mark.shipped
def test_a_server_busy_beyond_the_drain_time_exits_with_0(config: Path) -> None:
    settings = {"TICKRT_DRAIN_S": "0.3", "TICKRT_SEND_BUFFER_BYTES": "4096", "TICKRT_SEND_TIMEOUT_S": "600"}
    with process(config, "--port", 0, **settings) as child, stream(ready_url(child), 200, 600) as busy:
        assert busy.recv(15) == b"HTTP/1.1 200 OK"
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT_S) == 0


@pytest.mark.shipped
def test_the_second_signal_exits_immediately(config: Path) -> None:
    with process(config, "--port", 0, TICKRT_DRAIN_S="600", TICKRT_SEND_TIMEOUT_S="600") as child:
        url = ready_url(child)
        with stream(url, 200, 600) as busy:
            assert busy.recv(15) == b"HTTP/1.1 200 OK"
            child.send_signal(signal.SIGTERM)
            eventually(lambda: httpx.get(url + "/health/ready").status_code == 503)
            child.send_signal(signal.SIGTERM)
            assert child.wait(TIMEOUT_S) == 128 + signal.SIGTERM


def engine_hash(url: str) -> str:
    """The decoder's hash in /metrics."""
    text = httpx.get(url + "/metrics").text
    (found,) = re.findall(r'engine_info{.*engine="decoder",sha256="(\w+)"', text)
    return str(found)


def latents_of(url: str) -> list[list[float]]:
    """The latents of one prompt and seed."""
    response = httpx.post(url + GENERATIONS, json={"prompt": "a", "seed": 1, "response_format": "latents"})
    assert response.status_code == 200, response.text
    (latents,) = safetensors.numpy.load(response.content).values()
    values: list[list[float]] = latents.tolist()
    return values


@pytest.mark.shipped
def test_sighup_replaces_the_engines_and_keeps_them_where_the_new_ones_are_damaged(
    built: Callable[..., Deployment], tmp_path: Path
) -> None:
    other, original = built(max_rows=16, seed=5), built(max_rows=16)
    shutil.copytree(original.path.parent, tmp_path / "copy")
    path = tmp_path / "copy" / original.path.name
    with process(path, "--port", 0) as child:
        url = ready_url(child)
        before, old_hash = latents_of(url), engine_hash(url)
        copy = load_deployment(path).engine_folder()
        for file in other.engine_folder().glob("decoder.*"):
            shutil.copy(file, copy / file.name)
        child.send_signal(signal.SIGHUP)
        eventually(lambda: engine_hash(url) != old_hash)
        after = latents_of(url)
        assert len(after) == len(before)
        assert after != before
        next(copy.glob("decoder.onnx*")).write_bytes(b"damaged")
        child.send_signal(signal.SIGHUP)
        assert child.stderr is not None
        assert any("the old ones stay in use" in line for line in child.stderr)
        assert latents_of(url) == after


@pytest.mark.shipped
def test_sighup_during_loading_is_ignored(config: Path) -> None:
    with process(config, "--port", 0) as child:
        assert child.stdout is not None
        assert "opening engines" in child.stdout.readline()
        child.send_signal(signal.SIGHUP)
        assert ready_url(child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT_S) == 0


@pytest.mark.shipped
def test_sigterm_before_the_server_runs_ends_it_without_a_traceback(config: Path) -> None:
    with process(config, "--port", 0) as child:
        assert child.stdout is not None
        assert "opening engines" in child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT_S) in (0, EXIT_INTERRUPTED, -signal.SIGTERM)
        assert child.stderr is not None
        assert "Traceback" not in child.stderr.read()


@pytest.mark.shipped
def test_missing_engines_exit_with_the_command_that_builds_them(config: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny").symlink_to(config.parent / "tiny")
    other = tmp_path / "tiny.toml"
    other.write_text(config.read_text())
    with process(other, "--port", 0) as child:
        assert child.wait(TIMEOUT_S) == 3
        assert child.stderr is not None
        assert "tickrt-build" in child.stderr.read()


def test_a_port_in_use_is_reported() -> None:
    with open_socket("127.0.0.1", 0, 65536) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use") as error:
            open_socket("127.0.0.1", port, 65536)
        assert "--port" in error.value.fix


@pytest.mark.shipped
def test_more_idle_connections_than_open_files_keep_no_client_out(config: Path) -> None:
    with process(config, "--port", 0, files=300) as child, ExitStack() as stack:
        url = ready_url(child)
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(400):
            stack.enter_context(socket.create_connection(address, timeout=TIMEOUT_S))
        assert httpx.get(url + "/health/live", timeout=TIMEOUT_S).status_code == 200
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT_S) == 0
        assert child.stderr is not None
        log = child.stderr.read()
    assert "300 open files allow 150 connections" in log
    assert len(log.splitlines()) < 10


def test_the_limit_of_open_files_is_raised_for_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [100, 4096]

    def set_limits(_: int, new: tuple[int, int]) -> None:
        limits[:] = new

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    assert connection_limit(200) == 400
    assert limits == [400 + RESERVED_FILES, 4096]
    assert connection_limit(10_000) == 4096 - RESERVED_FILES
    assert limits == [4096, 4096]


def test_connections_for_which_no_file_is_left_are_logged_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    error = OSError(errno.EMFILE, "Too many open files")
    for _ in range(100):
        served.event_loop.call_soon_threadsafe(served.event_loop.call_exception_handler, {"exception": error})
    eventually(lambda: "Too many open files" in caplog.text)
    assert served.post().status_code == 200
    assert caplog.text.count("Too many open files") == 1


def test_a_server_that_drained_after_a_stall_exits_with_0(serve: Serve) -> None:
    served = serve(tick_timeout_s=0.3, drain_s=60.0)
    served.pause()
    with connected(served, raw_request(b'{"prompt": "a", "stream": false}')) as busy:
        eventually(lambda: served.server.exit_code == EXIT_ENGINE)
        served.server.drain()
        served.resume()
        assert busy.recv(15) == b"HTTP/1.1 200 OK"
    eventually(lambda: served.server.exit_code == 0)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_reported(host: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(host)):
        open_socket(host, 0, 65536)


def test_urls_of_ipv4_and_ipv6() -> None:
    with open_socket("127.0.0.1", 0, 65536) as listener:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url_of(listener))
    if socket.has_ipv6:
        with open_socket("::1", 0, 65536) as listener:
            assert re.fullmatch(r"http://\[::1\]:\d+", url_of(listener))


def test_busy_threads_hand_over_to_the_tick_thread_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Ended:
        exit_code = 7

        close_limit: threading.Timer

        def __init__(self, *arguments: object) -> None:
            seen.append(sys.getswitchinterval())

        def reload(self) -> None: ...

        async def serve(self, sockets: list[socket.socket]) -> None: ...

    monkeypatch.setattr(server_process, "TickServer", Ended)
    before = sys.getswitchinterval()
    with open_socket("127.0.0.1", 0, 1 << 16) as listener:
        try:
            assert serve(None, None, listener) == 7  # type: ignore[arg-type]
        finally:
            sys.setswitchinterval(before)
    assert seen == [pytest.approx(SWITCH_INTERVAL_S)]


def test_a_server_that_closed_in_time_leaves_nothing_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("no engines")

    limits: list[threading.Timer] = []
    start, interval = threading.Timer.start, sys.getswitchinterval()
    monkeypatch.setattr(threading.Timer, "start", lambda timer: (limits.append(timer), start(timer)))
    settings = ServerSettings()
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, interval)
        listener = stack.enter_context(open_socket("127.0.0.1", 0, 1 << 16))
        assert serve(create_app(fails, settings), settings, listener) == EXIT_ENGINE  # type: ignore[arg-type]
    assert len(limits) == 1
    limits[0].join(timeout=TIMEOUT_S)
    assert not limits[0].is_alive()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which a test sets."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(server_process, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With which status the process would have ended."""
    ended = list[int]()
    monkeypatch.setattr(server_process, "os", SimpleNamespace(_exit=ended.append))
    return ended


def idle_server(**settings: Any) -> tuple[TickServer, Service]:
    """A server that does not serve."""
    chosen = ServerSettings(**settings)
    app = create_app(lambda: pytest.fail("is not opened"), chosen)
    app.state.service.admission.capacity = 4
    return TickServer(app, chosen), app.state.service


async def ends(server: TickServer, clock: SimpleNamespace, now_s: float) -> bool:
    clock.now_s = now_s
    return await server.on_tick(1)


@pytest.mark.anyio
async def test_draining_ends_with_the_work_in_flight_or_with_its_time(clock: SimpleNamespace) -> None:
    server, service = idle_server(drain_s=30.0)
    websocket = WebSocketProtocol.__new__(WebSocketProtocol)
    permit = service.admission.admit("a")
    assert not await ends(server, clock, 5000.0), "it does not drain"
    clock.now_s = 100.0
    server.drain()
    server.server_state.connections.add(websocket)  # type: ignore[arg-type]
    assert not await ends(server, clock, 129.9)
    permit.release()
    assert not await ends(server, clock, 100.0 + 0.99 * ABORT_TIMEOUT_S), "the last messages are sent"
    assert await ends(server, clock, 100.0 + ABORT_TIMEOUT_S)
    server.server_state.connections.clear()
    assert await ends(server, clock, 100.0), "there is nothing to wait for"


@pytest.mark.anyio
async def test_a_dead_loop_ends_the_process_once_its_clients_know_and_one_that_hangs_after_a_while(
    clock: SimpleNamespace, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[ProblemError | None] = [ProblemError(503, "tick_overdue", "late")]
    monkeypatch.setattr(server_process, "not_live", lambda service: problems[0])
    server, service = idle_server()
    permit = service.admission.admit("a")
    assert not await ends(server, clock, 100.0)
    assert not await ends(server, clock, 100.0 + HANG_TIMEOUT_S)
    assert (server.exit_code, ended) == (EXIT_ENGINE, [])
    problems[0] = None
    assert not await ends(server, clock, 170.0)
    assert server.exit_code == 0
    problems[0] = ProblemError(503, "tick_overdue", "late")
    assert not await ends(server, clock, 200.0), "counted from now on"
    assert ended == []
    assert not await ends(server, clock, 200.1 + HANG_TIMEOUT_S)
    assert ended == [EXIT_ENGINE]
    problems[0] = None
    assert not await ends(server, clock, 290.0)
    problems[0] = ProblemError(503, "engine_dead", "dead")
    assert not await ends(server, clock, 300.0), "its generation is told first"
    assert not await ends(server, clock, 300.0 + ABORT_TIMEOUT_S)
    asyncio.get_running_loop().call_later(0.01, permit.release)
    assert await ends(server, clock, 300.1 + ABORT_TIMEOUT_S)
    assert permit.abort.is_set()
    assert await ends(server, clock, 300.0), "there is nothing to wait for"


@pytest.mark.anyio
async def test_a_second_drain_by_the_routes_and_a_reload_that_runs_change_nothing(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, service = idle_server(drain_s=30.0)
    reloads, may_end = list[None](), asyncio.Event()

    async def reload() -> None:
        reloads.append(None)
        await may_end.wait()

    monkeypatch.setattr(service, "reload", reload)
    for _ in range(2):
        server.reload()
        await asyncio.sleep(0)
    assert len(reloads) == 1
    may_end.set()
    await asyncio.sleep(0)
    server.reload()
    await asyncio.sleep(0)
    assert len(reloads) == 2
    permit = service.admission.admit("a")
    service.admission.drain()  # as POST /admin/drain does
    assert not await ends(server, clock, 100.0)
    assert service.draining.is_set()
    assert not await ends(server, clock, 120.0)
    asyncio.get_running_loop().call_later(0.01, permit.release)
    assert await ends(server, clock, 130.0), "the first drain counts"
    assert permit.abort.is_set()


@pytest.mark.anyio
async def test_the_first_signal_drains_and_the_second_one_ends_the_process(ended: list[int]) -> None:
    server, service = idle_server()
    server.handle_exit(signal.SIGTERM, None)
    assert (service.admission.is_draining, ended) == (True, [])
    server.handle_exit(signal.SIGINT, None)
    assert ended == [128 + signal.SIGINT]
