"""The Runner protocol: one kind of work in a tick is laid out, launched, and read out when it is finished.

And what runners are made with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from runtime.base.errors import TickError, UnitOfWork
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment, RuntimeConfig
from runtime.devices.device import Device, Event, Stream
from runtime.engines.engine import EngineSet
from runtime.engines.launch_cache import Beside, LaunchCounts, at_once
from runtime.tick.scheduling.slot import Slot

logger = logging.getLogger("tickrt")


class BucketSpan(NamedTuple):
    """A bucket's executes on the device: when they began after those of the tick's first bucket, how long they took."""

    frames: int
    slots: int
    rows: int
    executes: int
    begin_ms: float
    ms: float


class LaunchFailures(list[tuple[Sequence[Slot], TickError]]):
    """Slots that fail with an error, because an execute of their shape did; slots of other shapes go on."""

    def of(self, slots: Sequence[Slot]) -> UnitOfWork:
        """Around what is launched for these slots."""
        return UnitOfWork("the launch of a tick", partial(self._note, slots))

    def _note(self, slots: Sequence[Slot], error: TickError) -> None:
        logger.error("%d generations end, a tick could not be launched for them: %s", len(slots), error.what)
        self.append((slots, error))


class RunnerPart(Protocol):
    """What a runner executes in one tick: a plain value."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that take a step."""

    @property
    def frames(self) -> tuple[int, ...]:
        """The lengths of its buckets."""

    @property
    def variants(self) -> tuple[str, ...]:
        """The features of each bucket's step."""

    @property
    def num_rows(self) -> int:
        """Rows of all executes."""

    @property
    def num_executes(self) -> int:
        """Executes of the model."""


class Launched(Protocol):
    """A part that was launched."""

    @property
    def failed(self) -> LaunchFailures:
        """Slots that could not be launched, and why: they fail with these errors."""

    @property
    def begin(self) -> Event | None:
        """Before its first execute; None where it has none."""

    def spans(self, stream: Stream, first: Event) -> Sequence[BucketSpan]:
        """When its executes ran, from `first` on. Valid when the tick is done."""

    def non_finite(self) -> Iterable[tuple[Slot, int]]:
        """Slots whose state became NaN or infinite, with the step they took. Valid when the tick is done."""


P = TypeVar("P", bound=RunnerPart)


class Runner(Protocol[P]):
    """One kind of work: the flow model's (DenoiseRunner), a language model's. Called by the tick thread alone."""

    @property
    def launch_counts(self) -> LaunchCounts:
        """What happened to launches so far."""

    def admit(self, slot: Slot) -> None:
        """Copy what was prepared for a slot (`slot.work`) into its memory."""

    def update(self, slot: Slot) -> None:
        """Take a slot's new `work`; it holds from the next launch on."""

    def vacate(self, slot: Slot) -> None:
        """Empty a slot that ended early."""

    def plan(self) -> P | None:
        """What the next tick executes for the live slots; None where there are none."""

    def launch(self, part: P) -> Launched:
        """Upload what changed and put the part on the stream. Raises EngineDeadError."""

    def commit(self, part: P) -> None:
        """Every slot of a launched part has taken its step."""

    def read_out(self, slots: Sequence[Slot], ready: Event) -> tuple[list[NDArray[Any]], Event]:
        """Begin to copy out the results of finished slots, as of `ready`, and empty the slots.

        The arrays are valid once the returned event is done. Raises EngineError: no slot is empty then.
        """

    def snapshot(self, slot: Slot) -> Any:
        """Copies of what a slot is continued from. Waits for the device."""

    def bound_captures(self) -> None:
        """From now on capture only what comes back as often as pays for its graph, by what was measured so far."""

    def use(self, engines: EngineSet) -> None:
        """Run on other engines of the same tensors from the next tick on."""

    def close(self) -> None:
        """Wait for what is pending and release everything. Raises EngineDeadError."""


@dataclass(frozen=True)
class TickContext:
    """The device, the stream on which ticks run, the engines in use, and what describes model and deployment.

    beside: runs, one after the other, what makes captured graphs and their contexts, and what ends graphs, contexts and
    engines that nothing uses any more: that takes as long as many ticks.
    """

    device: Device
    stream: Stream
    engines: EngineSet
    bundle: Bundle
    deployment: Deployment
    beside: Beside = at_once

    @property
    def runtime(self) -> RuntimeConfig:
        """The deployment's [runtime] table."""
        return self.deployment.runtime

    @property
    def can_capture(self) -> bool:
        """Whether ticks that recur become captured graphs."""
        return self.runtime.capture and self.device.kind != "cpu"
