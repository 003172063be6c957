"""TensorRT's builder: an ONNX graph to an engine file. The calls are the same for TensorRT 10.16, 11 and TensorRT-RTX.

It runs in the worker process (worker.py), for target tensorrt after the driver was probed: without a driver, creating a
Builder crashes the process. TensorRT-RTX builds without a GPU.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from engine_build.compile.engine_folder import read_cache, updating
from engine_build.compile.worker import CompileRequest, OnLog
from engine_build.graphs.tensorrt_rules import nested_control_flow
from runtime.base.errors import BuildError
from runtime.base.files import set_aside
from runtime.engines.tensorrt.binding import trt

if TYPE_CHECKING:
    import tensorrt_rtx as rtx  # what only TensorRT-RTX has
else:
    rtx = trt

FLAGS: Mapping[str, trt.BuilderFlag] = {
    "refit": trt.BuilderFlag.REFIT,
    "strict_nans": trt.BuilderFlag.STRICT_NANS,
    "tf32": trt.BuilderFlag.TF32,
    "version_compatible": trt.BuilderFlag.VERSION_COMPATIBLE,
}
VERBOSITIES: Mapping[str, trt.ProfilingVerbosity] = {
    "none": trt.ProfilingVerbosity.NONE,
    "layer_names": trt.ProfilingVerbosity.LAYER_NAMES_ONLY,
    "detailed": trt.ProfilingVerbosity.DETAILED,
}
COMPATIBILITIES: Mapping[str, trt.HardwareCompatibilityLevel] = {
    "none": trt.HardwareCompatibilityLevel.NONE,
    "ampere_plus": trt.HardwareCompatibilityLevel.AMPERE_PLUS,
    "same_compute_capability": trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY,
}
PARSE_ERRORS_SHOWN = 3
PARSE_FIX = "export that part of the graph as other operators, or build for ONNX Runtime: --target cpu or cuda"
# What TensorRT-RTX logs after every failed build on a machine without a driver, which it does not need, and for every
# tensor of int64, which ours are bound as.
NOT_NEWS = re.compile(r"cudaError 35|Make sure (in|out)put \S+ has Int64 binding")


def versions() -> dict[str, str]:
    """The builder's version and its ONNX parser's."""
    return {trt.__name__: str(trt.__version__), "onnx_parser": str(trt.get_nv_onnx_parser_version())}


class Log(trt.ILogger):  # type: ignore[misc]
    """Passes messages of INFO and above to `on_log(severity, text)`; TensorRT calls it from several threads."""

    def __init__(self, on_log: OnLog) -> None:
        trt.ILogger.__init__(self)
        self._on_log = on_log

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """One message."""
        if severity != trt.ILogger.Severity.VERBOSE and not NOT_NEWS.search(msg):
            self._on_log(severity.name, msg)


class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
    """Cancels the build at its next step once `cancelled` is set; TensorRT calls it from several threads."""

    def __init__(self, cancelled: threading.Event) -> None:
        trt.IProgressMonitor.__init__(self)
        self._cancelled = cancelled

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """Ignored."""

    def step_complete(self, phase_name: str, step: int) -> bool:
        """False cancels the build."""
        return not self._cancelled.is_set()

    def phase_finish(self, phase_name: str) -> None:
        """Ignored."""


class Writer(trt.IStreamWriter):  # type: ignore[misc]
    """Writes an engine's pieces to a file and hashes them. `error`: why a piece could not be written."""

    def __init__(self, file: BinaryIO) -> None:
        trt.IStreamWriter.__init__(self)
        self._file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write one piece; returns 0 on failure, because an exception must not pass through TensorRT."""
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            return 0
        self.hash.update(data)
        return len(data)


def write_engine(request: CompileRequest, cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Build an engine into `request.engine`; gives its SHA-256 and the names of the flags that were set.

    Raises BuildError, also where `cancelled` was set. The caller has checked that there is a driver.
    """
    log = Log(on_log)
    builder = trt.Builder(log)
    if request.threads:
        builder.max_threads = request.threads
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    # The network refers to the parser's memory, the config to the monitor: both must live until the plan is built.
    parser = _parse(network, log, request)
    config = _configured(builder, request)
    for index, profile in enumerate(request.profiles):
        _add_profile(builder, network, config, profile, index)
    monitor = Monitor(cancelled)
    config.progress_monitor = monitor
    cache = _use_timing_cache(config, request, on_log)
    sha256 = _write(builder, network, config, request, cancelled)
    del parser, monitor
    if cache is not None and request.timing_cache is not None:
        _merge_timing_cache(config, cache, request.timing_cache)
    return {"sha256": sha256, "flags": _flag_names(config)}


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """ "1x2 4x2 8x2" -> ((1, 2), (4, 2), (8, 2))."""
    return tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split())


def _parse(network: trt.INetworkDefinition, log: Log, request: CompileRequest) -> trt.OnnxParser:
    parser = trt.OnnxParser(network, log)
    if parser.parse_from_file(str(request.graph)):
        _let_attention_decompose(network)
        return parser
    errors = [parser.get_error(index) for index in range(min(parser.num_errors, PARSE_ERRORS_SHOWN))]
    found = "; ".join(_explained(error) for error in errors)
    raise BuildError(f"TensorRT cannot parse {request.label}: {found}", fix=PARSE_FIX)


