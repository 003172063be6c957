"""What an engine says of the time of its nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """One node of a compiled graph: its operator, and its time in each of several executes, in milliseconds."""

    name: str
    op_type: str
    runs_ms: tuple[float, ...]
