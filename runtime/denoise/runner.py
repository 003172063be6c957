"""The buckets that are open, one per length T, and the arrays in which their finished latents leave."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.denoise.bucket import LengthBucket
from runtime.denoise.launch_cache import LaunchCache, LaunchCounts
from runtime.devices.device import Device, Event, Stream
from runtime.devices.memory import ArrayPool
from runtime.engines.engine import EngineSet
from runtime.requests.curves import Array

MAX_IDLE_LANES = 4


class DenoiseRunner:
    """Opens a bucket when its length is first needed; keeps a few that stand empty for the next generation.

    Finished latents leave on a stream of their own, while the next tick executes.
    """

    def __init__(
        self, device: Device, stream: Stream, engines: EngineSet, bundle: Bundle, deployment: Deployment
    ) -> None:
        self._device, self._stream, self._engines = device, stream, engines
        self._bundle, self._deployment = bundle, deployment
        self._copies = device.stream()
        runtime = deployment.runtime
        self._launches = LaunchCache(
            device, stream, runtime.captured_graphs, captures=runtime.capture and device.kind != "cpu"
        )
        self._buckets: dict[int, LengthBucket] = {}
        self._pools: dict[int, ArrayPool] = {}

    def __getitem__(self, frames: int) -> LengthBucket:
        return self._buckets[frames]

    def open(self, frames: int, live: Collection[int]) -> LengthBucket:
        """The bucket of a length; a new one replaces one that is not `live` once many are empty."""
        if frames not in self._buckets:
            idle = [length for length in self._buckets if length not in live]
            if len(idle) >= MAX_IDLE_LANES:
                self._close(idle[0])
            self._pools[frames] = self._pool(frames)
            self._buckets[frames] = LengthBucket(
                self._device, self._launches, self._engines, self._bundle, self._deployment, frames
            )
        return self._buckets[frames]

    def begin_copies(self, ready: Event) -> None:
        """What is read out from now on is what there is at `ready`."""
        self._copies.wait(ready)

    def read_out(self, frames: int, slot_index: int) -> Array:
        """A slot's latents `[T, C]` in an array that the receiver may keep; valid when `copied` is done."""
        latents = self._pools[frames].lend()
        self._buckets[frames].state.read_out(slot_index, latents, self._copies)
        return latents

    def copied(self) -> Event:
        """An event after everything that was read out so far."""
        return self._copies.record()

    def use(self, engines: EngineSet) -> None:
        """Run on other engines of the same tensors from the next tick on."""
        self._engines = engines
        for bucket in self._buckets.values():
            bucket.use(engines)

    def close(self) -> None:
        """Wait for what is pending and let go of everything that is bound. Raises EngineDeadError."""
        self._wait()
        self._launches.close()

    @property
    def launch_counts(self) -> LaunchCounts:
        """What happened to launches so far."""
        return self._launches.counts

    def _close(self, frames: int) -> None:
        """Forget a bucket. Its memory must not be used by others before what is pending has run: this waits."""
        self._wait()
        self._buckets.pop(frames).forget_launches()
        del self._pools[frames]

    def _wait(self) -> None:
        self._stream.record().wait()
        self._copies.record().wait()

    def _pool(self, frames: int) -> ArrayPool:
        shape = (frames, self._bundle.latents.channels)
        return ArrayPool(lambda: self._device.staging(shape, np.float32), 2 * self._deployment.runtime.depth)

    @property
    def allocations(self) -> int:
        """Every allocation of the device so far, finished latents' arrays included."""
        return self._device.allocations
