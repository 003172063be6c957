"""What slots have, a line per slot: small fields are written on the host, large ones double buffered on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import Device, Event, Stream, Tensor


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Shape of a line (letters of T, C, B = bands), dtype and the value that changes nothing."""

    line: str
    neutral: float
    dtype: str = "float32"


FIELDS = {
    "time": FieldSpec("", 1.0),
    "next_time": FieldSpec("", 1.0),
    "target_gate": FieldSpec("", 0.0),
    "sde": FieldSpec("", 0, "bool"),
    "use_cached_negative": FieldSpec("", 0, "bool"),
    "velocity_scale": FieldSpec("T", 1.0),
    "guidance": FieldSpec("T", 1.0),
    "momentum": FieldSpec("T", -0.75),
    "rescale": FieldSpec("T", 0.0),
    "mask": FieldSpec("T", 1.0),
    "target_curve": FieldSpec("T", 0.0),
    "ode_noise": FieldSpec("T", 0.0),
    "sde_curve": FieldSpec("T", 1.0),
    "dcw_low": FieldSpec("B", 0.0),
    "dcw_high": FieldSpec("B", 0.0),
    "dcw_pix": FieldSpec("T", 0.0),
    "original": FieldSpec("TC", 0.0),
    "mask_noise": FieldSpec("TC", 0.0),
    "target": FieldSpec("TC", 0.0),
    "source": FieldSpec("TC", 0.0),
    "step_noise": FieldSpec("TC", 0.0),
    "channel_gain": FieldSpec("TC", 1.0),
}
PARAMETER_FIELDS = (
    "velocity_scale", "guidance", "momentum", "rescale", "target_curve", "ode_noise", "sde", "sde_curve",
    "dcw_low", "dcw_high", "dcw_pix", "channel_gain",
)  # fmt: skip
DOUBLES = ("latents", "momentum_state", "cached_negative_velocity")


class SlotField:
    """One line per slot, written on the host, read by engines."""

    def __init__(self, device: Device, shape: tuple[int, ...], spec: FieldSpec) -> None:
        self._device = device
        self._neutral = spec.neutral
        self.tensor = device.zeros(shape, spec.dtype)
        self.host: NDArray[Any] = device.mirror(self.tensor)
        self.host[...] = spec.neutral
        self._dirty = set(range(shape[0]))

    def write(self, slot_index: int, value: Any) -> None:
        """Set a slot's line; None is the neutral value."""
        self.host[slot_index] = self._neutral if value is None else value
        self._dirty.add(slot_index)

    def line(self, slot_index: int) -> NDArray[Any]:
        """A slot's line, to be filled in place."""
        self._dirty.add(slot_index)
        line: NDArray[Any] = self.host[slot_index]
        return line

    def flush(self, stream: Stream) -> None:
        """Upload the lines that were written since the last time."""
        if self._dirty and self.tensor.host is None:
            size = self.host[0].size
            for begin, end in runs(self._dirty):
                target = self.tensor.view(end - begin, *self.host.shape[1:], start=begin * size)
                self._device.upload(target, self.host[begin:end], stream)
        self._dirty.clear()


class DoubleBuffer:
    """Two sides of one device array `[S, T, C]`: `current` is read by the next tick, which writes `other`.

    Copies on another stream may still be reading a side: whoever writes one asks for it with `to_write`.
    """

    def __init__(self, device: Device, shape: tuple[int, ...]) -> None:
        self.sides = (device.zeros(shape, np.float32), device.zeros(shape, np.float32))
        self.side = 0
        self._readers: tuple[list[Event], list[Event]] = ([], [])

    @property
    def current(self) -> Tensor:
        """What the next tick reads."""
        return self.sides[self.side]

    @property
    def other(self) -> Tensor:
        """What the next tick writes."""
        return self.sides[1 - self.side]

    def flip(self) -> None:
        """The tick wrote `other`: that is current now."""
        self.side = 1 - self.side

    def is_read_until(self, event: Event) -> None:
        """A copy of the current side runs on another stream, up to this event."""
        self._readers[self.side].append(event)

    def to_write(self, side: int, stream: Stream) -> Tensor:
        """A side for work on `stream`, which first lets the copies of it finish."""
        readers = self._readers[side]
        for event in readers:
            stream.wait(event)
        readers.clear()
        return self.sides[side]


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges (begin, end) without gaps, in order: {3, 1, 2, 7} -> (1, 4), (7, 8)."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
