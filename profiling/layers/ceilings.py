"""The machine's two ceilings, measured through ONNX Runtime: a large matrix product, and a pass over main memory.

Layers whose data stays in a cache may be faster than the second one.
"""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx import TensorProto, helper, save

from profiling.layers.roofline import Ceilings
from runtime.config.targets import Target
from runtime.devices.device import Device
from runtime.engines.engine import Engine
from runtime.engines.manifest import Manifest, TensorInfo
from runtime.errors import ConfigError, EngineError

RUNS = 20
WARM_UP_RUNS = 2
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
OPSET = 20
IR_VERSION = 10
EXAMPLE = "--peaks 989000,4800"
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


def higher(first: Ceilings | None, second: Ceilings | None) -> Ceilings | None:
    """The higher of each ceiling, of two measurements of one machine."""
    if first is None or second is None:
        return first or second
    flops_per_s = max(first.flops_per_s, second.flops_per_s)
    return Ceilings(flops_per_s, max(first.bytes_per_s, second.bytes_per_s), first.source)


def measure_ceilings(target: Target, device: Device, *, half: bool, threads: int) -> Ceilings:
    """The best of several runs. half: the matrix product in fp16, on a GPU.

    For TensorRT, ONNX Runtime's CUDA provider measures the same GPU. Raises ConfigError where it is not installed.
    """
    kind: Target = "cpu" if target == "cpu" else "cuda"
    element = TensorProto.FLOAT16 if half and kind == "cuda" else TensorProto.FLOAT
    size, count = GEMM_SIZE[kind], COPY_BYTES[kind] // 4
    try:
        gemm_s = _best_s(kind, device, "MatMul", {"a": (size, size), "b": (size, size)}, element, threads)
        copy_s = _best_s(kind, device, "Neg", {"a": (count,)}, TensorProto.FLOAT, threads)
    except EngineError as error:
        raise ConfigError(
            f"the ceilings of target {target} cannot be measured: {error.what}", fix=DATA_SHEET
        ) from error
    source = f"measured: {size} x {size} matrix product, {COPY_BYTES[kind] >> 20} MiB negated"
    return Ceilings(2 * size**3 / gemm_s, 2 * COPY_BYTES[kind] / copy_s, source)


def _best_s(
    kind: Target, device: Device, op_type: str, shapes: dict[str, tuple[int, ...]], element: int, threads: int
) -> float:
    with TemporaryDirectory() as folder:
        engine = _open(kind, device, op_type, shapes, element, threads, Path(folder))
        try:
            return min(_times_s(engine, device, shapes, element))
        finally:
            engine.close()


def _times_s(engine: Engine, device: Device, shapes: dict[str, tuple[int, ...]], element: int) -> list[float]:
    """Seconds of RUNS executes on the device's memory, each waited for."""
    dtype = helper.tensor_dtype_to_np_dtype(element)
    tensors = {name: device.zeros(shape, dtype) for name, shape in (*shapes.items(), ("out", shapes["a"]))}
    stream = device.main
    for name, shape in shapes.items():
        device.upload(tensors[name], np.full(shape, 0.5, dtype), stream)
    execution = engine.bind(tensors)
    times = []
    for _ in range(WARM_UP_RUNS + RUNS):
        stream.record().wait()
        started_s = time.perf_counter()
        execution.launch(stream)
        stream.record().wait()
        times.append(time.perf_counter() - started_s)
    return times[WARM_UP_RUNS:]


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
