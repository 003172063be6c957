"""All slots' latents, curves and vectors of one length T: one array per field, a line per slot, written in place.

Small fields are written on the host and uploaded when they changed; latents, momentum and kept velocities live on the
device, double buffered: a tick reads one side and writes the other, nothing is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.denoise.slot_fields import FIELDS, DoubleBuffer, SlotField
from runtime.devices.device import Device, Stream, Tensor
from runtime.requests.curves import Array, Curve, resample
from runtime.requests.request import Dcw, GenerationRequest, StepParameters
from runtime.requests.timesteps import Purpose, fill_noise, target_gate
from runtime.scheduling.batch import BucketBatch, SlotStep
from runtime.scheduling.slot import Slot


class SlotState:
    """Every field of every slot of one length. Fields that no slot has used yet are not allocated."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        *,
        slot_count: int,
        frames: int,
        channels: int,
        field_kind: type[SlotField] = SlotField,
    ) -> None:
        self._device = device
        self._stream = stream
        self._field_kind = field_kind
        self.slot_count, self.frames, self.channels = slot_count, frames, channels
        self._fields: dict[str, SlotField] = {}
        self._double_buffers: dict[str, DoubleBuffer] = {}
        self._start = np.empty((frames, channels), np.float32)
        self._shape = {"T": frames, "C": channels, "B": -(-frames // 2)}
        for name in ("time", "next_time", "velocity_scale"):
            self.field(name)
        self.double_buffer("latents")

    def field(self, name: str) -> SlotField:
        """A field, allocated on first use with neutral lines."""
        if name not in self._fields:
            spec = FIELDS[name]
            shape = (self.slot_count, *(self._shape[letter] for letter in spec.line))
            self._fields[name] = self._field_kind(self._device, shape, spec)
        return self._fields[name]

    def double_buffer(self, name: str) -> DoubleBuffer:
        """A double-buffered array, allocated on first use with zeros."""
        if name not in self._double_buffers:
            self._double_buffers[name] = DoubleBuffer(self._device, (self.slot_count, self.frames, self.channels))
        return self._double_buffers[name]

    def tensor(self, name: str, slot_count: int) -> Tensor:
        """The first `slot_count` lines of a field."""
        tensor = self.field(name).tensor
        return tensor.view(slot_count, *tensor.shape[1:])

    def admit(self, slot: Slot, noise: Array) -> None:
        """Write a new generation's latents and fields into its slot_index; `noise` `[T, C]` is its own."""
        request, slot_index = slot.request, slot.slot_index
        self._write_double("latents", slot_index, self._start_latents(slot, noise))
        if request.guidance_mode == "self":
            self._write_double("cached_negative_velocity", slot_index, noise)
        if "momentum_state" in self._double_buffers:
            self._start[...] = 0.0
            self._write_double("momentum_state", slot_index, self._start)
        self._write_fields(slot_index, _request_values(request))
        if request.mask is not None and request.mask.noise is None:
            fill_noise(self.field("mask_noise").line(slot_index), request.seed, Purpose.MASK)
        self.set_parameters(slot)

    def set_parameters(self, slot: Slot) -> None:
        """Write a slot's step parameters."""
        values = _parameter_values(slot.request, slot.parameters, slot.features, self._shape["B"])
        self._write_fields(slot.slot_index, values)

    def vacate(self, slot_index: int) -> None:
        """Make a slot neutral in time: whatever its other lines hold, nothing moves."""
        self.field("time").write(slot_index, None)
        self.field("next_time").write(slot_index, None)

    def set_step(self, batch: BucketBatch) -> None:
        """Write what every tick changes: times, gates, and the noise of slots that add some."""
        for step in batch.slots:
            self.field("time").write(step.slot_index, step.time)
            self.field("next_time").write(step.slot_index, step.next_time)
            if "target" in batch.features and step.request.target is not None:
                self.field("target_gate").write(step.slot_index, _gate(step))
            if "rcfg" in batch.features:
                self.field("use_cached_negative").write(step.slot_index, step.use_cached_negative)
            if batch.features & {"sde", "ode_noise"}:
                fill_noise(self.field("step_noise").line(step.slot_index), step.request.seed, Purpose.STEP, step.step)

    def flush(self) -> None:
        """Upload every line that was written."""
        for field in self._fields.values():
            field.flush(self._stream)

    def read_out(self, slot_index: int, out: Array, copies: Stream) -> None:
        """Copy a slot's latents to the host on another stream, which is behind the tick that wrote them."""
        self._device.download(out, self._line("latents", slot_index), copies)
        self._double_buffers["latents"].is_read_until(copies.record())

    def freeze(self, slot_index: int) -> dict[str, Array]:
        """Copies of everything about a slot that its request does not say. The host waits for the ticks in flight."""
        staged = {name: self._device.staging((self.frames, self.channels), np.float32) for name in self._double_buffers}
        for name, out in staged.items():
            self._device.download(out, self._line(name, slot_index), self._stream)
        self._stream.record().wait()
        return {name: np.array(out) for name, out in staged.items()}

    def before_launch(self, names: tuple[str, ...]) -> None:
        """The next tick may write the other sides of these arrays."""
        for name in names:
            double = self._double_buffers[name]
            double.to_write(1 - double.side, self._stream)

    def restore(self, slot_index: int, arrays: dict[str, Array]) -> None:
        """Write what `freeze` gave into a slot that the generation was admitted to."""
        for name, values in arrays.items():
            self._write_double(name, slot_index, values)

    def _start_latents(self, slot: Slot, noise: Array) -> Array:
        request = slot.request
        share: Curve | None = request.initial_noise_curve
        if share is None and request.denoise < 1.0:
            share = float(slot.times[0])
        if share is None or request.start is None:
            return noise
        np.subtract(noise, request.start, out=self._start)
        self._start *= share if isinstance(share, float) else share[:, None]
        self._start += request.start
        return self._start

    def _write_fields(self, slot_index: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is not None or name in self._fields:
                self.field(name).write(slot_index, value)

    def _write_double(self, name: str, slot_index: int, values: Array) -> None:
        double = self.double_buffer(name)
        double.to_write(double.side, self._stream)
        self._device.upload(self._line(name, slot_index), values, self._stream)

    def _line(self, name: str, slot_index: int) -> Tensor:
        shape = (self.frames, self.channels)
        return self.double_buffer(name).current.view(*shape, start=slot_index * self.frames * self.channels)


def _gate(step: SlotStep) -> float:
    target = step.request.target
    assert target is not None
    if target.curve is None:
        return float(step.step >= step.steps // 2)
    return target_gate(step.step, step.steps, target.gate)


def _request_values(request: GenerationRequest) -> dict[str, Any]:
    """SlotField -> line of what holds for the whole generation; None where it is neutral."""
    mask, target = request.mask, request.target
    return {
        "mask": None if mask is None else mask.mask,
        "original": None if mask is None else request.original,
        "mask_noise": None if mask is None else mask.noise,
        "target": None if target is None else target.latents,
        "target_gate": None,
        "use_cached_negative": None,
        "source": request.source,
    }


def _parameter_values(
    request: GenerationRequest, parameters: StepParameters, features: frozenset[str], bands: int
) -> dict[str, Any]:
    """Field -> row of the step parameters; None where it is neutral, by value or because the slot cannot use it."""
    has_curve = request.target is not None and request.target.curve is not None
    drawn = request.target.curve if request.target is not None and has_curve else parameters.x0_strength
    guidance = "guidance" in features
    return {
        "velocity_scale": parameters.velocity_scale,
        "guidance": parameters.guidance if guidance else None,
        "momentum": parameters.momentum if guidance else None,
        "rescale": parameters.rescale if guidance else None,
        "target_curve": drawn if "target" in features else None,
        "ode_noise": parameters.ode_noise if "ode_noise" in features else None,
        "sde": True if "sde" in features else None,
        "sde_curve": parameters.sde_curve if "sde" in features and request.source is not None else None,
        "channel_gain": parameters.channel_gain if not _is_one(parameters.channel_gain) else None,
        **_dcw_values(parameters.dcw if "dcw" in features else None, bands),
    }


def _is_one(value: Any) -> bool:
    return isinstance(value, float) and value == 1.0


def _dcw_values(dcw: Dcw | None, bands: int) -> dict[str, Any]:
    """Coefficients per band; in mode "high" the `low` value drives the high band."""
    if dcw is None:
        return {"dcw_low": None, "dcw_high": None, "dcw_pix": None}
    return {
        "dcw_low": _band(dcw.low, bands) if dcw.mode in ("low", "double") else None,
        "dcw_high": _band(dcw.low if dcw.mode == "high" else dcw.high, bands)
        if dcw.mode in ("high", "double")
        else None,
        "dcw_pix": dcw.low if dcw.mode == "pix" else None,
    }


def _band(values: Curve, bands: int) -> Curve:
    return resample(values, bands) if isinstance(values, np.ndarray) else values
