"""A simulated TensorRT: the package `tensorrt` with the names and signatures that this project uses, and its rules.

Engines are ONNX graphs that ONNX Runtime executes as work on the simulated device. A call whose result the real
library leaves undefined raises RuleBroken. Options, beside those of the machine:

    SIMULATED_TENSORRT         the version: 11.4.0.106
    SIMULATED_BUILD_S          seconds that a build takes: 0
    SIMULATED_SKIPPED_TACTICS  number of warnings of a build about skipped tactics: 3

Faults, by number of the call: deserialize_none_at, context_none_at, enqueue_false_at, enqueue_oom_at, uncapturable_at.
Faults without a number: library_threads (messages come from threads of the library), deserialize_none, uncapturable,
build_crash, build_fails (the message), stored_together (names of weights that a refit replaces together or not at all),
crash_above_level (an execute of a plan of a higher optimization level ends the process).
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
    LayerType,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    TensorIOMode,
)
from ._network import IAttention, IAttentionInputLayer, ILayer, INetworkDefinition, ITensor, OnnxParser, ParserError
from ._refitter import Refitter, Weights

__version__ = VERSION

__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "Dims",
    "EngineInspector",
    "ExecutionContextAllocationStrategy",
    "HardwareCompatibilityLevel",
    "IAttention",
    "IAttentionInputLayer",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILayer",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProfiler",
    "IProgressMonitor",
    "IStreamWriter",
    "ITensor",
    "ITimingCache",
    "LayerInformationFormat",
    "LayerType",
    "Logger",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ParserError",
    "ProfilingVerbosity",
    "Refitter",
    "Runtime",
    "TensorIOMode",
    "Weights",
    "get_nv_onnx_parser_version",
]


def get_nv_onnx_parser_version() -> int:
    """Major, minor and patch as one number."""
    major, minor, patch, _ = (int(part) for part in VERSION.split("."))
    return major * 10000 + minor * 100 + patch
