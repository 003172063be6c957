"""Tasks for the worker process: building an engine, running it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_build.compile.worker import CompileRequest, OnLog
from engine_build.specs.engine_spec import Port
from runtime.base.errors import BuildError
from runtime.engines.tensorrt.binding import bind

SMALLEST_PEAK = 1e-6


Arrays = Mapping[str, NDArray[Any]]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class RunRequest:
    """An engine to run at every sample, and at the large sizes of production (both: sizes of the shape letters).

    All outputs must be finite; those of the first `num_results` samples are returned. Where a large size differs from a
    sample in the letters of `padded` only, its inputs are the sample's with repeated rows and padded tokens, and its
    outputs must be the sample's, up to `tolerance` of their largest value.
    """

    name: str
    folder: Path
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    samples: Sequence[Sizes]
    num_results: int
    production: Sequence[Sizes] = ()
    padded: str = ""
    tolerance: float = 0.0


def compile_engine(request: CompileRequest, cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Task: build an engine; gives its SHA-256, flags and versions."""
    bind(request.target)
    from engine_build.compile import tensorrt_compiler

    facts = tensorrt_compiler.write_engine(request, cancelled, on_log)
    return {**facts, "versions": tensorrt_compiler.versions()}


def run_engine(request: RunRequest, cancelled: threading.Event, on_log: OnLog) -> tuple[list[Any], int]:
    """Task: open an engine as the runtime does and run it; gives the samples' outputs, and its device memory in bytes.

    Memory includes the weights.
    """
    from engine_build.compile.verify import inputs_at
    from runtime.devices.cuda import CudaDevice
    from runtime.engines.loading import open_engine

    device, results = CudaDevice(), list[Arrays]()
    try:
        free_bytes = device.free_bytes
        engine = open_engine(request.folder, request.name, device)
        for index in range(len(request.samples)):
            results.append(_run(request, engine, inputs_at(request.inputs, request.samples, index), cancelled))
        for index, sizes in enumerate(request.production):
            place = _smaller(request, sizes)
            if place is None:
                _run(request, engine, inputs_at(request.inputs, request.production, index), cancelled)
                continue
            feeds = _grown(request.inputs, inputs_at(request.inputs, request.samples, place), sizes)
            outputs = _run(request, engine, feeds, cancelled)
            _check_equal(request, sizes, outputs, _grown(request.outputs, results[place], sizes))
        used_bytes = free_bytes - device.free_bytes
        engine.close()
    finally:
        device.close()
    return results[: request.num_results], used_bytes


def _run(request: RunRequest, engine: Any, feeds: Arrays, cancelled: threading.Event) -> Arrays:
    if cancelled.is_set():
        raise BuildError("cancelled")
    outputs: Arrays = engine.run({name: feed.astype(engine.inputs[name].dtype) for name, feed in feeds.items()})
    for output, values in outputs.items():
        if not np.isfinite(values).all():
            where = ", ".join(f"{name} {feed.shape}" for name, feed in feeds.items())
            raise BuildError(
                f"{request.name}: {output} at {where}: values that are not finite", fix="check the weights"
            )
    return outputs


def _smaller(request: RunRequest, sizes: Sizes) -> int | None:
    """The first sample that padding turns into inputs of these sizes; None where there is none."""
    for index, sample in enumerate(request.samples):
        others_fit = all(sizes.get(letter) == size for letter, size in sample.items() if letter not in request.padded)
        if request.padded and others_fit and all(sample[a] <= sizes[a] for a in "LQ" if a in sample):
            return index
    return None


def _grown(ports: Sequence[Port], arrays: Arrays, sizes: Sizes) -> dict[str, NDArray[Any]]:
    """Arrays with repeated rows, and zeros for the tokens and ranks that they lack."""
    grown = {port.name: arrays[port.name] for port in ports}
    for port in ports:
        for axis, letter in enumerate(port.letters):
            array = grown[port.name]
            if letter == "R":
                grown[port.name] = np.take(array, np.arange(sizes["R"]) % array.shape[axis], axis)
            elif letter in "LQ":
                widths = [(0, sizes[letter] - size if place == axis else 0) for place, size in enumerate(array.shape)]
                grown[port.name] = np.pad(array, widths)
    return grown


def _check_equal(request: RunRequest, sizes: Sizes, found: Arrays, expected: Arrays) -> None:
    for name, wanted in expected.items():
        wide, peak = wanted.astype(np.float64), float(np.abs(wanted.astype(np.float64)).max(initial=0.0))
        off = float(np.abs(found[name].astype(np.float64) - wide).max(initial=0.0)) / max(peak, SMALLEST_PEAK)
        if off > request.tolerance:
            where = ", ".join(f"{letter}={sizes[letter]}" for letter in ("R", "T", *request.padded) if letter in sizes)
            raise BuildError(
                f"{request.name}: {name} at {where} is off by {off:.2g} of its largest value from what its rows give "
                f"in a smaller batch, expected at most {request.tolerance:.2g}",
                fix="set a lower optimization_level or a higher precision in [build]",
            )
