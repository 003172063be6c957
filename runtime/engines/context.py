"""What all parts of a tick are made with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment, RuntimeConfig
from runtime.devices.device import Device, Stream
from runtime.engines.engine import EngineSet

End = Callable[[Callable[[], None]], Future[None] | None]


def end_now(work: Callable[[], None]) -> None:
    """In this thread."""
    work()


@dataclass(frozen=True)
class TickContext:
    """The device, the stream on which ticks run, the engines in use, and what describes model and deployment.

    end: runs what makes contexts, and what ends graphs, contexts and engines that nothing uses any more: that takes as
    long as many ticks.
    """

    device: Device
    stream: Stream
    engines: EngineSet
    bundle: Bundle
    deployment: Deployment
    end: End = end_now

    @property
    def runtime(self) -> RuntimeConfig:
        """The deployment's [runtime] table."""
        return self.deployment.runtime

    @property
    def can_capture(self) -> bool:
        """Whether ticks that recur become captured graphs."""
        return self.runtime.capture and self.device.kind != "cpu"
