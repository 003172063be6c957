"""A cluster on this machine: Redis, HAProxy, what sets its slots, and replicas, each a process.

Every process of a cluster, and every one that these start, has the variable CLUSTER_FOLDER in its environment. So all
of them are found and ended also where the one that started them was killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from runtime.base.errors import ConfigError, StoreError, TickError
from server.cluster.edge import AdminSocket, parse_servers
from server.service.lease import Lease
from server.service.leases import Leases

FOLDER = "CLUSTER_FOLDER"
HAPROXY_CONFIG = Path(__file__).with_name("haproxy.cfg")
# The longest path of a Unix socket (107 bytes on Linux, 103 on macOS), less "/haproxy.sock".
MAX_FOLDER_BYTES = 90
START_S, STOP_S, POLL_S = 120.0, 3.0, 0.05


class LocalCluster:
    """The processes of the cluster in `folder`, which holds their sockets and their logs (logs/NAME.log).

    launched: those that this object has started, by name. Raises ConfigError for a folder with too long a path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if len(os.fsencode(self.folder)) > MAX_FOLDER_BYTES:
            raise ConfigError(
                f"the path {self.folder} is too long for Unix sockets: at most {MAX_FOLDER_BYTES} bytes",
                fix="name another folder, such as /tmp/cluster",
            )
        self.launched: dict[str, subprocess.Popen[bytes]] = {}
        self._admin = AdminSocket(self.folder / "haproxy.sock")

    @property
    def redis_url(self) -> str:
        """The URL of the cluster's own Redis."""
        return f"unix://{self.folder / 'redis.sock'}"

    def launch(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process of the cluster in a session of its own, so that Ctrl-C in a terminal does not reach it."""
        with open(self.log_of(name), "ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.launched[name] = process
        return process

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of the cluster's processes."""
        # Ray's processes set their titles; SPT_NOENV keeps the environment by which they are found as it is.
        ray = {"SPT_NOENV": "1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # 0: it listens on 127.0.0.1 only
        return {**os.environ, FOLDER: str(self.folder), **ray, **more}

    def log_of(self, name: str) -> Path:
        """The log of a process; its folder is made where it is missing."""
        path = self.folder / "logs" / f"{name}.log"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def start_redis(self) -> None:
        """Start a Redis that only this user reaches and that writes no file. Raises ConfigError where it is missing."""
        self.launch(
            "redis",
            program("redis-server"),
            *("--port", "0", "--unixsocket", str(self.folder / "redis.sock"), "--unixsocketperm", "700"),
            # A process that sets its title overwrites the environment by which it is found.
            *("--save", "", "--dir", str(self.folder), "--set-proc-title", "no"),
        )
        self.wait_until(self._redis_answers, "redis does not answer")

    def _redis_answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / "redis.sock")) == 0

    def start_edge(self, bind: str) -> None:
        """Start HAProxy on `bind` ("HOST:PORT") and what sets its slots. Raises ConfigError where it is missing."""
        sockets = {"EDGE_BIND": bind, "EDGE_SOCKET": str(self.folder / "haproxy.sock")}
        self.launch("haproxy", program("haproxy"), "-W", "-db", "-f", str(HAPROXY_CONFIG), **sockets)
        self.launch("edge", sys.executable, "-m", "server.cluster.edge", self.redis_url, sockets["EDGE_SOCKET"])

    def start_replica(self, name: str, config: Path, **settings: str) -> subprocess.Popen[bytes]:
        """Start a server on a free port of this machine, a replica on the cluster's Redis. settings: TICKRT_* ones."""
        ours = {"TICKRT_REPLICA": name, "TICKRT_REDIS": self.redis_url}
        unlimited = {"TICKRT_CLIENT_SESSIONS": "0", "TICKRT_CLIENT_IN_FLIGHT": "0"}  # the edge is their only client
        command = (sys.executable, "-m", "server", str(config), "--host", "127.0.0.1", "--port", "0")
        return self.launch(name, *command, **ours, **unlimited, **settings)

    def cpu_s(self, name: str) -> float:
        """CPU time of a process that this object has launched and of those that it has started, in seconds."""
        process = psutil.Process(self.launched[name].pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def leases(self) -> list[Lease]:
        """The replicas' leases. Raises ConfigError and StoreError where Redis is away."""
        leases = Leases(self.redis_url)
        try:
            return leases.all()
        finally:
            leases.close()

    def wait_ready(self, replicas: int, has_edge: bool = True, timeout_s: float = START_S) -> None:
        """Wait until so many replicas are ready and the edge sends them work. Raises TickError."""
        self.wait_until(lambda: self._are_ready(replicas, has_edge), "the replicas are not ready", timeout_s)

    def _are_ready(self, replicas: int, has_edge: bool) -> bool:
        try:
            ready = [lease for lease in self.leases() if lease.state in ("ready", "full")]
            if len(ready) < replicas or not has_edge:
                return len(ready) >= replicas
            slots = parse_servers(self._admin.ask("show servers state"))
            return sum(slot.backend == "sessions" and slot.state == "ready" for slot in slots) >= replicas
        except (OSError, StoreError):
            return False

    def wait_until(self, is_met: Callable[[], bool], problem: str, timeout_s: float = START_S) -> None:
        """Wait for a condition. Raises TickError after `timeout_s`, and where a process has ended by then."""
        until_s = time.monotonic() + timeout_s
        while not is_met():
            for name, process in self.launched.items():
                if process.poll() is not None:
                    raise TickError(f"{name} has ended with status {process.returncode}: {self.last_line(name)}")
            if time.monotonic() > until_s:
                raise TickError(f"{problem} after {timeout_s:g} s", fix=f"see {self.folder / 'logs'}")
            time.sleep(POLL_S)

    def last_line(self, name: str) -> str:
        """The last line of a process's log, and where the log is."""
        lines = self.log_of(name).read_text("utf-8", errors="replace").split("\n")
        text = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{text} (see {self.log_of(name)})"

    def members(self) -> list[psutil.Process]:
        """The processes of the cluster that run."""
        ours = {process.pid for process in self.launched.values() if process.poll() is None}
        return [process for process in psutil.process_iter() if process.pid in ours or self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(FOLDER) == str(self.folder)) and process.pid != os.getpid()
        except (psutil.Error, OSError):  # of another user, or gone by now
            return False

    def stop(self) -> None:
        """End all processes of the cluster: SIGTERM, and SIGKILL for those that run after STOP_S seconds."""
        signal_all(self.members(), psutil.Process.terminate)
        psutil.wait_procs(self.members(), timeout=STOP_S)
        while left := self.members():
            signal_all(left, psutil.Process.kill)
            psutil.wait_procs(left, timeout=1.0)
        for process in self.launched.values():
            process.wait()
        self.launched.clear()
        for name in ("redis.sock", "haproxy.sock"):
            (self.folder / name).unlink(missing_ok=True)


def signal_all(processes: list[psutil.Process], end: Callable[[psutil.Process], None]) -> None:
    """Send a signal to processes, of which some may have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            end(process)


def find_program(name: str) -> str | None:
    """The path of a program, also where only root's PATH has it; None where it is not installed."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def program(name: str) -> str:
    """The path of a program, as find_program() returns it. Raises ConfigError where it is not installed."""
    found = find_program(name)
    if found is None:
        raise ConfigError(f"{name} is not installed", fix=f"apt-get install {name}")
    return found


def free_port() -> int:
    """A TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def plain_cluster(config: Path, folder: Path, bind: str, replicas: int = 2, **settings: str) -> Iterator[LocalCluster]:
    """A cluster of servers without Ray, ready behind its edge, until the end of the block.

    config: a deployment whose engines are built. folder: an empty one with a short path. The replicas are called "r1",
    "r2" and so on. Raises ConfigError where HAProxy or Redis is not installed, and TickError where they do not start.
    """
    cluster = LocalCluster(folder)
    try:
        cluster.start_redis()
        cluster.start_edge(bind)
        for number in range(1, replicas + 1):
            cluster.start_replica(f"r{number}", config, **settings)
        cluster.wait_ready(replicas)
        yield cluster
    finally:
        cluster.stop()
