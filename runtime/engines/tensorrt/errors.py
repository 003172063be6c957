"""Checks of TensorRT's return values (False and None are failures), and names of its data types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from runtime.base.errors import EngineDeadError, EngineError, OutOfMemoryError

T = TypeVar("T")

# Names of trt.DataType -> names in numpy or ml_dtypes. Names are the same in all versions, numbers are not.
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
UNKNOWN = "TensorRT reports a failure without a message (TensorRT-RTX prints its own on standard output)"
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


def check_trt(
    value: T | None, what: str, logged: Callable[[], str], *, kind: type[EngineError] = EngineError, fix: str = ""
) -> T:
    """The value that a call returned, unless it is False or None. `logged` gives the messages that TensorRT logged.

    Raises `kind` with these messages, or OutOfMemoryError or EngineDeadError where they say so.
    """
    if value is not None and not (isinstance(value, int) and not value):
        return value
    messages = logged()
    text = f"{what}: {messages or UNKNOWN}"
    if any(phrase in messages.lower() for phrase in DEAD):
        raise EngineDeadError(text)
    if any(phrase in messages.lower() for phrase in OUT_OF_MEMORY):
        raise OutOfMemoryError(text)
    raise kind(text, fix=fix)


def dtype_name(dtype: Any) -> str:
    """The name of a trt.DataType in manifests. Raises EngineError for an unknown one."""
    if dtype.name not in DTYPES:
        raise EngineError(f"unknown TensorRT data type {dtype.name}, expected one of {', '.join(DTYPES)}")
    return DTYPES[dtype.name]
