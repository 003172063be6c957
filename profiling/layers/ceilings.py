"""The machine's two ceilings, measured through ONNX Runtime: a large matrix product, and a pass over main memory.

Layers whose data stays in a cache may be faster than the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from onnx import TensorProto, helper, save

from profiling.layers.timings import Profile, timed_executes
from profiling.layers.work import Ceilings
from runtime.base.errors import ConfigError, EngineError
from runtime.config.deployment import HOST_TARGETS, Target
from runtime.devices.device import Device
from runtime.devices.machine import num_cores
from runtime.engines.engine import Engine
from runtime.engines.manifest import Manifest, TensorInfo

# Per measurement; there is one before every round of a profile and one after the last.
RUNS = 8
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
# A machine is busy where a usual measurement has less of the best one, or of the cores' time, than this share,
LEAST_SHARE = 0.8
# or where a layer in float32 on a CPU computes faster than the matrix product by more than this factor.
MOST_OF_ROOF = 1.1
OPSET = 20
IR_VERSION = 10
EXAMPLE = "--peaks 989000,4800"
Best = Callable[..., tuple[float, float]]
DATA_SHEET = "--peaks GFLOPS,GBPS, with the values of the data sheet"


def parse_peaks(text: str) -> Ceilings:
    """Ceilings given as "GFLOPS,GBPS". Raises ConfigError."""
    try:
        flops, size_bytes = (float(part) * 1e9 for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--peaks is {text!r}, expected two numbers: GFLOPS,GBPS", fix=EXAMPLE) from None
    if not 0 < min(flops, size_bytes) <= max(flops, size_bytes) < inf:
        raise ConfigError(f"--peaks is {text!r}, expected two numbers above 0", fix=EXAMPLE)
    return Ceilings(flops, size_bytes, "given")


def best_of(measured: Sequence[Ceilings]) -> Ceilings:
    """The highest of each ceiling, of measurements of one machine; of the share of the cores' time the median."""
    return Ceilings(
        max(each.flops_per_s for each in measured),
        max(each.bytes_per_s for each in measured),
        measured[0].source,
        median(each.cpu_share for each in measured),
    )


def busy_text(profile: Profile, measured: Sequence[Ceilings]) -> str:
    """Text: why ceilings measured around the rounds of a profile say nothing; empty on a quiet machine."""
    best, reasons = best_of(measured), []
    rates = sorted(each.flops_per_s for each in measured)
    if median(rates) < LEAST_SHARE * best.flops_per_s:
        reasons.append(f"the matrix product ran at {rates[0] / 1e9:.0f} to {rates[-1] / 1e9:.0f} GFLOP/s")
    if best.cpu_share < LEAST_SHARE:
        reasons.append(f"its threads had {best.cpu_share:.0%} of the cores' time")
    reached = _of_compute_roof(profile, best)
    if reached > MOST_OF_ROOF:
        reasons.append(f"a layer computes at {reached:.0%} of that product's rate")
    if not reasons:
        return ""
    return f"machine busy: {'; '.join(reasons)}. Rooflines are left out: measure again with nothing else running"


def _of_compute_roof(profile: Profile, ceilings: Ceilings) -> float:
    """The largest share of the arithmetic peak of any layer in float32 on a CPU; 0 for other engines.

    No cache makes a layer compute faster than the matrix product; 8-bit and tensor cores do.
    """
    if (profile.about.get("target"), profile.about.get("precision")) != ("cpu", "fp32"):
        return 0.0
    roofs = (layer.roof(ceilings) for layer in profile.layers)
    return max((roof.reached or 0.0 for roof in roofs if roof is not None and roof.bound == "compute"), default=0.0)


def best_execute(
    kind: Target, device: Device, op_type: str, shapes: dict[str, tuple[int, ...]], element: int, threads: int
) -> tuple[float, float]:
    """Seconds of the fastest execute of one operator, and the share of the cores' time that all of them had."""
    with TemporaryDirectory() as folder:
        engine = _open(kind, device, op_type, shapes, element, threads, Path(folder))
        try:
            return best_time(_times_s(engine, device, shapes, element), kind, threads or num_cores())
        finally:
            engine.close()


