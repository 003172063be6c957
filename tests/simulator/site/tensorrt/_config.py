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

    __slots__ = ("__weakref__", "sim_ranges")

    def __init__(self) -> None:
        self.sim_ranges: dict[str, Ranges] = {}

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        """Raises ValueError where they are not in order."""
        shapes = (tuple(min), tuple(opt), tuple(max))
        ordered = len(shapes[0]) == len(shapes[1]) == len(shapes[2])
        if not ordered or not all(0 <= a <= b <= c for a, b, c in zip(*shapes, strict=True)):
            raise ValueError(f"Shape provided for min/opt/max of {input!r} is inconsistent: {shapes}")
        self.sim_ranges[input] = shapes

    def __bool__(self) -> bool:
        return bool(self.sim_ranges)


class ITimingCache:
    """Measured times; valid for one version and one device."""

    def __init__(self, made_for: str, entries: dict[str, float]) -> None:
        self.sim_made_for, self.sim_entries = made_for, entries

    def serialize(self) -> IHostMemory:
        return IHostMemory(json.dumps({"made_for": self.sim_made_for, "entries": self.sim_entries}).encode())

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """Take the other's entries; own entries are kept."""
        if input_cache.sim_made_for != self.sim_made_for and not ignore_mismatch:
            return Answer(False, "ITimingCache.combine")
        self.sim_entries = {**input_cache.sim_entries, **self.sim_entries}
        return Answer(True, "ITimingCache.combine")

    def queryKeys(self) -> list[str]:  # noqa: N802
        return list(self.sim_entries)


def cache_key() -> str:
    """The version and device that a timing cache made here is valid for."""
    here = machine()
    return f"{VERSION} {here.gpu_name} {here.cc} {here.sm_count}"


class IBuilderConfig:
    """Options of a build; assigning another attribute raises AttributeError."""

    __slots__ = (
        "__weakref__",
        "_level",
        "_monitor",
        "hardware_compatibility_level",
        "max_aux_streams",
        "profiling_verbosity",
        "sim_cache",
        "sim_flags",
        "sim_logger",
        "sim_profiles",
    )  # fmt: skip

    def __init__(self, logger: ILogger) -> None:
        self.sim_logger = logger
        self.sim_flags: set[Any] = {BuilderFlag.TF32}
        self.sim_profiles: list[IOptimizationProfile] = []
        self.sim_cache: weakref.ref[ITimingCache] | None = None
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
        self.sim_flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        if flag not in BuilderFlag:
            raise TypeError(f"clear_flag(): incompatible function arguments: {flag!r}")
        self.sim_flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self.sim_flags

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        if pool not in MemoryPoolType or not isinstance(pool_size, int):
            raise TypeError("set_memory_pool_limit(): incompatible function arguments")

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        return Answer(True, "set_tactic_sources")

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        """Its index; -1 where the profile is not valid."""
        if not profile:
            self.sim_logger.log(Severity.ERROR, "addOptimizationProfile: the profile is not valid")
            return -1
        self.sim_profiles.append(profile)
        return len(self.sim_profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: Any) -> ITimingCache | None:
        """A timing cache from serialized bytes, a new one from no bytes; None where the bytes are invalid."""
        data = bytes(memoryview(serialized_timing_cache))
        if not data:
            return ITimingCache(cache_key(), {})
        try:
            content = json.loads(data)
            return ITimingCache(content["made_for"], content["entries"])
        except (ValueError, KeyError, TypeError):
            self.sim_logger.log(Severity.ERROR, "createTimingCache: the timing cache is corrupted")
            return None

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """The cache must live until the build is done."""
        if cache.sim_made_for != cache_key() and not ignore_mismatch:
            self.sim_logger.log(Severity.WARNING, f"The timing cache was made for {cache.sim_made_for}, it is not used")
            return Answer(False, "set_timing_cache")
        self.sim_cache = weakref.ref(cache)
        return Answer(True, "set_timing_cache")
