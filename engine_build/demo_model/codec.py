"""The codec as ONNX graphs: piano-roll latents -> stereo audio by additive synthesis, and audio -> latents by analysis.

Decode works frame by frame as matrix products: partial k of frame t is `a sin(phase + w n)`, so its coefficients
`a sin(phase), a cos(phase)` meet a fixed basis `cos(w n), sin(w n)`. Levels move within a frame by ramped copies of the
basis. Encode measures magnitudes of every pitch with windowed kernels and explains them by non-negative levels.
"""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from engine_build.demo_model.graphs import GraphWriter
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
    partial_magnitudes,
    pitch_frequency_hz,
)

DECODE_MARGIN_FRAMES: Final = DRUM_FRAMES
ENCODE_MARGIN_FRAMES: Final = 5
LEVEL_GATE: Final = 0.03

_KERNEL_FRAMES: Final = 5
_WINDOW_SECONDS_TIMES_HZ: Final = 50.0
_UNMIX_ITERATIONS: Final = 40
_KICK_KERNEL_FRAMES: Final = 2
_KICK_AGES: Final = (0, -2, -1, 1, 2, 3)
_KICK_GATE: Final = 0.15
_SNARE_BAND_HZ: Final = (6000.0, 8300.0)
_HAT_BAND_HZ: Final = (9800.0, 16500.0)
_BAND_TAPS: Final = 127
_ONSET_GATE: Final = 0.05


# Decode -------------------------------------------------------------------------------------------------------------


def build_decoder() -> onnx.ModelProto:
    """Graph `latents [B, T, 64]` f32, `start_frame [B]` int64 -> `audio [B, 2, T * hop]` f32 in [-1, 1].

    `start_frame` is the absolute frame of the first latent. A window with `DECODE_MARGIN_FRAMES` more on its left,
    trimmed, equals the decode of the whole.
    """
    writer = GraphWriter("codec_decode")
    latents = writer.input("latents", TensorProto.FLOAT, ("batch", "frames", CHANNELS))
    start_frame = writer.input("start_frame", TensorProto.INT64, ("batch",))
    levels = _levels(writer, latents)
    frames = _absolute_frames(writer, latents, start_frame)
    tones = _tones(writer, levels, frames)
    drums = writer.node("Add", _hits(writer, levels), _held_noise(writer, levels, frames))
    audio = writer.node("Tanh", writer.node("Add", tones, drums))  # [B, 2, T, hop]
    audio = writer.node("Reshape", audio, writer.constant([0, 2, -1], np.int64))
    writer.output("audio", audio, TensorProto.FLOAT, ("batch", 2, "samples"))
    return writer.model()


def _levels(writer: GraphWriter, latents: str) -> str:
    """Levels `[B, T, C]`: unscaled, with a gate that keeps the residue of denoising silent."""
    scale = np.float32(1.0 / (LATENT_SCALE * (1.0 - LEVEL_GATE)))
    offset = np.float32((-SILENCE / LATENT_SCALE - LEVEL_GATE) / (1.0 - LEVEL_GATE))
    scaled = writer.node("Mul", latents, writer.constant(scale))
    return writer.node("Relu", writer.node("Add", scaled, writer.constant(offset)))


def _absolute_frames(writer: GraphWriter, latents: str, start_frame: str) -> str:
    """int64 `[B, T, 1, 1]`, wrapped at the common period of everything periodic."""
    num_frames = writer.node("Squeeze", writer.node("Shape", latents, start=1, end=2))
    steps = writer.node("Range", writer.constant(0, np.int64), num_frames, writer.constant(1, np.int64))
    steps = writer.node("Reshape", steps, writer.constant([1, -1, 1, 1], np.int64))
    start = writer.node("Reshape", start_frame, writer.constant([-1, 1, 1, 1], np.int64))
    return writer.node("Mod", writer.node("Add", start, steps), writer.constant(PHASE_STEPS, np.int64))


