"""How many live sessions a host takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.errors import SessionsFullError

# Nothing says when a listener leaves: a client asks again after so long.
RETRY_AFTER_S = 5.0


@dataclass(frozen=True)
class HostLimits:
    """client_sessions: per client, 0 is no limit. keep_s: how long a session without a connection is kept.

    max_refresh_s: no session is added where all of them, changed at once, would take longer than this.
    message_share: what messages of all sessions may take of the host's thread, as much each; with many sessions more.
    """

    max_sessions: int = 64
    client_sessions: int = 4
    keep_s: float = 60.0
    max_refresh_s: float = 4.0
    message_share: float = 0.5

    def check(self, client: str, clients: Sequence[str], refresh_s: float, expiry_s: float = RETRY_AFTER_S) -> None:
        """Raise SessionsFullError where one more session of `client` is too many beside those of `clients`.

        refresh_s: how long a change of all would take then. expiry_s: when the first session ends that has no client.
        """
        if len(clients) >= self.max_sessions:
            raise _full(f"{len(clients)} sessions are open, the limit", retry_after_s=expiry_s)
        if self.client_sessions and clients.count(client) >= self.client_sessions:
            raise _full(
                f"this client has {self.client_sessions} sessions open, the limit per client", is_of_client=True
            )
        if refresh_s > self.max_refresh_s:
            raise _full(
                f"with one more session a change would take {refresh_s:.1f} s, the limit is {self.max_refresh_s:g} s"
            )


DEFAULT_LIMITS = HostLimits()


def _full(what: str, *, retry_after_s: float = RETRY_AFTER_S, is_of_client: bool = False) -> SessionsFullError:
    return SessionsFullError(what, retry_after_s=retry_after_s, is_of_client=is_of_client)
