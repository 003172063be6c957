"""The codec as ONNX graphs: piano-roll latents -> stereo audio by additive synthesis, and audio -> latents by analysis.

Decode works frame by frame as matrix products: partial k of frame t is `a sin(phase + w n)`, so its coefficients
`a sin(phase), a cos(phase)` meet a fixed basis `cos(w n), sin(w n)`. Levels move within a frame by ramped copies of the
basis. Encode measures magnitudes of every pitch with windowed kernels and explains them by non-negative levels.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from engine_build.demo_model.codec_filters import (
    BAND_TAPS,
    KERNEL_FRAMES,
    band_filter,
    band_references,
    kernel_frequencies_hz,
    kernel_positions,
    kernel_window_samples,
    kick_kernel,
    source_responses,
)
from engine_build.demo_model.latents import (
    CHANNELS,
    HAT,
    HOP_SAMPLES,
    KICK,
    LATENT_SCALE,
    NUM_PITCHES,
    SAMPLE_RATE_HZ,
    SILENCE,
    SNARE,
    FloatArray,
)
from engine_build.demo_model.timbre import (
    ATTACK_SAMPLES,
    DRUM_FRAMES,
    NOISE_FRAMES,
    PHASE_STEPS,
    all_partials,
    drum_hits,
    drum_noise,
)
from engine_build.graphs.graph_writer import GraphWriter

DECODE_MARGIN_FRAMES: Final = DRUM_FRAMES
ENCODE_MARGIN_FRAMES: Final = 5
LEVEL_GATE: Final = 0.03

_UNMIX_ITERATIONS: Final = 40
_KICK_GATE: Final = 0.15
_SNARE_BAND_HZ: Final = (6000.0, 8300.0)
_HAT_BAND_HZ: Final = (9800.0, 16500.0)
_ONSET_GATE: Final = 0.05


# Decode -------------------------------------------------------------------------------------------------------------


def build_decoder() -> onnx.ModelProto:
    """Graph `latents [B, T, 64]` f32, `start_frame [B]` int64 -> `audio [B, 2, T * hop]` f32 in [-1, 1].

    `start_frame` is the absolute frame of the first latent. A window with `DECODE_MARGIN_FRAMES` more on its left,
    trimmed, equals the decode of the whole.
    """
    graph = GraphWriter("codec_decode")
    latents = graph.input("latents", ("batch", "frames", CHANNELS))
    start_frame = graph.input("start_frame", ("batch",), np.int64)
    levels = _levels(graph, latents)
    frames = _absolute_frames(graph, latents, start_frame)
    tones = _tones(graph, levels, frames)
    drums = graph.op("Add", _hits(graph, levels), _held_noise(graph, levels, frames))
    audio = graph.op("Tanh", graph.op("Add", tones, drums))  # [B, 2, T, hop]
    audio = graph.op("Reshape", audio, graph.constant([0, 2, -1], np.int64))
    graph.output("audio", audio, ("batch", 2, "samples"))
    return graph.model()


def _levels(graph: GraphWriter, latents: str) -> str:
    """Levels `[B, T, C]`: unscaled, with a gate that keeps the residue of denoising silent."""
    scale = np.float32(1.0 / (LATENT_SCALE * (1.0 - LEVEL_GATE)))
    offset = np.float32((-SILENCE / LATENT_SCALE - LEVEL_GATE) / (1.0 - LEVEL_GATE))
    scaled = graph.op("Mul", latents, graph.constant(scale))
    return graph.op("Relu", graph.op("Add", scaled, graph.constant(offset)))


def _absolute_frames(graph: GraphWriter, latents: str, start_frame: str) -> str:
    """int64 `[B, T, 1, 1]`, wrapped at the common period of everything periodic."""
    num_frames = graph.op("Squeeze", graph.op("Shape", latents, start=1, end=2))
    steps = graph.op("Range", graph.constant(0, np.int64), num_frames, graph.constant(1, np.int64))
    steps = graph.op("Reshape", steps, graph.constant([1, -1, 1, 1], np.int64))
    start = graph.op("Reshape", start_frame, graph.constant([-1, 1, 1, 1], np.int64))
    return graph.op("Mod", graph.op("Add", start, steps), graph.constant(PHASE_STEPS, np.int64))


def _earlier(graph: GraphWriter, values: str, num_frames: int) -> str:
    """`[B, T, ...]` moved `num_frames` later in time; before the first frame there is silence."""
    padding = graph.constant([0, num_frames, 0, 0, 0, 0], np.int64)
    padded = graph.op("Pad", values, padding)
    bounds = (graph.constant([value], np.int64) for value in (0, -num_frames, 1))
    return graph.op("Slice", padded, *bounds)


def _later(graph: GraphWriter, values: str, num_frames: int) -> str:
    """`[B, T, ...]` moved `num_frames` earlier in time; after the last frame there is silence."""
    padded = graph.op("Pad", values, graph.constant([0, 0, 0, 0, num_frames, 0], np.int64))
    bounds = (graph.constant([value], np.int64) for value in (num_frames, np.iinfo(np.int64).max, 1))
    return graph.op("Slice", padded, *bounds)


def _columns(graph: GraphWriter, values: str, columns: npt.ArrayLike) -> str:
    return graph.op("Gather", values, graph.constant(columns, np.int64), axis=2)


def _tones(graph: GraphWriter, levels: str, frames: str) -> str:
    """The pitches' audio `[B, 2, T, hop]`."""
    partials = all_partials()
    level = graph.op("Unsqueeze", _columns(graph, levels, partials.pitch_index), graph.constant([2], np.int64))
    before = graph.op(
        "Unsqueeze",
        _columns(graph, _earlier(graph, levels, 1), partials.pitch_index),
        graph.constant([2], np.int64),
    )
    change = graph.op("Sub", level, before)
    rise, fall = graph.op("Relu", change), graph.op("Neg", graph.op("Relu", graph.op("Neg", change)))
    sines, cosines = _phases(graph, frames)  # [B, T, 2, K] each, gain included
    parts = [graph.op("Mul", amount, wave) for amount in (before, rise, fall) for wave in (sines, cosines)]
    coefficients = graph.op("Transpose", graph.op("Concat", *parts, axis=3), perm=[0, 2, 1, 3])
    return graph.op("MatMul", coefficients, _basis(graph))