def _earlier(writer: GraphWriter, values: str, num_frames: int) -> str:
    """`[B, T, ...]` moved `num_frames` later in time; before the first frame there is silence."""
    padding = writer.constant([0, num_frames, 0, 0, 0, 0], np.int64)
    padded = writer.node("Pad", values, padding)
    bounds = (writer.constant([value], np.int64) for value in (0, -num_frames, 1))
    return writer.node("Slice", padded, *bounds)


def _later(writer: GraphWriter, values: str, num_frames: int) -> str:
    """`[B, T, ...]` moved `num_frames` earlier in time; after the last frame there is silence."""
    padded = writer.node("Pad", values, writer.constant([0, 0, 0, 0, num_frames, 0], np.int64))
    bounds = (writer.constant([value], np.int64) for value in (num_frames, np.iinfo(np.int64).max, 1))
    return writer.node("Slice", padded, *bounds)


def _columns(writer: GraphWriter, values: str, columns: npt.ArrayLike) -> str:
    return writer.node("Gather", values, writer.constant(columns, np.int64), axis=2)


def _tones(writer: GraphWriter, levels: str, frames: str) -> str:
    """The pitches' audio `[B, 2, T, hop]`."""
    partials = all_partials()
    level = writer.node("Unsqueeze", _columns(writer, levels, partials.pitch_index), writer.constant([2], np.int64))
    before = writer.node(
        "Unsqueeze",
        _columns(writer, _earlier(writer, levels, 1), partials.pitch_index),
        writer.constant([2], np.int64),
    )
    change = writer.node("Sub", level, before)
    rise, fall = writer.node("Relu", change), writer.node("Neg", writer.node("Relu", writer.node("Neg", change)))
    sines, cosines = _phases(writer, frames)  # [B, T, 2, K] each, gain included
    parts = [writer.node("Mul", amount, wave) for amount in (before, rise, fall) for wave in (sines, cosines)]
    coefficients = writer.node("Transpose", writer.node("Concat", *parts, axis=3), perm=[0, 2, 1, 3])
    return writer.node("MatMul", coefficients, _basis(writer))


def _phases(writer: GraphWriter, frames: str) -> tuple[str, str]:
    """Sine and cosine of each partial's phase at the start of each frame, times its gain, by ear."""
    partials = all_partials()
    steps = writer.node("Mul", frames, writer.constant(partials.cycles[None, None, None] % PHASE_STEPS))
    steps = writer.node("Mod", steps, writer.constant(PHASE_STEPS, np.int64))
    turns = writer.node("Cast", steps, to=TensorProto.FLOAT)
    radians = writer.node("Mul", turns, writer.constant(np.float32(2 * np.pi / PHASE_STEPS)))
    radians = writer.node("Add", radians, writer.constant(2 * np.pi * partials.turns[None, None], np.float32))
    gain = writer.constant(partials.gain[None, None])
    sines = writer.node("Mul", writer.node("Sin", radians), gain)
    return sines, writer.node("Mul", writer.node("Cos", radians), gain)


def _basis(writer: GraphWriter) -> str:
    """f32 `[3 * 2K, hop]`: cosines and sines within a frame, for the level before, its rise and its fall.

    Written as nodes over constants: an engine folds them once, and the file stays small.
    """
    cycles = all_partials().cycles
    period = PHASE_STEPS * HOP_SAMPLES
    samples = writer.constant(np.arange(HOP_SAMPLES)[None], np.int64)
    steps = writer.node("Mul", writer.constant(cycles[:, None]), samples)
    steps = writer.node("Mod", steps, writer.constant(period, np.int64))
    turns = writer.node("Cast", steps, to=TensorProto.DOUBLE)
    radians = writer.node("Mul", turns, writer.constant(2 * np.pi / period, np.float64))
    radians = writer.node("Cast", radians, to=TensorProto.FLOAT)
    waves = writer.node("Concat", writer.node("Cos", radians), writer.node("Sin", radians), axis=0)
    ramped = [writer.node("Mul", waves, writer.constant(ramp[None])) for ramp in _ramps()]
    return writer.node("Concat", waves, *ramped, axis=0)


