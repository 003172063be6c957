"""Plans made by the simulated builder. To be called inside `simulated()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from engine_build.graphs.graph_file import graph_of
from engine_build.graphs.graph_writer import GraphWriter
from runtime.config.deployment import Target
from runtime.devices.machine import gpu_machine
from runtime.engines.loading import tool_versions
from runtime.engines.manifest import Manifest, file_sha256, manifest_path, write_manifest

Ranges = Mapping[str, tuple[int, int, int]]

CHANNELS = 64
ROWS: Ranges = {"rows": (1, 2, 4), "frames": (1, 8, 16)}
MANY_ROWS: Ranges = {"rows": (5, 8, 8), "frames": (1, 8, 16)}


def small_graph(scale: float = 2.0) -> onnx.ModelProto:
    """`x [rows, frames, 64]` and `t [rows]` to `y = scale * x + t`, and per row whether y is positive throughout.

    `bias [64]` is an input that is fully static.
    """
    graph = GraphWriter("small")
    x = graph.input("x", ("rows", "frames", CHANNELS))
    time = graph.input("t", ("rows",))
    bias = graph.input("bias", (CHANNELS,))
    moved = graph.op("Unsqueeze", time, graph.constant([1, 2], "int64"))
    y = graph.op("Add", graph.op("Add", graph.op("Mul", x, graph.constant(scale)), moved), bias)
    least = graph.op("ReduceMin", y, graph.constant([1, 2], "int64"), keepdims=0)
    graph.output("y", y, ("rows", "frames", CHANNELS))
    graph.output("positive", graph.op("Greater", least, graph.constant(0.0)), ("rows",), "bool")
    return graph.model()


def cache_graph(
    capacity: int | str = 8, *, axis: int = -2, mode: str = "linear", moved: bool = False, rank: int = 4
) -> onnx.ModelProto:
    """`new [rows, 2, 1, 64]` written into `past [rows, 2, capacity, 64]` at `write [rows]`, with the result as output.

    moved: what is written into is computed from the input.
    """
    graph = GraphWriter("cache", 24)
    middle = (2,) if rank == 4 else ()
    past = graph.input("past", ("rows", *middle, capacity, CHANNELS))
    new, write = graph.input("new", ("rows", *middle, 1, CHANNELS)), graph.input("write", ("rows",), "int64")
    source = graph.op("Add", past, graph.constant(1.0)) if moved else past
    present = graph.op("TensorScatter", source, new, write, axis=axis, mode=mode)
    total = graph.op("ReduceSum", present, keepdims=0)
    graph.output("present", present, ("rows", *middle, capacity, CHANNELS))
    graph.output("sum", total, ())
    return graph.model()


class Lines:
    """A logger that keeps (severity, text) of every message in `lines`."""

    def __new__(cls) -> Any:
        from runtime.engines.tensorrt.binding import trt

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.lines: list[tuple[str, str]] = []

            def log(self, severity: Any, msg: str) -> None:
                self.lines.append((severity.name, msg))

        return Logger()


def build_plan(
    model: onnx.ModelProto, ranges: Sequence[Ranges], *, verbosity: str = "LAYER_NAMES_ONLY", flags: Sequence[str] = ()
) -> bytes:
    """A plan with these shape ranges: (min, opt, max) per name of a free dimension."""
    from runtime.engines.tensorrt.binding import trt

    logger = Lines()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString()), logger.lines
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.__members__[verbosity]
    for flag in flags:
        config.set_flag(trt.BuilderFlag.__members__[flag])
    for sizes in ranges:
        assert config.add_optimization_profile(_profile(builder, model, sizes)) >= 0
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, logger.lines
    return bytes(plan)


def write_engine(
    folder: Path,
    name: str,
    model: onnx.ModelProto,
    ranges: Sequence[Ranges],
    *,
    version_compatible: bool = False,
    **how: Any,
) -> Manifest:
    """Write a built engine, plan and manifest, into `folder`."""
    from runtime.devices.cuda import probe

    folder.mkdir(parents=True, exist_ok=True)
    flags = ["VERSION_COMPATIBLE"] if version_compatible else []
    target: Target = "tensorrt-rtx" if is_rtx() else "tensorrt"
    if is_rtx():
        flags.append("REQUIRE_USER_ALLOCATION")
    path = folder / f"{name}.plan"
    path.write_bytes(build_plan(model, ranges, flags=flags, **how))
    graph = graph_of(model)
    manifest = Manifest(
        name=name,
        target=target,
        tool_versions=tool_versions(target),
        device={} if is_rtx() else gpu_machine(probe()),
        graph_sha256=graph.sha256,
        build={"version_compatible": version_compatible},
        engine_file=path.name,
        engine_sha256=file_sha256(path),
        size_bytes=path.stat().st_size,
        inputs=graph.inputs,
        outputs=graph.outputs,
        error={},
        build_s=0.0,
    )
    write_manifest(manifest_path(folder, name), manifest)
    return manifest


def is_rtx() -> bool:
    """Whether TensorRT-RTX is simulated."""
    from runtime.engines.tensorrt.binding import trt

    return str(trt.__name__) == "tensorrt_rtx"


def _profile(builder: Any, model: onnx.ModelProto, sizes: Ranges) -> Any:
    profile = builder.create_optimization_profile()
    for item in model.graph.input:
        dims = item.type.tensor_type.shape.dim
        if any(dim.dim_param for dim in dims):
            shapes = [
                [sizes[dim.dim_param][end] if dim.dim_param else dim.dim_value for dim in dims] for end in range(3)
            ]
            profile.set_shape(item.name, *shapes)
    return profile
