"""Step noise equals the request's, step by step, and is drawn ahead by the worker thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_slots import CHANNELS, FRAMES, live_slot

from runtime.devices.device import HostDevice
from runtime.devices.memory import PackedVectors
from runtime.requests.timesteps import Purpose, noise
from runtime.tick.denoise.row_layout import LiveSlot
from runtime.tick.denoise.slot_state import SlotField, SlotState, vectors_bytes
from runtime.tick.denoise.step_binding import StepNoise

SLOTS = 3


class Worker(ThreadPoolExecutor):
    """Draws in one thread; `drawn`: the step of every drawing."""

    def __init__(self) -> None:
        super().__init__(1, "worker")
        self.drawn: list[int] = []

    def submit(self, call: Any, /, *given: Any, **more: Any) -> Any:
        self.drawn.append(given[3])
        return super().submit(call, *given, **more)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as found:
        yield found


@pytest.fixture
def field() -> SlotField:
    device = HostDevice()
    vectors = PackedVectors(device, vectors_bytes(SLOTS, 1))
    return SlotState(device, device.main, vectors, slot_count=SLOTS, frames=FRAMES, channels=CHANNELS).field(
        "step_noise"
    )


@pytest.fixture
def source(worker: Worker, field: SlotField) -> StepNoise:
    return StepNoise(worker, field)


def check_step(source: StepNoise, field: SlotField, live: LiveSlot) -> None:
    """One tick of a slot: its row is uploaded with the noise of its step; the next step's begins to be drawn."""
    index = live.slot.index
    expected = noise(FRAMES, CHANNELS, live.work.request.seed, Purpose.STEP, live.slot.step)
    field.changed.clear()
    source.write(live)
    np.testing.assert_array_equal(field.host[index], expected)
    assert field.changed == {index}
    source.draw_next(live)
    live.slot.step += 1


def test_every_step_has_its_noise_drawn_ahead(source: StepNoise, field: SlotField, worker: Worker) -> None:
    live = live_slot(seed=3, steps=6, solver="sde")
    for _ in range(6):
        check_step(source, field, live)
    assert worker.drawn == [1, 2, 3, 4, 5]


def test_a_slot_that_another_generation_takes_gets_that_ones_noise(source: StepNoise, field: SlotField) -> None:
    first, second = live_slot(seed=1, solver="sde"), live_slot(seed=2, solver="sde")
    check_step(source, field, first)
    for _ in range(4):
        check_step(source, field, second)


def test_a_resumed_generation_goes_on_with_the_noise_of_its_step(source: StepNoise, field: SlotField) -> None:
    live = live_slot(step=2, seed=1, solver="sde")
    for _ in range(2):
        check_step(source, field, live)


def test_noise_that_is_switched_on_in_flight_is_of_the_step(
    source: StepNoise, field: SlotField, worker: Worker
) -> None:
    live = live_slot(seed=1)
    assert live.work.step_noise is None
    live.slot.step = 2
    for _ in range(2):
        check_step(source, field, live)
    assert worker.drawn == [2, 3]


def test_a_generation_of_the_same_slot_and_step_is_told_apart(source: StepNoise, field: SlotField) -> None:
    first = live_slot(seed=1, step=1, solver="sde")
    check_step(source, field, first)
    second = live_slot(seed=2, step=2, solver="sde")
    second.work = replace(second.work, step_noise=None)
    check_step(source, field, second)


def test_nothing_is_drawn_after_the_last_step(source: StepNoise, field: SlotField, worker: Worker) -> None:
    check_step(source, field, live_slot(seed=1, steps=1, solver="sde"))
    assert worker.drawn == []
