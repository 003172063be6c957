"""Compiles graphs for OpenVINO: written in its format (IR), and compiled for a device when they are opened."""

from __future__ import annotations

from pathlib import Path

import openvino

from runtime.base.errors import BuildError


def compile_openvino(graph: Path, engine: Path, label: str) -> None:
    """Write a graph, and its weights beside it, in float32. Raises BuildError where OpenVINO does not take it."""
    try:
        model = openvino.Core().read_model(graph)
        openvino.save_model(model, engine, compress_to_fp16=False)
    except RuntimeError as error:
        reason = str(error).partition("Summary:")[2] or str(error).rpartition("\n\n")[0] or str(error)
        raise BuildError(
            f"OpenVINO {openvino.__version__} does not take {label}: {' '.join(reason.split()):.300}"
        ) from error
