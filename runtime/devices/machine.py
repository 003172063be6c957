"""What there is on this machine: processor, GPU, the tools that make and run engines, and the device of a target."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Protocol

from runtime.devices.device import Device, HostDevice


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
    from runtime.devices.cuda import CudaDevice

    return CudaDevice()
