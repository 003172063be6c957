"""A simulated TensorRT: the package `tensorrt` with the names, signatures and rules that this project relies on.

Engines are ONNX graphs, executed by ONNX Runtime inside work on the simulated device; what the real library leaves
undefined raises RuleBroken here. Beside the settings of the machine:

    SIMULATED_TENSORRT         the version that it pretends to be: 11.4.0.106
    SIMULATED_BUILD_S          how long a build takes: 0
    SIMULATED_SKIPPED_TACTICS  warnings of a build that tactics were skipped: 3

Faults, by number of the call: deserialize_none_at, context_none_at, enqueue_false_at, enqueue_oom_at, uncapturable_at.
Faults that are there or not: deserialize_none, uncapturable, build_crash, build_fails (the message).
"""

from ._basics import Dims, IHostMemory, ILogger, IProfiler, IProgressMonitor, IStreamWriter, Logger
from ._builder import Builder
from ._config import IBuilderConfig, IOptimizationProfile, ITimingCache
from ._context import IExecutionContext
from ._engine import EngineInspector, ICudaEngine, Runtime
from ._enums import (
    VERSION,
    BuilderFlag,
    DataType,
    ExecutionContextAllocationStrategy,
    HardwareCompatibilityLevel,
    LayerInformationFormat,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    TensorIOMode,
)
from ._network import INetworkDefinition, ITensor, OnnxParser, ParserError

__version__ = VERSION

__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "Dims",
    "EngineInspector",
    "ExecutionContextAllocationStrategy",
    "HardwareCompatibilityLevel",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProfiler",
    "IProgressMonitor",
    "IStreamWriter",
    "ITensor",
    "ITimingCache",
    "LayerInformationFormat",
    "Logger",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ParserError",
    "ProfilingVerbosity",
    "Runtime",
    "TensorIOMode",
    "get_nv_onnx_parser_version",
]


def get_nv_onnx_parser_version() -> int:
    """Major, minor and patch as one number."""
    major, minor, patch, _ = (int(part) for part in VERSION.split("."))
    return major * 10000 + minor * 100 + patch
