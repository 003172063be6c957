"""The TensorRT of this process: the package `tensorrt`, or `tensorrt_rtx`. The only module that imports one of them.

Both have the calls that this project makes. `bind` says which it is, before what needs it is imported: our classes
derive from those of one of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from runtime.base.errors import EngineError

if TYPE_CHECKING:
    import tensorrt as trt

__all__ = ["bind", "is_rtx", "trt"]

# Target -> the package that builds and runs its engines, and what it is called.
PACKAGES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}

# Releases of TensorRT that may lose the bias of a product when its weights are replaced.
REFIT_LOSES_BIAS = "11.3."

_bound = ""


def bind(target: str) -> None:
    """Use the package of a target in this process. Raises EngineError where it uses the other one already."""
    global _bound
    if _bound not in ("", target):
        raise EngineError(f"this process runs engines of target {_bound}, those of {target} need another process")
    _bound = target


def is_rtx() -> bool:
    """Whether this process uses TensorRT-RTX."""
    return _bound == "tensorrt-rtx"


def __getattr__(name: str) -> Any:
    """`trt`: the package; tensorrt where `bind` was not called. Raises ImportError, OSError."""
    if name != "trt":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    bind(_bound or "tensorrt")
    return importlib.import_module(PACKAGES[_bound])
