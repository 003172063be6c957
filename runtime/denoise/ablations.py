"""What a technique of the tick is worth can be measured: here is how the tick works without it.

Each slow way stands behind the interface of the fast one, and a bucket takes one or the other when it is opened.
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
from runtime.denoise.slot_fields import FIELDS, FieldSpec, SlotField
from runtime.denoise.slot_state import SlotState
from runtime.denoise.step_binding import StepBinding, dtype_of, lines
from runtime.devices.device import Device, Event, Stream, Tensor
from runtime.engines.engine import Engine, Execution
from runtime.scheduling.batch import BucketBatch

# A line of a slot of its own begins at a multiple of so many elements: for GPUs, at a multiple of 256 bytes.
APART = 256


@dataclass(frozen=True, slots=True)
class Techniques:
    """How a bucket launches, lays out rows, steps and keeps fields."""

    launch: type[Launch]
    rows: type[RowBuffers]
    steps: Callable[[Device, Stream, SlotState, int], StepBinding]
    field: type[SlotField]


def techniques_of(config: RuntimeConfig) -> Techniques:
    """What a deployment's [runtime] table asks for."""
    return Techniques(
        launch=Launch if config.event_wait else SynchronizedLaunch,
        rows=RowBuffers if config.frozen_conditions else RewrittenRowBuffers,
        steps=StepBinding if config.batched_step else SlotwiseStepBinding,
        field=SlotField if config.batched_step else SlotwiseSlotField,
    )


class SynchronizedLaunch(Launch):
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

    def lay_out(self, batch: BucketBatch) -> None:
        """Write all rows, whoever had them before."""
        self._rows = ()
        self._executes = ()
        super().lay_out(batch)


class SlotwiseSlotField(SlotField):
    """A field whose lines lie apart too, for steps that take one slot at a time."""

    def __init__(self, device: Device, shape: tuple[int, ...], spec: FieldSpec) -> None:
        super().__init__(device, shape, spec)
        self.apart = Apart(device, shape[0], shape[1:], spec.dtype)

    def flush(self, stream: Stream) -> None:
        """Upload the lines that were written since the last time, each for itself."""
        for slot_index in sorted(self._dirty):
            self.apart.upload(slot_index, self.host[slot_index : slot_index + 1], stream)
        super().flush(stream)


class Apart:
    """Device memory with a line per slot, each at an aligned address of its own."""

    def __init__(self, device: Device, slot_count: int, line: tuple[int, ...], dtype: Any) -> None:
        self._device, self._stride = device, -(-prod(line) // APART) * APART
        self.tensor = device.zeros((slot_count * self._stride,), dtype)

    def line(self, slot_index: int, *shape: int) -> Tensor:
        """A slot's line as `[1, ...]`."""
        return self.tensor.view(1, *shape, start=slot_index * self._stride)

    def upload(self, slot_index: int, values: NDArray[Any], stream: Stream) -> None:
        """Write a slot's line `[1, ...]`."""
        self._device.upload(self.line(slot_index, *values.shape[1:]), values, stream)


class SlotwiseStepBinding(StepBinding):
    """The step graph once per slot, one after the other. On TensorRT, T * C must be a multiple of 64."""

    def __init__(self, device: Device, stream: Stream, state: SlotState, flags_kept: int) -> None:
        self._apart: dict[str, Apart] = {}
        super().__init__(device, stream, state, flags_kept)

    def bind(self, engine: Engine, batch: BucketBatch, latents: Tensor, velocity: Tensor) -> Execution:
        """An execute for each slot up to the last live one."""
        together = self._tensors(engine, batch, latents, velocity)
        return InTurn(
            [engine.bind(self._of_slot(slot_index, together, batch)) for slot_index in range(batch.slot_count)]
        )

    def finite(self, slot_count: int) -> NDArray[np.bool_]:
        """Per slot, whether the last tick left only finite latents; valid when that tick is done."""
        flags = next(self._flags)
        self._device.download(flags, self._finite, self._stream)
        return flags[::APART][:slot_count]

    def _make_finite(self, device: Device) -> Tensor:
        self._flags_apart = Apart(device, self._state.slot_count, (), np.bool_)
        return self._flags_apart.tensor

    def _of_slot(self, slot_index: int, together: dict[str, Tensor], batch: BucketBatch) -> dict[str, Tensor]:
        """A slot's part of each tensor. Velocities stay whole: rows are counted over the tick."""
        tables = lines(batch)
        tensors = {"velocity": together["velocity"], "finite": self._flags_apart.line(slot_index)}
        for name in together.keys() - tensors.keys():
            line = together[name].shape[1:]
            if name in FIELDS:
                field = self._state.field(name)
                assert isinstance(field, SlotwiseSlotField)
                tensors[name] = field.apart.line(slot_index, *line)
            elif name in tables:
                tensors[name] = self._table_apart(name).line(slot_index, *line)
            else:
                tensors[name] = together[name].view(1, *line, start=slot_index * prod(line))
        return tensors

    def _flush(self, name: str, table: NDArray[Any]) -> None:
        super()._flush(name, table)
        for slot_index in range(len(table)):
            self._table_apart(name).upload(slot_index, table[slot_index : slot_index + 1], self._stream)

    def _table(self, name: str) -> Buffer:
        self._table_apart(name)
        return super()._table(name)

    def _table_apart(self, name: str) -> Apart:
        if name not in self._apart:
            self._apart[name] = Apart(self._device, self._state.slot_count, self.most(name), dtype_of(name))
        return self._apart[name]


@dataclass(frozen=True, slots=True)
class InTurn:
    """Executions that count as one."""

    executions: list[Execution]

    def launch(self, stream: Stream) -> None:
        """Put all on the stream, in order. Raises EngineError."""
        for execution in self.executions:
            execution.launch(stream)

    def warm_up(self, stream: Stream) -> None:
        """Put all on the stream, each with what a graph bakes in. Raises EngineError."""
        for execution in self.executions:
            execution.warm_up(stream)

    def release(self) -> None:
        """Give back what was held."""
        for execution in self.executions:
            execution.release()
