"""Noise depends on seed, purpose and step, and on nothing else."""

import numpy as np

from runtime.noise import Purpose, fill_noise, noise


def test_same_key_same_noise_whatever_ran_before() -> None:
    first = noise(32, 8, seed=5, purpose=Purpose.STEP, step=3)
    noise(32, 8, seed=9)
    np.testing.assert_array_equal(first, noise(32, 8, seed=5, purpose=Purpose.STEP, step=3))


def test_seed_purpose_and_step_each_change_it() -> None:
    variants = [noise(16, 8, 1), noise(16, 8, 2), noise(16, 8, 1, Purpose.MASK), noise(16, 8, 1, Purpose.STEP, 1)]
    for i, a in enumerate(variants):
        for b in variants[i + 1 :]:
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.4


def test_shorter_is_a_prefix_of_longer() -> None:
    np.testing.assert_array_equal(noise(16, 8, 7), noise(64, 8, 7)[:16])


def test_it_is_standard_normal() -> None:
    values = noise(4096, 64, seed=2**64 - 1)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert values.dtype == np.float32


def test_fill_writes_in_place() -> None:
    out = np.zeros((4, 2), np.float32)
    fill_noise(out, 3)
    np.testing.assert_array_equal(out, noise(4, 2, 3))
