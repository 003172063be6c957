"""A bucket's state: what is uploaded, what a slot's rows are before, during and after its generation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.live_slots import CHANNELS, FRAMES, live_slot
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.devices.device import HostDevice, HostStream, Stream, Tensor
from runtime.devices.memory import PackedVectors
from runtime.requests.request import LatentMask, StepParameters, Target
from runtime.requests.timesteps import noise
from runtime.tick.denoise.slot_fields import FIELDS
from runtime.tick.denoise.slot_state import VECTOR_FIELDS, DoubleBuffer, SlotState, runs, vectors_bytes

SLOTS = 4
SOURCE = noise(FRAMES, CHANNELS, 7)


@dataclass
class CopyingDevice(HostDevice):
    """As a GPU: the host cannot access tensors, uploads copy. `uploads`: (address, bytes) of each."""

    uploads: list[tuple[int, int]] = field(default_factory=list)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return replace(super().zeros(shape, dtype), host=None)

    def mirror(self, tensor: Tensor) -> NDArray[Any]:
        return np.zeros(tensor.shape, tensor.dtype)

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        assert target.size_bytes == source.nbytes
        self.uploads.append((target.address, source.nbytes))


def state_on(device: HostDevice) -> tuple[SlotState, PackedVectors]:
    vectors = PackedVectors(device, vectors_bytes(SLOTS, 0))
    return SlotState(device, device.main, vectors, slot_count=SLOTS, frames=FRAMES, channels=CHANNELS), vectors


@pytest.fixture
def host() -> SlotState:
    return state_on(HostDevice())[0]


@pytest.fixture
def device() -> CopyingDevice:
    return CopyingDevice()


def test_only_rows_that_changed_are_uploaded(device: CopyingDevice) -> None:
    state, _ = state_on(device)
    mask = state.field("mask")
    state.flush()
    device.uploads.clear()
    for index in (0, 1, 3):
        mask.write(index, 0.5)
    state.flush()
    row = FRAMES * 4
    assert device.uploads == [(mask.tensor.address, 2 * row), (mask.tensor.address + 3 * row, row)]
    device.uploads.clear()
    state.flush()
    assert device.uploads == []


def test_a_neutral_value_is_uploaded_only_where_another_one_was(device: CopyingDevice) -> None:
    state, _ = state_on(device)
    mask = state.field("mask")
    state.flush()
    device.uploads.clear()
    mask.write(1, None)
    state.flush()
    assert device.uploads == []
    mask.write(1, 0.0)
    mask.write(1, None)
    state.flush()
    assert len(device.uploads) == 1
    assert (mask.host == FIELDS["mask"].neutral).all()


def test_vectors_are_uploaded_as_one_piece(device: CopyingDevice) -> None:
    state, vectors = state_on(device)
    for name in VECTOR_FIELDS:
        state.field(name)
    state.flush()
    vectors.flush(device.main)
    device.uploads.clear()
    state.set_times()
    state.flush()
    vectors.flush(device.main)
    ((_, size_bytes),) = device.uploads
    assert size_bytes == vectors.limit_bytes
    vectors.flush(device.main)
    assert len(device.uploads) == 1


def test_fields_are_allocated_with_neutral_rows_once_they_are_used(host: SlotState) -> None:
    for name, tensor in FIELDS.items():
        assert (host.field(name).host == tensor.neutral).all()
        assert host.field(name) is host.field(name)


def test_times_are_those_of_each_slots_step(host: SlotState) -> None:
    lives = [live_slot(0, steps=4), live_slot(1, step=3, steps=8, shift=3.0), live_slot(3, steps=5)]
    for live in lives:
        host.admit(live.slot.index, live.work, live.slot.step)
    for tick in range(4):
        times, next_times = [row[0] for row in host.set_times()], host.field("next_time").host
        for live in lives:
            index, step = live.slot.index, live.slot.step + tick
            assert (times[index], next_times[index]) == (live.work.times[step], live.work.times[step + 1])
        assert times[2] == next_times[2]
        host.advance()


def test_an_empty_slot_does_not_move_in_time(host: SlotState) -> None:
    live = live_slot(1, steps=4, target=Target(SOURCE))
    host.admit(1, live.work, 2)
    host.vacate(1)
    for _ in range(3):
        time = host.set_times()[1][0]
        assert time == host.field("next_time").host[1]
        assert host.field("target_gate").host[1] == 0
        host.advance()


def test_a_new_generation_leaves_nothing_of_the_one_before(host: SlotState) -> None:
    """Its rows are those that it would have in a state of its own."""
    everything = live_slot(
        0,
        source=SOURCE,
        mask=LatentMask(0.5),
        target=Target(SOURCE, 0.5),
        guidance_mode="self",
        parameters=StepParameters(guidance=2.0, velocity_scale=0.5, ode_noise=0.2, channel_gain=2.0),
    )
    host.double_buffer("momentum_state").current.host[...] = 1.0  # type: ignore[index]
    host.admit(0, everything.work, 0)
    host.vacate(0)
    host.admit(0, live_slot(0, seed=9).work, 0)
    fresh = state_on(HostDevice())[0]
    fresh.admit(0, live_slot(0, seed=9).work, 0)
    for one in (host, fresh):
        one.set_times()
    for name in FIELDS:
        np.testing.assert_array_equal(host.field(name).host[0], fresh.field(name).host[0], err_msg=name)
    states = {name: np.empty((FRAMES, CHANNELS), np.float32) for name in host.names}
    host.read_out(0, states, HostStream())
    np.testing.assert_array_equal(states.pop("latents"), noise(FRAMES, CHANNELS, 9))
    assert states.keys() == {"momentum_state", "cached_negative_velocity"}
    assert all((rows == 0).all() for rows in states.values())


class WaitNotingStream(HostStream):
    """Notes the events that its work waits for."""

    def __init__(self) -> None:
        self.waited: list[Any] = []

    def wait(self, event: Any) -> None:
        self.waited.append(event)


def test_a_tick_waits_for_the_copies_of_the_side_that_it_writes() -> None:
    stream, out = WaitNotingStream(), np.empty((FRAMES, CHANNELS), np.float32)
    state, _ = state_on(HostDevice(_stream=stream))
    waited = []
    for _ in range(3):
        state.read_out(0, {"latents": out}, HostStream())
        state.before_launch(("latents",))
        state.after_launch(("latents",))
        waited.append(len(stream.waited))
    assert waited == [0, 1, 2]


def test_a_side_that_is_copied_out_is_not_overwritten_before_the_copy_is_done() -> None:
    buffer, stream, event = DoubleBuffer(HostDevice(), (1, 2, 2)), WaitNotingStream(), HostStream().record()
    buffer.is_read_until(event)
    buffer.to_write(1, stream)
    assert stream.waited == []
    buffer.to_write(0, stream)
    buffer.to_write(0, stream)
    assert stream.waited == [event]


@given(st.sets(st.integers(0, 30)))
def test_runs_cover_the_numbers_in_as_few_ranges_as_possible(numbers: set[int]) -> None:
    found = runs(numbers)
    assert [number for begin, end in found for number in range(begin, end)] == sorted(numbers)
    assert all(end < begin for (_, end), (begin, _) in pairwise(found))
