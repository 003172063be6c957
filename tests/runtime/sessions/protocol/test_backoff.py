"""Waiting times after failures."""

from __future__ import annotations

from runtime.sessions.protocol.backoff import backoff_s


def test_each_wait_is_twice_as_long_up_to_the_longest() -> None:
    assert [backoff_s(failures, 0.5, 3.0) for failures in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_what_fails_for_days_is_still_tried_again() -> None:
    assert backoff_s(100_000, 0.05, 30.0) == 30.0
