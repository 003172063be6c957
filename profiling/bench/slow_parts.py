"""How the tick works without one of its techniques, so that what it is worth can be measured.

Each slow way is a subclass of the fast one, which a tick loop is given in its place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import Engine, Execution
from runtime.engines.launch_cache import Call, Launch, LaunchCache
from runtime.tick.denoise.bucket import DenoiseParts
from runtime.tick.denoise.row_buffers import Buffer, Held, RowBuffers, Values
from runtime.tick.denoise.row_layout import RowLayout
from runtime.tick.denoise.slot_fields import FIELDS, LAYOUT
from runtime.tick.denoise.slot_state import SlotField, SlotState
from runtime.tick.denoise.step_binding import StepBinding, table_shapes

# A slot's own row begins at a multiple of so many elements: for GPUs, at a multiple of 256 bytes.
ROW_STRIDE = 256
EVERY_TICK = ("time", "next_time", "target_gate", "extrapolation")
TECHNIQUES = EVENT_WAIT, BATCHED_STEP, FROZEN_CONDITIONS = "event_wait", "batched_step", "frozen_conditions"


def parts_without(techniques: Collection[str]) -> DenoiseParts:
    """Denoising without these of TECHNIQUES.

    event wait: the host waits for a tick's event, without it after each execute. batched step: one execute steps all
    slots. frozen conditions: rows are written when they change, without it at every tick.
    """
    assert set(techniques) <= set(TECHNIQUES), techniques
    slotwise = BATCHED_STEP in techniques
    return DenoiseParts(
        launches=SynchronizedLaunchCache if EVENT_WAIT in techniques else LaunchCache,
        state=SlotwiseState if slotwise else SlotState,
        rows=RewrittenRowBuffers if FROZEN_CONDITIONS in techniques else RowBuffers,
        step=SlotwiseStepBinding if slotwise else StepBinding,
    )


class SynchronizedLaunchCache(LaunchCache):
    """The host waits for the stream after each execute, and after each captured graph."""

    def before_run(self, launch: Launch) -> None:
        """Choose how the launch runs now, with a wait behind each call."""
        super().before_run(launch)
        launch.before = tuple(_synchronized(call) for call in launch.before)
        launch.decoder = tuple(_synchronized(call) for call in launch.decoder)
        launch.after = tuple(_synchronized(call) for call in launch.after)


@dataclass(frozen=True, slots=True)
class _Synchronized:
    call: Call

    def __call__(self, stream: Stream) -> None:
        self.call(stream)
        stream.record().wait()


def _synchronized(call: Call) -> Call:
    return call if isinstance(call, _Synchronized) else _Synchronized(call)


class RewrittenRowBuffers(RowBuffers):
    """Every row's condition, mask and context is padded, stacked and uploaded at every tick."""

    def lay_out(self, layout: RowLayout) -> None:
        """Write all rows, also those that have not changed."""
        self._conditions, self._contexts = {}, {}
        super().lay_out(layout)
        self.layout = None

    def _source(self, held: Held, values: Values) -> None:
        """None: nothing is copied on the device."""


