"""Limits of a host: sessions, sessions of one client, the time of a refresh."""

from __future__ import annotations

import pytest

from runtime.errors import SessionsFullError
from runtime.sessions.hosting.limits import HostLimits


@pytest.mark.parametrize(
    ("limits", "clients", "refresh_s", "refused"),
    [
        (HostLimits(max_sessions=2), ["b"], 4.0, ""),
        (HostLimits(max_sessions=2), ["b", "c"], 0.0, "2 sessions are open"),
        (HostLimits(client_sessions=2), ["a", "b", "a"], 0.0, "this client has 2 sessions open"),
        (HostLimits(client_sessions=0), ["a"] * 9, 0.0, ""),
        (HostLimits(max_refresh_s=2.0), [], 2.5, "would take 2.5 s, the limit is 2 s"),
    ],
)
def test_one_more_session_of_a_client(limits: HostLimits, clients: list[str], refresh_s: float, refused: str) -> None:
    if not refused:
        limits.check("a", clients, refresh_s)
        return
    with pytest.raises(SessionsFullError, match=refused) as found:
        limits.check("a", clients, refresh_s)
    assert found.value.retry_after_s > 0


def test_a_place_is_free_when_the_first_session_without_a_client_ends() -> None:
    with pytest.raises(SessionsFullError) as found:
        HostLimits(max_sessions=1).check("a", ["b"], 0.0, 42.0)
    assert found.value.retry_after_s == 42.0
