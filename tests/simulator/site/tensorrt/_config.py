"""Options of a build: flags, memory, shape ranges, the timing cache."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from typing import Any

from ._basics import IHostMemory, ILogger, IProgressMonitor
from ._enums import (
    VERSION,
    BuilderFlag,
    HardwareCompatibilityLevel,
    MemoryPoolType,
    ProfilingVerbosity,
    Severity,
)
from ._rules import Answer, machine

Ranges = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class IOptimizationProfile:
    """Shape ranges: min, opt and max per input."""

    __slots__ = ("__weakref__", "_ranges")

    def __init__(self) -> None:
        self._ranges: dict[str, Ranges] = {}

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        """Raises ValueError where they are not in order."""
        shapes = (tuple(min), tuple(opt), tuple(max))
        ordered = len(shapes[0]) == len(shapes[1]) == len(shapes[2])
        if not ordered or not all(0 <= a <= b <= c for a, b, c in zip(*shapes, strict=True)):
            raise ValueError(f"Shape provided for min/opt/max of {input!r} is inconsistent: {shapes}")
        self._ranges[input] = shapes

    def __bool__(self) -> bool:
        return bool(self._ranges)


class ITimingCache:
    """Measured times; valid for one version and one device."""

    def __init__(self, made_for: str, entries: dict[str, float]) -> None:
        self._made_for, self._entries = made_for, entries

    def serialize(self) -> IHostMemory:
        return IHostMemory(json.dumps({"made_for": self._made_for, "entries": self._entries}).encode())

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """Take the other's entries; own entries are kept."""
        if input_cache._made_for != self._made_for and not ignore_mismatch:
            return Answer(False, "ITimingCache.combine")
        self._entries = {**input_cache._entries, **self._entries}
        return Answer(True, "ITimingCache.combine")

    def queryKeys(self) -> list[str]:  # noqa: N802
        return list(self._entries)


def cache_key() -> str:
    """The version and device that a timing cache made here is valid for."""
    here = machine()
    return f"{VERSION} {here.gpu_name} {here.cc} {here.sm_count}"


class IBuilderConfig:
    """Options of a build; assigning another attribute raises AttributeError."""

    __slots__ = (
        "__weakref__",
        "_cache",
        "_flags",
        "_level",
        "_logger",
        "_monitor",
        "_profiles",
        "hardware_compatibility_level",
        "max_aux_streams",
        "profiling_verbosity",
    )  # fmt: skip

    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        self._flags: set[Any] = {BuilderFlag.TF32}
        self._profiles: list[IOptimizationProfile] = []
        self._cache: weakref.ref[ITimingCache] | None = None
        self._monitor: IProgressMonitor | None = None
        self._level = 3
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.max_aux_streams = -1
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, level: int) -> None:
        self._level = min(max(level, 0), 5)

    @property
    def progress_monitor(self) -> IProgressMonitor | None:
        return self._monitor

    @progress_monitor.setter
    def progress_monitor(self, monitor: IProgressMonitor | None) -> None:
        if monitor is not None and not isinstance(monitor, IProgressMonitor):
            raise TypeError("incompatible function arguments: progress_monitor takes an IProgressMonitor")
        self._monitor = monitor

    def set_flag(self, flag: Any) -> None:
        if flag not in BuilderFlag:
            raise TypeError(f"set_flag(): incompatible function arguments: {flag!r}")
        self._flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        if flag not in BuilderFlag:
            raise TypeError(f"clear_flag(): incompatible function arguments: {flag!r}")
        self._flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self._flags

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        if pool not in MemoryPoolType or not isinstance(pool_size, int):
            raise TypeError("set_memory_pool_limit(): incompatible function arguments")

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        return Answer(True, "set_tactic_sources")

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        """Its index; -1 where the profile is not valid."""
        if not profile:
            self._logger.log(Severity.ERROR, "addOptimizationProfile: the profile is not valid")
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: Any) -> ITimingCache | None:
        """A timing cache from serialized bytes, a new one from no bytes; None where the bytes are invalid."""
        data = bytes(memoryview(serialized_timing_cache))
        if not data:
            return ITimingCache(cache_key(), {})
        try:
            content = json.loads(data)
            return ITimingCache(content["made_for"], content["entries"])
        except (ValueError, KeyError, TypeError):
            self._logger.log(Severity.ERROR, "createTimingCache: the timing cache is corrupted")
            return None

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """The cache must live until the build is done."""
        if cache._made_for != cache_key() and not ignore_mismatch:
            self._logger.log(Severity.WARNING, f"The timing cache was made for {cache._made_for}, it is not used")
            return Answer(False, "set_timing_cache")
        self._cache = weakref.ref(cache)
        return Answer(True, "set_timing_cache")
