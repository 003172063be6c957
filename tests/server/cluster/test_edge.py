"""The edge: its configuration and its slots in a real HAProxy, with replicas that say who they are."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from helpers.cluster import fake_replica
from helpers.http_harness import Served, eventually, serving
from helpers.paths import ROOT
from helpers.redis_server import redis_server

from runtime.config.deployment import Deployment
from server.cluster.edge import BACKENDS, AdminSocket, EdgeServer, commands, follow_leases, parse_servers
from server.cluster.local_cluster import free_port
from server.service.lease import Lease
from server.service.leases import Leases

CONFIG = ROOT / "server" / "cluster" / "haproxy.cfg"
ONE = Lease("one", "127.0.0.1:8001", "", "ready", 3, 10, 0.5)
TWO = replace(ONE, name="two", address="127.0.0.1:8002")


def slots(*used: tuple[str, str]) -> list[EdgeServer]:
    """Three slots of every backend, of which the first ones have an address and a state."""
    parts = [*used, *[("127.0.0.1:1", "maint")] * 3][:3]
    return [EdgeServer(backend, f"slot{number}", *part) for backend in BACKENDS for number, part in enumerate(parts, 1)]


def test_a_replica_whose_host_is_unknown_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    unknown = replace(ONE, name="lost", address="no-such-host.invalid:8000")
    assert list(commands(slots(), [unknown, ONE])) == list(commands(slots(), [ONE]))
    assert "replica lost gets no work: its host no-such-host.invalid is unknown" in caplog.text


@pytest.mark.parametrize("answer", ["", "Permission denied\n"])
def test_an_answer_without_servers_is_an_error_that_the_loop_survives(answer: str) -> None:
    with pytest.raises(OSError, match=r"expected its servers: has its socket `level admin`\?"):
        parse_servers(answer)


READY_ONE, READY_TWO = (ONE.address, "ready"), (TWO.address, "ready")


@pytest.mark.parametrize(
    ("used", "leases", "backends", "sent"),
    [
        ([READY_TWO, READY_ONE], [ONE, TWO], BACKENDS, []),
        ([READY_ONE], [ONE, TWO], BACKENDS, ["slot2 addr 127.0.0.1 port 8002", "slot2 state ready"]),
        ([READY_ONE], [replace(ONE, state="full")], ["opens"], ["slot1 state drain"]),
        ([READY_ONE], [replace(ONE, sessions=10)], ["opens"], ["slot1 state drain"]),
        ([READY_ONE], [replace(ONE, state="draining")], BACKENDS, ["slot1 state drain"]),
        ([READY_ONE, (TWO.address, "drain")], [TWO], BACKENDS, ["slot2 state ready", "slot1 state maint"]),
    ],
    ids=["no change", "the first free slot", "full", "all its sessions", "draining", "without a lease"],
)
def test_what_haproxy_is_told(
    used: list[tuple[str, str]], leases: list[Lease], backends: list[str], sent: list[str]
) -> None:
    told = list(commands(slots(*used), leases))
    assert told == [f"set server {backend}/{line}" for backend in backends for line in sent]


def test_more_replicas_than_slots_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    many = [replace(ONE, name=str(port), address=f"127.0.0.1:{port}") for port in range(8001, 8005)]
    assert len(list(commands(slots(), many))) == 2 * 3 * len(BACKENDS)
    assert "replica 8004 finds no free server in backend sessions" in caplog.text


@pytest.fixture(scope="module")
def haproxy() -> str:
    path = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        pytest.skip("needs haproxy (apt-get install haproxy)")
    return path


def test_the_configuration_is_valid(haproxy: str, tmp_path: Path) -> None:
    environment = {**os.environ, "EDGE_BIND": "127.0.0.1:8000", "EDGE_SOCKET": str(tmp_path / "edge.sock")}
    done = subprocess.run(
        [haproxy, "-c", "-f", str(CONFIG)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "[WARNING]" not in done.stderr


@dataclass
class Edge:
    """A HAProxy that runs haproxy.cfg: its port and its admin socket, at `path`."""

    port: int
    path: Path
    admin: AdminSocket


@contextmanager
def started_edge(haproxy: str, folder: Path) -> Iterator[Edge]:
    """Replicas of a busy machine answer checks late: none is taken for a frozen one here."""
    path, port, config = folder / "edge.sock", free_port(), folder / "haproxy.cfg"
    config.write_text(CONFIG.read_text().replace("timeout check 500ms", "timeout check 60s"))
    environment = {**os.environ, "EDGE_BIND": f"127.0.0.1:{port}", "EDGE_SOCKET": str(path)}
    process = subprocess.Popen([haproxy, "-db", "-f", str(config)], env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(path.exists)
        yield Edge(port, path, AdminSocket(path))
    finally:
        process.kill()
        process.wait()


def test_haproxy_sends_work_where_the_leases_say(haproxy: str, tmp_path: Path) -> None:
    with ExitStack() as running:
        replicas = [running.enter_context(fake_replica(name)) for name in ("one", "two")]
        leases = [item.lease for item in replicas]
        edge = running.enter_context(started_edge(haproxy, tmp_path))
        client = running.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{edge.port}"))
        admin = edge.admin

        def names(*paths: str) -> Counter[str]:
            return Counter(client.get(path).text for path in paths)

        def are_up(*expected: str) -> bool:
            return set(names(*["/work"] * 4)) == set(expected)

        assert client.get("/").status_code == 503
        redis = running.enter_context(redis_server(tmp_path))
        members = Leases(redis.url)
        running.callback(members.close)
        for lease in leases:
            members.renew(lease)
        follow_leases(members, admin, rounds=1, renew_s=0.0)
        eventually(lambda: are_up("one", "two"))
        sessions = [f"/v1/live/{number:016x}" for number in range(40)]
        before = [client.get(path).text for path in sessions]
        assert set(before) == {"one", "two"}
        assert [client.get(path).text for path in sessions] == before
        admin.follow([replace(leases[0], state="full"), leases[1]])
        assert names(*["/v1/live"] * 4) == {"two": 4}
        assert set(names(*["/work"] * 4)) == {"one", "two"}
        assert [client.get(path).text for path in sessions] == before
        admin.follow([replace(lease, state="full") for lease in leases])
        assert client.get("/v1/live").status_code == 200
        admin.follow([replace(leases[0], state="draining"), leases[1]])
        assert names(*sessions, "/work", "/v1/live") == {"two": 42}
        admin.follow([leases[0]])
        assert names(*sessions, "/work", "/v1/live") == {"one": 42}
        admin.follow(leases)
        eventually(lambda: are_up("one", "two"))
        assert [client.get(path).text for path in sessions] == before
        assert len(names(*["/release_task", "/query_result", "/v1/audio?path=x"] * 4)) == 1
        assert names("/ws/google.ai.v1beta.GenerativeService.BidiGenerateMusic", "/v1/live").total() == 2
        assert {client.get(path).status_code for path in ("/admin/drain", "/metrics")} == {403}
        replicas[0].is_full = True
        assert names(*["/v1/live", "/work"] * 4) == {"two": 8}
        replicas[1].is_full = True
        assert {client.get(path).status_code for path in ("/v1/live", "/work")} == {503}
        replicas[0].is_full = replicas[1].is_full = False
        replicas[0].server.shutdown()
        replicas[0].server.server_close()
        time.sleep(0.01)
        answers = [client.get(path) for path in (*sessions, "/work", "/v1/live")]
        served = [answer for answer in answers if answer.text == "two"]
        # One may be on its way to the replica in the moment in which checks mark it down: that ends what it has.
        assert {answer.status_code for answer in answers if answer not in served} <= {502}
        assert len(served) >= 41


# Each of these is a page of a replica's own, to a replica that is asked itself.
PRIVATE = (
    *("/metrics", "/%6detrics", "/m%65trics", "/metrics?x", "/metrics/", "/metrics%2f", "/metrics%0a", "%2fmetrics"),
    *("/admin/drain", "/%61dmin/drain", "/%61dmin/profile", "/admin%2fdrain", "/admin%2Fdrain", "/admin/%64rain/"),
)
# These are no page of anything.
ODD = (
    *("//metrics", "/./metrics", "/x/../metrics", "/page/%2e%2e/metrics", "/METRICS", "/%256detrics", "/metrics;x"),
    *("/metrics%00", "/metrics%", "http://127.0.0.1/%6detrics", "metrics", "*", "//admin/drain", "/%61dmin/./drain"),
    *("/%61dmin/drain%zz", "/%2561dmin/drain", "/%c1%a1dmin/drain"),
)
PUBLIC = ("/", "/v1/schema", "/v1/sch%65ma", "/health/live?x=%zz")


@pytest.fixture(scope="module")
def fronted(
    haproxy: str, tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Deployment]
) -> Iterator[tuple[int, Served]]:
    """The port of an edge, and the server behind it."""
    with serving(tiny(), admin_key="k") as served, started_edge(haproxy, tmp_path_factory.mktemp("edge")) as edge:
        edge.admin.follow([replace(ONE, address=f"127.0.0.1:{served.port}")])
        yield edge.port, served


def answer(port: int, data: bytes) -> str:
    """What comes until the connection ends, or is silent."""
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
        connection.sendall(data)
        with suppress(TimeoutError, ConnectionResetError):
            while part := connection.recv(65536):
                parts.append(part)
                connection.settimeout(0.3)
    return b"".join(parts).decode("latin-1")


def statuses(port: int, targets: Iterable[str]) -> dict[str, int]:
    requests = {target: f"GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" for target in targets}
    return {target: int(answer(port, text.encode())[9:12]) for target, text in requests.items()}


@pytest.mark.slow
def test_no_spelling_of_a_replicas_own_pages_passes_the_edge(fronted: tuple[int, Served]) -> None:
    port, served = fronted
    assert set(statuses(served.port, PRIVATE).values()) <= {200, 307, 405}
    assert set(statuses(served.port, ODD).values()) == {404}
    assert set(statuses(port, PRIVATE).values()) <= {400, 403}
    assert set(statuses(port, ODD).values()) <= {400, 403, 404}
    assert set(statuses(port, PUBLIC).values()) == {200}
    for method in ("CONNECT 127.0.0.1:80", "CONNECT /", "OPTIONS *"):
        assert answer(port, f"{method} HTTP/1.1\r\nhost: 127.0.0.1:80\r\n\r\n".encode()).startswith("HTTP/1.1 400 ")


SECOND = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"
N = str(len(SECOND)).encode()
CHUNKED, END = b"transfer-encoding: chunked", b"0\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(SECOND), SECOND)
# Headers and a body in which there is a second request to one who reads its length in another way.
DISGUISED = {
    "both": ([b"content-length: %d" % (len(END) + len(SECOND)), CHUNKED], END + SECOND),
    "both, short": ([CHUNKED, b"content-length: 4"], CHUNK + END),
    "two lengths": ([b"content-length: 0", b"content-length: " + N], SECOND),
    "two lengths, reversed": ([b"content-length: " + N, b"content-length: 0"], SECOND),
    "a list of lengths": ([b"content-length: 0, " + N], SECOND),
    "a sign": ([b"content-length: +" + N], SECOND),
    "hexadecimal": ([b"content-length: 0x%x" % len(SECOND)], SECOND),
    "space before the colon": ([b"transfer-encoding : chunked", b"content-length: " + N], END + SECOND),
    "length, space before the colon": ([b"content-length : " + N], SECOND),
    "chunked is not last": ([b"transfer-encoding: chunked, identity"], END + SECOND),
    "chunked twice": ([CHUNKED, b"transfer-encoding: identity"], END + SECOND),
    "no coding": ([b"transfer-encoding: xchunked", b"content-length: " + N], SECOND),
    "vertical tab": ([b"transfer-encoding: \x0bchunked", b"content-length: " + N], END + SECOND),
    "folded": ([b"x: y", b" transfer-encoding: chunked", b"content-length: " + N], SECOND),
    "folded length": ([b"content-length: 0", b" " + N], SECOND),
    "line feed": ([b"x: y\ntransfer-encoding: chunked", b"content-length: %d" % len(END)], CHUNK + END),
    "carriage return": ([b"x: y\rtransfer-encoding: chunked", b"content-length: " + N], SECOND),
    "underscore": ([b"transfer_encoding: chunked", b"content-length: " + N], SECOND),
    "chunk extension": ([CHUNKED], b"2;\nxx\r\n%x\r\n0\r\n\r\n%s\r\n0\r\n\r\n" % (len(SECOND) + 5, SECOND)),
    "chunk without its end": ([CHUNKED], b"2\r\nabXX" + END + SECOND),
    "chunk of 2^64": ([CHUNKED], b"10000000000000000\r\n" + END + SECOND),
    "request as trailer": ([CHUNKED], b"2\r\nab\r\n0\r\n" + SECOND),
    "upgrade": ([b"connection: upgrade", b"upgrade: websocket", b"content-length: " + N], SECOND),
}


@pytest.mark.slow
@pytest.mark.parametrize("lines_and_body", DISGUISED.values(), ids=DISGUISED)
def test_no_body_holds_a_request_past_the_edge(
    fronted: tuple[int, Served], lines_and_body: tuple[list[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    port, _ = fronted
    lines, body = lines_and_body
    caplog.set_level("INFO", "tickrt.access")
    head = b"\r\n".join([b"POST /v1/schema HTTP/1.1", b"host: localhost", *lines, b"", b""])
    assert answer(port, head + body).startswith("HTTP/1.1 ")
    assert "/smuggled" not in caplog.text
    assert answer(port, b"GET /v1/schema HTTP/1.1\r\nhost: localhost\r\n\r\n" + SECOND).count("HTTP/1.1 ") == 2
    eventually(lambda: "/smuggled" in caplog.text)


def test_a_haproxy_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """It takes the connection and the command, and never answers."""
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "edge.sock"))
        hanging.listen()
        ends = threading.Timer(20.0, hanging.close)
        ends.start()
        with pytest.raises(TimeoutError):
            AdminSocket(tmp_path / "edge.sock", timeout_s=0.05).ask("show servers state")
        ends.cancel()


def test_a_command_is_a_line_of_its_own_and_its_answer_is_read_to_the_end(tmp_path: Path) -> None:
    """Of a socket that answers in parts: the servers, then what a change gives."""
    received: list[bytes] = []
    server = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port\n"

    def answer(listener: socket.socket) -> None:
        for parts in ([b"# head\n", b"1\n"], [server.encode()], [b"changed\n"]):
            connection, _ = listener.accept()
            with connection:
                received.append(connection.makefile("rb").readline())
                for part in parts:
                    connection.sendall(part)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "edge.sock"))
        listener.listen()
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        admin = AdminSocket(tmp_path / "edge.sock")
        assert admin.ask("show info") == "# head\n1\n"
        admin.follow([])
        assert admin.ask("set server a/b state maint") == "changed\n"
        thread.join()
    assert received == [b"show info\n", b"show servers state\n", b"set server a/b state maint\n"]


def test_an_edge_survives_what_goes_wrong_in_a_round(caplog: pytest.LogCaptureFixture) -> None:
    rounds, started_s = iter((OSError("no socket"), None, None)), time.monotonic()

    def follow(leases: list[Lease]) -> None:
        if (error := next(rounds)) is not None:
            raise error

    leases, admin = SimpleNamespace(all=list), SimpleNamespace(follow=follow)
    follow_leases(leases, admin, rounds=3, renew_s=0.01)  # type: ignore[arg-type]
    assert next(rounds, "over") == "over"
    assert time.monotonic() - started_s >= 0.03
    assert "the servers stay as they are: no socket" in caplog.text


def test_an_edge_of_one_model_follows_its_replicas_only() -> None:
    mine, other, followed = replace(ONE, model="mine"), replace(TWO, model="other"), list[list[Lease]]()
    leases, admin = SimpleNamespace(all=lambda: [mine, other]), SimpleNamespace(follow=followed.append)
    for model in ("mine", None, "third"):
        follow_leases(leases, admin, model, rounds=1, renew_s=0.0)  # type: ignore[arg-type]
    assert followed == [[mine], [mine, other], []]