def _ramps() -> tuple[FloatArray, FloatArray]:
    """How a rise (a short attack) and a fall (even over the frame) reach the new level, `[hop]` each, from 0 to 1."""
    samples = np.arange(HOP_SAMPLES)
    attack = 0.5 - 0.5 * np.cos(np.pi * np.clip(samples / ATTACK_SAMPLES, 0.0, 1.0))
    return attack.astype(np.float32), (samples / HOP_SAMPLES).astype(np.float32)


def _hits(writer: GraphWriter, levels: str) -> str:
    """Drum hits `[B, 2, T, hop]`: every rise of a drum's level starts its sound, which rings for `DRUM_FRAMES`."""
    drums = _columns(writer, levels, [KICK, SNARE, HAT])
    rise = writer.node("Sub", drums, _earlier(writer, drums, 1))
    onset = writer.node("Relu", writer.node("Sub", rise, writer.constant(np.float32(_ONSET_GATE))))
    ages = [onset, *(_earlier(writer, onset, age) for age in range(1, DRUM_FRAMES))]
    history = writer.node("Concat", *ages, axis=2)  # [B, T, DRUM_FRAMES * 3]
    history = writer.node("Unsqueeze", history, writer.constant([1], np.int64))
    sounds = drum_hits().reshape(3, 2, DRUM_FRAMES, HOP_SAMPLES).transpose(1, 2, 0, 3)
    sounds = sounds.reshape(1, 2, DRUM_FRAMES * 3, HOP_SAMPLES) / np.float32(1.0 - _ONSET_GATE)
    return writer.node("MatMul", history, writer.constant(sounds))


def _held_noise(writer: GraphWriter, levels: str, frames: str) -> str:
    """Noise `[B, 2, T, hop]` of snare and hat levels that are held rather than struck."""
    drums = _columns(writer, levels, [SNARE, HAT])
    held = writer.node("Min", drums, _earlier(writer, drums, 1))
    table = drum_noise().reshape(2, 2, NOISE_FRAMES, HOP_SAMPLES).transpose(2, 1, 0, 3)
    index = writer.node("Mod", frames, writer.constant(NOISE_FRAMES, np.int64))
    index = writer.node("Squeeze", index, writer.constant([2, 3], np.int64))
    noise = writer.node("Gather", writer.constant(table), index, axis=0)  # [B, T, 2, drum, hop]
    noise = writer.node("Transpose", noise, perm=[0, 2, 1, 3, 4])
    ramp = writer.constant(_ramps()[1][None, None, None, None])
    now = writer.node("Unsqueeze", held, writer.constant([1, 4], np.int64))
    before = writer.node("Unsqueeze", _earlier(writer, held, 1), writer.constant([1, 4], np.int64))
    level = writer.node("Add", before, writer.node("Mul", writer.node("Sub", now, before), ramp))
    return writer.node("ReduceSum", writer.node("Mul", noise, level), writer.constant([3], np.int64), keepdims=0)


# Encode -------------------------------------------------------------------------------------------------------------


def build_encoder() -> onnx.ModelProto:
    """Graph `audio [B, 2, N * hop]` f32 -> `latents [B, N, 64]` f32.

    A window with `ENCODE_MARGIN_FRAMES` more on both sides, trimmed, equals the encode of the whole.
    """
    writer = GraphWriter("codec_encode")
    audio = writer.input("audio", TensorProto.FLOAT, ("batch", 2, "samples"))
    mono = writer.node("ReduceMean", audio, writer.constant([1], np.int64), keepdims=1)  # [B, 1, samples]
    sources = _unmix(writer, _magnitudes(writer, mono))
    pitches = _columns(writer, sources, range(NUM_PITCHES))
    kick = _peaks(writer, _columns(writer, sources, [NUM_PITCHES]))
    drums = _struck(writer, writer.node("Concat", kick, _band_onsets(writer, mono), axis=2))
    reserved = writer.node("Mul", kick, writer.constant(np.float32(0.0)))
    levels = writer.node("Concat", pitches, drums, reserved, axis=2)
    writer.output("latents", _latents(writer, levels), TensorProto.FLOAT, ("batch", "frames", CHANNELS))
    return writer.model()