def _phases(graph: GraphWriter, frames: str) -> tuple[str, str]:
    """Sine and cosine of each partial's phase at the start of each frame, times its gain, per channel."""
    partials = all_partials()
    steps = graph.op("Mul", frames, graph.constant(partials.cycles[None, None, None] % PHASE_STEPS, np.int64))
    steps = graph.op("Mod", steps, graph.constant(PHASE_STEPS, np.int64))
    turns = graph.op("Cast", steps, to=TensorProto.FLOAT)
    radians = graph.op("Mul", turns, graph.constant(2 * np.pi / PHASE_STEPS))
    radians = graph.op("Add", radians, graph.constant(2 * np.pi * partials.turns[None, None]))
    gain = graph.constant(partials.gain[None, None])
    sines = graph.op("Mul", graph.op("Sin", radians), gain)
    return sines, graph.op("Mul", graph.op("Cos", radians), gain)


def _basis(graph: GraphWriter) -> str:
    """f32 `[3 * 2K, hop]`: cosines and sines within a frame, for the level before, its rise and its fall.

    Written as nodes over constants: an engine folds them once, and the file stays small.
    """
    cycles = all_partials().cycles
    period = PHASE_STEPS * HOP_SAMPLES
    samples = graph.constant(np.arange(HOP_SAMPLES)[None], np.int64)
    steps = graph.op("Mul", graph.constant(cycles[:, None], np.int64), samples)
    steps = graph.op("Mod", steps, graph.constant(period, np.int64))
    turns = graph.op("Cast", steps, to=TensorProto.DOUBLE)
    radians = graph.op("Mul", turns, graph.constant(2 * np.pi / period, np.float64))
    radians = graph.op("Cast", radians, to=TensorProto.FLOAT)
    waves = graph.op("Concat", graph.op("Cos", radians), graph.op("Sin", radians), axis=0)
    ramped = [graph.op("Mul", waves, graph.constant(ramp[None])) for ramp in _ramps()]
    return graph.op("Concat", waves, *ramped, axis=0)


def _ramps() -> tuple[FloatArray, FloatArray]:
    """How a rise (a short attack) and a fall (even over the frame) reach the new level, `[hop]` each, from 0 to 1."""
    samples = np.arange(HOP_SAMPLES)
    attack = 0.5 - 0.5 * np.cos(np.pi * np.clip(samples / ATTACK_SAMPLES, 0.0, 1.0))
    return attack.astype(np.float32), (samples / HOP_SAMPLES).astype(np.float32)


