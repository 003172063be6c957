"""Runtime, engine and inspector."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx
from simulated_machine import RefusedError
from simulated_parts import CONTEXT_BYTES

from ._basics import Dims, ILogger
from ._context import IExecutionContext
from ._enums import (
    STRONGLY_TYPED_ONLY,
    DataType,
    ExecutionContextAllocationStrategy,
    LayerInformationFormat,
    Severity,
    TensorIOMode,
)
from ._graph import ELEMENTS, NUMPY, open_graph
from ._plan import Plan, PlanDamagedError, TensorPlan, load_error, unpack
from ._rules import from_library_thread, machine, need_driver, remember

ALIGNMENT_BYTES = 256
Shape = tuple[int, ...]


class Runtime:
    """Loads plans. It must outlive its engines, and its logger must outlive it."""

    sim_engine_kind: type[ICudaEngine]

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments: Runtime(logger: ILogger)")
        need_driver("Runtime")
        self.sim_machine = machine()
        self.sim_logger = weakref.ref(logger)
        self._engines: weakref.WeakSet[ICudaEngine] = weakref.WeakSet()
        self.engine_host_code_allowed = False
        self.max_threads = 1

    @property
    def logger(self) -> ILogger:
        logger = self.sim_logger()
        if logger is None:
            self.sim_machine.break_rule("a Runtime is used after its logger was destroyed")
        assert logger is not None
        return logger

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        """The engine; None where the plan does not load (the logger gets the reason)."""
        here = self.sim_machine
        data = bytes(memoryview(serialized_engine))
        if here.faults.get("deserialize_none") or here.strikes("deserialize_none_at"):
            return self._fail("Serialization assertion stdVersionRead == serializationVersion failed")
        try:
            plan = unpack(data)
        except PlanDamagedError as error:
            return self._fail(str(error))
        reason = load_error(plan, here.cc, host_code_allowed=self.engine_host_code_allowed)
        if reason is not None:
            return self._fail(reason)
        if plan.gpu not in ("", here.gpu_name):
            what = "Using an engine plan file across different models of devices is not supported"
            self.logger.log(Severity.WARNING, f"{what} and is likely to affect performance or even cause errors.")
        try:
            weights = here.allocate(len(plan.graph), "device")
        except RefusedError as error:
            return self._fail(_cuda_words(error.code))
        engine = self.sim_engine_kind(self, plan, weights)
        self._engines.add(engine)
        return engine

    def _fail(self, message: str) -> None:
        text = f"IRuntime::deserializeCudaEngine: Error Code 1: {message}"
        from_library_thread(lambda: self.logger.log(Severity.ERROR, text))

    def __del__(self) -> None:
        if len(getattr(self, "_engines", ())):
            remember("a Runtime was destroyed before its engines: close context, engine, runtime", self.sim_machine)


class ICudaEngine:
    """A loaded plan; its weights take device memory."""

    def __init__(self, runtime: Runtime, plan: Plan, weights: int) -> None:
        self.sim_machine, self._runtime, self.sim_logger = (
            runtime.sim_machine,
            weakref.ref(runtime),
            runtime.sim_logger,
        )
        self.sim_plan, self._weights = plan, weights
        self.sim_tensors = {item.name: item for item in plan.tensors}
        self.sim_session, self.sim_aliases = open_graph(plan.graph)
        self.sim_contexts: weakref.WeakSet[IExecutionContext] = weakref.WeakSet()
        self._outputs_of: dict[tuple[Shape, ...], dict[str, Shape]] = {}

    @property
    def num_io_tensors(self) -> int:
        return len(self.sim_plan.tensors)

    def get_tensor_name(self, index: int) -> str:
        return self.sim_plan.tensors[index].name

    def get_tensor_mode(self, name: str) -> Any:
        if name not in self.sim_tensors:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if self.sim_tensors[name].is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.sim_tensors[name].dtype]

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self.sim_tensors[name].shape)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        if not self.sim_tensors[name].is_input:
            return [Dims()] * 3
        return [Dims(shape) for shape in self.sim_plan.profiles[profile_index][name]]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.sim_aliases.get(name)

    @property
    def refittable(self) -> bool:
        return "REFIT" in self.sim_plan.flags

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.sim_plan.profiles)

    @property
    def device_memory_size_v2(self) -> int:
        return max(self.get_device_memory_size_for_profile_v2(i) for i in range(len(self.sim_plan.profiles)))

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        """Twice the inputs at their largest."""
        ranges = self.sim_plan.profiles[profile_index]
        sizes = [prod(ranges[item.name][2]) * int(DataType[item.dtype].itemsize or 0) for item in self.sim_inputs()]
        return -(-2 * sum(sizes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def num_layers(self) -> int:
        return len(layers(self.sim_plan))

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)

    def create_execution_context(
        self, strategy: Any = ExecutionContextAllocationStrategy.STATIC
    ) -> IExecutionContext | None:
        """The context; None where there is not enough memory."""
        if strategy not in ExecutionContextAllocationStrategy:
            raise TypeError("create_execution_context(): incompatible function arguments")
        return self._new_context(strategy, lambda address: IExecutionContext(self, address))

    def _new_context(self, strategy: Any, make: Callable[[int], IExecutionContext]) -> IExecutionContext | None:
        if self._runtime() is None:
            self.sim_machine.break_rule("an engine is used after its Runtime was destroyed")
        address = own = 0
        try:
            if self.sim_machine.strikes("context_none_at"):
                raise RefusedError(2, "")
            own = self.sim_machine.allocate(CONTEXT_BYTES, "device")
            if strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
                address = self.sim_machine.allocate(self.device_memory_size_v2, "device")
        except RefusedError as error:
            if own:
                self.sim_machine.free(own)
            self.sim_log(Severity.ERROR, f"IExecutionContext creation failed: {_cuda_words(error.code)}")
            return None
        self.sim_machine.spend("context")
        context = make(address)
        context.sim_own = own
        self.sim_contexts.add(context)
        return context

    def sim_inputs(self) -> list[TensorPlan]:
        return [item for item in self.sim_plan.tensors if item.is_input]

    def sim_log(self, severity: Any, message: str) -> None:
        logger = self.sim_logger()
        if logger is None:
            self.sim_machine.break_rule("an engine is used after its logger was destroyed")
        assert logger is not None
        from_library_thread(lambda: logger.log(severity, message))

    def sim_output_shapes(self, shapes: dict[str, Shape]) -> dict[str, Shape]:
        """The outputs' shapes; computed once per combination of input shapes."""
        key = tuple(shapes[item.name] for item in self.sim_inputs())
        if key not in self._outputs_of:
            feeds = {i.name: np.zeros(shapes[i.name], NUMPY[DataType[i.dtype]]) for i in self.sim_inputs()}
            names = [item.name for item in self.sim_plan.tensors if not item.is_input]
            binding = self.sim_session.io_binding()
            for item in self.sim_inputs():
                feed = feeds[item.name]
                binding.bind_input(item.name, "cpu", 0, ELEMENTS[DataType[item.dtype]], feed.shape, feed.ctypes.data)
            for name in names:
                binding.bind_output(name)
            self.sim_session.run_with_iobinding(binding)
            results = binding.get_outputs()
            self._outputs_of[key] = {name: tuple(r.shape()) for name, r in zip(names, results, strict=True)}
        return self._outputs_of[key]

    def __del__(self) -> None:
        if len(self.sim_contexts):
            remember("an engine was destroyed before its contexts", self.sim_machine)
        self.sim_machine.spend("end of an engine")
        if not self.sim_machine.sticky and not is_replaced(self.sim_machine):
            self.sim_machine.free(self._weights)


