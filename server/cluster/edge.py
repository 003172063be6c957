"""The edge follows the leases: sets the servers of a HAProxy that runs haproxy.cfg, over its admin socket.

It keeps nothing: each round reads what HAProxy has and what the leases say, and sends the difference. So it may be
restarted at any time, and while Redis is away everything stays as it is.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from runtime.base.errors import StoreError
from runtime.commands.terminal import log_to_stderr
from server.service.lease import RENEW_S, Lease
from server.service.leases import Leases

BACKENDS = ("sessions", "opens", "tasks", "work")
TIMEOUT_S = 5.0
# Bits of srv_admin_state.
IN_MAINTENANCE, IN_DRAIN = 0x01, 0x08
logger = logging.getLogger("tickrt.scale")


@dataclass(frozen=True)
class EdgeServer:
    """A server of a backend as HAProxy has it. address: "IP:PORT". state: "ready", "drain" or "maint"."""

    backend: str
    name: str
    address: str
    state: str


def parse_servers(text: str) -> list[EdgeServer]:
    """The servers in the answer to `show servers state`. Raises OSError where it is another answer."""
    lines = [line for line in text.splitlines() if line.startswith("# ")]
    if not lines:
        raise OSError(f"HAProxy answers {text.strip()!r:.200}, expected its servers: has its socket `level admin`?")
    header = lines[0].removeprefix("# ").split()
    rows = [line.split() for line in text.splitlines() if len(line.split()) == len(header)]
    servers = []
    for row in (dict(zip(header, row, strict=True)) for row in rows):
        admin = int(row["srv_admin_state"])
        state = "maint" if admin & IN_MAINTENANCE else "drain" if admin & IN_DRAIN else "ready"
        servers.append(EdgeServer(row["be_name"], row["srv_name"], f"{row['srv_addr']}:{row['srv_port']}", state))
    return [server for server in servers if server.backend in BACKENDS]


def wanted_state(backend: str, lease: Lease) -> str:
    """Which work of a backend a replica gets: "ready", or "drain": none, what it has goes on."""
    return "ready" if lease.takes_work and (backend != "opens" or lease.has_room) else "drain"


def commands(servers: Iterable[EdgeServer], leases: Iterable[Lease]) -> Iterator[str]:
    """What brings the servers in line with the leases: each keeps its own, a new one gets the first that is free."""
    replicas = {address: lease for lease in leases if (address := _resolved(lease)) is not None}
    for backend in BACKENDS:
        ours = [server for server in servers if server.backend == backend]
        used = {server.address: server for server in ours if server.state != "maint"}
        free = [server for server in ours if server.state == "maint"]
        for address, lease in replicas.items():
            server = used.pop(address, None)
            state = wanted_state(backend, lease)
            if server is None:
                if not free:
                    logger.error("replica %s finds no free server in backend %s of haproxy.cfg", lease.name, backend)
                    continue
                server = free.pop(0)
                host, _, port = address.rpartition(":")
                yield f"set server {backend}/{server.name} addr {host} port {port}"
            if server.state != state:
                yield f"set server {backend}/{server.name} state {state}"
        for server in used.values():
            yield f"set server {backend}/{server.name} state maint"


def _resolved(lease: Lease) -> str | None:
    """The "IP:PORT" of a replica; None where its host is unknown."""
    host, _, port = lease.address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        logger.error("replica %s gets no work: its host %s is unknown: %s", lease.name, host, error)
        return None


class AdminSocket:
    """HAProxy's admin socket, which has `timeout_s` for each answer. Methods raise OSError."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path, self._timeout_s = path, timeout_s

    def ask(self, command: str) -> str:
        """Send one command; returns the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self._path))
            connection.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def follow(self, leases: list[Lease]) -> None:
        """Bring the servers in line with the leases."""
        for command in commands(parse_servers(self.ask("show servers state")), leases):
            answer = self.ask(command).strip()
            logger.info("%s%s", command, f": {answer}" if answer else "")


def follow_leases(
    leases: Leases, admin: AdminSocket, model: str | None = None, rounds: int | None = None, renew_s: float = RENEW_S
) -> None:
    """Follow the leases of a model (None: all) until the end, or for a number of rounds of renew_s."""
    while rounds is None or (rounds := rounds - 1) >= 0:
        try:
            admin.follow([lease for lease in leases.all() if model in (None, lease.model)])
        except (StoreError, OSError) as error:
            logger.warning("the servers stay as they are: %s", error)
        time.sleep(renew_s)


def main(
    redis: Annotated[str, typer.Argument(help="URL of the replicas' Redis.")],
    path: Annotated[Path, typer.Argument(help="HAProxy's admin socket.")],
    model: Annotated[str | None, typer.Option(help="Only replicas of this model, by its bundle's name.")] = None,
) -> None:
    """Set the servers of the edge's HAProxy from the replicas' leases."""
    log_to_stderr("info")
    follow_leases(Leases(redis), AdminSocket(path), model)


if __name__ == "__main__":
    typer.run(main)
