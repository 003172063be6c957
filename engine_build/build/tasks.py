"""Tasks for the worker process: building a plan, running an engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.build.worker import OnLog, PlanRequest
from engine_build.graphs.tensor_roles import Port
from runtime.errors import BuildError


@dataclass(frozen=True)
class RunRequest:
    """An engine to run once at every sample (sizes of the shape letters of `inputs`).

    The outputs of the first `num_results` samples are returned; all outputs must be finite.
    """

    name: str
    folder: Path
    inputs: Sequence[Port]
    samples: Sequence[Mapping[str, int]]
    num_results: int


def build_plan(request: PlanRequest, cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Task: build a plan; gives its SHA-256, flags and versions."""
    from engine_build.build import tensorrt_compiler

    facts = tensorrt_compiler.build_plan(request, cancelled, on_log)
    return {**facts, "versions": tensorrt_compiler.versions()}


def run_engine(request: RunRequest, cancelled: threading.Event, on_log: OnLog) -> tuple[list[Any], int]:
    """Task: open an engine as the runtime does and run every sample; gives the outputs, and its device memory in bytes.

    Memory includes the weights.
    """
    from engine_build.build.verify import inputs_at
    from runtime.devices.cuda import CudaDevice
    from runtime.engines.loading import open_engine

    device, results = CudaDevice(), []
    try:
        free_bytes = device.free_bytes
        engine = open_engine(request.folder, request.name, device)
        for index, sizes in enumerate(request.samples):
            if cancelled.is_set():
                raise BuildError("cancelled")
            outputs = engine.run(inputs_at(request.inputs, request.samples, index))
            _check_finite(request.name, sizes, outputs)
            if index < request.num_results:
                results.append(outputs)
        used_bytes = free_bytes - device.free_bytes
        engine.close()
    finally:
        device.close()
    return results, used_bytes


def _check_finite(name: str, sizes: Mapping[str, int], outputs: Mapping[str, NDArray[Any]]) -> None:
    for output, values in outputs.items():
        if not np.isfinite(values).all():
            where = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
            raise BuildError(f"{name}: {output} at {where}: values that are not finite", fix="check the weights")
