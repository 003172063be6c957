"""All slots' latents, curves and vectors of one length T: one tensor per entry of slot_fields, a row per slot.

Fields are written on the host and uploaded when they changed. Latents, momentum and cached velocities live on the
device, double buffered: a tick reads one side and writes the other, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import ALIGNMENT_BYTES, Device, Event, Stream, Tensor
from runtime.devices.memory import PackedVectors, host_view
from runtime.requests.curves import Array
from runtime.tick.denoise.prepared import PreparedGeneration
from runtime.tick.denoise.slot_fields import FIELDS, TickTensor

VECTOR_FIELDS = tuple(name for name, tensor in FIELDS.items() if tensor.letters == "S")


class SlotField:
    """A tensor with a row per slot, written on the host, read by engines. Its name is in `changed_fields` then."""

    def __init__(
        self, device: Device, spec: TickTensor, tensor: Tensor, host: NDArray[Any], changed_fields: set[str]
    ) -> None:
        self._device, self._name, self._default = device, spec.name, spec.neutral
        self._changed_fields = changed_fields
        self.tensor, self.host = tensor, host
        host[...] = spec.neutral  # [S, ...]
        self._changed = set(range(len(host)))
        self._set: set[int] = set()

    @property
    def changed(self) -> set[int]:
        """The rows that were written since the last upload."""
        return self._changed

    def write(self, index: int, value: Any) -> None:
        """Set a slot's row; None is the neutral value."""
        if value is None:
            if index not in self._set:
                return
            self._set.discard(index)
            self.host[index] = self._default  # [...] of one slot
        else:
            self._set.add(index)
            self.host[index] = value  # [...] of one slot
        self.mark(index)

    def mark(self, index: int) -> None:
        """Note that a slot's row was written in `host`."""
        self._changed.add(index)
        self._changed_fields.add(self._name)

    def flush(self, stream: Stream) -> None:
        """Upload the rows that were written since the last time."""
        if self._changed and self.tensor.host is None:
            size = self.host[0].size
            for begin, end in runs(self._changed):
                target = self.tensor.view(end - begin, *self.host.shape[1:], start=begin * size)  # [end - begin, ...]
                self._device.upload(target, self.host[begin:end], stream)
        self._changed.clear()


class DoubleBuffer:
    """Two sides of one device array `[S, T, C]`: `current` is read by the next tick, which writes `other`.

    Copies on another stream may still be reading a side: `to_write` waits for them.
    """

    def __init__(self, device: Device, shape: tuple[int, ...]) -> None:
        self.sides = (device.zeros(shape, np.float32), device.zeros(shape, np.float32))  # [S, T, C] each
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
        if readers:
            for event in readers:
                stream.wait(event)
            readers.clear()
        return self.sides[side]


# What rows without a generation tell the decoder: see PreparedGeneration.row_numbers.
NO_ROW = (1.0, 1.0, 1.0)


@dataclass(slots=True)
class _Schedule:
    """A live slot's flow times, where each step ends, its gates `[K]` where it has a target, and its next step.

    rows: of each step the numbers of its rows.
    """

    times: list[float]
    ends: list[float]
    gates: list[float] | None
    step: int
    rows: list[tuple[float, float, float]]


