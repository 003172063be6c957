"""What all parts of a tick are made with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from runtime.base.errors import UnitOfWork
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment, RuntimeConfig
from runtime.devices.device import Device, Stream
from runtime.engines.engine import EngineSet

Beside = Callable[[Callable[[], None]], Future[None]]


def at_once(work: Callable[[], None]) -> Future[None]:
    """In this thread. Raises EngineDeadError."""
    done = Future[None]()
    with UnitOfWork("work beside the ticks", done.set_exception):
        work()
        done.set_result(None)
    return done


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