def _latents(writer: GraphWriter, levels: str) -> str:
    """The scaling of the latents, with the decoder's gate undone for every level that sounds."""
    sounding = writer.node("Greater", levels, writer.constant(np.float32(0.02)))
    opened = writer.node("Mul", levels, writer.constant(np.float32(1.0 - LEVEL_GATE)))
    opened = writer.node("Add", opened, writer.constant(np.float32(LEVEL_GATE)))
    opened = writer.node("Where", sounding, opened, writer.constant(np.float32(0.0)))
    opened = writer.node("Min", opened, writer.constant(np.float32(1.2)))
    scaled = writer.node("Mul", opened, writer.constant(np.float32(LATENT_SCALE)))
    return writer.node("Add", scaled, writer.constant(np.float32(SILENCE)))


def kernel_frequencies_hz() -> npt.NDArray[np.float64]:
    """Centre frequencies of the pitches' analysis kernels, `[60]`."""
    return np.array([pitch_frequency_hz(index) for index in range(NUM_PITCHES)])


def kernel_window_samples() -> npt.NDArray[np.float64]:
    """Length of each pitch kernel's Hann window, `[60]`: constant Q between 2 and `_KERNEL_FRAMES` frames."""
    lengths = _WINDOW_SECONDS_TIMES_HZ / kernel_frequencies_hz() * SAMPLE_RATE_HZ
    return np.clip(lengths, 2.0 * HOP_SAMPLES, _KERNEL_FRAMES * HOP_SAMPLES)


def kernel_response(frequency_hz: float) -> npt.NDArray[np.float64]:
    """Magnitude `[61]` that the pitches' kernels and the kick's report for a sine of amplitude 1."""
    lengths = kernel_window_samples() / SAMPLE_RATE_HZ
    cycles = (frequency_hz - kernel_frequencies_hz()) * lengths
    with np.errstate(divide="ignore", invalid="ignore"):
        hann = np.sinc(cycles) / (1.0 - cycles**2)
    pitches = np.where(np.isclose(np.abs(cycles), 1.0), 0.5, np.abs(hann))
    sine = np.exp(2j * np.pi * frequency_hz / SAMPLE_RATE_HZ * np.arange(_KERNEL_FRAMES * HOP_SAMPLES))
    return np.append(pitches, abs(kick_kernel() @ sine) / 2.0)


