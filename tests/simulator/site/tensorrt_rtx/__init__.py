"""A simulated TensorRT-RTX: the modules of the simulated TensorRT under this name, and what only TensorRT-RTX has.

It compiles kernels on the machine: fallback kernels, which fit all shapes, when a context is created; those of one
shape in its first execute, some executes later or never, as the strategy says. `Machine.compiled` has (when, thread) of
each compilation: "context", "execute" (the caller waited), "background". Counters of the machine:

    kernels_loaded     kernels that were in the runtime cache
    fallback_executes  executes with fallback kernels
    frozen_fallbacks   executes with fallback kernels that became part of a graph
    slow_replays       launches of graphs, for each such execute
    refused_caches     runtime caches of another release, another device, or damaged

Options: SIMULATED_TENSORRT_RTX, the version: 1.7.1.116. Faults as of the simulated TensorRT; uncapturable: engines of
which is_stream_capturable says so; serialize_cache_none: the runtime cache is not serialized; replacing_caches: what a
runtime cache deserializes takes the place of what it has.
"""

# ruff: noqa: F401
from pathlib import Path

__path__ = [*__path__, str(Path(__file__).parent.parent / "tensorrt")]

from ._basics import Dims, IHostMemory, ILogger, IProfiler, IProgressMonitor, IStreamWriter, Logger
from ._config import IOptimizationProfile, ITimingCache
from ._engine import EngineInspector
from ._enums import (
    VERSION,
    BuilderFlag,
    DataType,
    ExecutionContextAllocationStrategy,
    HardwareCompatibilityLevel,
    LayerInformationFormat,
    LayerType,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    TensorIOMode,
)
from ._kernels import (
    Builder,
    ComputeCapability,
    CudaGraphStrategy,
    DynamicShapesKernelSpecializationStrategy,
    EngineInvalidityDiagnostics,
    EngineValidity,
    IBuilderConfig,
    ICudaEngine,
    IExecutionContext,
    IRuntimeCache,
    IRuntimeConfig,
    Runtime,
)
from ._network import (
    IAttention,
    IAttentionInputLayer,
    ILayer,
    INetworkDefinition,
    ITensor,
    OnnxParser,
    ParserError,
)
from ._refitter import Refitter, Weights

__version__ = VERSION


def get_nv_onnx_parser_version() -> int:
    """As the real one."""
    return 200
