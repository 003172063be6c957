"""A complete small bundle with random weights, and a deployment that uses it.

Both are deterministic by seed and written in milliseconds. As in real models the velocity depends on every input of the
decoder, masked tokens do not matter, and the codec has a receptive field and depends on the position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers.tiny_planner import save_planner
from helpers.tiny_structure import TOML as STRUCTURE
from helpers.tiny_structure import save_structure
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from engine_build.graphs.graph_writer import GraphWriter
from runtime.config.deployment import load_deployment

WIDTH = 16
CARRIER_FRAMES = 125
VOCABULARY = 257
START_TOKEN, UNKNOWN_TOKEN = "<s>", "<unk>"
# Kind -> name -> the word that means it.
MEANING = {
    "layers": {"drums": "drums", "electric bass": "bass"},
    "genre": {"rock": "rock", "jazz": "jazz", "ambient": "ambient"},
    "tempo": {"150 bpm": "fast"},
}
# The notes of its first six channels.
NOTES = """
[notes]
scale = 0.5
on = 0.12
off = 0.06
layers = [
    { name = "bass", channels = [0, 1, 2], keys = [36, 40, 43], timbre_channels = [5], instruments = [
        { name = "sub bass", levels = [0.3], program = 39 },
        { name = "upright bass", levels = [1.0], program = 32 },
    ] },
    { name = "drums", channels = [3, 4], keys = [36, 38], is_percussion = true },
]
"""
ENVELOPE = "envelope = { attack = [1.0, 0.8], decay = 0.92, release = [0.35] }"
NOTE_CHANNELS = 6
# What binds to what, in a bundle that has notes and tells what texts mean.
MOODS = """moods = { soft = { words = ["calm"], level_db = -6.0 }, sparse = { words = ["thin"], is_sparse = true } }, \
parts = [{ words = ["drums"], names = { drums = ["drums"] } }, \
{ words = ["bass"], names = { bass = ["electric bass"] } }]
"""
NUM_NAMES = sum(map(len, MEANING.values()))
TEXT_SEED = 3


@dataclass(frozen=True)
class TinySpec:
    """Sizes and features of a tiny bundle.

    condition: "tokens" `[R, L, D]`, "vector" `[R, D]`, or "" for a decoder without one. axes: what the decoder's graph
    calls R, T and L; an empty name leaves the dimension without one, "{}" in a name is the tensor's. conditions:
    lyrics, timbre, metadata and tasks. planner: arguments of save_planner; with a planner there is structure, too.
    meaning: the text's graph says which names of `MEANING` a text means, whose words the tokenizer then knows, and a
    genre is drawn. null: it has a null condition of one token. notes: it has [notes], with envelopes where asked.
    stems: and [stems]: its codec sums what the channels of these give. tracks: [stems] with tracks to extract, for
    which it needs conditions. group_frames: its codec works in groups of so many frames, in half of its layers shifted
    by one; it takes whole groups alone, and no position. seconds: the text's graph takes the canvas's seconds, and
    makes one token more of them. sampler, rule: its own lines of [sampler] and [guidance].
    mask_counts: bundle.toml says what is so, that the decoder's mean is of tokens as often as their mask says. jumps:
    the decoder takes the time where a jump ends, and its guidance; the sampler says what it does with them. clock: it
    takes the frames' numbers.
    """

    channels: int = 8
    condition_width: int = 12
    context: bool = True
    mask: bool = True
    codec: bool = True
    encode: bool = True
    text_encoder: bool = True
    frame_multiple: int = 2
    canvas_frames: int = 32
    overlap_frames: int = 8
    sample_rate_hz: int = 8000
    audio_channels: int = 2
    hop_samples: int = 320
    max_tokens: int = 32
    guidance: float = 2.0
    blend_power: int = 1
    blend_energy_below: float = 0.0
    steps: int = 4
    seed: int = 0
    prefix: str = ""
    condition: str = "tokens"
    axes: tuple[str, str, str] = ("rows", "frames", "tokens")
    words: tuple[str, ...] = ()
    conditions: bool = False
    timbre_frames: int = 12
    adapters: bool = False
    structure: bool = False
    planner: dict[str, Any] | None = None
    gain_db: float = 0.0
    meaning: bool = False
    notes: bool = False
    envelopes: bool = False
    stems: bool = False
    tracks: tuple[str, ...] = ()
    group_frames: int = 1
    seconds: bool = False
    sampler: str = "shift = 3.0"
    rule: str = ""
    latents: str = ""
    null: bool = False
    mask_counts: bool = False
    jumps: bool = False
    clock: bool = False

    @property
    def known_words(self) -> tuple[str, ...]:
        """The words of the tokenizer; () where it knows every byte."""
        meant = (word for names in MEANING.values() for word in names.values())
        return (*meant, *self.words) if self.meaning else self.words

    @property
    def context_channels(self) -> int:
        """Context channels X of the layout "known+mask"."""
        return 2 * self.channels

    @property
    def silence(self) -> list[float]:
        """The latent frame of silence."""
        return [round(0.1 * (index - self.channels / 2), 3) for index in range(self.channels)]


# A family that differs from the others in all that a bundle says: frames of 93 ms, a stochastic sampler without
# guidance and with times of its own, noise drawn channels first, a token of the canvas's seconds, a codec in groups.
SECOND_FAMILY: dict[str, Any] = {
    "sample_rate_hz": 11025,
    "hop_samples": 1024,
    "guidance": 1.0,
    "steps": 8,
    "group_frames": 2,
    "seconds": True,
    "latents": "most_unused = 0.1",
    "sampler": """solver = "sde"
