"""The build environment of a target on this machine: tool versions and device, or exactly what is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_build.config import RTX_CAPABILITIES, BuildConfig
from engine_build.graphs.reference_session import onnxruntime
from runtime.base.errors import BuildError, EngineError, TickError
from runtime.config.deployment import PLAN_TARGETS, Target
from runtime.devices.machine import CPU_INFO, cpu_flags, driver_release, gpu_machine, machine
from runtime.engines.loading import OPENVINO_FIX, tool_versions
from runtime.engines.onnxruntime_cuda import need_provider

if TYPE_CHECKING:
    from runtime.devices.cuda_calls import Gpu

# Of x86 (VNNI, AMX) and ARM. Without them ONNX Runtime sums pairs of products in 16 bits, which overflow.
INT8_FLAGS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8", "asimddp"})
FP8_CAPABILITY = (8, 9)
# The fields of the device that must be equal for a plan to run, by hardware_compatibility.
VALID_ON = {
    "none": ("arch", "gpu", "compute_capability"),
    "same_compute_capability": ("arch", "compute_capability"),
    "ampere_plus": ("arch",),
}
OTHERWISE = "build on the machine that will serve, or with --target cpu"


@dataclass(frozen=True)
class BuildEnvironment:
    """The machine's part of an engine's identity. `facts` go into manifests; `missing`: why it cannot build.

    `cannot_run`: why the engines that it builds do not run on it. `card`: that of trials; empty without plans or GPU.
    """

    tool_versions: dict[str, str] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)
    built_on: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    missing: TickError | None = None
    cannot_run: str = ""
    card: dict[str, str] = field(default_factory=dict)


def build_environment(target: Target, options: BuildConfig) -> BuildEnvironment:
    """This machine's environment. Raises BuildError with all that is missing and the commands that install it."""
    if target == "cpu":
        onnxruntime()
        if options.backend == "openvino":
            need_openvino()
        here, is_int8 = machine(), options.of("decoder").precision == "int8"
        if is_int8:
            need_int8_products()
        device = here if is_int8 or options.optimization == "all" else {"arch": here["arch"]}
        # Another OpenVINO is compared again.
        versions = tool_versions("cpu" if options.backend == "onnxruntime" else "openvino")
        return BuildEnvironment(versions, device, here["cpu"])
    if target == "openvino":
        onnxruntime()
        need_openvino(options.openvino_device)
        return BuildEnvironment(tool_versions(target), {"arch": machine()["arch"]}, machine()["cpu"])
    if target == "tensorrt-rtx":
        need_tensorrt_rtx()
        return _anywhere(options)
    need_package = need_tensorrt if target == "tensorrt" else lambda: need_provider(onnxruntime())
    missing = _all_missing(need_package, lambda: need_gpu(target))
    if missing is not None:
        raise missing
    return _on_gpu(target, options)


def probe_environment(target: Target, options: BuildConfig) -> BuildEnvironment:
    """As build_environment, but what is missing is returned in `missing`."""
    try:
        return build_environment(target, options)
    except BuildError as error:
        return BuildEnvironment(missing=error)


def need_int8_products(cpu_info: Path = CPU_INFO) -> None:
    """Raises BuildError where the processor has no 8-bit products that are summed in 32 bits."""
    if not cpu_flags(cpu_info) & INT8_FLAGS:
        raise BuildError(
            f"this processor has no 8-bit products (none of {', '.join(sorted(INT8_FLAGS))})",
            fix='precision = "fp32" in [build]',
        )


def need_openvino(device: str = "CPU") -> None:
    """Raises BuildError where OpenVINO is not installed or does not load, or has no such device here."""
    if importlib.util.find_spec("openvino") is None:
        raise BuildError("OpenVINO is not installed", fix=OPENVINO_FIX)
    try:
        from runtime.engines.openvino import need_device
    except (ImportError, OSError) as error:
        raise BuildError(f"OpenVINO does not load: {error}", fix=OPENVINO_FIX) from error

    try:
        need_device(device)
    except EngineError as error:
        raise BuildError(error.what, fix=error.fix) from error


