"""The decode graph: latents -> stereo audio by additive synthesis.

A layer works frame by frame as a matrix product: partial k of a frame is `Im(E exp(i (phase + w n)))` with its complex
envelope E, so the coefficients `Im(E exp(i phase)), Re(E exp(i phase))` meet a fixed basis `cos(w n), sin(w n)`.
E has the tone, its detuned copies and its reverb, and moves evenly from frame to frame, except for attacks. Low layers
are synthesized at a lower rate. Drums and the noise of attacks are recorded samples.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from configs.demo.recipe.codec.partials import ENSEMBLE_FRAMES, PHASE_STEPS, SOUNDS, Partials, layer_partials
from configs.demo.recipe.codec.percussion import (
    DRUM_FRAMES,
    STRIKE_FRAMES,
    TAKE_FRAMES,
    drum_hits,
    strikes,
    take_shares,
)
from configs.demo.recipe.codec.voices import voice_of
from configs.demo.recipe.instruments import INSTRUMENTS, TIMBRE_CHANNELS, pitch_channels, timbre_levels
from configs.demo.recipe.latents import (
    CHANNELS,
    FRAME_RATE_HZ,
    HOP_SAMPLES,
    LATENT_SCALE,
    SAMPLE_RATE_HZ,
    SILENCE,
)
from engine_build.graphs.graph_writer import GraphWriter

DECODE_MARGIN_FRAMES: Final = DRUM_FRAMES
LEVEL_GATE: Final = 0.03

_ONSET_GATE: Final = 0.05
_TIMBRE_FRAMES: Final = 7
_TIMBRE_SHARPNESS: Final = 100.0
_REVERB_FRAMES: Final = 6
_REVERB_DECAY: Final = 0.72
_ATTACK_S: Final = 0.004
_VIBRATO_HZ: Final = 5.6
_FILTER_TAPS: Final = 32
_BLOCK_SAMPLES: Final = 96


def build_decoder() -> onnx.ModelProto:
    """Graph `latents [B, T, 64]` f32, `start_frame [B]` int64 -> `audio [B, 2, T * hop]` f32 in [-1, 1].

    `start_frame` is the absolute frame of the first latent. A window with `DECODE_MARGIN_FRAMES` more on both sides,
    trimmed, equals the decode of the whole.
    """
    graph = GraphWriter("codec_decode")
    latents = graph.input("latents", ("batch", "frames", CHANNELS))
    start_frame = graph.input("start_frame", ("batch",), np.int64)
    levels, frames = _levels(graph, latents), _absolute_frames(graph, latents, start_frame)
    weights = {layer: _instrument_weights(graph, latents, layer) for layer in INSTRUMENTS}
    parts = {}
    for layer in SOUNDS:
        with graph.scope(layer):
            parts[layer] = _tones(graph, levels, frames, weights[layer], layer)
    low = graph.op("Add", parts["bass"], parts["pad"])
    low = graph.op("Add", _doubled(graph, low), _joined(graph, parts["arp"]))
    melody = _doubled(graph, _joined(graph, parts["melody"]))
    tones = graph.op("Add", _doubled(graph, low), _vibrato(graph, melody, frames, weights["melody"]))
    tones = graph.op("Reshape", tones, graph.constant([0, 2, -1, HOP_SAMPLES], np.int64))
    audio = graph.op("Tanh", graph.op("Add", tones, _struck(graph, levels, frames, weights)))
    graph.output("audio", _joined(graph, audio), ("batch", 2, "samples"))
    return graph.model()


# What the latents say ------------------------------------------------------------------------------------------------


def _levels(graph: GraphWriter, latents: str) -> str:
    """Levels `[B, T, C]`: unscaled, with a gate that keeps the residue of denoising silent."""
    scale = np.float32(1.0 / (LATENT_SCALE * (1.0 - LEVEL_GATE)))
    offset = np.float32((-SILENCE / LATENT_SCALE - LEVEL_GATE) / (1.0 - LEVEL_GATE))
    scaled = graph.op("Mul", latents, graph.constant(scale))
    return graph.op("Relu", graph.op("Add", scaled, graph.constant(offset)))


def _absolute_frames(graph: GraphWriter, latents: str, start_frame: str) -> str:
    """int64 `[B, T]`, wrapped at the common period of everything periodic."""
    num_frames = graph.op("Squeeze", graph.op("Shape", latents, start=1, end=2))
    steps = graph.op("Range", graph.constant(0, np.int64), num_frames, graph.constant(1, np.int64))
    start = graph.op("Unsqueeze", start_frame, graph.constant([1], np.int64))
    return graph.op("Mod", graph.op("Add", start, steps), graph.constant(PHASE_STEPS, np.int64))


def _instrument_weights(graph: GraphWriter, latents: str, layer: str) -> str:
    """Weights `[B, T, I]` of a layer's instruments, sum 1, by distance to their points in the timbre channels.

    The channels are averaged over some frames first, so that noise does not tell.
    """
    points = np.array([timbre_levels(layer, name) for name in INSTRUMENTS[layer]])
    place = _columns(graph, latents, TIMBRE_CHANNELS[layer])
    place = graph.op("Unsqueeze", place, graph.constant([1], np.int64))
    reach = _TIMBRE_FRAMES // 2
    place = graph.op("AveragePool", place, kernel_shape=[_TIMBRE_FRAMES, 1], pads=[reach, 0, reach, 0])
    place = graph.op("Squeeze", place, graph.constant([1], np.int64))
    # -(x - p)^2 = 2 x p - p^2 - x^2, and softmax does not see x^2. Levels are (latent - SILENCE) / LATENT_SCALE.
    slope = 2.0 * _TIMBRE_SHARPNESS / LATENT_SCALE * points.T
    offset = -_TIMBRE_SHARPNESS * ((points**2).sum(axis=1) + 2.0 * SILENCE / LATENT_SCALE * points.sum(axis=1))
    scores = graph.op("MatMul", place, graph.constant(slope))
    return graph.op("Softmax", graph.op("Add", scores, graph.constant(offset)), axis=-1)


def _columns(graph: GraphWriter, values: str, columns: npt.ArrayLike) -> str:
    return graph.op("Gather", values, graph.constant(columns, np.int64), axis=-1)


def _sliced(graph: GraphWriter, values: str, begin: int, end: int, axis: int) -> str:
    return graph.op("Slice", values, *(graph.constant([bound], np.int64) for bound in (begin, end, axis)))


def _earlier(graph: GraphWriter, values: str, num_frames: int, axis: int = 1, rank: int = 3) -> str:
    """Values moved `num_frames` later along `axis`; before the first frame there is silence."""
    pads = [0] * (2 * rank)
    pads[axis] = num_frames
    return _sliced(graph, graph.op("Pad", values, graph.constant(pads, np.int64)), 0, -num_frames, axis)


def _start_radians(graph: GraphWriter, frames: str, cycles: npt.ArrayLike) -> str:
    """Phases `[B, T, K]` at the starts of frames, for `cycles [K]` per PHASE_STEPS frames; exact."""
    frames = graph.op("Cast", graph.op("Unsqueeze", frames, graph.constant([2], np.int64)), to=TensorProto.INT32)
    steps = graph.op("Mul", frames, graph.constant(np.asarray(cycles) % PHASE_STEPS, np.int32))
    steps = graph.op("Cast", graph.op("Mod", steps, graph.constant(PHASE_STEPS, np.int32)), to=TensorProto.FLOAT)
    return graph.op("Mul", steps, graph.constant(2 * np.pi / PHASE_STEPS))


# Tones ---------------------------------------------------------------------------------------------------------------


def _tones(graph: GraphWriter, levels: str, frames: str, weights: str, layer: str) -> str:
    """A layer's audio `[B, 2, T, hop of the layer]`."""
    partials, hop = layer_partials(layer), SOUNDS[layer].hop_samples
    pitches = graph.op("Unsqueeze", _columns(graph, levels, list(pitch_channels(layer))), graph.constant([1], np.int64))
    weights = graph.op("Unsqueeze", weights, graph.constant([1], np.int64))  # [B, 1, T, I]
    gains = [graph.op("MatMul", weights, graph.constant(table)) for table in (partials.soft, partials.loud)]
    tone = _amplitude(graph, pitches, gains, partials)
    echo = _amplitude(graph, _smeared(graph, pitches), gains, partials)
    envelope = _envelope(graph, tone, echo, frames, weights, layer)  # real and imaginary, [B, 2, T, K] each
    share = graph.op("MatMul", weights, graph.constant([[voice_of(layer, n).attack] for n in INSTRUMENTS[layer]]))
    rise = graph.op("Relu", graph.op("Sub", tone, _earlier(graph, tone, 1, axis=2, rank=4)))
    rise = graph.op("Mul", rise, share)
    attack = [graph.op("Mul", rise, graph.constant(part[:, None])) for part in _parts(partials.direct)]
    start = [graph.op("Add", _earlier(graph, e, 1, axis=2, rank=4), a) for e, a in zip(envelope, attack, strict=True)]
    radians = graph.op("Unsqueeze", _start_radians(graph, frames, partials.cycles), graph.constant([1], np.int64))
    basis, turn = _basis(graph, partials, hop), (graph.op("Cos", radians), graph.op("Sin", radians))
    ramp = np.arange(hop) / hop
    ending, starting = (
        graph.op("Mul", graph.op("MatMul", _coefficients(graph, values, turn), basis), graph.constant(share))
        for values, share in ((envelope, ramp), (start, 1.0 - ramp))
    )
    head = graph.op("MatMul", _coefficients(graph, attack, turn), _attack_basis(graph, basis, hop))
    head = graph.op("Pad", head, graph.constant([0, 0, 0, 0, 0, 0, 0, hop - _attack_samples(hop)], np.int64))
    return graph.op("Add", graph.op("Add", starting, ending), head)


