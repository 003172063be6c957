"""The encode graph: audio -> latents. A spectrum by fixed filters, then a small convolutional network.

The network's weights are trained by `encoder_training.py` on songs that the decode graph plays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from configs.demo.recipe.codec.features import (
    BLOCK_SAMPLES,
    BLOCKS_PER_FRAME,
    DECIMATION,
    DECIMATOR_TAPS,
    KERNEL_FRAMES,
    NUM_BANDS,
    NUM_FEATURES,
    band_sums,
    block_transform,
    decimator,
    kernel_frequencies_hz,
    kernel_positions,
    kernel_windows,
)
from configs.demo.recipe.instruments import INSTRUMENTS, timbre_levels
from configs.demo.recipe.latents import CHANNELS, HOP_SAMPLES, LATENT_SCALE, SILENCE, FloatArray
from engine_build.graphs.graph_writer import GraphWriter

NUM_NOTES: Final = 55  # channels of pitches and drums
# What the network tells apart besides notes: logits of each layer's instruments, then of each layer's presence.
NUM_OUTPUTS: Final = NUM_NOTES + sum(len(names) for names in INSTRUMENTS.values()) + len(INSTRUMENTS)
WIDTH: Final = 192
NUM_BLOCKS: Final = 2
ENCODE_MARGIN_FRAMES: Final = KERNEL_FRAMES // 2 + NUM_BLOCKS + 2

_LEAST_LEVEL: Final = 0.06
_QUIET: Final = 1e-6  # squared amplitude of what counts as silence
_FEATURE_SCALE: Final = 0.12

Weights = Mapping[str, FloatArray]


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the network's weights, in the order of its layers."""
    shapes: dict[str, tuple[int, ...]] = {"input.weight": (WIDTH, NUM_FEATURES, 3), "input.bias": (WIDTH,)}
    for index in range(NUM_BLOCKS):
        shapes |= {f"blocks.{index}.wide.weight": (WIDTH, WIDTH, 3), f"blocks.{index}.wide.bias": (WIDTH,)}
        shapes |= {f"blocks.{index}.point.weight": (WIDTH, WIDTH, 1), f"blocks.{index}.point.bias": (WIDTH,)}
    return shapes | {"output.weight": (NUM_OUTPUTS, WIDTH, 3), "output.bias": (NUM_OUTPUTS,)}


def save_weights(path: Path, weights: Weights) -> None:
    """Write the network's weights."""
    np.savez(path, **{name: np.asarray(weights[name], np.float32) for name in weight_shapes()})  # type: ignore[arg-type]


def load_weights(path: Path) -> dict[str, FloatArray]:
    """Weights that `save_weights` wrote. Raises FileNotFoundError."""
    with np.load(path, allow_pickle=False) as file:
        return {name: np.asarray(file[name], np.float32) for name in weight_shapes()}


def normalized(energies: FloatArray) -> FloatArray:
    """Energies as features: their logarithm, 0 in silence."""
    return np.asarray(_FEATURE_SCALE * np.log1p(energies / _QUIET), np.float32)


def denormalized(features: FloatArray) -> FloatArray:
    """Features back to energies."""
    return np.asarray(_QUIET * np.expm1(features / _FEATURE_SCALE), np.float32)


def build_encoder(weights: Weights) -> onnx.ModelProto:
    """Graph `audio [B, 2, N * hop]` f32 -> `latents [B, N, 64]` f32.

    A window with `ENCODE_MARGIN_FRAMES` more on both sides, trimmed, equals the encode of the whole.
    """
    graph = GraphWriter("codec_encode")
    values = _features(graph, graph.input("audio", ("batch", 2, "samples")))
    values = graph.op("Relu", _convolved(graph, values, weights, "input"))
    for index in range(NUM_BLOCKS):
        inner = graph.op("Relu", _convolved(graph, values, weights, f"blocks.{index}.wide"))
        inner = _convolved(graph, inner, weights, f"blocks.{index}.point")
        values = graph.op("Relu", graph.op("Add", values, inner))
    outputs = graph.op("Transpose", _convolved(graph, values, weights, "output"), perm=[0, 2, 1])
    sizes = [NUM_NOTES, *(len(names) for names in INSTRUMENTS.values()), *(1 for _ in INSTRUMENTS)]
    parts = graph.ops("Split", len(sizes), outputs, graph.constant(sizes, np.int64), axis=2)
    logits, presences = parts[1 : 1 + len(INSTRUMENTS)], parts[1 + len(INSTRUMENTS) :]
    timbres = [_timbre(graph, *values) for values in zip(INSTRUMENTS, logits, presences, strict=True)]
    heard = graph.op("Greater", parts[0], graph.constant(_LEAST_LEVEL))
    notes = graph.op("Min", graph.op("Where", heard, parts[0], graph.constant(0.0)), graph.constant(1.2))
    levels = graph.op("Concat", notes, *timbres, axis=2)
    latents = graph.op("Add", graph.op("Mul", levels, graph.constant(LATENT_SCALE)), graph.constant(SILENCE))
    graph.output("latents", latents, ("batch", "frames", CHANNELS))
    return graph.model()


