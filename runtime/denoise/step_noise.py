"""Noise of the next steps, drawn by a worker thread while the device runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from runtime.denoise.row_layout import LiveSlot
from runtime.devices.device import Device
from runtime.requests.curves import Array
from runtime.requests.timesteps import Purpose, fill_noise


@dataclass(slots=True)
class _Ahead:
    """One slot's noise `[T, C]` that is being drawn for a step."""

    owner: LiveSlot
    step: int
    filled: Future[None]


class StepNoise:
    """A buffer per slot of one length T: the worker fills it for step k + 1 while step k runs. One thread asks."""

    def __init__(self, device: Device, worker: ThreadPoolExecutor, shape: tuple[int, int]) -> None:
        self._device, self._worker, self._shape = device, worker, shape
        self._buffers: dict[int, Array] = {}
        self._ahead: dict[int, _Ahead] = {}

    def take(self, live: LiveSlot) -> Array:
        """The noise of a slot's next step; waits for the worker where it is still drawing. Valid until `draw_next`."""
        slot = live.slot
        ahead = self._ahead.pop(slot.index, None)
        if ahead is not None:
            ahead.filled.result()
            if ahead.owner is live and ahead.step == slot.step:
                return self._buffers[slot.index]
        if live.first_noise is not None and slot.step == live.first_step:
            return live.first_noise
        self._draw(live, slot.step).result()
        return self._buffers[slot.index]

    def draw_next(self, live: LiveSlot) -> None:
        """Begin to draw the noise of the step after the one that was launched."""
        step = live.slot.step + 1
        if step < live.slot.steps:
            self._ahead[live.slot.index] = _Ahead(live, step, self._draw(live, step))

    def _draw(self, live: LiveSlot, step: int) -> Future[None]:
        index = live.slot.index
        if index not in self._buffers:
            self._buffers[index] = self._device.staging(self._shape, np.float32)
        return self._worker.submit(fill_noise, self._buffers[index], live.work.request.seed, Purpose.STEP, step)
