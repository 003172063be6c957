"""How long changes of one session take until they are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from runtime.live.parts.controls import STEP_CONTROLS
from runtime.live.protocol.messages import ClientMessage, SetAdapter, SetControls, SetPrompts, SetReference
from runtime.live.protocol.server_messages import Applied, Stages

ControlKind = Literal["step", "generation"]
Observer = Callable[[ControlKind, str, float], None]
MAX_CHANGES = 64


def kind_of(message: ClientMessage) -> ControlKind | None:
    """step: it reaches generations in flight; generation: it needs a new one; None: it changes no generation."""
    if isinstance(message, SetControls):
        return "step" if message.values.keys() <= set(STEP_CONTROLS) else "generation"
    if isinstance(message, SetAdapter):
        return "step"
    return "generation" if isinstance(message, SetPrompts | SetReference) else None


@dataclass(slots=True)
class _Change:
    """A change, when it came, the milliseconds until its stages, first and last, and what was observed of it."""

    kind: ControlKind
    received_s: float
    first_ms: dict[str, float] = field(default_factory=dict)
    last_ms: dict[str, float] = field(default_factory=dict)
    observed: set[str] = field(default_factory=set)


class ControlTimes:
    """Times of the changes that are not played in full yet, at most MAX_CHANGES. clock: the host's.

    observe: gets the seconds from a change's arrival until the playhead reaches the first sample with it, and the first
    from which on it is complete. Both are estimates of the time when that audio is sent.
    """

    def __init__(self, observe: Observer, clock: Callable[[], float]) -> None:
        self._observe, self._clock = observe, clock
        self._changes: dict[int, _Change] = {}

    def receive(self, message: ClientMessage) -> None:
        """A client's message was accepted."""
        kind, seq = kind_of(message), getattr(message, "seq", None)
        if kind is None or seq is None:
            return
        self._changes[seq] = _Change(kind, self._clock())
        if len(self._changes) > MAX_CHANGES:
            del self._changes[min(self._changes)]

    def mark(self, stage: str, seq: int) -> None:
        """The changes up to `seq` have reached a stage, one of the fields of Stages."""
        now_s = self._clock()
        for number, change in self._changes.items():
            if number <= seq:
                change.last_ms[stage] = (now_s - change.received_s) * 1e3
                change.first_ms.setdefault(stage, change.last_ms[stage])

    def apply(self, message: Applied, playhead_sample: int, sample_rate_hz: int) -> Applied:
        """The message with its stages: the first ones, or, where it is complete, the last ones before this.

        Observes when its samples will be played.
        """
        change = self._changes.get(message.seq)
        if change is None:
            return message
        for stage, sample in (("first", message.first_sample), ("full", message.full_sample)):
            if sample is not None and stage not in change.observed:
                change.observed.add(stage)
                ahead_s = max(0, sample - playhead_sample) / sample_rate_hz
                self._observe(change.kind, stage, self._clock() - change.received_s + ahead_s)
        if message.full_sample is None:
            return message.model_copy(update={"stages_ms": Stages(**change.first_ms)})
        del self._changes[message.seq]
        return message.model_copy(update={"stages_ms": Stages(**change.last_ms)})
