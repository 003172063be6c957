"""Builds plans from networks and options. Progress is reported from another thread, as by the real builder."""

from __future__ import annotations

import os
import signal
import threading
import time
from math import prod
from typing import Any

import onnx
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from runtime.engines.value_shapes import value_shapes

from ._basics import IHostMemory, ILogger, IStreamWriter
from ._config import IBuilderConfig, IOptimizationProfile
from ._enums import IS_RTX, VERSION_TUPLE, BuilderFlag, Severity
from ._graph import open_graph
from ._network import INetworkDefinition
from ._plan import Plan, TensorPlan
from ._rules import Answer, machine, need_driver

PHASE, INNER_PHASE = "Building an engine from the network", "Tactic selection"
CHUNK_BYTES = 1 << 16
STEPS = 20
LARGEST_K = 3840
# The widest head for which there are fused kernels of attention; there are none in float32.
WIDEST_FUSED_HEAD = 256


class Builder:
    """Compiles networks."""

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments: Builder(logger: ILogger)")
        if not IS_RTX:
            need_driver("Builder")
        self.sim_logger = logger
        self.max_threads = 1

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        return INetworkDefinition(int(flags))

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig(self.sim_logger)

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
        """The plan; None where the build failed or was cancelled (the logger says why)."""
        plan = _Build(self.sim_logger, network, config).run()
        return None if plan is None else IHostMemory(plan)

    def build_serialized_network_to_stream(
        self, network: INetworkDefinition, config: IBuilderConfig, writer: IStreamWriter
    ) -> bool:
        """The plan, in pieces, to the writer."""
        what = "build_serialized_network_to_stream"
        if not isinstance(writer, IStreamWriter):
            raise TypeError(f"{what}(): incompatible function arguments: {type(writer).__name__}")
        plan = _Build(self.sim_logger, network, config).run()
        if plan is None:
            return Answer(False, what)
        for start in range(0, len(plan), CHUNK_BYTES):
            piece = plan[start : start + CHUNK_BYTES]
            if writer.write(piece) != len(piece):
                self.sim_logger.log(Severity.ERROR, "IStreamWriter::write did not take all bytes")
                return Answer(False, what)
        return Answer(True, what)


