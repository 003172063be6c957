"""What a technique of the tick is worth can be measured: here is how the tick works without it.

Each slow way stands behind the interface of the fast one, and a lane takes one or the other when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.deployment import RuntimeConfig
from runtime.denoise.launch_cache import Launch
from runtime.denoise.row_buffers import Buffer, RowBuffers
from runtime.denoise.slot_fields import FIELDS, Field, FieldSpec
from runtime.denoise.slot_state import SlotState
from runtime.denoise.step_binding import Steps, dtype_of, lines
from runtime.devices.device import Device, Event, Stream, Tensor
from runtime.engines.engine import Engine, Execution
from runtime.scheduling.batch import LaneBatch

# A line of a seat of its own begins at a multiple of so many elements: for GPUs, at a multiple of 256 bytes.
APART = 256


@dataclass(frozen=True, slots=True)
class Techniques:
    """How a lane launches, lays out rows, steps and keeps fields."""

    launch: type[Launch]
    rows: type[RowBuffers]
    steps: Callable[[Device, Stream, SlotState, int], Steps]
    field: type[Field]


def techniques_of(config: RuntimeConfig) -> Techniques:
    """What a deployment's [runtime] table asks for."""
    return Techniques(
        launch=Launch if config.event_wait else SettledLaunch,
        rows=RowBuffers if config.frozen_conditions else RewrittenRowBuffers,
        steps=Steps if config.batched_step else SlotwiseSteps,
        field=Field if config.batched_step else SlotwiseField,
    )


class SettledLaunch(Launch):
    """The host waits for the stream after each execute, and after each graph."""

    __slots__ = ()

    def run(self, stream: Stream) -> tuple[Event, Event]:
        """Put everything on the stream, one after the other, and wait for each."""
        events = super().run(stream)
        stream.record().wait()
        return events

    def _each(self, stream: Stream, start: Callable[[Execution], None]) -> tuple[Event, Event]:
        def start_and_wait(execution: Execution) -> None:
            start(execution)
            stream.record().wait()

        return super()._each(stream, start_and_wait)


class RewrittenRowBuffers(RowBuffers):
    """Every row's condition, mask and context is padded, stacked and uploaded at every tick."""

    def lay_out(self, batch: LaneBatch) -> None:
        """Write all rows, whoever had them before."""
        self._rows = ()
        self._executes = ()
        super().lay_out(batch)


class SlotwiseField(Field):
    """A field whose lines lie apart too, for steps that take one slot at a time."""

    def __init__(self, device: Device, shape: tuple[int, ...], spec: FieldSpec) -> None:
        super().__init__(device, shape, spec)
        self.apart = Apart(device, shape[0], shape[1:], spec.dtype)

    def flush(self, stream: Stream) -> None:
        """Upload the lines that were written since the last time, each for itself."""
        for seat in sorted(self._dirty):
            self.apart.upload(seat, self.host[seat : seat + 1], stream)
        super().flush(stream)


class Apart:
    """Device memory with a line per seat, each at an aligned address of its own."""

    def __init__(self, device: Device, seats: int, line: tuple[int, ...], dtype: Any) -> None:
        self._device, self._stride = device, -(-prod(line) // APART) * APART
        self.tensor = device.zeros((seats * self._stride,), dtype)

    def line(self, seat: int, *shape: int) -> Tensor:
        """A seat's line as `[1, ...]`."""
        return self.tensor.view(1, *shape, start=seat * self._stride)

    def upload(self, seat: int, values: NDArray[Any], stream: Stream) -> None:
        """Write a seat's line `[1, ...]`."""
        self._device.upload(self.line(seat, *values.shape[1:]), values, stream)


class SlotwiseSteps(Steps):
    """The step graph once per seat, one after the other. On TensorRT, T * C must be a multiple of 64."""

    def __init__(self, device: Device, stream: Stream, state: SlotState, flags_kept: int) -> None:
        self._apart: dict[str, Apart] = {}
        super().__init__(device, stream, state, flags_kept)

    def bind(self, engine: Engine, batch: LaneBatch, latents: Tensor, velocity: Tensor) -> Execution:
        """An execute for each seat up to the last live one."""
        together = self._tensors(engine, batch, latents, velocity)
        return InTurn([engine.bind(self._of_seat(seat, together, batch)) for seat in range(batch.seats)])

    def finite(self, seats: int) -> NDArray[np.bool_]:
        """Per seat, whether the last tick left only finite latents; valid when that tick is done."""
        flags = next(self._flags)
        self._device.download(flags, self._finite, self._stream)
        return flags[::APART][:seats]

    def _make_finite(self, device: Device) -> Tensor:
        self._flags_apart = Apart(device, self._state.seats, (), np.bool_)
        return self._flags_apart.tensor

    def _of_seat(self, seat: int, together: dict[str, Tensor], batch: LaneBatch) -> dict[str, Tensor]:
        """A seat's part of each tensor. Velocities stay whole: rows are counted over the tick."""
        tables = lines(batch)
        tensors = {"velocity": together["velocity"], "finite": self._flags_apart.line(seat)}
        for name in together.keys() - tensors.keys():
            line = together[name].shape[1:]
            if name in FIELDS:
                field = self._state.field(name)
                assert isinstance(field, SlotwiseField)
                tensors[name] = field.apart.line(seat, *line)
            elif name in tables:
                tensors[name] = self._table_apart(name).line(seat, *line)
            else:
                tensors[name] = together[name].view(1, *line, start=seat * prod(line))
        return tensors

    def _flush(self, name: str, table: NDArray[Any]) -> None:
        super()._flush(name, table)
        for seat in range(len(table)):
            self._table_apart(name).upload(seat, table[seat : seat + 1], self._stream)

    def _table(self, name: str) -> Buffer:
        self._table_apart(name)
        return super()._table(name)

    def _table_apart(self, name: str) -> Apart:
        if name not in self._apart:
            self._apart[name] = Apart(self._device, self._state.seats, self.most(name), dtype_of(name))
        return self._apart[name]


@dataclass(frozen=True, slots=True)
class InTurn:
    """Executions that count as one."""

    executions: list[Execution]

    def launch(self, stream: Stream) -> None:
        """Put all on the stream, in order. Raises EngineError."""
        for execution in self.executions:
            execution.launch(stream)

    def hold(self, stream: Stream) -> None:
        """Put all on the stream, each with what a graph bakes in. Raises EngineError."""
        for execution in self.executions:
            execution.hold(stream)

    def release(self) -> None:
        """Give back what was held."""
        for execution in self.executions:
            execution.release()
