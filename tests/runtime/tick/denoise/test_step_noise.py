"""Step noise equals the request's, step by step, and is drawn ahead by the worker thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers.live_slots import CHANNELS, FRAMES, live_slot
from numpy.typing import NDArray

from runtime.devices.device import HostDevice
from runtime.devices.memory import PackedVectors
from runtime.requests.timesteps import Purpose, fill_noise, noise
from runtime.tick.denoise import step_noise
from runtime.tick.denoise.row_layout import LiveSlot
from runtime.tick.denoise.slot_state import SlotState, vectors_bytes
from runtime.tick.denoise.step_noise import StepNoise

SLOTS = 3


@pytest.fixture
def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(thread, step) of every drawing."""
    drawn: list[tuple[str, int]] = []

    def fill(out: NDArray[np.float32], seed: int, purpose: Purpose, step: int) -> None:
        drawn.append((threading.current_thread().name, step))
        fill_noise(out, seed, purpose, step)

    monkeypatch.setattr(step_noise, "fill_noise", fill)
    return drawn


@pytest.fixture
def source(drawn_by: list[tuple[str, int]]) -> Iterator[StepNoise]:
    device = HostDevice()
    vectors = PackedVectors(device, vectors_bytes(SLOTS, 1))
    state = SlotState(device, device.main, vectors, slot_count=SLOTS, frames=FRAMES, channels=CHANNELS)
    with ThreadPoolExecutor(1, "worker") as worker:
        yield StepNoise(worker, state.field("step_noise"))


def check_step(source: StepNoise, live: LiveSlot) -> None:
    """One tick of a slot: its row is uploaded with the noise of its step; the next step's begins to be drawn."""
    field, index = source._field, live.slot.index
    expected = noise(FRAMES, CHANNELS, live.work.request.seed, Purpose.STEP, live.slot.step)
    field.changed.clear()
    source.write(live)
    np.testing.assert_array_equal(field.host[index], expected)
    assert field.changed == {index}
    source.draw_next(live)
    live.slot.step += 1


def test_every_step_has_its_noise_and_the_caller_draws_none(source: StepNoise, drawn_by: list[tuple[str, int]]) -> None:
    live = live_slot(seed=3, steps=6, solver="sde")
    for _ in range(6):
        check_step(source, live)
    assert {thread for thread, _ in drawn_by} == {"worker_0"}
    assert [step for _, step in drawn_by] == [1, 2, 3, 4, 5]


def test_slots_have_noise_of_their_own(source: StepNoise) -> None:
    lives = [live_slot(index, seed=index, solver="sde") for index in range(3)]
    for _ in range(4):
        for live in lives:
            check_step(source, live)


def test_a_slot_that_another_generation_takes_gets_that_ones_noise(source: StepNoise) -> None:
    first, second = live_slot(seed=1, solver="sde"), live_slot(seed=2, solver="sde")
    check_step(source, first)
    for _ in range(4):
        check_step(source, second)


def test_a_resumed_generation_goes_on_with_the_noise_of_its_step(source: StepNoise) -> None:
    live = live_slot(step=2, seed=1, solver="sde")
    for _ in range(2):
        check_step(source, live)


def test_noise_that_is_switched_on_in_flight_is_that_of_the_step(
    source: StepNoise, drawn_by: list[tuple[str, int]]
) -> None:
    live = live_slot(seed=1)
    assert live.work.step_noise is None
    live.slot.step = 2
    for _ in range(2):
        check_step(source, live)
    assert [step for _, step in drawn_by] == [2, 3]


def test_noise_that_is_off_for_some_steps_does_not_lag_behind(source: StepNoise) -> None:
    live = live_slot(seed=1, steps=8, solver="sde")
    check_step(source, live)
    live.slot.step += 2
    check_step(source, live)


def test_a_generation_of_the_same_slot_and_step_is_told_apart(source: StepNoise) -> None:
    first = live_slot(seed=1, step=1, solver="sde")
    check_step(source, first)
    second = live_slot(seed=2, step=2, solver="sde")
    second.work = replace(second.work, step_noise=None)
    check_step(source, second)


def test_nothing_is_drawn_after_the_last_step(source: StepNoise, drawn_by: list[tuple[str, int]]) -> None:
    check_step(source, live_slot(seed=1, steps=1, solver="sde"))
    assert drawn_by == []
