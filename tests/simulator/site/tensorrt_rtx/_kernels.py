"""Kernels that are compiled on the machine: runtime settings, the runtime cache, and the contexts that use them."""

from __future__ import annotations

import _thread
import hashlib
import json
import os
import threading
import time
import weakref
from typing import Any

from . import _builder, _config, _context, _engine
from ._basics import IHostMemory, ILogger, Logger
from ._enums import VERSION, VERSION_TUPLE, ExecutionContextAllocationStrategy, TrtEnum
from ._launch import Launch
from ._plan import HEADER_BYTES, MAGIC, RTX_CAPABILITIES
from ._rules import Answer, Machine, machine, remember

# With LAZY, a shape's kernels are there at so many executes after its first.
LAZY_EXECUTES = 3


class DynamicShapesKernelSpecializationStrategy(TrtEnum):
    LAZY = 0
    EAGER = 1
    NONE = 2


class ComputeCapability(TrtEnum):
    NONE = 0
    CURRENT = 1
    SM75 = 75
    SM80 = 80
    SM86 = 86
    SM89 = 89
    SM120 = 120
    SM121 = 121


class EngineValidity(TrtEnum):
    VALID = 0
    SUBOPTIMAL = 1
    INVALID = 2


class EngineInvalidityDiagnostics(TrtEnum):
    VERSION_MISMATCH = 1
    UNSUPPORTED_CC = 2
    OLD_CUDA_DRIVER = 4
    OLD_CUDA_RUNTIME = 8
    INSUFFICIENT_GPU_MEMORY = 16
    MALFORMED_ENGINE = 32
    CUDA_ERROR = 64


class CudaGraphStrategy(TrtEnum):
    DISABLED = 0
    WHOLE_GRAPH_CAPTURE = 1


class IRuntimeCache:
    """Compiled kernels, for one release, one compute capability and one GPU model."""

    def __init__(self) -> None:
        self.sim_kernels: set[str] = set()

    def serialize(self) -> IHostMemory | None:
        if machine().faults.get("serialize_cache_none"):
            return None
        about = {"made_for": _environment(), "kernels": sorted(self.sim_kernels)}
        return IHostMemory(json.dumps(about).encode())

    def deserialize(self, blob: Any) -> bool:
        """Take the kernels; False, and none taken, where the bytes are damaged or made elsewhere."""
        try:
            about = json.loads(bytes(memoryview(blob)))
            fits = about["made_for"] == _environment()
        except (ValueError, KeyError, TypeError):
            fits = False
        machine().counters["refused_caches"] += not fits
        if fits:
            kept = set() if machine().faults.get("replacing_caches") else self.sim_kernels
            self.sim_kernels = kept | set(about["kernels"])
        return Answer(fits, "IRuntimeCache.deserialize")

    def reset(self) -> bool:
        self.sim_kernels.clear()
        return Answer(True, "IRuntimeCache.reset")


