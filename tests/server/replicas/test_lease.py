"""What a lease says about room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.replicas.lease import Lease

LEASE = Lease("one", "127.0.0.1:8001", "", "ready", 3, 10, 0.5)


@pytest.mark.parametrize(
    ("lease", "has_room"),
    [
        (LEASE, True),
        (replace(LEASE, sessions=10), False),
        (replace(LEASE, state="full"), False),
        (replace(LEASE, state="draining"), False),
        (replace(LEASE, state="loading"), False),
    ],
)
def test_room(lease: Lease, has_room: bool) -> None:
    assert lease.has_room is has_room
