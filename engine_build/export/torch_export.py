"""Exports torch modules as ONNX files. Peak memory: the weights, once, beside what tracing takes without them."""

import gc
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine_build.export.bundle_export import REMEDIES, ModuleError, first_line
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
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "diffusers", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:  # torch logs as errors what it raises too
        logger.setLevel(logging.CRITICAL if logger.name == "torch" else logging.ERROR)
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
    for dynamic dimensions. From opset 23 on attention is one operator. Raises ModuleError where torch cannot export it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    size_bytes = sum(value.numel() * value.element_size() for value in (*module.parameters(), *module.buffers()))
    with quiet(), torch.no_grad(), failures_of(module, "torch cannot export"), equal_sizes(module, dynamic_shapes):
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
    with quiet():
        data = file.with_name(f"{file.name}.data")
        data.unlink(missing_ok=True)
        program.save(file, external_data=size_bytes > INLINE_LIMIT_BYTES)
        for value in program.model.graph.initializers.values():  # onnxscript's rules keep values, with their weights
            value.const_value = None
    model = onnx.load(file, load_external_data=False)
    _check_free(module, model, dynamic_shapes)
    tidy(model, dimensions or {})
    file.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(file), full_check=True)


def _check_free(module: nn.Module, model: onnx.ModelProto, dynamic_shapes: Sequence[Mapping[int, Any]]) -> None:
    """Raises ModuleError where a dynamic axis has become a constant: torch falls back to that without a word."""
    for value, axes in zip(model.graph.input, dynamic_shapes, strict=True):
        for axis in axes:
            if size := value.type.tensor_type.shape.dim[axis].dim_value:
                what = f"axis {axis} of {value.name} is a constant, {size}"
                raise ModuleError(
                    f"torch exports {type(module).__name__} for sizes of the example alone: {what}",
                    fix=f"see {REMEDIES}",
                )


@contextmanager
def equal_sizes(module: nn.Module, dynamic_shapes: Sequence[Mapping[int, Any]]) -> Iterator[None]:
    """Axes with one dimension have one size from the beginning of a trace.

    torch.export finds that out where the module compares them, and fails where it computes with them before.
    """
    axes: dict[str, list[tuple[int, int]]] = {}
    for index, shape in enumerate(dynamic_shapes):
        for axis, dimension in shape.items():
            axes.setdefault(dimension.__name__, []).append((index, axis))

    def check(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        for (first, first_axis), *others in axes.values():
            for index, axis in others:
                torch._check(inputs[index].shape[axis] == inputs[first].shape[first_axis])

    hook = module.register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def failures_of(module: nn.Module, what: str) -> Iterator[None]:
    """Turn what a module raises into a ModuleError that names the innermost module.

    What torch prints to standard error, the graph up to there, becomes a note of the cause.
    """
    said = StringIO()
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:  # torch.export repeats what the module's code raises, which may be anything
        name = _innermost(module, error)
        error.add_note(said.getvalue())
        raise ModuleError(f"{what} {name}: {first_line(error)}", fix=f"see {REMEDIES}") from error


def _innermost(module: nn.Module, error: BaseException) -> str:
    """The path and class of the innermost module whose method was running."""
    names = {id(each): name for name, each in module.named_modules()}
    found: nn.Module = module
    while error.__cause__ is not None:
        error = error.__cause__
    for frame, _ in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if id(owner) in names:
            found = owner
    path = names[id(found)]
    return f"{type(module).__name__}.{path} ({type(found).__name__})" if path else type(module).__name__


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
    with quiet(), torch.no_grad(), failures_of(module, "there is no output of"):
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