class IRuntimeConfig:
    """Settings of execution contexts; assigning another attribute raises AttributeError."""

    __slots__ = (
        "__weakref__",
        "cuda_graph_strategy",
        "dynamic_shapes_kernel_specialization_strategy",
        "sim_allocation",
        "sim_cache",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sim_allocation: Any = ExecutionContextAllocationStrategy.STATIC
        self.sim_cache: weakref.ref[IRuntimeCache] | None = None
        self.dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY
        self.cuda_graph_strategy = CudaGraphStrategy.DISABLED

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        if strategy not in ExecutionContextAllocationStrategy:
            raise TypeError("set_execution_context_allocation_strategy(): incompatible function arguments")
        self.sim_allocation = strategy

    def get_execution_context_allocation_strategy(self) -> Any:
        return self.sim_allocation

    def create_runtime_cache(self) -> IRuntimeCache:
        return IRuntimeCache()

    def set_runtime_cache(self, cache: IRuntimeCache) -> bool:
        """The cache must outlive every context with these settings."""
        if not isinstance(cache, IRuntimeCache):
            raise TypeError("set_runtime_cache(): incompatible function arguments")
        self.sim_cache = weakref.ref(cache)
        return Answer(True, "IRuntimeConfig.set_runtime_cache")

    def get_runtime_cache(self) -> IRuntimeCache | None:
        return None if self.sim_cache is None else self.sim_cache()


class Compilation:
    """A thread of the library that compiles kernels: it is as late as it can be, and logs then."""

    def __init__(self, logger: weakref.ref[ILogger], where: Machine) -> None:
        self.sim_logger, self.sim_machine = logger, where
        self._go, self._done = threading.Event(), threading.Event()
        self._is_ending = False
        _thread.start_new_thread(self._work, ())

    def join(self, *, is_ending: bool = False) -> None:
        self._is_ending = is_ending
        self._go.set()
        self._done.wait()

    def _work(self) -> None:
        self._go.wait()
        logger = self.sim_logger()
        if logger is not None and self._is_ending and type(logger).log is not Logger.log:
            # It would wait for Python's lock, which the thread that waits for this one holds.
            remember("deadlock: a thread that a destructor waits for logs to Python", self.sim_machine)
        elif logger is not None:
            logger.log(ILogger.INFO, "kernels of a shape are compiled")
        self._done.set()


class IExecutionContext(_context.IExecutionContext):
    """A context of TensorRT-RTX. Without settings: LAZY, and no cache."""

    def __init__(self, engine: ICudaEngine, address: int, settings: IRuntimeConfig) -> None:
        super().__init__(engine, address)
        self._strategy = settings.dynamic_shapes_kernel_specialization_strategy
        self.sim_cache = settings.sim_cache
        self._fingerprint = hashlib.sha256(engine.sim_plan.graph).hexdigest()[:16]
        self._has_free_shapes = any(-1 in item.shape for item in self.sim_inputs.values())
        self._loaded: set[str] = set()
        self._executes_left: dict[str, int] = {}
        self._compilations: dict[str, Compilation] = {}
        self._asked_version = -1
        self._stream = 0
        self._load(f"{self._fingerprint} fallback", "context")

    def is_stream_capturable(self, stream: int) -> bool:
        """To be asked before a capture, when shapes and addresses are set."""
        self.sim_machine.stream(int(stream))
        self._asked_version = self.sim_version
        is_profiled = self.profiler is not None and self.enqueue_emits_profile
        fault = bool(self.sim_machine.faults.get("uncapturable"))
        allocates = "REQUIRE_USER_ALLOCATION" not in self.engine.sim_plan.flags
        return not (is_profiled or fault or allocates)

    def execute_async_v3(self, stream_handle: int) -> bool:
        self._stream = int(stream_handle)
        return super().execute_async_v3(stream_handle)

    def sim_launch(self) -> Launch:
        launch = super().sim_launch()
        launch.has_fallback_kernels = not self._has_kernels()
        self.sim_machine.counters["fallback_executes"] += launch.has_fallback_kernels
        return launch

    def sim_may_capture(self, stream: int) -> bool:
        if self._asked_version != self.sim_version:
            self.sim_machine.break_rule(
                "a capture without is_stream_capturable, since shapes or addresses have changed"
            )
        return super().sim_may_capture(stream)

    def sim_enqueued(self, launch: Launch, stream: int, capturing: bool) -> None:
        super().sim_enqueued(launch, stream, capturing)
        self.sim_machine.counters["frozen_fallbacks"] += capturing and launch.has_fallback_kernels

    def _has_kernels(self) -> bool:
        """Whether the next execute has the kernels of its shape; with EAGER they are compiled now."""
        if not self._has_free_shapes:
            return True
        strategy, kinds = self._strategy, DynamicShapesKernelSpecializationStrategy
        shape = f"{self._fingerprint} {sorted(self.sim_known_shapes().items())}"
        if shape in self._loaded:
            return True
        if strategy is kinds.NONE:
            return False
        if strategy is kinds.LAZY and shape not in self._cached():
            left = self._executes_left[shape] = self._executes_left.get(shape, LAZY_EXECUTES + 1) - 1
            if shape not in self._compilations:
                self._compilations[shape] = Compilation(self.engine.sim_logger, self.sim_machine)
            if left:
                return False
            self._compilations[shape].join()
            self._load(shape, "background")
        else:
            self._load(shape, "execute")
        return True

    def _load(self, kernels: str, when: str) -> None:
        """Load kernels from the cache, or compile them."""
        self._loaded.add(kernels)
        if kernels in self._cached():
            self.sim_machine.counters["kernels_loaded"] += 1
            return
        if self._stream and self.sim_machine.is_capturing(self._stream):
            self.sim_machine.break_rule("kernels are compiled during a capture")
        self.sim_machine.compiled.append((when, threading.current_thread().name))
        self.sim_machine.spend("kernels")
        time.sleep(float(os.environ.get("SIMULATED_JIT_S", "0")))
        self._cached().add(kernels)

    def __del__(self) -> None:
        """Waits for what is being compiled, as the real one does: with Python's lock, because it is a destructor."""
        for shape, compilation in self._compilations.items():
            if shape not in self._loaded:
                self.sim_machine.spend("kernels")
                compilation.join(is_ending=True)
        super().__del__()

    def _cached(self) -> set[str]:
        if self.sim_cache is None:
            return set()
        cache = self.sim_cache()
        if cache is None:
            self.sim_machine.break_rule("the runtime cache was destroyed before a context that uses it")
        assert cache is not None
        return cache.sim_kernels


class ICudaEngine(_engine.ICudaEngine):
    """A loaded plan of TensorRT-RTX."""

    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig()

    def create_execution_context(self, runtime_config: IRuntimeConfig | None = None) -> Any:
        """The context, with default settings where none are given; None where there is not enough memory."""
        settings = runtime_config if runtime_config is not None else IRuntimeConfig()
        if not isinstance(settings, IRuntimeConfig):
            raise TypeError("create_execution_context(): incompatible function arguments")
        return self._new_context(settings.sim_allocation, lambda address: IExecutionContext(self, address, settings))


class Runtime(_engine.Runtime):
    """Loads plans of TensorRT-RTX."""

    sim_engine_kind = ICudaEngine
    engine_header_size = 64

    def get_engine_validity(self, buffer: Any) -> tuple[EngineValidity, int]:
        """Whether an engine with this header runs here, and bits of what is against it."""
        head, found = bytes(memoryview(buffer)), 0
        if len(head) < HEADER_BYTES or head[:4] != MAGIC:
            found |= int(EngineInvalidityDiagnostics.MALFORMED_ENGINE)
        elif tuple(head[24:28]) != VERSION_TUPLE:
            found |= int(EngineInvalidityDiagnostics.VERSION_MISMATCH)
        if self.sim_machine.cc not in RTX_CAPABILITIES:
            found |= int(EngineInvalidityDiagnostics.UNSUPPORTED_CC)
        return EngineValidity.INVALID if found else EngineValidity.VALID, found


class IBuilderConfig(_config.IBuilderConfig):
    """Options of a build; engines are portable where no compute capability is set."""

    __slots__ = ("sim_capabilities",)

    def __init__(self, logger: ILogger) -> None:
        super().__init__(logger)
        self.sim_capabilities: list[Any] = []

    @property
    def num_compute_capabilities(self) -> int:
        return len(self.sim_capabilities)

    @num_compute_capabilities.setter
    def num_compute_capabilities(self, count: int) -> None:
        self.sim_capabilities = [ComputeCapability.NONE] * count

    def set_compute_capability(self, compute_capability: ComputeCapability, index: int) -> bool:
        self.sim_capabilities[index] = compute_capability
        return Answer(True, "IBuilderConfig.set_compute_capability")

    def get_compute_capability(self, index: int) -> ComputeCapability:
        return self.sim_capabilities[index]


class Builder(_builder.Builder):
    """Compiles networks, also without a GPU."""

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig(self.sim_logger)


def _environment() -> list[str]:
    here: Machine = machine()
    return [VERSION, here.cc, here.gpu_name]
