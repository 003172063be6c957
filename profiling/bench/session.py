"""A deployment opened for measuring: device and engines, shared by all loops of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from profiling.bench.result import result_of
from profiling.bench.steady_stream import Competitors, Measurement, SteadyStream
from profiling.bench.workload import Workload
from profiling.provenance import this_commit
from runtime.commands.progress import TaskProgress
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.engine import EngineSet
from runtime.engines.loading import open_engines
from runtime.tick.denoise.bucket import FASTEST, DenoiseParts


class SharedEngines(EngineSet):
    """Engines that several loops use in turn: a loop that closes does not close them, the session does."""

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class BenchSession:
    """The bundle, the deployment, its open device and engines, the progress of the run, and the kind of its streams."""

    bundle: Bundle
    deployment: Deployment
    device: Device
    engines: EngineSet
    progress: TaskProgress
    kind: type[SteadyStream] = SteadyStream

    @contextmanager
    def stream(
        self, load: Workload, deployment: Deployment | None = None, parts: DenoiseParts = FASTEST
    ) -> Iterator[SteadyStream]:
        """A steady stream on a loop of its own, closed at the end.

        `deployment`: another [runtime] table; `parts`: of which it denoises.
        """
        stream = self.kind(self.bundle, deployment or self.deployment, self.engines, self.device, load, parts)
        try:
            yield stream
        finally:
            stream.loop.close()

    def measure(
        self, load: Workload, ticks: int, competitors_of: Callable[[int], Competitors] | None = None
    ) -> tuple[dict[str, Any], Measurement]:
        """One run, as a JSON object and as measured; a task of the progress. Raises TickError."""
        with self.progress.task(load.text), self.stream(load) as stream:
            measured = stream.run(ticks, 2 * load.steps, competitors_of, self.progress.update)
            free_mib = self.device.free_bytes >> 20
        return {**result_of(measured, self.bundle, self.deployment, self.engines), "free_mib": free_mib}, measured


@contextmanager
def open_bench(deployment: Deployment, weights: Sequence[float] = ()) -> Iterator[BenchSession]:
    """Open device and engines for the time of a run. weights: see TaskProgress. Raises TickError."""
    this_commit()
    bundle = deployment.loaded_bundle
    with TaskProgress(weights) as progress, ExitStack() as stack:
        device = open_device(deployment.target)
        stack.callback(device.close)
        engines = open_engines(deployment, device)
        stack.callback(engines.close)
        shared = SharedEngines(
            engines.decoder, engines.rows, engines.steps, engines.adapted, engines.adapters, planner=engines.planner
        )
        yield BenchSession(bundle, deployment, device, shared, progress)