def need_tensorrt() -> None:
    """Raises BuildError where the Python packages of TensorRT or CUDA are not installed or do not load."""
    if importlib.util.find_spec("tensorrt") is None:
        raise BuildError(
            "target tensorrt needs the package tensorrt, which is not installed",
            fix="pip install 'tickrt[tensorrt]'",
        )
    onnxruntime()
    from runtime.engines.tensorrt.binding import bind

    bind("tensorrt")
    try:
        from runtime.engines.tensorrt import engine as tensorrt
    except (ImportError, OSError) as error:
        raise BuildError(
            f"the package tensorrt is installed, but its libraries do not load: {error}",
            fix="pip install --force-reinstall 'tickrt[tensorrt]'",
        ) from error
    del tensorrt


def need_tensorrt_rtx() -> None:
    """Raises BuildError where TensorRT-RTX, which builds without a GPU, is not installed."""
    onnxruntime()
    if not tool_versions("tensorrt-rtx"):
        raise BuildError(
            "target tensorrt-rtx needs the package tensorrt-rtx, which is not installed",
            fix="pip install 'tickrt[tensorrt-rtx]' (x86-64, Linux or Windows)",
        )


def need_gpu(target: Target) -> Gpu:
    """The GPU's properties; raises BuildError where there is no GPU or no driver.

    Called before any TensorRT object is created: without a driver that would crash the process.
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
    """All that is missing, as one error; None where nothing is."""
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
    return BuildError("; ".join(found.what for found in errors), fix="; ".join([*fixes, OTHERWISE]))


def other_card(capabilities: Sequence[str], compute_capability: str) -> str:
    """Why an engine of tensorrt-rtx for these cards (none: all) does not run on a GPU ("8.9"); "" where it does."""
    card, wanted = f"SM{compute_capability.replace('.', '')}", capabilities or RTX_CAPABILITIES
    is_later = not capabilities and int(card.removeprefix("SM")) > int(wanted[-1].removeprefix("SM"))
    return "" if card in wanted or is_later else f"built for {', '.join(wanted)}, this machine's GPU is {card}"


def _anywhere(options: BuildConfig) -> BuildEnvironment:
    """Of TensorRT-RTX: no GPU is a part of what its engines depend on."""
    versions, built_on = tool_versions("tensorrt-rtx"), machine()["cpu"]
    try:
        gpu = need_gpu("tensorrt-rtx")
    except BuildError as error:
        return BuildEnvironment(versions, {}, built_on, cannot_run=error.what)
    cannot_run = other_card(options.capabilities, gpu.compute_capability)
    return BuildEnvironment(
        versions, {}, built_on, _facts(gpu), cannot_run=cannot_run, card=_card(target="tensorrt-rtx")
    )


def _facts(gpu: Gpu) -> dict[str, Any]:
    return {
        **{name: value for name, value in gpu_machine(gpu).items() if name != "arch"},
        "sm_count": gpu.sm_count,
        "driver": driver_release(),
        "driver_cuda": gpu.driver_version,
        "cuda": gpu.cuda_version,
    }


def _on_gpu(target: Target, options: BuildConfig) -> BuildEnvironment:
    gpu, versions = need_gpu(target), tool_versions(target)
    release = versions.get("tensorrt", "")
    from runtime.engines.tensorrt.binding import REFIT_LOSES_BIAS

    if options.refit and release.startswith(REFIT_LOSES_BIAS):
        what = f"refit = true in [build]: TensorRT {release} may lose the bias of a product whose weights are replaced"
        raise BuildError(what, fix="install another release of TensorRT, or remove refit")
    device = gpu_machine(gpu)
    if options.of("decoder").precision == "fp8" and tuple(map(int, gpu.compute_capability.split("."))) < FP8_CAPABILITY:
        raise BuildError(
            f"{gpu.name} has compute capability {gpu.compute_capability}, products in fp8 need 8.9 or later",
            fix='precision = "int8" or "bf16" in [build]',
        )
    kept = VALID_ON[options.hardware_compatibility] if target == "tensorrt" else ("arch",)
    kept_device = {name: device[name] for name in kept}
    return BuildEnvironment(versions, kept_device, gpu.name, _facts(gpu), card=_card(target))


def _card(target: Target) -> dict[str, str]:
    from runtime.engines.tensorrt.trials import card_here

    return card_here(target) if target in PLAN_TARGETS else {}