def _parts(values: npt.NDArray[np.complex128]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return values.real, values.imag


def _amplitude(graph: GraphWriter, pitches: str, gains: list[str], partials: Partials) -> str:
    """Amplitudes `[B, 1, T, K]` of all partials: `l (soft + l loud)` at their pitch's level l."""
    level = graph.op("MatMul", pitches, graph.constant(np.eye(1 + partials.pitch_index.max())[:, partials.pitch_index]))
    soft, loud = gains
    return graph.op("Mul", level, graph.op("Add", soft, graph.op("Mul", level, loud)))


def _smeared(graph: GraphWriter, pitches: str) -> str:
    """The level `[B, 1, T, P]` of each pitch's reverb: a mean of the frames before."""
    taps = _REVERB_DECAY ** np.arange(_REVERB_FRAMES)[::-1]
    kernel = np.append(taps / taps.sum(), 0.0)[None, None, :, None]
    return graph.op("Conv", pitches, graph.constant(kernel), pads=[_REVERB_FRAMES, 0, 0, 0])


def _envelope(graph: GraphWriter, tone: str, echo: str, frames: str, weights: str, layer: str) -> list[str]:
    """The complex envelopes at the frames' ends: the tone with its detuned copies, and the reverb."""
    partials = layer_partials(layer)
    depth = graph.op("MatMul", weights, graph.constant([[voice_of(layer, n).ensemble] for n in INSTRUMENTS[layer]]))
    index = graph.op("Mod", frames, graph.constant(ENSEMBLE_FRAMES, np.int64))
    envelope = []
    copies = partials.copies * partials.direct[:, None]
    for dry, wet, detuned in zip(_parts(partials.direct), _parts(partials.reverb), _parts(copies), strict=True):
        table = graph.op("Cast", graph.constant(detuned, np.float16), to=TensorProto.FLOAT)
        moving = graph.op("Transpose", graph.op("Gather", table, index, axis=1), perm=[1, 0, 2, 3])
        direct = graph.op("Add", graph.op("Mul", moving, depth), graph.constant(dry[:, None]))
        reverb = graph.op("Mul", echo, graph.constant(wet[:, None]))
        envelope.append(graph.op("Add", graph.op("Mul", direct, tone), reverb))
    return envelope


def _coefficients(graph: GraphWriter, envelope: list[str], turn: tuple[str, str]) -> str:
    """What meets the basis, `[B, 2, T, 2K]`: imaginary and real part of an envelope at the partial's phase."""
    (real, imaginary), (cosine, sine) = envelope, turn
    first = graph.op("Add", graph.op("Mul", real, sine), graph.op("Mul", imaginary, cosine))
    second = graph.op("Sub", graph.op("Mul", real, cosine), graph.op("Mul", imaginary, sine))
    return graph.op("Concat", first, second, axis=3)


def _basis(graph: GraphWriter, partials: Partials, hop: int) -> str:
    """f32 `[2K, hop]`: cosines and sines within a frame, as nodes over constants, which an engine folds once."""
    period = PHASE_STEPS * hop
    samples = graph.constant(np.arange(hop)[None], np.int64)
    steps = graph.op("Mul", graph.constant(partials.cycles[:, None], np.int64), samples)
    steps = graph.op("Mod", steps, graph.constant(period, np.int64))
    turns = graph.op("Cast", steps, to=TensorProto.DOUBLE)
    radians = graph.op("Mul", turns, graph.constant(2 * np.pi / period, np.float64))
    radians = graph.op("Cast", radians, to=TensorProto.FLOAT)
    return graph.op("Concat", graph.op("Cos", radians), graph.op("Sin", radians), axis=0)


def _attack_samples(hop: int) -> int:
    return round(_ATTACK_S * FRAME_RATE_HZ * hop)


def _attack_basis(graph: GraphWriter, basis: str, hop: int) -> str:
    """f32 `[2K, attack]`: what an attack lacks at first of its full level."""
    samples = _attack_samples(hop)
    missing = -(0.5 + 0.5 * np.cos(np.pi * np.arange(samples) / samples))
    return graph.op("Mul", _sliced(graph, basis, 0, samples, 1), graph.constant(missing))


# Samples -------------------------------------------------------------------------------------------------------------


def _joined(graph: GraphWriter, audio: str) -> str:
    """`[B, 2, T, hop]` -> `[B, 2, N]`."""
    return graph.op("Reshape", audio, graph.constant([0, 2, -1], np.int64))


def _doubled(graph: GraphWriter, audio: str) -> str:
    """Audio at twice its sample rate, `[B, 2, 2N]`, by a half-band filter.

    It works on blocks with a few samples of their neighbours: even samples are kept, odd ones a matrix product.
    """
    blocks = graph.op("Reshape", audio, graph.constant([0, 2, -1, _BLOCK_SAMPLES], np.int64))
    reach = _FILTER_TAPS // 2
    before = _earlier(graph, _sliced(graph, blocks, _BLOCK_SAMPLES - reach, _BLOCK_SAMPLES, 3), 1, axis=2, rank=4)
    after = _sliced(graph, _sliced(graph, blocks, 0, reach, 3), 1, np.iinfo(np.int64).max, 2)
    after = graph.op("Pad", after, graph.constant([0, 0, 0, 0, 0, 0, 1, 0], np.int64))
    odd = graph.op("MatMul", graph.op("Concat", before, blocks, after, axis=3), graph.constant(_half_band()))
    pair = [graph.op("Unsqueeze", value, graph.constant([4], np.int64)) for value in (blocks, odd)]
    return _joined(graph, graph.op("Concat", *pair, axis=4))


def _half_band() -> npt.NDArray[np.float64]:
    """f64 `[block + taps, block]`: the samples halfway between a block's samples (Kaiser windowed sinc)."""
    offsets = np.arange(_FILTER_TAPS) - (_FILTER_TAPS - 1) / 2
    taps = np.sinc(offsets) * np.kaiser(_FILTER_TAPS, 5.6)
    taps /= taps.sum()
    matrix = np.zeros((_BLOCK_SAMPLES + _FILTER_TAPS, _BLOCK_SAMPLES))
    for sample in range(_BLOCK_SAMPLES):
        matrix[sample + 1 : sample + 1 + _FILTER_TAPS, sample] = taps
    return matrix


def _vibrato(graph: GraphWriter, audio: str, frames: str, weights: str) -> str:
    """`[B, 2, N]` read at a position that swings around each sample, as far as the instrument has vibrato."""
    cycles = round(_VIBRATO_HZ / FRAME_RATE_HZ * PHASE_STEPS)
    within = np.arange(HOP_SAMPLES) / HOP_SAMPLES
    radians = _start_radians(graph, frames, [cycles])
    radians = graph.op("Add", radians, graph.constant(2 * np.pi * cycles / PHASE_STEPS * within))
    swing = graph.op("Add", graph.op("Sin", radians), graph.constant(1.0))  # [B, T, hop]
    cents = np.array([[voice_of("melody", name).vibrato_cents] for name in INSTRUMENTS["melody"]])
    most = (2.0 ** (cents / 1200.0) - 1.0) * SAMPLE_RATE_HZ / (2 * np.pi * _VIBRATO_HZ)
    now = graph.op("MatMul", weights, graph.constant(most))
    before = _earlier(graph, now, 1)
    depth = graph.op("Add", before, graph.op("Mul", graph.op("Sub", now, before), graph.constant(within)))
    delay = graph.op("Reshape", graph.op("Mul", swing, depth), graph.constant([0, 1, -1], np.int64))
    return _delayed(graph, audio, delay)


def _delayed(graph: GraphWriter, audio: str, delay: str) -> str:
    """`[B, 2, N]` read `delay [B, 1, N]` samples earlier, interpolated linearly."""
    whole = graph.op("Floor", delay)
    share = graph.op("Sub", delay, whole)
    count = graph.op("Squeeze", graph.op("Shape", audio, start=2, end=3))
    samples = graph.op("Range", graph.constant(0, np.int64), count, graph.constant(1, np.int64))
    late = graph.op("Sub", *(graph.op("Cast", value, to=TensorProto.INT32) for value in (samples, whole)))
    values = []
    for earlier in (0, 1):
        index = graph.op("Max", graph.op("Sub", late, graph.constant(earlier, np.int32)), graph.constant(0, np.int32))
        values.append(graph.op("GatherElements", audio, graph.op("Concat", index, index, axis=1), axis=2))
    return graph.op("Add", values[0], graph.op("Mul", graph.op("Sub", values[1], values[0]), share))


def _struck(graph: GraphWriter, levels: str, frames: str, weights: dict[str, str]) -> str:
    """Drums and the noise of attacks `[B, 2, T, hop]`: every rise of a level starts a sound."""
    rise = graph.op("Sub", levels, _earlier(graph, levels, 1))
    onset = graph.op("Relu", graph.op("Sub", rise, graph.constant(_ONSET_GATE)))
    audio = _rung(graph, _hits(graph, onset, frames, weights["drums"]), drum_hits().reshape(24, 2, -1), DRUM_FRAMES)
    notes = []
    for layer in SOUNDS:
        struck = _columns(graph, onset, list(pitch_channels(layer)))
        struck = graph.op("ReduceSum", struck, graph.constant([2], np.int64))
        notes.append(graph.op("Mul", weights[layer], struck))
    sounds = np.concatenate([strikes(layer) for layer in SOUNDS])
    return graph.op("Add", audio, _rung(graph, graph.op("Concat", *notes, axis=2), sounds, STRIKE_FRAMES))


def _hits(graph: GraphWriter, onset: str, frames: str, kits: str) -> str:
    """What each drum of each kit in each take is struck with, `[B, T, takes * kits * drums]`."""
    index = graph.op("Mod", frames, graph.constant(TAKE_FRAMES, np.int64))
    takes = graph.op("Gather", graph.constant(take_shares()), index, axis=0)  # [B, T, 2]
    drums = _columns(graph, onset, list(pitch_channels("drums")))
    axes = ((takes, [3, 4]), (kits, [2, 4]), (drums, [2, 3]))
    takes, kits, drums = (graph.op("Unsqueeze", value, graph.constant(axis, np.int64)) for value, axis in axes)
    struck = graph.op("Mul", graph.op("Mul", takes, kits), drums)
    return graph.op("Reshape", struck, graph.constant([0, 0, 24], np.int64))


def _rung(graph: GraphWriter, onsets: str, sounds: npt.NDArray[np.float32], num_frames: int) -> str:
    """Audio `[B, 2, T, hop]` of sounds `[S, 2, num_frames * hop]` started by `onsets [B, T, S]`."""
    ages = [onsets, *(_earlier(graph, onsets, age) for age in range(1, num_frames))]
    history = graph.op("Unsqueeze", graph.op("Concat", *ages, axis=2), graph.constant([1], np.int64))
    table = sounds.reshape(len(sounds), 2, num_frames, HOP_SAMPLES).transpose(1, 2, 0, 3)
    table = table.reshape(1, 2, num_frames * len(sounds), HOP_SAMPLES) / (1.0 - _ONSET_GATE)
    return graph.op("MatMul", history, graph.op("Cast", graph.constant(table, np.float16), to=TensorProto.FLOAT))
