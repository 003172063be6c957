"""The lanes that are open, one per length T, and the arrays in which their finished latents leave."""

from __future__ import annotations

from collections.abc import Collection

from runtime.config import Deployment
from runtime.device import Device, Stream
from runtime.engine import EngineSet
from runtime.lane import Lane
from runtime.pool import ArrayPool
from runtime.request import Array
from runtime.spec import Bundle

MAX_IDLE_LANES = 4


class Lanes:
    """Opens a lane when its length is first needed; keeps a few that stand empty for the next generation."""

    def __init__(
        self, device: Device, stream: Stream, engines: EngineSet, bundle: Bundle, deployment: Deployment
    ) -> None:
        self._device, self._stream, self._engines = device, stream, engines
        self._bundle, self._deployment = bundle, deployment
        self._lanes: dict[int, Lane] = {}
        self._pools: dict[int, ArrayPool] = {}

    def __getitem__(self, frames: int) -> Lane:
        return self._lanes[frames]

    def open(self, frames: int, live: Collection[int]) -> Lane:
        """The lane of a length; a new one takes the place of one that is not `live` once many of those stand empty."""
        if frames not in self._lanes:
            idle = [length for length in self._lanes if length not in live]
            if len(idle) >= MAX_IDLE_LANES:
                del self._lanes[idle[0]], self._pools[idle[0]]
            shape = (frames, self._bundle.latents.channels)
            self._pools[frames] = ArrayPool(shape, 2 * self._deployment.runtime.depth)
            self._lanes[frames] = Lane(
                self._device, self._stream, self._engines, self._bundle, self._deployment, frames
            )
        return self._lanes[frames]

    def read_out(self, frames: int, seat: int) -> Array:
        """A seat's latents `[T, C]` in an array that the receiver may keep, copied in stream order."""
        latents = self._pools[frames].lend()
        self._lanes[frames].state.read("latents", seat, latents)
        return latents

    @property
    def allocations(self) -> int:
        """Every allocation of the device and the pools so far."""
        return self._device.allocations + sum(pool.allocations for pool in self._pools.values())
