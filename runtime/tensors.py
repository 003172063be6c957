"""Whether tensors fit the graph that is to take them: said in the graph's own names, before anything is bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime.errors import ShapeError
from runtime.manifest import TensorInfo


def check_tensors(engine: str, infos: Mapping[str, TensorInfo], tensors: Mapping[str, Any]) -> None:
    """Every named tensor is there with the right dtype, rank and fixed dimensions, and equal names mean equal sizes."""
    sizes: dict[str, int] = {}
    for name, info in infos.items():
        if name not in tensors:
            raise ShapeError(f"{engine}: no tensor given for {name!r}; it takes {', '.join(infos)}")
        _check_tensor(f"{engine}: {name}", info, tensors[name], sizes)


def _check_tensor(where: str, info: TensorInfo, tensor: Any, sizes: dict[str, int]) -> None:
    shape = tuple(tensor.shape)
    if np.dtype(tensor.dtype) != np.dtype(info.dtype):
        raise ShapeError(f"{where} has dtype {np.dtype(tensor.dtype)}, expected {info.dtype}")
    if len(shape) != len(info.shape):
        raise ShapeError(f"{where} has shape {shape}, expected {len(info.shape)} dimensions {tuple(info.shape)}")
    for found, expected in zip(shape, info.shape, strict=True):
        wanted = expected if isinstance(expected, int) else sizes.setdefault(expected, found)
        if found != wanted:
            raise ShapeError(f"{where} has shape {shape}, expected {tuple(info.shape)} with {expected} = {wanted}")