class _Build:
    """One build. SIGINT is blocked meanwhile, because Python does not handle it during a real build."""

    def __init__(self, logger: ILogger, network: INetworkDefinition, config: IBuilderConfig) -> None:
        if not isinstance(network, INetworkDefinition) or not isinstance(config, IBuilderConfig):
            raise TypeError("build_serialized_network(): incompatible function arguments")
        self.sim_logger, self._network, self._config = logger, network, config
        self._result: bytes | None = None
        self._error: BaseException | None = None

    def run(self) -> bytes | None:
        worker = threading.Thread(target=self._work, name="simulated TensorRT builder")
        on_main = threading.current_thread() is threading.main_thread()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if on_main else None
        try:
            worker.start()
            worker.join()
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._error is not None:
            raise self._error
        return self._result

    def _work(self) -> None:
        try:
            self._result = self._build()
        except BaseException as error:
            self._error = error

    def _build(self) -> bytes | None:
        faults = machine().faults
        if faults.get("build_crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if message := faults.get("build_fails"):
            return self._fail(str(message))
        problem = self._problem() or self._refused_layer()
        if problem is not None:
            return self._fail(problem)
        graph = self._graph()
        if graph is None or not self._select_tactics():
            return None
        return self.sim_plan(graph).pack()

    def _fail(self, message: str) -> None:
        self.sim_logger.log(Severity.ERROR, f"IBuilder::buildSerializedNetwork: Error Code 4: {message}")

    def _problem(self) -> str | None:
        """Why the real builder refuses to start; None where it starts."""
        if not self._network.sim_is_strongly_typed:
            machine().break_rule("a network of TensorRT 10 is not strongly typed")
        if self._network.sim_model is None:
            return "Network must have at least one output"
        if IS_RTX and (problem := _refused_option(self._config, self._network.sim_model)):
            return problem
        free = [tensor for tensor in self._network.sim_side(True) if -1 in tensor.shape]
        if free and not self._config.sim_profiles:
            return "Network has dynamic or shape inputs, but no optimization profile has been defined."
        for index, profile in enumerate(self._config.sim_profiles):
            for tensor in free:
                if (problem := _profile_problem(profile, tensor, index)) is not None:
                    return problem
        return None

    def _refused_layer(self) -> str | None:
        """What the parser or the builder refuses in the layers, at the largest shapes of any profile."""
        model = self._network.sim_model
        assert model is not None
        constants = {tensor.name for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type in ("Conv", "ConvTranspose") and not constants.issuperset(node.input[1:]):
                return f"{node.name}: kernel weights of {node.op_type} that are computed at run time"
            if node.op_type == "TensorScatter" and (problem := self._cache_problem(node)):
                return f"{node.name}: IKVCacheUpdateLayer: {problem}"
        static = {tensor.name: tuple(tensor.shape) for tensor in self._network.sim_side(True)}
        for index, profile in enumerate(self._config.sim_profiles or [IOptimizationProfile()]):
            shapes = value_shapes(model, {**static, **{name: ends[2] for name, ends in profile.sim_ranges.items()}})
            for node in model.graph.node:
                if problem := _refused_by_rtx(node, shapes, constants):
                    return f"{node.name}: {problem}"
            for layer in self._network.sim_layers:
                if layer.sim_node.op_type == "Attention" and not layer.sim_attention.decomposable:
                    query, kind = shapes[layer.sim_node.input[0]]
                    if kind == onnx.TensorProto.FLOAT or query[-1] > WIDEST_FUSED_HEAD:
                        return f"{layer.name}: Attention operation was not supported by a dedicated kernel"
            for node in model.graph.node:
                ranks = [len(shapes[name][0]) for name in node.input if name in shapes]
                if node.op_type == "Range" and any(ranks):
                    place = next(place for place, rank in enumerate(ranks) if rank)
                    return f"{node.name}: LINSPACE requires that input at index {place} have rank 0"
                if any(prod(shapes[name][0]) >= 1 << 31 for name in node.output if name in shapes):
                    return f"{node.name}: tensor volume exceeds 2147483647 in optimization profile {index}"
        return None

    def _cache_problem(self, node: onnx.NodeProto) -> str | None:
        inputs, outputs = ({tensor.name: tensor for tensor in self._network.sim_side(side)} for side in (True, False))
        values = {item.name: item.s or item.i for item in node.attribute}
        if values.get("mode", b"linear") != b"linear":
            return "only KVCacheMode::kLINEAR is supported"
        if node.input[0] not in inputs or node.output[0] not in outputs:
            return "cache must be a network input and the output must be a network output"
        shape = tuple(inputs[node.input[0]].shape)
        if len(shape) != 4 or values.get("axis", -2) not in (-2, 2):
            return "cache must have 4 dimensions, with the sequence at index 2"
        return "the sequence dimension of the cache must be static" if shape[2] == -1 else None

    def _graph(self) -> bytes | None:
        """The serialized graph; None where ONNX Runtime does not take it."""
        assert self._network.sim_model is not None
        data = self._network.sim_model.SerializeToString()
        try:
            open_graph(data)
        except (ort_errors.Fail, ort_errors.InvalidGraph, ort_errors.NotImplemented, ort_errors.InvalidArgument) as e:
            self._fail(f"Could not find any implementation for node: {e}")
            return None
        return data

    def _select_tactics(self) -> bool:
        """Report progress and fill the timing cache; False where the monitor cancelled."""
        seconds = float(os.environ.get("SIMULATED_BUILD_S", "0"))
        skipped = int(os.environ.get("SIMULATED_SKIPPED_TACTICS", "3"))
        monitor = self._config.progress_monitor
        if monitor is not None:
            monitor.phase_start(PHASE, None, 1)
            monitor.phase_start(INNER_PHASE, PHASE, STEPS)
        for step in range(STEPS):
            time.sleep(seconds / STEPS)
            if step < skipped:
                what = f"Skipping tactic {step} due to insufficient memory on requested size of {1 << 30} detected"
                self.sim_logger.log(Severity.WARNING, f"{what} for tactic 0x{step:016x}.")
            if monitor is not None and monitor.step_complete(INNER_PHASE, step) is not True:
                self.sim_logger.log(Severity.WARNING, "The build was cancelled by the progress monitor")
                return False
        if not self._use_timing_cache():
            return False
        if monitor is not None:
            monitor.phase_finish(INNER_PHASE)
            if monitor.step_complete(PHASE, 0) is not True:
                return False
            monitor.phase_finish(PHASE)
        return True

    def _use_timing_cache(self) -> bool:
        config = self._config
        if config.sim_cache is None or config.builder_optimization_level == 0:
            return True
        cache = config.sim_cache()
        if cache is None:
            machine().break_rule("the timing cache was destroyed before the build was done")
        assert cache is not None
        assert self._network.sim_model is not None
        keys = {f"{node.op_type}:{','.join(node.input)}" for node in self._network.sim_model.graph.node}
        missing = keys - cache.sim_entries.keys()
        self.sim_logger.log(Severity.VERBOSE, f"Timing cache: {len(keys) - len(missing)} hits, {len(missing)} misses")
        if missing and config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS):
            self._fail("timing cache miss with ERROR_ON_TIMING_CACHE_MISS")
            return False
        cache.sim_entries.update(dict.fromkeys(missing, 0.01))
        return True

    def sim_plan(self, graph: bytes) -> Plan:
        config, here = self._config, machine()
        tensors = tuple(
            TensorPlan(item.name, item.dtype.name, tuple(item.shape), item.is_network_input)
            for item in self._network.sim_tensors
        )
        static = {item.name: (item.shape,) * 3 for item in tensors if item.is_input and -1 not in item.shape}
        return Plan(
            version=VERSION_TUPLE,
            gpu="" if IS_RTX else here.gpu_name,
            compute_capability="" if IS_RTX else here.cc,
            tensors=tensors,
            profiles=tuple({**static, **profile.sim_ranges} for profile in config.sim_profiles) or (static,),
            flags=tuple(sorted(flag.name for flag in config.sim_flags)),
            verbosity=config.profiling_verbosity.name,
            aux_streams=max(config.max_aux_streams, 0),
            hardware_compatibility=config.hardware_compatibility_level.name,
            level=config.builder_optimization_level,
            graph=graph,
        )


def _refused_by_rtx(node: onnx.NodeProto, shapes: Any, constants: set[str]) -> str | None:
    """What the real parser and builder of TensorRT-RTX 1.7 were seen to refuse."""
    about = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    kind = shapes[node.input[0]][1] if node.input and node.input[0] in shapes else 0
    match node.op_type:
        case "Attention":
            is_refused = about.get("softcap", 0.0) != 0.0 or any(node.output[1:])
        case "HardSwish" | "Mish":
            is_refused = kind == onnx.TensorProto.BFLOAT16
        case "CumSum":
            is_refused = node.input[1] not in constants
        case "ConvTranspose":
            is_refused = kind == onnx.TensorProto.BFLOAT16
        case "ScatterElements":
            is_refused = about.get("reduction", b"none") != b"none"
        case "TensorScatter":
            is_refused = kind in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
        case "TopK":
            found = shapes.get(node.output[0])
            is_refused = found is not None and found[0][about.get("axis", -1)] > LARGEST_K
        case _:
            is_refused = False
    return f"{node.op_type} is not supported in this form" if is_refused else None


def _refused_option(config: Any, model: onnx.ModelProto) -> str | None:
    """What TensorRT-RTX 1.7 was seen to refuse in the options of a build without a driver."""
    cards, kinds = (
        {card.name for card in config.sim_capabilities},
        {item.data_type for item in model.graph.initializer},
    )
    if model.graph.initializer and any(flag.name.startswith("REFIT") for flag in config.sim_flags):
        return "graph_jit.cpp:278: CHECK(status == CUDA_SUCCESS) failed"
    if any(flag.name == "VERSION_COMPATIBLE" for flag in config.sim_flags):
        return "Unable to load library: libnvinfer_lean.so.1"
    if "CURRENT" in cards:
        return "CUDA initialization failure with error: 35"
    has_products = any(node.op_type in ("Conv", "Gemm", "MatMul") for node in model.graph.node)
    if "SM75" in cards and has_products and kinds & {onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16}:
        return "FP32 GEMM is not supported"
    if onnx.TensorProto.FLOAT8E4M3FN in kinds and not (cards and cards <= {"SM89", "SM120", "SM121"}):
        return "HW-specific datatypes: fp8_e4m3"
    return None


def _profile_problem(profile: IOptimizationProfile, tensor: Any, index: int) -> str | None:
    ranges = profile.sim_ranges.get(tensor.name)
    if ranges is None:
        return f"Dynamic input {tensor.name} does not have shapes in optimization profile {index}."
    for sizes in zip(tensor.shape, *ranges, strict=False):
        if sizes[0] != -1 and len(set(sizes)) != 1:
            return f"{tensor.name}: a static dimension {sizes[0]} has the range {sizes[1:]} in profile {index}."
    if len(ranges[0]) != len(tensor.shape):
        return f"{tensor.name}: profile {index} has {len(ranges[0])} dimensions, the network {len(tensor.shape)}."
    return None
