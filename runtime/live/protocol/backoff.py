"""How long to wait after failures."""

from __future__ import annotations

# Of a session's generations, and of its plan.
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
# Twice as long so many times is longer than any wait.
MOST_DOUBLINGS = 64


def backoff_s(earlier: int, first_s: float, most_s: float) -> float:
    """The wait after a failure that `earlier` others came before: twice as long each time, `most_s` at the most."""
    return min(first_s * 2.0 ** min(earlier, MOST_DOUBLINGS), most_s)
