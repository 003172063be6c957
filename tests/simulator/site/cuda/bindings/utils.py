"""The simulated cuda.bindings.utils."""

from __future__ import annotations

from typing import Any


def get_cuda_native_handle(obj: Any) -> int:
    """The address of a CUDA object."""
    return int(obj)