def _hits(graph: GraphWriter, levels: str) -> str:
    """Drum hits `[B, 2, T, hop]`: every rise of a drum's level starts its sound, which rings for `DRUM_FRAMES`."""
    drums = _columns(graph, levels, [KICK, SNARE, HAT])
    rise = graph.op("Sub", drums, _earlier(graph, drums, 1))
    onset = graph.op("Relu", graph.op("Sub", rise, graph.constant(_ONSET_GATE)))
    ages = [onset, *(_earlier(graph, onset, age) for age in range(1, DRUM_FRAMES))]
    history = graph.op("Concat", *ages, axis=2)  # [B, T, DRUM_FRAMES * 3]
    history = graph.op("Unsqueeze", history, graph.constant([1], np.int64))
    sounds = drum_hits().reshape(3, 2, DRUM_FRAMES, HOP_SAMPLES).transpose(1, 2, 0, 3)
    sounds = sounds.reshape(1, 2, DRUM_FRAMES * 3, HOP_SAMPLES) / np.float32(1.0 - _ONSET_GATE)
    return graph.op("MatMul", history, graph.constant(sounds))


def _held_noise(graph: GraphWriter, levels: str, frames: str) -> str:
    """Noise `[B, 2, T, hop]` of snare and hat levels that are held rather than struck."""
    drums = _columns(graph, levels, [SNARE, HAT])
    held = graph.op("Min", drums, _earlier(graph, drums, 1))
    table = drum_noise().reshape(2, 2, NOISE_FRAMES, HOP_SAMPLES).transpose(2, 1, 0, 3)
    index = graph.op("Mod", frames, graph.constant(NOISE_FRAMES, np.int64))
    index = graph.op("Squeeze", index, graph.constant([2, 3], np.int64))
    noise = graph.op("Gather", graph.constant(table), index, axis=0)  # [B, T, 2, drum, hop]
    noise = graph.op("Transpose", noise, perm=[0, 2, 1, 3, 4])
    ramp = graph.constant(_ramps()[1][None, None, None, None])
    now = graph.op("Unsqueeze", held, graph.constant([1, 4], np.int64))
    before = graph.op("Unsqueeze", _earlier(graph, held, 1), graph.constant([1, 4], np.int64))
    level = graph.op("Add", before, graph.op("Mul", graph.op("Sub", now, before), ramp))
    return graph.op("ReduceSum", graph.op("Mul", noise, level), graph.constant([3], np.int64), keepdims=0)


# Encode -------------------------------------------------------------------------------------------------------------


def build_encoder() -> onnx.ModelProto:
    """Graph `audio [B, 2, N * hop]` f32 -> `latents [B, N, 64]` f32.

    A window with `ENCODE_MARGIN_FRAMES` more on both sides, trimmed, equals the encode of the whole.
    """
    graph = GraphWriter("codec_encode")
    audio = graph.input("audio", ("batch", 2, "samples"))
    mono = graph.op("ReduceMean", audio, graph.constant([1], np.int64), keepdims=1)  # [B, 1, samples]
    sources = _unmix(graph, _magnitudes(graph, mono))
    pitches = _columns(graph, sources, range(NUM_PITCHES))
    kick = _peaks(graph, _columns(graph, sources, [NUM_PITCHES]))
    drums = _struck(graph, graph.op("Concat", kick, _band_onsets(graph, mono), axis=2))
    reserved = graph.op("Mul", kick, graph.constant(0.0))
    levels = graph.op("Concat", pitches, drums, reserved, axis=2)
    graph.output("latents", _latents(graph, levels), ("batch", "frames", CHANNELS))
    return graph.model()


def _latents(graph: GraphWriter, levels: str) -> str:
    """The scaling of the latents, with the decoder's gate undone for every level that sounds."""
    sounding = graph.op("Greater", levels, graph.constant(0.02))
    opened = graph.op("Mul", levels, graph.constant(1.0 - LEVEL_GATE))
    opened = graph.op("Add", opened, graph.constant(LEVEL_GATE))
    opened = graph.op("Where", sounding, opened, graph.constant(0.0))
    opened = graph.op("Min", opened, graph.constant(1.2))
    scaled = graph.op("Mul", opened, graph.constant(LATENT_SCALE))
    return graph.op("Add", scaled, graph.constant(SILENCE))


def _magnitudes(graph: GraphWriter, mono: str) -> str:
    """Magnitudes `[B, N, 61]` around the centre of each frame; a sine of amplitude 1 on a kernel's pitch gives 1."""
    cosines, sines = _kernels(graph)
    pad = (KERNEL_FRAMES - 1) // 2 * HOP_SAMPLES
    parts = []
    for kernel in _with_kick_kernel(graph, cosines, sines):
        part = graph.op("Conv", mono, kernel, strides=[HOP_SAMPLES], pads=[pad, pad])
        parts.append(graph.op("Mul", part, part))
    power = graph.op("Add", parts[0], parts[1])  # [B, 61, N]
    magnitude = graph.op("Sqrt", graph.op("Add", power, graph.constant(1e-12)))
    return graph.op("Transpose", magnitude, perm=[0, 2, 1])


