"""The enums, with the members and values of the chosen version."""

from __future__ import annotations

import enum
import os
from typing import Any

# These modules are also those of the simulated tensorrt_rtx, loaded once more under its name.
IS_RTX = __name__.startswith("tensorrt_rtx")
VERSION = os.environ.get(*(("SIMULATED_TENSORRT_RTX", "1.7.1.116") if IS_RTX else ("SIMULATED_TENSORRT", "11.4.0.106")))
VERSION_TUPLE = tuple(int(part) for part in VERSION.split("."))
STRONGLY_TYPED_ONLY = IS_RTX or VERSION_TUPLE[0] >= 11


class TrtEnum(enum.Enum):
    """An enum like those of pybind11: a member equals itself only, `int()` works, `1 << member` does not."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class DataType(TrtEnum):
    FLOAT = 0
    HALF = 1
    BF16 = 7
    INT8 = 2
    INT32 = 3
    INT64 = 8
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    INT4 = 9
    FP4 = 10
    E8M0 = 11

    @property
    def itemsize(self) -> float | None:
        """Bytes of one element."""
        sizes: dict[str, float] = {"FLOAT": 4, "HALF": 2, "BF16": 2, "INT8": 1, "INT32": 4, "INT64": 8, "BOOL": 1}
        return {**sizes, "UINT8": 1, "FP8": 1, "INT4": 0.5, "FP4": 0.5}.get(self.name)


def _enum(name: str, **members: int) -> Any:
    return TrtEnum(name, members)  # type: ignore[call-overload]


_FLAGS_11 = {
    "DEBUG": 2, "GPU_FALLBACK": 3, "REFIT": 4, "DISABLE_TIMING_CACHE": 5, "TF32": 6, "SPARSE_WEIGHTS": 7,
    "SAFETY_SCOPE": 8, "DIRECT_IO": 11, "VERSION_COMPATIBLE": 12, "EXCLUDE_LEAN_RUNTIME": 13,
    "ERROR_ON_TIMING_CACHE_MISS": 15, "DISABLE_COMPILATION_CACHE": 17, "STRIP_PLAN": 18, "REFIT_IDENTICAL": 19,
    "WEIGHT_STREAMING": 20, "REFIT_INDIVIDUAL": 22, "STRICT_NANS": 23, "MONITOR_MEMORY": 24,
    "EDITABLE_TIMING_CACHE": 26, "DISTRIBUTIVE_INDEPENDENCE": 27,
}  # fmt: skip


_FLAGS_10 = {
    "FP16": 0, "INT8": 1, "DEBUG": 2, "GPU_FALLBACK": 3, "REFIT": 4, "DISABLE_TIMING_CACHE": 5, "TF32": 6,
    "SPARSE_WEIGHTS": 7, "SAFETY_SCOPE": 8, "OBEY_PRECISION_CONSTRAINTS": 9, "PREFER_PRECISION_CONSTRAINTS": 10,
    "DIRECT_IO": 11, "REJECT_EMPTY_ALGORITHMS": 12, "VERSION_COMPATIBLE": 13, "EXCLUDE_LEAN_RUNTIME": 14, "FP8": 15,
    "ERROR_ON_TIMING_CACHE_MISS": 16, "BF16": 17, "DISABLE_COMPILATION_CACHE": 18, "STRIP_PLAN": 19, "WEIGHTLESS": 19,
    "REFIT_IDENTICAL": 20, "WEIGHT_STREAMING": 21, "INT4": 22, "REFIT_INDIVIDUAL": 23, "STRICT_NANS": 24,
    "MONITOR_MEMORY": 25, "FP4": 26, "EDITABLE_TIMING_CACHE": 27, "DISTRIBUTIVE_INDEPENDENCE": 28,
}  # fmt: skip


_FLAGS_RTX = {"REQUIRE_USER_ALLOCATION": 28} if IS_RTX else {}
BuilderFlag = _enum("BuilderFlag", **_FLAGS_RTX, **(_FLAGS_11 if STRONGLY_TYPED_ONLY else _FLAGS_10))
NetworkDefinitionCreationFlag = _enum(
    "NetworkDefinitionCreationFlag",
    **(
        {"STRONGLY_TYPED": 0}
        if IS_RTX
        else {"STRONGLY_TYPED": 0, "PREFER_JIT_PYTHON_PLUGINS": 1, "PREFER_AOT_PYTHON_PLUGINS": 2}
        if STRONGLY_TYPED_ONLY
        else {
            "EXPLICIT_BATCH": 0,
            "STRONGLY_TYPED": 1,
            "PREFER_JIT_PYTHON_PLUGINS": 2,
            "PREFER_AOT_PYTHON_PLUGINS": 3,
        }
    ),
)
TensorIOMode = _enum("TensorIOMode", NONE=0, INPUT=1, OUTPUT=2)
ProfilingVerbosity = _enum("ProfilingVerbosity", LAYER_NAMES_ONLY=0, NONE=1, DETAILED=2)
HardwareCompatibilityLevel = _enum("HardwareCompatibilityLevel", NONE=0, AMPERE_PLUS=1, SAME_COMPUTE_CAPABILITY=2)
MemoryPoolType = _enum(
    "MemoryPoolType", WORKSPACE=0, DLA_MANAGED_SRAM=1, DLA_LOCAL_DRAM=2, DLA_GLOBAL_DRAM=3, TACTIC_DRAM=4,
    TACTIC_SHARED_MEMORY=5,
)  # fmt: skip
ExecutionContextAllocationStrategy = _enum(
    "ExecutionContextAllocationStrategy", STATIC=0, ON_PROFILE_CHANGE=1, USER_MANAGED=2
)
LayerType = _enum("LayerType", ELEMENTWISE=9, ATTENTION_INPUT=51)
LayerInformationFormat = _enum("LayerInformationFormat", ONELINE=0, JSON=1)
Severity = _enum("Severity", INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3, VERBOSE=4)