Runtime.sim_engine_kind = ICudaEngine


def is_replaced(mine: Any) -> bool:
    """Whether `mine` was replaced by another test's machine."""
    return machine() is not mine


def layers(plan: Plan, shapes: dict[str, Shape] | None = None) -> list[dict[str, Any] | str]:
    """The inspector's layers at the plan's verbosity; free dimensions are -1 without input shapes."""
    nodes = onnx.load_from_string(plan.graph).graph.node
    names = [node.name or f"{node.op_type}_{index}" for index, node in enumerate(nodes)]
    if plan.verbosity == "NONE":
        return ["0"]
    if plan.verbosity == "LAYER_NAMES_ONLY":
        return [f"{{ForeignNode[{names[0]}...{names[-1]}]}}"]
    sizes = _dimensions(plan, shapes or {})
    return [
        {
            "Name": f"{name}_myl0_{index}",
            "LayerType": "gemm" if node.op_type in ("MatMul", "Gemm") else "kgen",
            "Inputs": [_described(tensor, sizes) for tensor in node.input if tensor],
            "Outputs": [_described(tensor, sizes) for tensor in node.output if tensor],
            "TacticName": "simulated",
            "StreamId": 0,
            "Metadata": f"[ONNX Layer: {name}]",
        }
        for index, (name, node) in enumerate(zip(names, nodes, strict=True))
    ]


def layer_names(plan: Plan) -> list[str]:
    """The layer names that a profiler gets."""
    return [layer if isinstance(layer, str) else str(layer["Name"]) for layer in layers(plan)]


class EngineInspector:
    """Describes the layers of an engine."""

    def __init__(self, engine: ICudaEngine) -> None:
        self.sim_engine = engine
        self.execution_context: IExecutionContext | None = None

    def get_engine_information(self, format: Any) -> str:
        """The engine as JSON in the schema of the version."""
        assert format in LayerInformationFormat
        context = self.execution_context
        shapes = context.sim_known_shapes() if context is not None else None
        about: dict[str, Any] = {"Layers": layers(self.sim_engine.sim_plan, shapes)}
        if STRONGLY_TYPED_ONLY:
            about["I/O Tensors"] = [
                {
                    "Name": i.name,
                    "IOMode": "Input" if i.is_input else "Output",
                    "DataType": i.dtype,
                    "Dimensions": i.shape,
                }
                for i in self.sim_engine.sim_plan.tensors
            ]
        else:
            about["Bindings"] = [item.name for item in self.sim_engine.sim_plan.tensors]
        return json.dumps(about) if format is LayerInformationFormat.JSON else str(about)


def _described(name: str, sizes: dict[str, list[int]]) -> dict[str, Any]:
    dims = sizes.get(name, [-1])
    if STRONGLY_TYPED_ONLY:
        return {"Name": name, "Dimensions": dims, "Format": "Row-major linear", "Datatype": "FP32"}
    return {"Name": name, "Dimensions": dims, "Format/Datatype": "Row-major linear FP32"}


def _dimensions(plan: Plan, shapes: dict[str, Shape]) -> dict[str, list[int]]:
    """Every tensor's dimensions, -1 where shape inference does not find them."""
    model = onnx.load_from_string(plan.graph)
    for item in model.graph.input:
        for dim, size in zip(item.type.tensor_type.shape.dim, shapes.get(item.name, ()), strict=False):
            dim.dim_value = size
    del model.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    sizes = {item.name: list(item.dims) for item in graph.initializer}
    for item in (*graph.input, *graph.value_info, *graph.output):
        dims = item.type.tensor_type.shape.dim
        sizes[item.name] = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims]
    return sizes


def _cuda_words(code: int) -> str:
    words = {2: "out of memory", 900: "operation not permitted when stream is capturing"}
    return f"Cuda Runtime ({words.get(code, f'error {code}')})"
