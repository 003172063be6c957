"""What there is on this machine: processor, GPU, the tools that make and run engines, and the device of a target."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Protocol

from runtime.config import Target
from runtime.device import Device, HostDevice

TOOLS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("onnxruntime", "onnxruntime-gpu"),
    "cuda": ("onnxruntime-gpu",),
}


def tool_versions(target: Target) -> dict[str, str]:
    """Versions of what compiles and runs engines of a target; a package that is not installed is absent."""
    if target == "tensorrt":
        return _tensorrt_version()
    return {name: version for name in TOOLS[target] if (version := _version(name))}


def machine() -> dict[str, str]:
    """This machine: processor architecture and, where the system tells, the processor's model."""
    return {"arch": platform.machine(), "cpu": _cpu_model()}


class NamedGpu(Protocol):
    """What a manifest keeps of a GPU."""

    @property
    def name(self) -> str:
        """The product's name."""

    @property
    def compute_capability(self) -> str:
        """Such as "9.0"."""


def gpu_machine(gpu: NamedGpu) -> dict[str, str]:
    """This machine as a plan sees it: processor architecture, GPU, its compute capability."""
    return {"arch": platform.machine(), "gpu": gpu.name, "compute_capability": gpu.compute_capability}


def _tensorrt_version() -> dict[str, str]:
    """As the library says itself: the packages that bring it have many names."""
    if importlib.util.find_spec("tensorrt") is None:
        return {}
    from runtime.engines.tensorrt import library_version

    return {"tensorrt": library_version()}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def open_device(target: str) -> Device:
    """The device of a target: the host for cpu, else the first GPU. Raises EngineError with what is missing."""
    if target == "cpu":
        return HostDevice()
    from runtime.cuda import CudaDevice

    return CudaDevice()