schedule = { kind = "logsnr", start = -6.2, end = 2.0 }
noise_layout = "channels_time"
guidance_reason = "its checkpoint is distilled"
""",
}


def tiny_bundle(folder: Path, spec: TinySpec | None = None, **changes: object) -> Path:
    """Write a complete small bundle into `folder`; returns the folder.

    `changes` are fields of TinySpec: `tiny_bundle(folder, channels=4, context=False, mask=False)`. `prefix` is put
    before every tensor name, to test that tensor names come from the bundle's roles. `words`: the tokenizer knows only
    these; none: every byte. `adapters`: the decoder's matrices are listed in [adapters].
    """
    spec = spec or TinySpec(**changes)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(tiny_decoder(spec), folder / "decoder.onnx")
    if spec.null:
        tokens = np.random.default_rng(spec.seed).standard_normal((1, spec.condition_width), np.float32)
        np.save(folder / "null_condition.npy", tokens)
    if spec.codec:
        onnx.save(tiny_codec_decode(spec), folder / "codec_decode.onnx")
        if spec.encode:
            onnx.save(tiny_codec_encode(spec), folder / "codec_encode.onnx")
    if spec.conditions:
        onnx.save(tiny_text_encoder(spec, seed=4), folder / "lyric_encoder.onnx")
        onnx.save(tiny_timbre_encoder(spec), folder / "timbre_encoder.onnx")
    if spec.text_encoder:
        onnx.save(tiny_text_encoder(spec), folder / "text_encoder.onnx")
        tokenizer = word_tokenizer(spec.known_words) if spec.known_words else tiny_tokenizer()
        if spec.meaning:
            names = {kind: list(names) for kind, names in MEANING.items()}
            (folder / "meaning.json").write_text(json.dumps(names), encoding="utf-8")
        tokenizer.save(str(folder / "tokenizer.json"))
    if spec.structure or spec.planner is not None:
        save_structure(folder, spec.channels)
    planner = "" if spec.planner is None else save_planner(folder, **spec.planner)
    (folder / "bundle.toml").write_text(_bundle_toml(spec) + planner, encoding="utf-8")
    return folder


def tiny_deployment(folder: Path, *, depth: int = 4, max_rows: int = 8, more: str = "", **changes: object) -> Path:
    """Write a bundle and a deployment file that uses it; returns the path of the file.

    Shape ranges: rows 1..`max_rows`, frames 2..64, tokens 1..32. `more` is TOML appended at the end.
    """
    tiny_bundle(folder / "tiny", **changes)  # type: ignore[arg-type]
    path = folder / "tiny.toml"
    path.write_text(
        f"""[deployment]
bundle = "tiny"
target = "cpu"

[[shapes]]
rows = {{ min = 1, opt = {min(4, max_rows)}, max = {max_rows} }}
frames = {{ min = 2, opt = 32, max = 64 }}
{_tokens_toml(changes)}