def best_time(times_s: Sequence[tuple[float, float]], kind: Target, threads: int) -> tuple[float, float]:
    """The best of wall and CPU times, and the share of the cores' time that all of them had (1 on a GPU).

    An execute of one thread on a CPU is measured in CPU time.
    """
    walls_s, cpus_s = zip(*times_s, strict=True)
    if kind != "cpu":
        return min(walls_s), 1.0
    share = min(1.0, sum(cpus_s) / (sum(walls_s) * threads))
    return min(cpus_s if threads == 1 else walls_s), share


def measure_ceilings(
    target: Target, device: Device, *, half: bool, threads: int, best: Best = best_execute
) -> Ceilings:
    """The best of several runs. half: the matrix product in fp16, on a GPU. With one thread on a CPU, of CPU time.
    best: see best_execute.

    For TensorRT, ONNX Runtime's CUDA provider measures the same GPU. Raises ConfigError where it is not installed.
    """
    kind: Target = "cpu" if target in HOST_TARGETS else "cuda"
    element = TensorProto.FLOAT16 if half and kind == "cuda" else TensorProto.FLOAT
    size, count = GEMM_SIZE[kind], COPY_BYTES[kind] // 4
    try:
        gemm_s, cpu_share = best(kind, device, "MatMul", {"a": (size, size), "b": (size, size)}, element, threads)
        copy_s, _ = best(kind, device, "Neg", {"a": (count,)}, TensorProto.FLOAT, threads)
    except EngineError as error:
        raise ConfigError(
            f"the ceilings of target {target} cannot be measured: {error.what}", fix=DATA_SHEET
        ) from error
    source = f"measured: {size} x {size} matrix product, {COPY_BYTES[kind] >> 20} MiB negated"
    return Ceilings(2 * size**3 / gemm_s, 2 * COPY_BYTES[kind] / copy_s, source, cpu_share)


def _times_s(
    engine: Engine, device: Device, shapes: dict[str, tuple[int, ...]], element: int
) -> list[tuple[float, float]]:
    """Seconds of RUNS executes on the device's memory, each waited for: wall time, CPU time of the process."""
    dtype = helper.tensor_dtype_to_np_dtype(element)
    tensors = {name: device.zeros(shape, dtype) for name, shape in (*shapes.items(), ("out", shapes["a"]))}
    stream = device.main
    for name, shape in shapes.items():
        device.upload(tensors[name], np.full(shape, 0.5, dtype), stream)
    return list(timed_executes(engine.bind(tensors), stream, RUNS, engine.manifest.target))


def _open(
    kind: Target,
    device: Device,
    op_type: str,
    shapes: dict[str, tuple[int, ...]],
    element: int,
    threads: int,
    folder: Path,
) -> Engine:
    """An engine of one operator; its output `out` has the shape of input `a`."""
    from runtime.engines.onnxruntime import OnnxRuntimeEngine

    inputs = [helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("out", element, shapes["a"])
    graph = helper.make_graph([helper.make_node(op_type, list(shapes), ["out"])], "ceiling", inputs, [output])
    opsets = [helper.make_opsetid("", OPSET)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), folder / "ceiling.onnx")
    manifest = _manifest(kind, shapes, str(helper.tensor_dtype_to_np_dtype(element)))
    return OnnxRuntimeEngine(manifest, folder, device=device, threads=threads)


def _manifest(kind: Target, shapes: dict[str, tuple[int, ...]], dtype: str) -> Manifest:
    """A manifest with the names and shapes that the engine reads, and nothing else."""
    return Manifest(
        name="ceiling",
        target=kind,
        tool_versions={},
        device={},
        graph_sha256="",
        build={},
        engine_file="ceiling.onnx",
        engine_sha256="",
        size_bytes=0,
        inputs=tuple(TensorInfo(name=name, dtype=dtype, shape=shape) for name, shape in shapes.items()),
        outputs=(TensorInfo(name="out", dtype=dtype, shape=shapes["a"]),),
        error={},
        build_s=0.0,
    )
