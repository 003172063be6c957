"""Phases of a tick, as those that time them see them."""

from __future__ import annotations

from typing import Protocol


class PhaseRecorder(Protocol):
    """Notes at which time each phase of the tick begins."""

    def begin(self, phase: str) -> None:
        """Begin a phase; it lasts until the next one begins."""