def _let_attention_decompose(network: trt.INetworkDefinition) -> None:
    """Without this TensorRT refuses attention for which it has no fused kernel, such as any in float32.

    Where there is a fused kernel, it is used all the same.
    """
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            # The bindings give layers as their base class; this is how they are meant to be cast.
            layer.__class__ = trt.IAttentionInputLayer
            assert isinstance(layer, trt.IAttentionInputLayer)
            layer.attention.decomposable = True


def _explained(error: trt.ParserError) -> str:
    is_unknown = error.desc() == "false" or "Plugin not found" in error.desc()
    reason = "the parser does not support this operator" if is_unknown else error.desc()
    return f"node {error.node_name()!r} ({error.node_operator()}): {reason}"


def _configured(builder: trt.Builder, request: CompileRequest) -> trt.IBuilderConfig:
    options, config = request.options, builder.create_builder_config()
    for option, flag in FLAGS.items():
        if options.get(option):
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
    if request.target == "tensorrt-rtx":
        _configure_rtx(config, options["capabilities"])
    config.builder_optimization_level = options["optimization_level"]
    config.profiling_verbosity = VERBOSITIES[options["verbosity"]]
    if options.get("hardware_compatibility", "none") != "none":
        config.hardware_compatibility_level = COMPATIBILITIES[options["hardware_compatibility"]]
    if options.get("max_aux_streams") is not None:
        config.max_aux_streams = options["max_aux_streams"]
    if options["workspace_mib"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options["workspace_mib"] << 20)
    return config


def _configure_rtx(config: Any, capabilities: Sequence[str]) -> None:
    """Portable without `capabilities`. An execute on memory of its own could not be captured. Raises BuildError."""
    mine: rtx.IBuilderConfig = config
    mine.set_flag(rtx.BuilderFlag.REQUIRE_USER_ALLOCATION)
    mine.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        if not mine.set_compute_capability(rtx.ComputeCapability.__members__[name], index):
            raise BuildError(f"TensorRT-RTX does not build for {name}", fix="leave it out of [build] capabilities")


def _add_profile(
    builder: trt.Builder,
    network: trt.INetworkDefinition,
    config: trt.IBuilderConfig,
    shapes: Mapping[str, str],
    index: int,
) -> None:
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if tensor.is_shape_tensor:
            raise BuildError(f"TensorRT uses the input {tensor.name!r} as a shape tensor, expected a data tensor")
        if -1 not in tuple(tensor.shape):
            continue
        low, usual, high = parse_shapes(shapes[tensor.name])
        try:
            profile.set_shape(tensor.name, low, usual, high)
        except (RuntimeError, ValueError) as error:
            raise BuildError(f"shape range {index}: {tensor.name!r} from {low} to {high}: {error}") from error
    is_static = all(-1 not in tuple(network.get_input(index).shape) for index in range(network.num_inputs))
    if not is_static and config.add_optimization_profile(profile) < 0:
        raise BuildError(f"TensorRT refuses shape range {index}: {dict(shapes)}", fix="check [[shapes]]")


def _use_timing_cache(config: trt.IBuilderConfig, request: CompileRequest, on_log: OnLog) -> trt.ITimingCache | None:
    """Load the timing cache of earlier builds; a file that TensorRT refuses is renamed, and a new one started."""
    if request.timing_cache is None:
        config.set_flag(trt.BuilderFlag.DISABLE_TIMING_CACHE)
        return None
    data = read_cache(request.timing_cache)
    cache = config.create_timing_cache(data)
    if cache is None or not config.set_timing_cache(cache, False):
        aside = set_aside(request.timing_cache)
        on_log("WARNING", f"the timing cache was damaged or of another device: renamed to {aside}, a new one started")
        cache = config.create_timing_cache(b"")
        if cache is None or not config.set_timing_cache(cache, False):
            raise BuildError("TensorRT refuses even an empty timing cache", fix="timing_cache = false in [build]")
    return cache


def _merge_timing_cache(config: trt.IBuilderConfig, cache: trt.ITimingCache, path: Path) -> None:
    """Save this build's timings, combined with what other builds have written since."""
    with updating(path) as (data, replacement):
        others = config.create_timing_cache(data) if data else None
        if data and others is None:
            set_aside(path)
        if others is None or cache.combine(others, False):
            replacement.append(bytes(cache.serialize()))


def _write(
    builder: trt.Builder,
    network: trt.INetworkDefinition,
    config: trt.IBuilderConfig,
    request: CompileRequest,
    cancelled: threading.Event,
) -> str:
    try:
        with request.engine.open("wb") as file:
            writer = Writer(file)
            is_built = bool(builder.build_serialized_network_to_stream(network, config, writer))
            if writer.error is not None:
                raise writer.error
    except OSError as error:
        raise BuildError(f"{request.engine} cannot be written: {error.strerror}", fix="free disk space") from error
    if cancelled.is_set():
        raise BuildError("cancelled")
    if not is_built:
        raise BuildError(f"TensorRT could not build {request.label}", fix=_build_fix(request.graph))
    return writer.hash.hexdigest()


def _build_fix(graph: Path) -> str:
    """What to do about a graph that is not built: of control flow inside control flow some is not (RTX 1.7)."""
    if names := nested_control_flow(graph):
        return f"export the graph without {names}: TensorRT does not build all control flow inside control flow"
    return PARSE_FIX


def _flag_names(config: trt.IBuilderConfig) -> list[str]:
    return sorted(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag))