@cache
def kick_kernel() -> npt.NDArray[np.complex128]:
    """A kick's own sound as a complex kernel `[5 * hop]`, from the middle frame on; a hit at level 1 gives 1."""
    length = _KICK_KERNEL_FRAMES * HOP_SAMPLES
    hit = drum_hits()[0].mean(axis=0)[:length] * (0.5 + 0.5 * np.cos(np.pi * np.arange(length) / length))
    spectrum = np.fft.fft(hit, 4 * length)
    spectrum[2 * length :] = 0.0
    analytic = 2.0 * np.fft.ifft(spectrum)[:length]
    kernel = np.zeros(_KERNEL_FRAMES * HOP_SAMPLES, complex)
    start = (_KERNEL_FRAMES // 2) * HOP_SAMPLES
    kernel[start : start + length] = np.conj(analytic)
    reference = kernel[start : start + length] @ drum_hits()[0].mean(axis=0)[:length]
    return np.asarray(kernel / abs(reference))


def source_responses() -> npt.NDArray[np.float64]:
    """Magnitudes `[60 + 6, 61]` of every source at level 1: the pitches, then a kick hit now and in frames around."""
    rows = []
    for index in range(NUM_PITCHES):
        power = [(gain * kernel_response(frequency)) ** 2 for frequency, gain in partial_magnitudes(index)]
        rows.append(np.sqrt(np.sum(power, axis=0)))
    return np.stack([*rows, *(_kick_response(age) for age in _KICK_AGES)])


def _kick_response(age: int) -> npt.NDArray[np.float64]:
    """Magnitudes `[61]` that a kick hit at level 1 gives `age` frames after the frame of the hit."""
    middle = _KERNEL_FRAMES // 2
    signal = np.zeros(3 * _KERNEL_FRAMES * HOP_SAMPLES)
    hit = drum_hits()[0].mean(axis=0)
    start = (_KERNEL_FRAMES + middle - age) * HOP_SAMPLES
    signal[start : start + len(hit)] = hit
    seen = signal[_KERNEL_FRAMES * HOP_SAMPLES : 2 * _KERNEL_FRAMES * HOP_SAMPLES]
    return np.asarray(np.append(np.abs(pitch_kernels() @ seen), abs(kick_kernel() @ seen)))


def pitch_kernels() -> npt.NDArray[np.complex128]:
    """Windowed complex kernels `[60, 5 * hop]`; what the graph builds from constants."""
    samples = _kernel_positions()
    lengths = kernel_window_samples()[:, None]
    hann = np.where(
        np.abs(samples / lengths) <= 0.5, 2.0 / lengths * (1.0 + np.cos(2 * np.pi * samples / lengths)), 0.0
    )
    return np.asarray(hann * np.exp(-2j * np.pi * samples * kernel_frequencies_hz()[:, None] / SAMPLE_RATE_HZ))


def _kernel_positions() -> npt.NDArray[np.float64]:
    num_samples = _KERNEL_FRAMES * HOP_SAMPLES
    return np.asarray(np.arange(num_samples) - (num_samples - 1) / 2, np.float64)


def _magnitudes(writer: GraphWriter, mono: str) -> str:
    """Magnitudes `[B, N, 61]` around the centre of each frame; a sine of amplitude 1 on a kernel's pitch gives 1."""
    cosines, sines = _kernels(writer)
    pad = (_KERNEL_FRAMES - 1) // 2 * HOP_SAMPLES
    parts = []
    for kernel in _with_kick_kernel(writer, cosines, sines):
        part = writer.node("Conv", mono, kernel, strides=[HOP_SAMPLES], pads=[pad, pad])
        parts.append(writer.node("Mul", part, part))
    power = writer.node("Add", parts[0], parts[1])  # [B, 61, N]
    magnitude = writer.node("Sqrt", writer.node("Add", power, writer.constant(np.float32(1e-12))))
    return writer.node("Transpose", magnitude, perm=[0, 2, 1])


def _with_kick_kernel(writer: GraphWriter, cosines: str, sines: str) -> list[str]:
    parts = (kick_kernel().real, kick_kernel().imag)
    kernels = zip((cosines, sines), parts, strict=True)
    return [
        writer.node("Concat", pitches, writer.constant(kick[None, None], np.float32), axis=0)
        for pitches, kick in kernels
    ]


def _kernels(writer: GraphWriter) -> tuple[str, str]:
    """Windowed cosines and sines f32 `[60, 1, 5 * hop]` as nodes over constants, which an engine folds once."""
    position = writer.constant(_kernel_positions()[None, None], np.float64)
    lengths = kernel_window_samples()[:, None, None]
    turns = writer.node("Mul", position, writer.constant(kernel_frequencies_hz()[:, None, None] / SAMPLE_RATE_HZ))
    radians = _radians(writer, turns)
    share = writer.node("Mul", position, writer.constant(1.0 / lengths))
    inside = writer.node("LessOrEqual", writer.node("Abs", share), writer.constant(0.5, np.float64))
    hann = writer.node("Add", writer.node("Cos", _radians(writer, share)), writer.constant(np.float32(1.0)))
    hann = writer.node("Mul", hann, writer.constant(2.0 / lengths, np.float32))
    hann = writer.node("Where", inside, hann, writer.constant(np.float32(0.0)))
    return tuple(writer.node("Mul", hann, writer.node(wave, radians)) for wave in ("Cos", "Sin"))  # type: ignore[return-value]


def _radians(writer: GraphWriter, turns: str) -> str:
    """float64 turns -> float32 radians within half a turn of 0, so that float32 is exact enough."""
    wrapped = writer.node("Sub", turns, writer.node("Round", turns))
    return writer.node(
        "Cast", writer.node("Mul", wrapped, writer.constant(2 * np.pi, np.float64)), to=TensorProto.FLOAT
    )


def _unmix(writer: GraphWriter, magnitudes: str) -> str:
    """Levels `[B, N, 66]` >= 0 of the sources that explain the magnitudes (multiplicative updates, Lee and Seung)."""
    mixing = source_responses()
    levels = target = writer.node("MatMul", magnitudes, writer.constant(mixing.T, np.float32))
    gram = writer.constant(mixing @ mixing.T, np.float32)
    tiny = writer.constant(np.float32(1e-9))
    for _ in range(_UNMIX_ITERATIONS):
        explained = writer.node("Add", writer.node("MatMul", levels, gram), tiny)
        levels = writer.node("Mul", levels, writer.node("Div", target, explained))
    return levels


def _peaks(writer: GraphWriter, level: str) -> str:
    """A level `[B, N, 1]` where it is higher than in the frames beside it, 0 elsewhere."""
    around = writer.node("Max", _earlier(writer, level, 1), _later(writer, level, 1))
    gate = writer.node("Max", around, writer.constant(np.float32(_KICK_GATE)))
    return writer.node("Where", writer.node("Greater", level, gate), level, writer.constant(np.float32(0.0)))


def _band_onsets(writer: GraphWriter, mono: str) -> str:
    """Snare and hat hits `[B, N, 2]`: rises of a band's root mean square per frame, relative to a hit at level 1."""
    filters = np.stack([_band_filter(*band) for band in (_SNARE_BAND_HZ, _HAT_BAND_HZ)])
    pad = (_BAND_TAPS - 1) // 2
    filtered = writer.node("Conv", mono, writer.constant(filters[:, None], np.float32), pads=[pad, pad])
    framed = writer.node("Reshape", filtered, writer.constant([0, 2, -1, HOP_SAMPLES], np.int64))
    power = writer.node("ReduceMean", writer.node("Mul", framed, framed), writer.constant([3], np.int64), keepdims=0)
    level = writer.node("Sqrt", writer.node("Add", power, writer.constant(np.float32(1e-12))))
    level = writer.node("Div", level, writer.constant(_band_references(filters)[None, :, None], np.float32))
    level = writer.node("Transpose", level, perm=[0, 2, 1])
    rise = writer.node("Sub", level, _earlier(writer, level, 1))
    onset = writer.node("Relu", writer.node("Sub", rise, writer.constant(np.float32(0.15))))
    return writer.node("Mul", onset, writer.constant(np.float32(1.0 / 0.85)))


def _band_filter(low_hz: float, high_hz: float) -> npt.NDArray[np.float64]:
    """A linear-phase band pass of `_BAND_TAPS` taps (windowed sinc)."""
    offsets = np.arange(_BAND_TAPS) - (_BAND_TAPS - 1) / 2
    high, low = (2 * edge / SAMPLE_RATE_HZ for edge in (high_hz, low_hz))
    taps = high * np.sinc(high * offsets) - low * np.sinc(low * offsets)
    return np.asarray(taps * np.blackman(_BAND_TAPS))


def _band_references(filters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    hits = drum_hits().mean(axis=1)[1:, :HOP_SAMPLES]
    pairs = zip(hits, filters, strict=True)
    return np.array([np.sqrt(np.mean(np.convolve(hit, taps, "same") ** 2)) for hit, taps in pairs])


def _struck(writer: GraphWriter, onset: str) -> str:
    """Hits `[B, N, 3]` as the level curves that the corpus writes for them."""
    late = writer.node("Mul", _earlier(writer, onset, 1), writer.constant([[[0.4, 0.45, 0.2]]], np.float32))
    later = writer.node("Mul", _earlier(writer, onset, 2), writer.constant([[[0.1, 0.15, 0.0]]], np.float32))
    return writer.node("Max", onset, late, later)
