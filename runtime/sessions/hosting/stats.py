"""What a host reports of its sessions."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.sessions.messages import State


@dataclass(frozen=True)
class SessionInfo:
    """A session as of now. `state`: the last one that was sent to its client."""

    id: str
    client: str
    is_connected: bool
    state: State | None


@dataclass(frozen=True)
class HostStats:
    """Counts since the start.

    Sessions opened, or restored from the store, = open + the sum of `ended`, by reason. Generations started = those in
    flight + the sum of `generations_ended`: finished, cancelled, failed.
    """

    open: int
    connected: int
    opened: int
    ended: dict[str, int]
    generations_started: int
    generations_ended: dict[str, int]
    underruns: int
    store_failure: str | None
