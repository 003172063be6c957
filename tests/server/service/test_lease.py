"""What a lease says about room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.service.lease import Lease

LEASE = Lease("one", "127.0.0.1:8001", "", "ready", 3, 10, 0.5)


@pytest.mark.parametrize(
    ("lease", "takes_work", "has_room"),
    [
        (LEASE, True, True),
        (replace(LEASE, sessions=9), True, True),
        (replace(LEASE, sessions=10), True, False),
        (replace(LEASE, state="full"), True, False),
        (replace(LEASE, state="draining"), False, False),
        (replace(LEASE, state="loading"), False, False),
    ],
)
def test_work_and_room(lease: Lease, takes_work: bool, has_room: bool) -> None:
    assert (lease.takes_work, lease.has_room) == (takes_work, has_room)