[runtime]
depth = {depth}
queue = 8
threads = 1

{more}
""",
        encoding="utf-8",
    )
    return path


def _tokens_toml(changes: dict[str, object]) -> str:
    if changes.get("condition", "tokens") != "tokens":
        return ""
    return f"tokens = {{ min = 1, opt = 8, max = {96 if changes.get('conditions') else 32} }}"


def tiny_decoder(spec: TinySpec) -> onnx.ModelProto:
    """Latents, time, pooled condition and context are added up, the mean over time is mixed in, tanh, out."""
    graph, weight = GraphWriter("decoder"), Weights(spec.seed)
    rows, frames, _ = spec.axes
    latents = graph.input(f"{spec.prefix}hidden_states", (rows, frames, spec.channels))
    time = graph.input(f"{spec.prefix}timestep", (rows,))
    hidden = graph.op("MatMul", latents, weight(graph, "w_in", spec.channels, WIDTH))
    hidden = graph.op("Add", hidden, _time_features(graph, time, weight(graph, "w_time", 1, WIDTH)))
    if spec.jumps:
        for name in ("timestep_r", "guidance"):
            number = graph.input(f"{spec.prefix}{name}", (rows,))
            features = _time_features(graph, number, weight(graph, f"w_{name}", 1, WIDTH))
            hidden = graph.op("Add", hidden, features)
    if spec.clock:
        numbers = graph.input(f"{spec.prefix}frame_numbers", (rows, frames))
        angles = graph.op("Mul", _unsqueeze(graph, numbers, 2), graph.constant(0.5))
        clock = graph.op("MatMul", graph.op("Sin", angles), weight(graph, "w_clock", 1, WIDTH))
        hidden = graph.op("Add", hidden, clock)
    if spec.condition:
        w_condition = weight(graph, "w_cond", spec.condition_width, WIDTH)
        hidden = graph.op("Add", hidden, graph.op("MatMul", _pooled(graph, spec), w_condition))
    if spec.context:
        context = graph.input(f"{spec.prefix}context_latents", (rows, frames, spec.context_channels))
        w_context = weight(graph, "w_context", spec.context_channels, WIDTH)
        hidden = graph.op("Add", hidden, graph.op("MatMul", context, w_context))
    mean = graph.op("ReduceMean", graph.op("Tanh", hidden), graph.constant([1], np.int64), keepdims=1)
    hidden = graph.op("Tanh", graph.op("Add", hidden, mean))
    velocity = graph.op("MatMul", hidden, weight(graph, "w_out", WIDTH, spec.channels))
    graph.output(f"{spec.prefix}velocity", velocity, (rows, frames, spec.channels))
    model = graph.model()
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_param = dimension.dim_param.format(value.name)
    return model


def tiny_codec_decode(spec: TinySpec) -> onnx.ModelProto:
    """Three-tap convolution over time, one linear layer per frame, and a slow carrier over the absolute frame."""
    if spec.group_frames > 1:
        return _grouped_decode(spec)
    graph, weight = GraphWriter("codec_decode"), Weights(spec.seed + 1)
    latents = graph.input(f"{spec.prefix}latents", ("batch", "frames", spec.channels))
    start = graph.input(f"{spec.prefix}start_frame", ("batch",), np.int64)
    if spec.stems:  # of what is not silence, and belongs to a layer
        latents = graph.op("Sub", latents, graph.constant(np.array(spec.silence, np.float32)))
        latents = graph.op(
            "Mul", latents, graph.constant((np.arange(spec.channels) < NOTE_CHANNELS).astype(np.float32))
        )
    hidden = _convolve_time(graph, latents, weight(graph, "w_conv", WIDTH, spec.channels, 3))
    # Far from full scale, where float32 tells what a layer was before it was saturated.
    hidden = graph.op("Mul", hidden, graph.constant(0.1)) if spec.stems else graph.op("Tanh", hidden)
    samples = spec.audio_channels * spec.hop_samples
    audio = graph.op("MatMul", hidden, weight(graph, "w_audio", WIDTH, samples))
    audio = graph.op("Tanh", graph.op("Mul", audio, _carrier(graph, latents, start)))
    shape = graph.constant([0, 0, spec.audio_channels, spec.hop_samples], np.int64)
    audio = graph.op("Transpose", graph.op("Reshape", audio, shape), perm=[0, 2, 1, 3])
    audio = graph.op("Reshape", audio, graph.constant([0, spec.audio_channels, -1], np.int64))
    graph.output(f"{spec.prefix}audio", audio, ("batch", spec.audio_channels, "samples"))
    return graph.model()


def tiny_codec_encode(spec: TinySpec) -> onnx.ModelProto:
    """One linear layer per frame of samples, then a three-tap convolution over time."""
    graph, weight = GraphWriter("codec_encode"), Weights(spec.seed + 2)
    audio = graph.input(f"{spec.prefix}audio", ("batch", spec.audio_channels, "samples"))
    shape = graph.constant([0, spec.audio_channels, -1, spec.hop_samples], np.int64)
    frames = graph.op("Transpose", graph.op("Reshape", audio, shape), perm=[0, 2, 1, 3])
    flat = graph.constant([0, 0, spec.audio_channels * spec.hop_samples], np.int64)
    w_in = weight(graph, "w_in", spec.audio_channels * spec.hop_samples, WIDTH)
    hidden = graph.op("Tanh", graph.op("MatMul", graph.op("Reshape", frames, flat), w_in))
    if spec.group_frames > 1:
        hidden = _mixed_groups(graph, hidden, weight, spec.group_frames)
        latents = graph.op("MatMul", hidden, weight(graph, "w_out", WIDTH, spec.channels))
        graph.output(f"{spec.prefix}latents", latents, ("batch", "frames", spec.channels))
        return graph.model()
    latents = _convolve_time(graph, hidden, weight(graph, "w_conv", spec.channels, WIDTH, 3))
    graph.output(f"{spec.prefix}latents", latents, ("batch", "frames", spec.channels))
    return graph.model()


def _grouped_decode(spec: TinySpec) -> onnx.ModelProto:
    """Groups of frames, mixed; one linear layer per frame."""
    graph, weight = GraphWriter("codec_decode"), Weights(spec.seed + 1)
    latents = graph.input(f"{spec.prefix}latents", ("batch", "frames", spec.channels))
    hidden = graph.op("Tanh", graph.op("MatMul", latents, weight(graph, "w_in", spec.channels, WIDTH)))
    hidden = _mixed_groups(graph, hidden, weight, spec.group_frames)
    samples = spec.audio_channels * spec.hop_samples
    audio = graph.op("Tanh", graph.op("MatMul", hidden, weight(graph, "w_audio", WIDTH, samples)))
    shape = graph.constant([0, 0, spec.audio_channels, spec.hop_samples], np.int64)
    audio = graph.op("Transpose", graph.op("Reshape", audio, shape), perm=[0, 2, 1, 3])
    audio = graph.op("Reshape", audio, graph.constant([0, spec.audio_channels, -1], np.int64))
    graph.output(f"{spec.prefix}audio", audio, ("batch", spec.audio_channels, "samples"))
    return graph.model()


def _mixed_groups(graph: GraphWriter, hidden: str, weight: Weights, size: int) -> str:
    """Frames `[B, T, WIDTH]` mixed in groups from frame 0 on, then in groups that begin one frame earlier."""
    for name, shift in (("w_even", 0), ("w_shifted", 1)):
        if shift:
            hidden = graph.op("Pad", hidden, graph.constant([0, shift, 0, 0, size - shift, 0], np.int64))
        groups = graph.op("Reshape", hidden, graph.constant([0, -1, size * WIDTH], np.int64))
        mixed = graph.op("Tanh", graph.op("MatMul", groups, weight(graph, name, size * WIDTH, size * WIDTH)))
        hidden = graph.op("Reshape", mixed, graph.constant([0, -1, WIDTH], np.int64))
        if shift:
            begin, end = (graph.constant([index], np.int64) for index in (shift, shift - size))
            hidden = graph.op("Slice", hidden, begin, end, graph.constant([1], np.int64))
    return hidden


def tiny_text_encoder(spec: TinySpec, seed: int = TEXT_SEED) -> onnx.ModelProto:
    """Embeddings plus a position ramp, zero where the mask is 0."""
    graph, weight = GraphWriter("text_encoder"), Weights(spec.seed + seed)
    tokens = graph.input(f"{spec.prefix}input_ids", ("batch", "tokens"), np.int64)
    mask = graph.input(f"{spec.prefix}attention_mask", ("batch", "tokens"), np.int64)
    kept = graph.op("Cast", mask, to=onnx.TensorProto.FLOAT)
    embedded = graph.op("Gather", weight(graph, "embedding", VOCABULARY, spec.condition_width), tokens)
    position = graph.op("Mul", graph.op("CumSum", kept, graph.constant(1, np.int64)), graph.constant(0.05))
    moved = graph.op("Add", embedded, _unsqueeze(graph, position, 2))
    condition, length = graph.op("Mul", moved, _unsqueeze(graph, kept, 2)), "tokens"
    if spec.seconds:
        seconds, length = graph.input(f"{spec.prefix}seconds", ("batch",)), "all_tokens"
        rates = graph.constant(second_rates(spec)[None])  # [1, D]
        token = graph.op("Sin", graph.op("Mul", _unsqueeze(graph, seconds, 1), rates))
        condition = graph.op("Concat", _unsqueeze(graph, token, 1), condition, axis=1)
        one = graph.op("Add", graph.op("Mul", seconds, graph.constant(0.0)), graph.constant(1.0))  # [B]
        kept = graph.op("Concat", _unsqueeze(graph, one, 1), kept, axis=1)
    graph.output(f"{spec.prefix}condition", condition, ("batch", length, spec.condition_width))
    graph.output(f"{spec.prefix}condition_mask", kept, ("batch", length))
    if spec.meaning and seed == TEXT_SEED:
        graph.output(f"{spec.prefix}meaning", _meaning(graph, spec, tokens), ("batch", NUM_NAMES))
    return graph.model()


def second_rates(spec: TinySpec) -> NDArray[np.float32]:
    """The token of seconds is sin(seconds times these), `[D]`."""
    return np.linspace(0.1, 2.0, spec.condition_width, dtype=np.float32)


def _meaning(graph: GraphWriter, spec: TinySpec, tokens: str) -> str:
    """`[B, N]`, 1 for the names whose words are there."""
    known = word_tokenizer(spec.known_words)
    ids = [known.token_to_id(word) for names in MEANING.values() for word in names.values()]
    is_named = graph.op("Equal", _unsqueeze(graph, tokens, 2), graph.constant([ids], np.int64))
    counts = graph.op("Cast", is_named, to=onnx.TensorProto.FLOAT)
    counts = graph.op("ReduceSum", counts, graph.constant([1], np.int64), keepdims=0)
    return graph.op("Min", counts, graph.constant(1.0))


def tiny_timbre_encoder(spec: TinySpec) -> onnx.ModelProto:
    """One token: the mean over time after tanh, and a linear layer."""
    graph, weight = GraphWriter("timbre_encoder"), Weights(spec.seed + 5)
    latents = graph.input(f"{spec.prefix}reference", ("batch", spec.timbre_frames, spec.channels))
    mean = graph.op("ReduceMean", graph.op("Tanh", latents), graph.constant([1], np.int64), keepdims=1)
    token = graph.op("MatMul", mean, weight(graph, "w_timbre", spec.channels, spec.condition_width))
    graph.output(f"{spec.prefix}timbre", token, ("batch", 1, spec.condition_width))
    return graph.model()


def tiny_tokenizer() -> Tokenizer:
    """One token per byte after a start token, so that the empty text has one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {START_TOKEN: 0, **{letter: index + 1 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START_TOKEN} $A", special_tokens=[(START_TOKEN, 0)]
    )
    return tokenizer