def _with_kick_kernel(graph: GraphWriter, cosines: str, sines: str) -> list[str]:
    parts = (kick_kernel().real, kick_kernel().imag)
    kernels = zip((cosines, sines), parts, strict=True)
    return [graph.op("Concat", pitches, graph.constant(kick[None, None]), axis=0) for pitches, kick in kernels]


def _kernels(graph: GraphWriter) -> tuple[str, str]:
    """Windowed cosines and sines f32 `[60, 1, 5 * hop]` as nodes over constants, which an engine folds once."""
    position = graph.constant(kernel_positions()[None, None], np.float64)
    lengths = kernel_window_samples()[:, None, None]
    turns = graph.op(
        "Mul", position, graph.constant(kernel_frequencies_hz()[:, None, None] / SAMPLE_RATE_HZ, np.float64)
    )
    radians = _radians(graph, turns)
    share = graph.op("Mul", position, graph.constant(1.0 / lengths, np.float64))
    inside = graph.op("LessOrEqual", graph.op("Abs", share), graph.constant(0.5, np.float64))
    hann = graph.op("Add", graph.op("Cos", _radians(graph, share)), graph.constant(1.0))
    hann = graph.op("Mul", hann, graph.constant(2.0 / lengths))
    hann = graph.op("Where", inside, hann, graph.constant(0.0))
    return tuple(graph.op("Mul", hann, graph.op(wave, radians)) for wave in ("Cos", "Sin"))  # type: ignore[return-value]


def _radians(graph: GraphWriter, turns: str) -> str:
    """float64 turns -> float32 radians within half a turn of 0, so that float32 is exact enough."""
    wrapped = graph.op("Sub", turns, graph.op("Round", turns))
    return graph.op("Cast", graph.op("Mul", wrapped, graph.constant(2 * np.pi, np.float64)), to=TensorProto.FLOAT)


def _unmix(graph: GraphWriter, magnitudes: str) -> str:
    """Levels `[B, N, 66]` >= 0 of the sources that explain the magnitudes (multiplicative updates, Lee and Seung)."""
    mixing = source_responses()
    levels = target = graph.op("MatMul", magnitudes, graph.constant(mixing.T))
    gram = graph.constant(mixing @ mixing.T)
    tiny = graph.constant(1e-9)
    for _ in range(_UNMIX_ITERATIONS):
        explained = graph.op("Add", graph.op("MatMul", levels, gram), tiny)
        levels = graph.op("Mul", levels, graph.op("Div", target, explained))
    return levels


def _peaks(graph: GraphWriter, level: str) -> str:
    """A level `[B, N, 1]` where it is higher than in the frames beside it, 0 elsewhere."""
    around = graph.op("Max", _earlier(graph, level, 1), _later(graph, level, 1))
    gate = graph.op("Max", around, graph.constant(_KICK_GATE))
    return graph.op("Where", graph.op("Greater", level, gate), level, graph.constant(0.0))


def _band_onsets(graph: GraphWriter, mono: str) -> str:
    """Snare and hat hits `[B, N, 2]`: rises of a band's root mean square per frame, relative to a hit at level 1."""
    filters = np.stack([band_filter(*band) for band in (_SNARE_BAND_HZ, _HAT_BAND_HZ)])
    pad = (BAND_TAPS - 1) // 2
    filtered = graph.op("Conv", mono, graph.constant(filters[:, None]), pads=[pad, pad])
    framed = graph.op("Reshape", filtered, graph.constant([0, 2, -1, HOP_SAMPLES], np.int64))
    power = graph.op("ReduceMean", graph.op("Mul", framed, framed), graph.constant([3], np.int64), keepdims=0)
    level = graph.op("Sqrt", graph.op("Add", power, graph.constant(1e-12)))
    level = graph.op("Div", level, graph.constant(band_references(filters)[None, :, None]))
    level = graph.op("Transpose", level, perm=[0, 2, 1])
    rise = graph.op("Sub", level, _earlier(graph, level, 1))
    onset = graph.op("Relu", graph.op("Sub", rise, graph.constant(0.15)))
    return graph.op("Mul", onset, graph.constant(1.0 / 0.85))


def _struck(graph: GraphWriter, onset: str) -> str:
    """Hits `[B, N, 3]` as the level curves that the corpus writes for them."""
    late = graph.op("Mul", _earlier(graph, onset, 1), graph.constant([[[0.4, 0.45, 0.2]]]))
    later = graph.op("Mul", _earlier(graph, onset, 2), graph.constant([[[0.1, 0.15, 0.0]]]))
    return graph.op("Max", onset, late, later)
