"""Schedules and noise, against formulas, values worked out by hand, and what torch wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.paths import ROOT

from runtime.requests.timesteps import (
    Purpose,
    extrapolation,
    fill_noise,
    log_snr_schedule,
    noise,
    schedule,
    target_gate,
)
from runtime.requests.torch_noise import torch_noise, torch_normal


def test_a_linear_schedule_goes_from_one_to_zero_and_a_shift_moves_its_middle_towards_noise() -> None:
    np.testing.assert_allclose(schedule(4), [1.0, 0.75, 0.5, 0.25, 0.0])
    np.testing.assert_allclose(schedule(2, shift=3.0), [1.0, 0.75, 0.0], atol=1e-7)


@pytest.mark.parametrize(
    ("steps", "denoise", "start"), [(8, 0.5, 0.5), (8, 0.6, 8 / 13), (3, 0.999, 1.0), (8, 0.01, 0.01)]
)
def test_partial_denoise_starts_at_the_tail_of_a_longer_schedule(steps: int, denoise: float, start: float) -> None:
    times = schedule(steps, denoise=denoise)
    assert len(times) == steps + 1
    np.testing.assert_allclose(times[0], start, rtol=1e-6)


@pytest.mark.parametrize("denoise", [1.0, 0.7, 0.1])
@pytest.mark.parametrize("shift", [1.0, 3.0, 0.5])
def test_times_fall_strictly_to_exactly_zero(shift: float, denoise: float) -> None:
    times = schedule(16, shift=shift, denoise=denoise)
    assert (np.diff(times) < 0).all()
    assert times[-1] == 0.0


@pytest.mark.parametrize(("denoise", "length"), [(0.0, 1), (1e-7, 1), (2e-6, 9)])
def test_nothing_to_denoise_is_an_empty_schedule_and_nearly_nothing_costs_no_memory(
    denoise: float, length: int
) -> None:
    assert len(schedule(8, denoise=denoise)) == length


def test_equal_steps_extrapolate_by_a_half_and_the_first_and_the_last_one_not_at_all() -> None:
    np.testing.assert_allclose(extrapolation(schedule(4)), [0.0, 0.5, 0.5, 0.0])
    np.testing.assert_allclose(extrapolation(np.float32([1.0, 0.5, 0.4, 0.2, 0.0])), [0.0, 0.1, 1.0, 0.0], rtol=1e-6)
    assert extrapolation(schedule(1)).tolist() == [0.0]
    assert extrapolation(schedule(2)).tolist() == [0.0, 0.0]
    assert len(extrapolation(schedule(8, denoise=0.0))) == 0


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_extrapolated_steps_are_exact_where_the_velocity_is_a_line_in_time(shift: float) -> None:
    times = schedule(7, shift=shift).astype(np.float64)
    x, before = times[1] ** 2, 2 * times[0]  # the solution of dx/dt = 2 t, after a first exact step
    for k, c in enumerate(extrapolation(schedule(7, shift=shift))[1:-1], 1):
        v = 2 * times[k]
        x, before = x + (times[k + 1] - times[k]) * (v + c * (v - before)), v
    assert x == pytest.approx(times[-2] ** 2, abs=1e-6)


def test_target_gate_opens_after_the_gate_and_is_full_at_the_last_step() -> None:
    gates = [target_gate(step, 5, 0.5) for step in range(5)]
    np.testing.assert_allclose(gates, [0.0, 0.0, 0.0, 0.5, 1.0])
    assert target_gate(0, 1, 0.0) == 0.0


def test_noise_depends_on_nothing_but_its_key_and_a_shorter_one_is_a_prefix() -> None:
    first = noise(32, 8, seed=5, purpose=Purpose.STEP, step=3)
    noise(32, 8, seed=9)
    np.testing.assert_array_equal(first, noise(32, 8, seed=5, purpose=Purpose.STEP, step=3))
    np.testing.assert_array_equal(first[:16], noise(16, 8, seed=5, purpose=Purpose.STEP, step=3))
    out = np.zeros((4, 2), np.float32)
    fill_noise(out, 3)
    np.testing.assert_array_equal(out, noise(4, 2, 3))


def test_noise_is_standard_normal() -> None:
    values = noise(4096, 64, seed=2**64 - 1)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert values.dtype == np.float32


def test_seed_purpose_and_step_each_change_it() -> None:
    variants = [noise(16, 8, 1), noise(16, 8, 2), noise(16, 8, 1, Purpose.MASK), noise(16, 8, 1, Purpose.STEP, 1)]
    for i, a in enumerate(variants):
        for b in variants[i + 1 :]:
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.4


# torch.sigmoid(-(2 - torch.linspace(1, 0, 9) * 8.2)) of torch 2.13 as bits, without its first and its last value.
TORCH_TIMES = [0x3F7E8F66, 0x3F7C06E5, 0x3F7539BD, 0x3F64123B, 0x3F3EDC24, 0x3F033307, 0x3E8C3AA8]


def test_a_log_snr_schedule_is_torch_s_bit_by_bit() -> None:
    times = log_snr_schedule(8, -6.2, 2.0)
    assert times.dtype == np.float32
    assert times[1:-1].view(np.uint32).tolist() == TORCH_TIMES
    assert (times[0], times[-1]) == (1.0, 0.0)


@pytest.mark.parametrize("ends", [(-6.2, 2.0), (-10.0, 10.0), (-10.0, -9.0), (9.0, 10.0)])
@pytest.mark.parametrize("denoise", [1.0, 0.6, 2e-6])
@pytest.mark.parametrize("steps", [1, 2, 7, 50, 200])
def test_log_snr_times_are_at_equal_distances_of_the_ratio_and_descend(
    steps: int, denoise: float, ends: tuple[float, float]
) -> None:
    times = log_snr_schedule(steps, *ends, denoise=denoise)
    assert len(times) == steps + 1
    assert (np.diff(times) < 0).all()
    assert (times[0], times[-1]) == (np.float32(denoise), 0.0)
    exact = times[1:-1].astype(np.float64) / np.float32(denoise)
    wanted = 1 / (1 + np.exp(np.linspace(*ends, steps + 1)[1:-1]))
    np.testing.assert_allclose(exact, wanted, atol=3e-7)


@pytest.mark.export
@pytest.mark.parametrize("steps", [1, 4, 8, 14, 50, 200])
def test_log_snr_times_of_torch_itself(steps: int) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.sigmoid(-(2.0 - torch.linspace(1.0, 0.0, steps + 1) * 8.2)).numpy()[1:-1]
    found = log_snr_schedule(steps, -6.2, 2.0)[1:-1]
    assert np.abs(found.view(np.int32) - expected.view(np.int32)).max(initial=0) <= (0 if steps < 15 else 4)


# Per case "seed size": numbers of torch.randn(size, generator=torch.Generator().manual_seed(seed)), as bits.
VECTORS = json.loads((ROOT / "tests" / "data" / "torch_noise.json").read_text())


@pytest.mark.parametrize("case", VECTORS)
def test_it_is_torch_s_bit_by_bit(case: str) -> None:
    seed, size = map(int, case.split())
    wanted = VECTORS[case]
    found = torch_normal(size, seed)
    assert found.dtype == np.float32
    assert found.view(np.uint32)[wanted["indices"]].tolist() == wanted["bits"]


def test_frames_are_rows_of_it_and_a_prefix_of_more() -> None:
    found = torch_noise(50, 64, 7)
    assert found.reshape(-1).tolist() == torch_normal(3200, 7).tolist()
    assert np.array_equal(torch_noise(20, 64, 7), found[:20])


def test_channels_first_are_columns_of_it() -> None:
    found, drawn = torch_noise(50, 64, 7, "channels_time"), torch_normal(3200, 7)
    assert found.shape == (50, 64)
    assert all(found[frame, channel] == drawn[50 * channel + frame] for frame in (0, 7, 49) for channel in (0, 1, 63))


@pytest.mark.export
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32 + 5, 2**64 - 1])
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 33, 1000, 300_007])
def test_torch_itself(seed: int, size: int) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed if seed < 2**63 else seed - 2**64)
    assert np.array_equal(torch_normal(size, seed), torch.randn(size, generator=generator).numpy())
