"""Exports torch modules as ONNX files. Peak memory: the weights, once, beside what tracing takes without them."""

import gc
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine_build.export.cleanup import tidy
from engine_build.graphs.reference_session import onnxruntime

OPSET: Final = 20
# An ONNX file holds at most 2 GiB; external weights are easier to copy and to map from a much smaller size on.
INLINE_LIMIT_BYTES: Final = 64 << 20
MAX_BATCH: Final = 4096
MAX_LENGTH: Final = 65_536


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of torch and diffusers about their own deprecations and options."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "diffusers", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def export_graph(
    module: nn.Module,
    file: Path,
    example: tuple[Tensor, ...],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic_shapes: tuple[dict[int, Any], ...],
    dimensions: dict[str, str] | None = None,
    opset: int = OPSET,
) -> None:
    """Write a module as an ONNX file; large weights go into a file beside it, `NAME.data`.

    `example`: inputs for tracing. `dynamic_shapes`: per input, axis -> torch.export.Dim. `dimensions`: other names
    for dynamic dimensions. From opset 23 on attention is one operator.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    size_bytes = sum(value.numel() * value.element_size() for value in (*module.parameters(), *module.buffers()))
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            example,
            dynamo=True,
            opset_version=opset,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=dynamic_shapes,
            verbose=False,
        )
        data = file.with_name(f"{file.name}.data")
        data.unlink(missing_ok=True)
        program.save(file, external_data=size_bytes > INLINE_LIMIT_BYTES)
        for value in program.model.graph.initializers.values():  # onnxscript's rules keep values, with their weights
            value.const_value = None
    model = onnx.load(file, load_external_data=False)
    tidy(model, dimensions or {})
    file.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(file), full_check=True)


def free(name: str, largest: int = MAX_LENGTH) -> Any:
    """A dynamic dimension, 1 to `largest`."""
    return torch.export.Dim(name, min=1, max=largest)


def open_without_copies(file: Path) -> Any:
    """An ONNX Runtime session without optimization and without a second copy of the weights."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 3
    return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def module_outputs(module: nn.Module, examples: Sequence[Mapping[str, Tensor]]) -> list[NDArray[np.float32]]:
    """A module's only output on inputs in its order. Computed first, it need not stay beside its graph."""
    with quiet(), torch.no_grad():
        return [module(*example.values()).numpy() for example in examples]


def release(module: nn.Module) -> None:
    """Free the weights of a module that is used no more; torch.export's caches keep its parameters."""
    for value in (*module.parameters(), *module.buffers()):
        value.data = torch.empty(0)


def graph_error(file: Path, examples: Sequence[Mapping[str, Tensor]], expected: Sequence[NDArray[np.float32]]) -> float:
    """Largest absolute difference of an ONNX file's only output to the expected ones, on inputs by name."""
    gc.collect()
    session = open_without_copies(file)
    feeds = ({name: tensor.numpy() for name, tensor in example.items()} for example in examples)
    return max(
        float(np.abs(session.run(None, feed)[0] - wanted).max()) for feed, wanted in zip(feeds, expected, strict=True)
    )
