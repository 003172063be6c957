"""This machine's processor and GPU, as manifests record them, and the device of a target."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.config.deployment import HOST_TARGETS, Target
from runtime.devices.device import Device, HostDevice

if TYPE_CHECKING:
    from runtime.devices.cuda_calls import Gpu


CPU_INFO = Path("/proc/cpuinfo")
CPU_FOLDER = Path("/sys/devices/system/cpu")
DRIVER_FILE = Path("/proc/driver/nvidia/version")


def machine() -> dict[str, str]:
    """This machine's processor: architecture and model."""
    return {"arch": platform.machine(), "cpu": _cpu_model()}


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_physical_cores(cpu_folder: Path = CPU_FOLDER) -> int:
    """Those of num_cores() that are not a second thread of another one; all where that is not known."""
    if not hasattr(os, "sched_getaffinity"):
        return num_cores()
    cores = set[str]()
    for cpu in os.sched_getaffinity(0):
        try:
            # Equal for all threads of one core.
            cores.add((cpu_folder / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return num_cores()
    return len(cores)


def gpu_machine(gpu: Gpu) -> dict[str, str]:
    """What a plan depends on: processor architecture, GPU, compute capability."""
    return {"arch": platform.machine(), "gpu": gpu.name, "compute_capability": gpu.compute_capability}


def driver_release(file: Path = DRIVER_FILE) -> str:
    """The release of the NVIDIA driver ("580.82.07"); "" where it cannot be read."""
    try:
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[0] if found else ""


def machine_of(target: Target) -> dict[str, str]:
    """This machine's processor, and its GPU where the target uses one. Raises EngineError where that is missing."""
    if target in HOST_TARGETS:
        return machine()
    from runtime.devices.cuda_calls import probe

    return {**machine(), **gpu_machine(probe())}


def cpu_flags(cpu_info: Path = CPU_INFO) -> frozenset[str]:
    """The instructions that the processor has beside those of its architecture; none where that is not known."""
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split())


def _cpu_model() -> str:
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def open_device(target: str) -> Device:
    """The device of a target: the host, or the first NVIDIA GPU. Raises EngineError that says what is missing."""
    if target in HOST_TARGETS:
        return HostDevice()
    from runtime.devices.cuda import CudaDevice

    return CudaDevice()
