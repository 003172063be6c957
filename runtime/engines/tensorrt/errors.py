"""What TensorRT answers, and what it means: False and None with what was logged, data types by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from runtime.errors import EngineDeadError, EngineError, OutOfMemoryError

T = TypeVar("T")

# Names of trt.DataType -> numpy's (or ml_dtypes') names. Numbers differ between versions, names do not.
DTYPES: Mapping[str, str] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "FP8": "float8_e4m3fn",
    "INT4": "int4",
    "FP4": "float4_e2m1fn",
    "E8M0": "float8_e8m0fnu",
}
OUT_OF_MEMORY = ("out of memory", "outofmemory", "cudaerrormemoryallocation", "std::bad_alloc")
DEAD = (
    "illegal memory access",
    "illegal instruction",
    "unspecified launch failure",
    "device-side assert",
    "misaligned address",
    "hardware stack error",
    "uncorrectable ecc",
    "launch timed out",
    "context is destroyed",
)


class Messages(Protocol):
    """Where TensorRT logs to."""

    def take(self) -> str:
        """What was logged by this thread's calls since this was asked last."""


def check_trt(
    value: T | None, what: str, logger: Messages, *, kind: type[EngineError] = EngineError, fix: str = ""
) -> T:
    """A call's answer, which is neither False nor None.

    Raises `kind` with what TensorRT logged; OutOfMemoryError or EngineDeadError where that is what it says.
    """
    if value is not None and not (isinstance(value, int) and not value):
        return value
    said = logger.take()
    text = f"{what}: {said or 'TensorRT refused, and logged nothing'}"
    if any(word in said.lower() for word in DEAD):
        raise EngineDeadError(text)
    if any(word in said.lower() for word in OUT_OF_MEMORY):
        raise OutOfMemoryError(text, fix="lower rows, frames or depth in the configuration, or free the GPU")
    raise kind(text, fix=fix)


def dtype_name(dtype: Any) -> str:
    """The name of a trt.DataType as manifests have it. Raises EngineError for one that this version does not know."""
    if dtype.name not in DTYPES:
        raise EngineError(f"TensorRT's data type {dtype.name} is not known here; known are {', '.join(DTYPES)}")
    return DTYPES[dtype.name]
