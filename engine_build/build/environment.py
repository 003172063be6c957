"""Where a build takes place: versions and device of a target here, or exactly what is missing for it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_build.config import BuildConfig
from engine_build.graphs.reference_session import onnxruntime
from runtime.config.deployment import Target
from runtime.devices.machine import gpu_machine, machine
from runtime.engines.loading import tool_versions
from runtime.engines.onnxruntime_cuda import need_provider
from runtime.errors import BuildError, TickError

DRIVER_FILE = Path("/proc/driver/nvidia/version")
ELSEWHERE = "build on the machine that will serve, or with --target cpu"


@dataclass(frozen=True)
class Place:
    """What an engine's identity says of where it is valid. `facts` goes into manifests; `missing`: why not here."""

    tool_versions: dict[str, str] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)
    built_on: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    missing: TickError | None = None


def place_of(target: Target, options: BuildConfig) -> Place:
    """This machine for a target. Raises BuildError with what is missing and the command that gets it."""
    if target == "cpu":
        onnxruntime()
        here = machine()
        device = here if options.optimization == "all" else {"arch": here["arch"]}
        return Place(tool_versions(target), device, here["cpu"])
    need_package = need_tensorrt if target == "tensorrt" else lambda: need_provider(onnxruntime())
    missing = _all_missing(need_package, lambda: need_gpu(target))
    if missing is not None:
        raise missing
    return _on_gpu(target, options)


def place_or_why_not(target: Target, options: BuildConfig) -> Place:
    """As place_of, for looking only: what is missing is part of the answer."""
    try:
        return place_of(target, options)
    except BuildError as error:
        return Place(missing=error)


def need_tensorrt() -> None:
    """Raises BuildError where TensorRT or CUDA's Python bindings are not installed, or do not load."""
    if importlib.util.find_spec("tensorrt") is None:
        raise BuildError(
            "target tensorrt needs the package tensorrt, which is not installed",
            fix="pip install 'tickrt[tensorrt]'",
        )
    onnxruntime()
    try:
        from runtime.engines.tensorrt import engine as tensorrt
    except (ImportError, OSError) as error:
        raise BuildError(
            f"the package tensorrt is installed, but its libraries do not load: {error}",
            fix="pip install --force-reinstall 'tickrt[tensorrt]'",
        ) from error
    del tensorrt


def need_gpu(target: Target) -> Any:
    """The GPU, asked before any object of TensorRT exists: without a driver one would end the process.

    Raises BuildError.
    """
    from runtime.devices.cuda import probe

    try:
        return probe()
    except TickError as error:
        raise BuildError(
            f"an NVIDIA GPU with its driver is needed: {error.what}",
            fix=error.fix.partition("  (")[0].replace("tickrt[tensorrt]", f"tickrt[{target}]"),
        ) from error


def _all_missing(*needs: Callable[[], object]) -> BuildError | None:
    """Everything that is missing, in one message."""
    errors: list[TickError] = []
    for need in needs:
        try:
            need()
        except TickError as error:
            errors.append(error)
    if not errors:
        return None
    fixes: list[str] = []
    for found in errors:
        if not any(found.fix in fix for fix in fixes):
            fixes.append(found.fix)
    return BuildError("; ".join(found.what for found in errors), fix="; ".join([*fixes, ELSEWHERE]))


def driver_release(file: Path = DRIVER_FILE) -> str:
    """The release of the NVIDIA driver ("580.82.07"), "" where the system does not tell."""
    try:
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[0] if found else ""


def _on_gpu(target: Target, options: BuildConfig) -> Place:
    gpu = need_gpu(target)
    device = gpu_machine(gpu)
    facts = {
        **{name: value for name, value in device.items() if name != "arch"},
        "sm_count": gpu.sm_count,
        "driver": driver_release(),
        "driver_cuda": gpu.driver_version,
        "cuda": gpu.cuda_version,
    }
    kept = VALID_ON[options.hardware_compatibility] if target == "tensorrt" else ("arch",)
    return Place(tool_versions(target), {name: device[name] for name in kept}, gpu.name, facts)


VALID_ON = {
    "none": ("arch", "gpu", "compute_capability"),
    "same_compute_capability": ("arch", "compute_capability"),
    "ampere_plus": ("arch",),
}