class SeparateRows:
    """Device memory with a row per slot, each at an aligned address of its own."""

    def __init__(self, device: Device, slot_count: int, row: tuple[int, ...], dtype: Any) -> None:
        self._device, self._stride = device, -(-prod(row) // ROW_STRIDE) * ROW_STRIDE
        self.tensor = device.zeros((slot_count * self._stride,), dtype)

    def row(self, index: int, *shape: int) -> Tensor:
        """A slot's row as `[1, ...]`."""
        return self.tensor.view(1, *shape, start=index * self._stride)

    def upload(self, index: int, values: NDArray[Any], stream: Stream) -> None:
        """Write a slot's row `[1, ...]`."""
        self._device.upload(self.row(index, *values.shape[1:]), values, stream)


class SlotwiseState(SlotState):
    """Fields whose rows also lie apart, for steps that take one slot at a time."""

    def separate(self, name: str) -> SeparateRows:
        """A field's rows, each at an address of its own."""
        return self._separate[name]

    def field(self, name: str) -> SlotField:
        """A field, allocated on first use with neutral rows."""
        if not hasattr(self, "_separate"):
            self._separate: dict[str, SeparateRows] = {}
        field = super().field(name)
        if name not in self._separate:
            row, dtype = field.tensor.shape[1:], FIELDS[name].dtype
            self._separate[name] = SeparateRows(self._device, self.slot_count, row, dtype)
        return field

    def flush(self) -> None:
        """Upload every row that was written, also to its own address."""
        for name, field in self._fields.items():
            changed = range(self.slot_count) if name in EVERY_TICK else sorted(field.changed)
            for index in changed:
                self._separate[name].upload(index, field.host[index : index + 1], self._stream)
        super().flush()


class SlotwiseStepBinding(StepBinding):
    """The step graph once per slot, one after the other. On TensorRT, T * C must be a multiple of 64."""

    def __init__(self, device: Device, stream: Stream, state: SlotState, flags_kept: int) -> None:
        self._separate: dict[str, SeparateRows] = {}
        super().__init__(device, stream, state, flags_kept)

    def bind(self, engine: Engine, layout: RowLayout, latents: Tensor, velocity: Tensor) -> Execution:
        """An execute for each slot up to the last live one."""
        together = self._tensors(engine, layout, latents, velocity)
        indices = range(layout.slot_count)
        return ExecutionSequence([engine.bind(self._of_slot(index, together, layout)) for index in indices])

    def finite(self, slot_count: int) -> memoryview:
        """Per slot, 1 if the last tick left only finite latents, else 0; valid when that tick is done."""
        flags, seen = next(self._flags)
        self._device.download(flags, self._finite, self._stream)
        return seen[::ROW_STRIDE][:slot_count]

    def _make_finite(self, device: Device) -> Tensor:
        self._separate_flags = SeparateRows(device, self._state.slot_count, (), np.bool_)
        return self._separate_flags.tensor

    def _of_slot(self, index: int, together: dict[str, Tensor], layout: RowLayout) -> dict[str, Tensor]:
        """A slot's part of each tensor. Velocities stay whole: rows are counted over the tick."""
        assert isinstance(self._state, SlotwiseState)
        tables = table_shapes(layout)
        tensors = {"velocity": together["velocity"], "finite": self._separate_flags.row(index)}
        for name in together.keys() - tensors.keys():
            row = together[name].shape[1:]
            if name in FIELDS:
                tensors[name] = self._state.separate(name).row(index, *row)
            elif name in tables:
                tensors[name] = self._separate_table(name).row(index, *row)
            else:
                tensors[name] = together[name].view(1, *row, start=index * prod(row))
        return tensors

    def _flush(self, name: str, table: NDArray[Any], indices: range) -> None:
        super()._flush(name, table, indices)
        for index in indices:
            self._separate_table(name).upload(index, table[index : index + 1], self._stream)

    def _table(self, name: str) -> Buffer:
        self._separate_table(name)
        return super()._table(name)

    def _separate_table(self, name: str) -> SeparateRows:
        if name not in self._separate:
            row, dtype = self.largest(name), LAYOUT[name].dtype
            self._separate[name] = SeparateRows(self._device, self._state.slot_count, row, dtype)
        return self._separate[name]


@dataclass(frozen=True, slots=True)
class ExecutionSequence:
    """Executions that count as one."""

    executions: list[Execution]

    def prepare(self, stream: Stream) -> bool:
        """Whether all are ready."""
        are_ready = [execution.prepare(stream) for execution in self.executions]
        return all(are_ready)

    def launch(self, stream: Stream) -> None:
        """Put all on the stream, in order. Raises EngineError."""
        for execution in self.executions:
            execution.launch(stream)

    def make(self) -> None:
        """Make what warming up needs. Raises EngineError."""
        for execution in self.executions:
            execution.make()

    def warm_up(self, stream: Stream) -> None:
        """Put all on the stream, each with what a graph bakes in. Raises EngineError."""
        for execution in self.executions:
            execution.warm_up(stream)

    def release(self) -> None:
        """Give back what warming up took."""
        for execution in self.executions:
            execution.release()
