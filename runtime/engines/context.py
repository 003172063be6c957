"""What all parts of a tick are made with."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment, RuntimeConfig
from runtime.devices.device import Device, Stream
from runtime.engines.engine import EngineSet


@dataclass(frozen=True)
class TickContext:
    """The device, the stream on which ticks run, the engines in use, and what describes model and deployment."""

    device: Device
    stream: Stream
    engines: EngineSet
    bundle: Bundle
    deployment: Deployment

    @property
    def runtime(self) -> RuntimeConfig:
        """The deployment's [runtime] table."""
        return self.deployment.runtime

    @property
    def can_capture(self) -> bool:
        """Whether ticks that recur become captured graphs."""
        return self.runtime.capture and self.device.kind != "cpu"