def word_tokenizer(words: tuple[str, ...]) -> Tokenizer:
    """One token per word after a start token; all other words are the unknown token."""
    vocabulary = {word: index for index, word in enumerate((START_TOKEN, UNKNOWN_TOKEN, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START_TOKEN} $A", special_tokens=[(START_TOKEN, 0)]
    )
    return tokenizer


class Weights:
    """Named weights in a fixed order: normal with variance 1 / fan-in."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, graph: GraphWriter, name: str, *shape: int) -> str:
        fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        values: NDArray[np.float32] = self._random.standard_normal(shape).astype(np.float32)
        return graph.constant(values / np.float32(np.sqrt(fan_in)), name=name)


def _time_features(graph: GraphWriter, time: str, weight: str) -> str:
    column = _unsqueeze(graph, time, 1)
    return _unsqueeze(graph, graph.op("MatMul", column, weight), 1)


def _pooled(graph: GraphWriter, spec: TinySpec) -> str:
    rows, _, tokens = spec.axes
    name, axis = f"{spec.prefix}encoder_hidden_states", graph.constant([1], np.int64)
    if spec.condition == "vector":
        return _unsqueeze(graph, graph.input(name, (rows, spec.condition_width)), 1)
    condition = graph.input(name, (rows, tokens, spec.condition_width))
    if not spec.mask:
        return graph.op("ReduceMean", condition, axis, keepdims=1)
    mask = graph.input(f"{spec.prefix}condition_mask", (rows, tokens))
    kept = _unsqueeze(graph, mask, 2)
    total = graph.op("ReduceSum", graph.op("Mul", condition, kept), axis, keepdims=1)
    count = graph.op("Max", graph.op("ReduceSum", kept, axis, keepdims=1), graph.constant(1.0))
    return graph.op("Div", total, count)


def _convolve_time(graph: GraphWriter, frames: str, weight: str) -> str:
    channels_first = graph.op("Transpose", frames, perm=[0, 2, 1])
    convolved = graph.op("Conv", channels_first, weight, kernel_shape=[3], pads=[1, 1])
    return graph.op("Transpose", convolved, perm=[0, 2, 1])


def _carrier(graph: GraphWriter, latents: str, start: str) -> str:
    length = graph.op("Gather", graph.op("Shape", latents), graph.constant(1, np.int64))
    frames = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
    absolute = graph.op("Add", _unsqueeze(graph, start, 1), _unsqueeze(graph, frames, 0))
    # A table: the last bit of Cos depends on how many frames are computed at once, and windows must not differ.
    table = graph.constant(1.5 + np.cos(2 * np.pi / CARRIER_FRAMES * np.arange(CARRIER_FRAMES)))
    index = graph.op("Mod", absolute, graph.constant(CARRIER_FRAMES, np.int64))
    return _unsqueeze(graph, graph.op("Gather", table, index), 2)


def _unsqueeze(graph: GraphWriter, value: str, axis: int) -> str:
    return graph.op("Unsqueeze", value, graph.constant([axis], np.int64))


def _bundle_toml(spec: TinySpec) -> str:
    p = spec.prefix
    condition = f'condition = "{p}encoder_hidden_states"\n' if spec.condition else ""
    mask = f'condition_mask = "{p}condition_mask"\n' if spec.mask else ""
    context = f'context = "{p}context_latents"\n' if spec.context else ""
    jumps = f'time_end = "{p}timestep_r"\nguidance = "{p}guidance"\n' if spec.jumps else ""
    jumps += f'frame_numbers = "{p}frame_numbers"\n' if spec.clock else ""
    parts = [
        f"""schema_version = 1
name = "tiny"
version = "1.0.0"
family = "flow"
license = "Apache-2.0"
description = "Random weights, for tests."

[latents]
channels = {spec.channels}
frame_rate_hz = {spec.sample_rate_hz / spec.hop_samples}
frame_multiple = {spec.frame_multiple}
canvas_frames = {spec.canvas_frames}
{spec.latents}

[decoder]
graph = "decoder.onnx"
{'null_condition = "null_condition.npy"' if spec.null else ""}
mask_counts = {str(spec.mask_counts).lower()}
{"jump_guidance = [1.0, 4.0]" if spec.jumps else ""}
[decoder.inputs]
latents = "{p}hidden_states"
time = "{p}timestep"
{jumps}{condition}{mask}{context}[decoder.outputs]
velocity = "{p}velocity"

[sampler]
steps = {spec.steps}
{spec.sampler}
guidance = {spec.guidance}
denoise = 1.0
blend_power = {spec.blend_power}
blend_energy_below = {spec.blend_energy_below}
{f"[guidance]{chr(10)}{spec.rule}" if spec.rule else ""}
"""
    ]
    if spec.context:
        parts.append(f'[context]\nlayout = "known+mask"\nsilence = {spec.silence}\n')
        parts.append(f"overlap_frames = {spec.overlap_frames}\n")
    if spec.codec:
        parts.append(_codec_toml(spec))
    if spec.text_encoder:
        parts.append(_text_encoder_toml(spec))
    if spec.adapters:
        parts.append(_adapters_toml(spec))
    if spec.structure or spec.planner is not None:
        parts.append(STRUCTURE)
    if spec.notes or spec.stems:
        parts.append(NOTES.replace(" },\n    ]", f", {ENVELOPE} }},\n    ]") if spec.envelopes else NOTES)
    if spec.stems:
        parts.append('[stems]\nsaturation = "tanh"\n')
    if spec.tracks:
        parts.append(f"[stems]\ntracks = {json.dumps(spec.tracks)}\n")
    return "\n".join(parts)


def _codec_toml(spec: TinySpec) -> str:
    p = spec.prefix
    position = f', start_frame = "{p}start_frame"' if spec.group_frames == 1 else ""
    margin = "margin_frames = 1"
    if spec.group_frames > 1:
        margin = f"margin_frames = {spec.group_frames}\nalign_frames = {spec.group_frames}"
    decode = f"""[codec]
sample_rate_hz = {spec.sample_rate_hz}
channels = {spec.audio_channels}
hop_samples = {spec.hop_samples}
gain_db = {spec.gain_db}
[codec.decode]
graph = "codec_decode.onnx"
{margin}
inputs = {{ latents = "{p}latents"{position} }}
outputs = {{ audio = "{p}audio" }}
"""
    encode = f"""[codec.encode]
graph = "codec_encode.onnx"
{margin}
inputs = {{ audio = "{p}audio" }}
outputs = {{ latents = "{p}latents" }}
"""
    return decode + encode if spec.encode else decode


def _adapters_toml(spec: TinySpec) -> str:
    """Matrices whose input is `[R, T, in]`, and one, `time`, whose input is `[R, in]`; "x_in" is an alias of "in"."""
    sizes = {"in": (spec.channels, WIDTH), "time": (1, WIDTH), "out": (WIDTH, spec.channels)}
    lines = [
        f'"layers.0.{name}" = {{ weight = "w_{name}", inputs = {inputs}, outputs = {outputs} }}'
        for name, (inputs, outputs) in sizes.items()
    ]
    return '[adapters.aliases]\nx_in = "in"\n\n[adapters.matrices]\n' + "\n".join(lines) + "\n"


def _text_encoder_toml(spec: TinySpec) -> str:
    p = spec.prefix
    seconds = f', seconds = "{p}seconds"' if spec.seconds else ""
    tensors = f"""inputs = {{ tokens = "{p}input_ids", mask = "{p}attention_mask"{seconds} }}
outputs = {{ condition = "{p}condition", mask = "{p}condition_mask" }}
"""
    text = f"""[text_encoder]
graph = "text_encoder.onnx"
tokenizer = "tokenizer.json"
max_tokens = {spec.max_tokens}
{tensors}"""
    if spec.meaning:
        moods = f", {MOODS.strip()}" if spec.notes else ""
        text += f'meaning = {{ output = "{p}meaning", names = "meaning.json", drawn = "genre"{moods} }}\n'
    if not spec.conditions:
        return text
    return f"""{text}template = "{{prompt}} {{bpm}} {{key}} {{time_signature}} {{instruction}}"
missing = "-"
instruction_end = ":"
prefix_tokens = 5
[text_encoder.instructions]
text2music = ["t"]
cover = ["c"]
repaint = ["r"]
extract = ["x {{track}}", "x"]
complete = ["m {{track_classes}}", "m"]
[text_encoder.lyrics]
graph = "lyric_encoder.onnx"
template = "{{language}} {{lyrics}}"
max_tokens = {spec.max_tokens}
{tensors}
[timbre]
graph = "timbre_encoder.onnx"
frames = {spec.timbre_frames}
inputs = {{ latents = "{p}reference" }}
outputs = {{ condition = "{p}timbre" }}
"""


def with_option(path: Path, line: str) -> Path:
    """A deployment with one more line."""
    path.write_text(path.read_text() + line + "\n")
    return path


def folder_of(path: Path) -> Path:
    """Where a deployment's engines for TensorRT are."""
    return load_deployment(path).engine_folder("tensorrt")


def cache_of(path: Path) -> list[Path]:
    """A deployment's timing caches."""
    return sorted((load_deployment(path).engines / "timing-cache").glob("*.timing"))