class SlotState:
    """Every field and state of every slot of one length. What no slot has used yet is not allocated."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        vectors: PackedVectors,
        *,
        slot_count: int,
        frames: int,
        channels: int,
    ) -> None:
        self._device, self._stream, self._vectors = device, stream, vectors
        self.slot_count, self.frames, self.channels = slot_count, frames, channels
        self._sizes = {"T": frames, "C": channels, "B": -(-frames // 2)}
        self._fields: dict[str, SlotField] = {}
        self._changed: set[str] = set()
        self._buffers: dict[str, DoubleBuffer] = {}
        self._zeros = np.zeros((frames, channels), np.float32)  # [T, C]
        for name in (*VECTOR_FIELDS, "velocity_scale"):
            self.field(name)
        self.double_buffer("latents")
        self._time, self._next_time, self._gate, self._extrapolation = (
            host_view(self.field(name).host) for name in ("time", "next_time", "target_gate", "extrapolation")
        )
        self._schedules: dict[int, _Schedule] = {}
        self._row_numbers = [NO_ROW] * slot_count

    def field(self, name: str) -> SlotField:
        """A field, allocated on first use with neutral rows."""
        if name not in self._fields:
            spec = FIELDS[name]
            shape = (self.slot_count, *(self._sizes[letter] for letter in spec.letters[1:]))
            if name in VECTOR_FIELDS:
                tensor, host = self._vectors.take(self.slot_count, spec.dtype)  # [S]
            else:
                tensor = self._device.zeros(shape, spec.dtype)  # [S, ...]: its letters in slot_fields
                host = self._device.mirror(tensor)
            self._fields[name] = self._make_field(spec, tensor, host)
            self._changed.add(name)
        return self._fields[name]

    @property
    def sides(self) -> tuple[int, ...]:
        """Which side of each double buffer is current."""
        return tuple([buffer.side for buffer in self._buffers.values()])

    def double_buffer(self, name: str) -> DoubleBuffer:
        """A state's two sides, allocated on first use with zeros."""
        if name not in self._buffers:
            self._buffers[name] = DoubleBuffer(self._device, (self.slot_count, self.frames, self.channels))
        return self._buffers[name]

    def tensor(self, name: str, slot_count: int) -> Tensor:
        """The first `slot_count` rows of a field."""
        tensor = self.field(name).tensor
        return tensor.view(slot_count, *tensor.shape[1:])  # [S, ...]

    def admit(self, index: int, work: PreparedGeneration, step: int) -> None:
        """Copy what was prepared for a generation into a slot's rows; its next step is `step`."""
        self._set_schedule(index, work, step)
        for name in (*self._buffers, *(name for name in work.states if name not in self._buffers)):
            self._write_state(name, index, work.states.get(name, self._zeros))
        self.write(index, work.fields)
        self.write(index, work.values.fields)

    def write(self, index: int, values: Mapping[str, Any]) -> None:
        """Set a slot's rows of some fields; None is neutral."""
        for name, value in values.items():
            if value is not None or name in self._fields:
                self.field(name).write(index, value)

    def vacate(self, index: int) -> None:
        """Make a slot neutral in time, so that a step leaves its latents as they are. Its other rows stay."""
        self._schedules.pop(index, None)
        self._time[index] = self._next_time[index] = 1.0
        self._row_numbers[index] = NO_ROW
        self._gate[index] = self._extrapolation[index] = 0.0
        self._vectors.has_changed = True

    def update(self, index: int, work: PreparedGeneration) -> None:
        """Write a slot's new step parameters."""
        self.write(index, work.values.fields)
        self._schedules[index].rows = _rows_of(work)

    def set_times(self) -> Sequence[tuple[float, float, float]]:
        """Write the flow times and gates of this tick; returns the numbers of every slot's rows.

        Plain item assignments: right after an execute of the decoder a numpy call costs tens of microseconds.
        """
        for index, schedule in self._schedules.items():
            step = schedule.step
            self._time[index] = schedule.times[step]
            self._row_numbers[index] = schedule.rows[step]
            self._next_time[index] = schedule.ends[step]
            if schedule.gates is not None:
                self._gate[index] = schedule.gates[step]
        self._vectors.has_changed = True
        return self._row_numbers

    def extrapolate(self, index: int, factor: float) -> None:
        """Set how far a slot's next step extrapolates its velocity; see timesteps.extrapolation."""
        self._extrapolation[index] = factor
        self._vectors.has_changed = True

    def advance(self) -> None:
        """Every live slot has taken its step."""
        for schedule in self._schedules.values():
            schedule.step += 1

    def flush(self) -> None:
        """Upload every row that was written. The vectors are uploaded as one piece, by their owner."""
        if not self._changed:
            return
        for name in self._changed:
            if name in VECTOR_FIELDS:
                self._vectors.has_changed = True
                self._fields[name].changed.clear()
            else:
                self._fields[name].flush(self._stream)
        self._changed.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """The states that slots have had so far."""
        return tuple(self._buffers)

    def read_out(self, index: int, out: Mapping[str, Array], copies: Stream) -> None:
        """Copy states `[T, C]` of a slot to the host on another stream, which is behind the tick that wrote them."""
        for name, array in out.items():
            self._device.download(array, self._row(name, index), copies)  # [T, C]
            self._buffers[name].is_read_until(copies.record())

    def before_launch(self, names: Iterable[str]) -> None:
        """The next tick may write the other sides of these states."""
        for name in names:
            buffer = self._buffers[name]
            buffer.to_write(1 - buffer.side, self._stream)

    def after_launch(self, names: Iterable[str]) -> None:
        """The other sides of these states are current now."""
        for name in names:
            self._buffers[name].flip()

    def _set_schedule(self, index: int, work: PreparedGeneration, step: int) -> None:
        self._gate[index] = self._extrapolation[index] = 0.0
        gates = None if work.gates is None else work.gates.tolist()
        self._schedules[index] = _Schedule(work.times.tolist(), work.ends.tolist(), gates, step, _rows_of(work))

    def _make_field(self, spec: TickTensor, tensor: Tensor, host: NDArray[Any]) -> SlotField:
        return SlotField(self._device, spec, tensor, host, self._changed)

    def _write_state(self, name: str, index: int, values: Array) -> None:
        buffer = self.double_buffer(name)
        buffer.to_write(buffer.side, self._stream)
        self._device.upload(self._row(name, index), values, self._stream)  # [T, C]

    def _row(self, name: str, index: int) -> Tensor:
        size = self.frames * self.channels
        return self.double_buffer(name).current.view(self.frames, self.channels, start=index * size)  # [T, C]


def _rows_of(work: PreparedGeneration) -> list[tuple[float, float, float]]:
    return list(zip(*work.row_numbers(), strict=True))


def vectors_bytes(slot_count: int, numbers: int) -> int:
    """What PackedVectors must hold for a bucket: its vector fields, and so many numbers of rows, each at an aligned
    address."""
    vectors = [slot_count * np.dtype(FIELDS[name].dtype).itemsize for name in VECTOR_FIELDS]
    return sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in vectors) + numbers * ALIGNMENT_BYTES


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges (begin, end) without gaps, in order: {3, 1, 2, 7} -> (1, 4), (7, 8)."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
