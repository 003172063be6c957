"""Seeded inputs that an engine is tried at: the same ones in every process."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.roles import Port

Arrays = Mapping[str, NDArray[Any]]

SEED = 20_251_120


def inputs_at(inputs: Sequence[Port], samples: Sequence[Mapping[str, int]], index: int) -> dict[str, NDArray[Any]]:
    """The inputs for one of the samples (sizes of the shape letters)."""
    random = np.random.default_rng([SEED, index])
    return {port.name: _sample(port, samples[index], random) for port in inputs}


def _sample(port: Port, sizes: Mapping[str, int], random: np.random.Generator) -> NDArray[Any]:
    shape = [sizes[letter] for letter in port.letters]
    if port.values == "count":
        return random.integers(0, sizes[port.limit], shape, np.int64)
    if port.values == "flag":
        return random.random(shape) < 0.5
    if port.values == "keep":
        kept = random.random(shape) < 0.7
        kept[..., 0] = True
        return kept.astype(port.dtype)
    if port.values == "unit":
        return random.uniform(0.05, 1.0, shape).astype(port.dtype)
    return random.standard_normal(shape).astype(port.dtype)


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays under their names into a .npz file."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def load_arrays(path: Path) -> Arrays:
    """Read them back."""
    with np.load(path) as arrays:
        return dict(arrays)