def _timbre(graph: GraphWriter, layer: str, logits: str, presence: str) -> str:
    """A layer's timbre channels `[B, N, 1 or 2]`: the mean place of its likely instruments, 0 where it is absent."""
    places = graph.constant([timbre_levels(layer, name) for name in INSTRUMENTS[layer]])
    place = graph.op("MatMul", graph.op("Softmax", logits, axis=2), places)
    return graph.op("Where", graph.op("Greater", presence, graph.constant(0.0)), place, graph.constant(0.0))


def build_features() -> onnx.ModelProto:
    """The encode graph's first half, for training: `audio [B, 2, N * hop]` f32 -> `features [B, NUM_FEATURES, N]`."""
    graph = GraphWriter("codec_features")
    features = _features(graph, graph.input("audio", ("batch", 2, "samples")))
    graph.output("features", features, ("batch", NUM_FEATURES, "frames"))
    return graph.model()


def _convolved(graph: GraphWriter, values: str, weights: Weights, name: str) -> str:
    kernel = weights[f"{name}.weight"]
    reach = kernel.shape[2] // 2
    bias = graph.constant(weights[f"{name}.bias"])
    return graph.op("Conv", values, graph.constant(kernel), bias, pads=[reach, reach])


def _features(graph: GraphWriter, audio: str) -> str:
    """Logarithms `[B, NUM_FEATURES, N]` of the energies, 0 in silence."""
    mono = graph.op("ReduceMean", audio, graph.constant([1], np.int64))
    energies = graph.op("Concat", _semitones(graph, mono), _bands(graph, mono), axis=1)
    logarithms = graph.op("Log", graph.op("Add", energies, graph.constant(_QUIET)))
    above_silence = graph.op("Sub", logarithms, graph.constant(np.log(_QUIET)))
    return graph.op("Mul", above_silence, graph.constant(_FEATURE_SCALE))


def _semitones(graph: GraphWriter, mono: str) -> str:
    """Squared magnitudes `[B, semitones, N]` around the centre of each frame."""
    taps = graph.constant(decimator()[None, None])
    # The pads put the decimated samples' centres symmetrically into a frame.
    low, high = (DECIMATOR_TAPS - DECIMATION) // 2, DECIMATOR_TAPS - DECIMATION - (DECIMATOR_TAPS - DECIMATION) // 2
    slow = graph.op("Conv", mono, taps, strides=[DECIMATION], pads=[low, high])
    reach = KERNEL_FRAMES // 2 * HOP_SAMPLES // DECIMATION
    squares = []
    for wave in _kernels(graph):
        part = graph.op("Conv", slow, wave, strides=[HOP_SAMPLES // DECIMATION], pads=[reach, reach])
        squares.append(graph.op("Mul", part, part))
    return graph.op("Add", *squares)


def _kernels(graph: GraphWriter) -> list[str]:
    """Windowed cosines and sines f32 `[semitones, 1, samples]` as nodes over constants, which an engine folds once."""
    turns = kernel_positions()[None, None]
    radians = graph.op("Mul", graph.constant(turns), graph.constant(2 * np.pi * kernel_frequencies_hz()[:, None, None]))
    window = graph.constant(kernel_windows()[:, None], np.float16)
    window = graph.op("Cast", window, to=onnx.TensorProto.FLOAT)
    return [graph.op("Mul", window, graph.op(wave, radians)) for wave in ("Cos", "Sin")]


def _bands(graph: GraphWriter, mono: str) -> str:
    """Energies of the bands `[B, NUM_BANDS * BLOCKS_PER_FRAME, N]`."""
    blocks = graph.op("Reshape", mono, graph.constant([0, -1, BLOCK_SAMPLES], np.int64))
    waves = graph.op("Cast", graph.constant(block_transform(), np.float16), to=onnx.TensorProto.FLOAT)
    spectrum = graph.op("MatMul", blocks, waves)
    bands = graph.op("MatMul", graph.op("Mul", spectrum, spectrum), graph.constant(band_sums()))
    framed = graph.op("Reshape", bands, graph.constant([0, -1, BLOCKS_PER_FRAME * NUM_BANDS], np.int64))
    return graph.op("Transpose", framed, perm=[0, 2, 1])
