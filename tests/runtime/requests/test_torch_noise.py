"""Noise as torch draws it: against numbers that torch wrote, and, where torch is installed, against torch itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.paths import ROOT

from runtime.requests.torch_noise import torch_noise, torch_normal

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


def test_it_is_standard_normal() -> None:
    values = torch_normal(100_000, 3)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1.0) < 0.02


@pytest.mark.export
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32 + 5, 2**64 - 1])
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 33, 1000, 300_007])
def test_torch_itself(seed: int, size: int) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed if seed < 2**63 else seed - 2**64)
    assert np.array_equal(torch_normal(size, seed), torch.randn(size, generator=generator).numpy())
