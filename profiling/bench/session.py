"""A deployment opened for measuring: engines that all loops of a run share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from profiling.bench.result import report
from profiling.bench.steady_stream import Result, Rivals, SteadyStream
from profiling.bench.workload import Workload
from profiling.provenance import this_commit
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.engine import EngineSet
from runtime.engines.loading import open_engines


class SharedEngines(EngineSet):
    """Engines that several loops run on: whoever opened them closes them."""

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Rig:
    """What every loop of a run has in common."""

    bundle: Bundle
    deployment: Deployment
    device: Device
    engines: EngineSet

    def stream(self, load: Workload, deployment: Deployment | None = None) -> SteadyStream:
        """A loop of its own; close it before the rig."""
        return SteadyStream(self.bundle, deployment or self.deployment, self.engines, self.device, load)

    def measure(
        self, load: Workload, ticks: int, beside: Callable[[int], Rivals] | None = None
    ) -> tuple[dict[str, Any], Result]:
        """One run, as a card and as it was measured. Raises TickError."""
        stream = self.stream(load)
        try:
            result = stream.run(ticks, 2 * load.steps, beside)
        finally:
            stream.loop.close()
        return report(result, self.bundle, self.deployment, self.engines), result


@contextmanager
def opened(deployment: Deployment) -> Iterator[Rig]:
    """Open device and engines for the time of a run. Raises TickError."""
    this_commit()
    bundle = load_bundle(deployment.bundle)
    with ExitStack() as held:
        device = open_device(deployment.target)
        held.callback(device.close)
        engines = open_engines(deployment, device)
        held.callback(engines.close)
        yield Rig(bundle, deployment, device, SharedEngines(engines.decoder, engines.rows, engines.steps))
