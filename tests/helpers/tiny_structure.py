"""The two graphs of a tiny bundle's structure, and what they compute, in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from engine_build.graphs.graph_writer import GraphWriter

FRAMES_PER_CODE, LEVELS = 3, 5
NUM_CODES = LEVELS**2
TOML = f"""[structure]
frames_per_code = {FRAMES_PER_CODE}
num_codes = {NUM_CODES}
[structure.encode]
graph = "structure_encode.onnx"
inputs = {{ latents = "latents" }}
outputs = {{ codes = "codes" }}
[structure.decode]
graph = "structure_decode.onnx"
inputs = {{ codes = "codes" }}
outputs = {{ hints = "hints" }}
"""


def save_structure(folder: Path, channels: int) -> None:
    """Write both graphs."""
    onnx.save(_encode(channels), folder / "structure_encode.onnx")
    onnx.save(_decode(channels), folder / "structure_decode.onnx")


def codes_of(latents: NDArray[np.float32]) -> NDArray[np.int64]:
    """Two numbers per code, each rounded to a level."""
    patches = latents.reshape(-1, FRAMES_PER_CODE * latents.shape[1])
    levels = np.rint((np.tanh(patches @ _projection(latents.shape[1])) + 1) * (LEVELS - 1) / 2).astype(np.int64)
    return levels @ np.array([1, LEVELS])


def hints_of(codes: NDArray[np.int64], channels: int) -> NDArray[np.float32]:
    """A row of a table per code."""
    return _table(channels)[codes].reshape(-1, channels)


def _encode(channels: int) -> onnx.ModelProto:
    graph = GraphWriter("structure_encode")
    latents = graph.input("latents", ("batch", "frames", channels))
    width = FRAMES_PER_CODE * channels
    patches = graph.op("Reshape", latents, graph.constant([0, -1, width], np.int64))
    angles = graph.op("Tanh", graph.op("MatMul", patches, graph.constant(_projection(channels))))
    scaled = graph.op("Mul", graph.op("Add", angles, graph.constant(1.0)), graph.constant((LEVELS - 1) / 2))
    digits = graph.op("Mul", graph.op("Round", scaled), graph.constant([1.0, LEVELS]))
    total = graph.op("ReduceSum", digits, graph.constant([2], np.int64), keepdims=0)
    graph.output("codes", graph.op("Cast", total, to=onnx.TensorProto.INT64), ("batch", "codes"), np.int64)
    return graph.model()


def _decode(channels: int) -> onnx.ModelProto:
    graph = GraphWriter("structure_decode")
    codes = graph.input("codes", ("batch", "codes"), np.int64)
    rows = graph.op("Gather", graph.constant(_table(channels)), codes)
    hints = graph.op("Reshape", rows, graph.constant([0, -1, channels], np.int64))
    graph.output("hints", hints, ("batch", "frames", channels))
    return graph.model()


def _projection(channels: int) -> NDArray[np.float32]:
    random = np.random.default_rng(31)
    return (random.standard_normal((FRAMES_PER_CODE * channels, 2)) / 4).astype(np.float32)


def _table(channels: int) -> NDArray[np.float32]:
    random = np.random.default_rng(32)
    return random.standard_normal((NUM_CODES, FRAMES_PER_CODE * channels)).astype(np.float32)
