"""The engines of a deployment, each as an EngineSpec: its graph, the roles of its tensors, and their sizes.

Shape letters: R rows, T frames, C latent channels, X context channels, L condition tokens, D condition width, S slots,
K and N conditions and negatives per slot, B batch, A audio channels, W samples, P the text encoder's output tokens, Q
packed rank of adapters, I and O input and output features of the matrices that they change, Y structure codes. Of text
graphs N is the names that a prompt may mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic_core import from_json

from engine_build.config import ROWS_VARIANTS, parse_variant
from engine_build.graphs.adapter_graph import adapter_graph
from engine_build.graphs.graph_file import Graph, decoder_graph, derived_graph, graph_of, read_graph, with_axis_names
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.ring_graph import ring_graph
from engine_build.graphs.step_graph import BlendRule, rows_graph, step_graph
from engine_build.request import BuildRequest
from engine_build.specs.engine_spec import EngineSpec, Port, Range, Sizes, check_free, check_ports, file_spec
from engine_build.specs.planner_specs import planner_specs
from runtime.audio.codec import MAX_BATCH
from runtime.base.errors import ConfigError
from runtime.base.untrusted import plain_utf8
from runtime.config.bundle import Bundle
from runtime.config.codec import CodecDecodeSpec, CodecEncodeSpec, CodecSpec, StructureSpec
from runtime.config.conditions import TextEncoderSpec, TextGraphSpec, TimbreSpec
from runtime.config.decoder import DecoderSpec
from runtime.config.deployment import ADAPTER_RANK_MULTIPLE, Deployment, ShapeRange, ShapeRanges
from runtime.engines.adapters import ADAPTED_DECODER, FACTORS_B, ROW_WEIGHTS
from runtime.engines.engine import FEATURE_SEPARATOR, PLAIN, variant_name
from runtime.requests.request import MAX_CONDITIONS
from runtime.tick.denoise.row_buffers import row_multiple
from runtime.tick.denoise.slot_fields import (
    ADAPTERS,
    CONTEXT_RING,
    RING,
    RING_TENSORS,
    TickTensor,
    rows_inputs,
    step_inputs,
    written_states,
)

# Of lyrics, whose graph attends over all of them at once.
SAMPLE_TOKENS = 512
_TOKENIZER_FIX = "set text_encoder.tokenizer in bundle.toml to a tokenizer.json"


SAMPLE_FRAMES = 32
# Rows times frames of the decoder. The reference runs on the CPU, where this is 11 TFLOP at 1.6 B parameters.
LARGEST_SAMPLE = 6000


def engine_specs(request: BuildRequest) -> list[EngineSpec]:
    """Every engine of a deployment, decoder first. Raises ConfigError, BuildError where graph and bundle differ."""
    bundle, deployment = request.bundle, request.deployment
    specs = [_decoder_spec(bundle, deployment)]
    if deployment.runtime.adapter_rank:
        specs.append(_adapted_decoder_spec(bundle, deployment, specs[0]))
    specs += [spec for name in ROWS_VARIANTS if (spec := _rows_spec(bundle, deployment, name)) is not None]
    specs += [_step_spec(bundle, deployment, name) for name in request.options.step_variants]
    if bundle.codec is not None:
        specs += _codec_specs(bundle, bundle.codec, deployment)
    if bundle.text_encoder is not None:
        specs += _text_specs(bundle, bundle.text_encoder, specs[0])
    if bundle.structure is not None:
        specs += _structure_specs(bundle, bundle.structure)
    if bundle.planner is not None:
        specs += planner_specs(bundle, bundle.planner, deployment.runtime.planner_sequences)
    return [replace(spec, graph=with_axis_names(spec.graph, spec.letters)) for spec in specs]


def _decoder_spec(bundle: Bundle, deployment: Deployment) -> EngineSpec:
    names = bundle.decoder.inputs
    graph = decoder_graph(bundle)
    ports = _decoder_ports(graph, bundle.decoder)
    outputs = (Port("decoder.outputs.velocity", bundle.decoder.outputs.velocity, "RTC"),)
    known = {"C": bundle.latents.channels, "X": bundle.context_channels}
    sizes = check_ports(graph, ports, outputs, known)
    if names.condition is not None and "D" not in sizes:
        raise ConfigError(f"{graph.label}: the last dimension of {names.condition!r} is free, expected a fixed width")
    free = _extent(deployment)
    if deployment.max_tokens > 1 and not any("L" in port.letters for port in ports):
        raise ConfigError(
            f"{deployment.path}: [[shapes]] has {deployment.max_tokens} tokens, the decoder has no token dimension",
            fix="remove tokens from [[shapes]]",
        )
    check_free(graph, (*ports, *outputs), free)
    return EngineSpec(
        name="decoder",
        graph=graph,
        inputs=tuple(ports),
        outputs=outputs,
        samples=new_lengths_first(
            [{**sizes, **sample} for ranges in deployment.shapes for sample in decoder_samples(ranges)]
        ),
        largest={**sizes, **{letter: high for letter, (_, high) in free.items()}},
        ranges=decoder_ranges(deployment),
        shapes=deployment.shapes,
        padded="RLQ" if names.condition_mask else "RQ",
    )


def _adapted_decoder_spec(bundle: Bundle, deployment: Deployment, decoder: EngineSpec) -> EngineSpec:
    """The decoder for adapters: its packed rank Q is at most the deployment's adapter_rank."""
    if bundle.adapters is None:
        raise ConfigError(
            f"{deployment.path}: runtime.adapter_rank: bundle {bundle.name!r} has no [adapters]: it takes no adapters",
            fix="adapter_rank = 0, or export the bundle again",
        )
    known = {"I": bundle.adapters.num_inputs, "O": bundle.adapters.num_outputs}
    ranges = adapted_ranges(deployment)
    least, _, most = ranges[0]["Q"]
    values = {FACTORS_B: "small", ROW_WEIGHTS: "unit"}
    ports = [Port(name, name, tensor.letters, values=values.get(name, "normal")) for name, tensor in ADAPTERS.items()]
    model = adapter_graph(model_of(decoder.graph), bundle.adapters, bundle.decoder.inputs.latents)
    return replace(
        decoder,
        name=ADAPTED_DECODER,
        graph=derived_graph(model, decoder.graph),
        inputs=(*decoder.inputs, *ports),
        samples=tuple({**known, **sizes, "Q": most if index else least} for index, sizes in enumerate(decoder.samples)),
        largest={**known, **decoder.largest, "Q": most},
        ranges=ranges,
    )


def _decoder_ports(graph: Graph, decoder: DecoderSpec) -> list[Port]:
    names = decoder.inputs
    ranks = {info.name: len(info.shape) for info in graph.inputs}
    letters = names.letters(ranks.get(names.condition or "", 3))
    # A sum of many random tokens may ask for what no prompt does: the demo's tempo, multiplied by the time of a late
    # frame, would show how float32 rounds.
    mask = "copies" if decoder.mask_counts else "keep"
    values = {
        "time": "unit",
        "time_end": "unit",
        "guidance": "unit",
        "condition_mask": mask,
        "condition": "tenth",
        "frame_numbers": "ramp",
    }
    return [
        Port(f"decoder.inputs.{role}", name, letters[name], values=values.get(role, "normal"))
        for role, name in names.model_dump(exclude_none=True).items()
    ]


def _rows_spec(bundle: Bundle, deployment: Deployment, variant: str) -> EngineSpec | None:
    """None: the bundle has nothing that it is for."""
    features = frozenset() if variant == PLAIN else frozenset(variant.split(FEATURE_SEPARATOR))
    if features >= RING:
        return _ring_spec(bundle, deployment, variant, features)
    outputs = [_output("hidden_states", "RTC")]
    if "mask" in features:
        outputs.append(_output("masked_latents", "STC"))
    graph = graph_of(rows_graph(bundle.latents.channels, features))
    return _tick_spec(f"rows.{variant}", graph, rows_inputs(features), outputs, features, bundle, deployment)


def _ring_spec(bundle: Bundle, deployment: Deployment, variant: str, features: frozenset[str]) -> EngineSpec | None:
    is_context = features == CONTEXT_RING
    channels = bundle.context_channels if is_context else bundle.latents.channels
    if not channels:
        return None
    letter = "X" if is_context else "C"
    tensors = [replace(tensor, letters=tensor.letters.replace("C", letter)) for tensor in RING_TENSORS]
    outputs = [_output("turned", f"RT{letter}")]
    graph = graph_of(ring_graph(channels))
    return _tick_spec(f"rows.{variant}", graph, tensors, outputs, features, bundle, deployment)


def _blend_rule(bundle: Bundle) -> BlendRule:
    silence = bundle.silence(bundle.latents.canvas_frames).mean(axis=0)  # [C]
    sampler = bundle.sampler
    return BlendRule(sampler.blend_power, tuple(silence.tolist()), sampler.blend_energy_below)


def _step_spec(bundle: Bundle, deployment: Deployment, variant: str) -> EngineSpec:
    features, guidance = parse_variant(variant), bundle.guidance
    outputs = [_output(f"next_{name}", "STC") for name in written_states(features, guidance.rule)]
    outputs.append(Port("finite", "finite", "S", "bool"))
    graph = graph_of(step_graph(bundle.latents.channels, features, _blend_rule(bundle), guidance))
    name, inputs = f"step.{variant_name(features)}", step_inputs(features, guidance.rule)
    spec = _tick_spec(name, graph, inputs, outputs, features, bundle, deployment)
    return replace(spec, made_with=guidance.made_with(features))


def _tick_spec(
    name: str,
    graph: Graph,
    tensors: Iterable[TickTensor],
    outputs: list[Port],
    features: frozenset[str],
    bundle: Bundle,
    deployment: Deployment,
) -> EngineSpec:
    multiple, conditions = bundle.latents.frame_multiple, 2 if "blend" in features else 1
    known = {"C": bundle.latents.channels, "X": bundle.context_channels, "1": 1}
    latents = bundle.latents
    # Every length is a multiple of frame_multiple, so rows aligned for that length are aligned for all.
    aligned = row_multiple(latents.frame_multiple, latents.channels)
    ranges = tick_ranges(deployment, features, is_step=name.startswith("step."), row_multiple=aligned)
    samples = [(1, 1, multiple), (3, 7, bundle.latents.round_up(SAMPLE_FRAMES)), (2, 4, multiple * 5)]
    inside = [_inside(ranges[0], *sample) for sample in samples]
    largest = (deployment.runtime.depth, deployment.max_rows, max_frames(deployment))
    return EngineSpec(
        name=name,
        graph=graph,
        inputs=tuple(_tick_port(tensor) for tensor in tensors),
        outputs=tuple(outputs),
        samples=tuple(_tick_sizes(*sample, conditions, known) for sample in inside),
        largest=_tick_sizes(*largest, conditions, known),
        ranges=ranges,
        features=tuple(sorted(features)),
    )


def _inside(ranges: Mapping[str, Range], slots: int, rows: int, frames: int) -> tuple[int, int, int]:
    def inside(letter: str, size: int) -> int:
        return min(max(size, ranges[letter][0]), ranges[letter][2])

    return inside("S", slots), inside("R", rows), inside("T", frames)


def _tick_sizes(slots: int, rows: int, frames: int, conditions: int, known: Sizes) -> Sizes:
    bands = -(-frames // 2)
    return {**known, "S": slots, "R": rows, "T": frames, "B": bands, "K": conditions, "N": conditions}


def _tick_port(tensor: TickTensor) -> Port:
    if tensor.dtype == "bool":
        return Port(tensor.name, tensor.name, tensor.letters, "bool", "flag")
    if tensor.dtype == "int64":
        return Port(
            tensor.name, tensor.name, tensor.letters, "int64", "count", "S" if tensor.name == "row_slots" else "R"
        )
    return Port(tensor.name, tensor.name, tensor.letters, values="normal" if "C" in tensor.letters else "unit")


def _output(name: str, letters: str) -> Port:
    return Port(name, name, letters)


def _codec_specs(bundle: Bundle, codec: CodecSpec, deployment: Deployment) -> Iterator[EngineSpec]:
    known = {"C": bundle.latents.channels, "A": codec.channels}
    window = min(half.window_frames for half in codec.halves.values())
    least = bundle.latents.round_up(max(half.shortest_frames for half in codec.halves.values()))
    frames = (least, max(min(bundle.latents.round_up(SAMPLE_FRAMES), window), least))
    samples = [{**known, "B": 1, "T": count, "W": count * codec.hop_samples} for count in frames]
    longest = max_frames(deployment)
    largest = {**known, "B": 1, "T": longest, "W": longest * codec.hop_samples}
    names = codec.decode.inputs
    ports = [Port("codec.decode.inputs.latents", names.latents, "BTC")]
    if names.start_frame is not None:
        ports.append(Port("codec.decode.inputs.start_frame", names.start_frame, "B", "int64", "count", "T"))
    audio = Port("codec.decode.outputs.audio", codec.decode.outputs.audio, "BAW")
    graph = read_graph(bundle.graph_path(codec.decode.graph))
    is_free = any(info.name == names.latents and isinstance(info.shape[0], str) for info in graph.inputs)
    ranges = codec_ranges(codec.hop_samples, codec.decode, MAX_BATCH if is_free else 1)
    yield file_spec("codec_decode", bundle, codec.decode.graph, ports, [audio], samples, largest, ranges)
    if codec.encode is not None:
        audio = Port("codec.encode.inputs.audio", codec.encode.inputs.audio, "BAW", values="unit")
        latents = Port("codec.encode.outputs.latents", codec.encode.outputs.latents, "BTC")
        ranges = codec_ranges(codec.hop_samples, codec.encode)
        yield file_spec("codec_encode", bundle, codec.encode.graph, [audio], [latents], samples, largest, ranges)


def _structure_specs(bundle: Bundle, structure: StructureSpec) -> Iterator[EngineSpec]:
    """Latents to codes and codes to hints, one source at a time, in pieces of at most a canvas."""
    frames, most = structure.frames_per_code, structure.codes_per_piece(bundle.latents.canvas_frames)
    known = {"B": 1, "C": bundle.latents.channels, "V": structure.num_codes}
    counts = (1, -(-most // 2), most)
    sizes = [{**known, "Y": count, "T": count * frames} for count in counts]
    samples = [size for size in sizes if size["Y"] <= SAMPLE_FRAMES] or sizes[:1]
    ranges = ({"B": (1, 1, 1), "Y": counts, "T": (frames, counts[1] * frames, most * frames)},)
    encode, decode = structure.encode, structure.decode
    latents = Port("structure.encode.inputs.latents", encode.inputs.latents, "BTC")
    codes = Port("structure.encode.outputs.codes", encode.outputs.codes, "BY", "int64")
    yield file_spec("structure_encode", bundle, encode.graph, [latents], [codes], samples, sizes[-1], ranges)
    codes = Port("structure.decode.inputs.codes", decode.inputs.codes, "BY", "int64", "count", "V")
    hints = Port("structure.decode.outputs.hints", decode.outputs.hints, "BTC")
    yield file_spec("structure_decode", bundle, decode.graph, [codes], [hints], samples, sizes[-1], ranges)


def _text_specs(bundle: Bundle, text_encoder: TextEncoderSpec, decoder: EngineSpec) -> Iterator[EngineSpec]:
    """The graphs that make condition tokens: text, lyrics, timbre."""
    known = {"D": decoder.largest["D"], "V": _vocabulary(bundle, text_encoder)}
    meaning = []
    if text_encoder.meaning is not None:
        known["N"] = sum(map(len, bundle.meaning_names().values()))
        meaning = [Port("text_encoder.meaning.output", text_encoder.meaning.output, "BN")]
    yield _text_spec("text_encoder", "text_encoder", bundle, text_encoder, known, meaning)
    if text_encoder.lyrics is not None:
        yield _text_spec("lyric_encoder", "text_encoder.lyrics", bundle, text_encoder.lyrics, known)
    if bundle.timbre is not None:
        yield _timbre_spec(bundle, bundle.timbre, decoder.largest["D"])


def _text_spec(
    name: str, table: str, bundle: Bundle, text: TextGraphSpec, known: Sizes, more: Iterable[Port] = ()
) -> EngineSpec:
    longest = text.max_tokens
    ports = [
        Port(f"{table}.inputs.tokens", text.inputs.tokens, "BL", "int64", "count", "V"),
        Port(f"{table}.inputs.mask", text.inputs.mask, "BL", "int64", "keep"),
    ]
    if text.inputs.seconds is not None:
        ports.append(Port(f"{table}.inputs.seconds", text.inputs.seconds, "B", values="unit"))
    outputs = [
        Port(f"{table}.outputs.condition", text.outputs.condition, "BPD"),
        Port(f"{table}.outputs.mask", text.outputs.mask, "BP"),
        *more,
    ]
    lengths = sorted({1, min(-(-longest // 2), SAMPLE_TOKENS), min(longest, SAMPLE_TOKENS)})
    samples = [{**known, "B": 1, "L": length, "P": length} for length in lengths]
    largest = {**samples[-1], "L": longest, "P": longest}
    return file_spec(name, bundle, text.graph, ports, outputs, samples, largest, token_ranges(longest))


def _timbre_spec(bundle: Bundle, timbre: TimbreSpec, condition_width: int) -> EngineSpec:
    ports = [Port("timbre.inputs.latents", timbre.inputs.latents, "BFC")]
    outputs = [Port("timbre.outputs.condition", timbre.outputs.condition, "BPD")]
    sizes = {"B": 1, "F": timbre.frames, "C": bundle.latents.channels, "D": condition_width, "P": 1}
    return file_spec("timbre_encoder", bundle, timbre.graph, ports, outputs, [sizes], sizes, ({"B": (1, 1, 1)},))


def _vocabulary(bundle: Bundle, text_encoder: TextEncoderSpec) -> int:
    path = bundle.graph_path(text_encoder.tokenizer)
    try:
        table = from_json(plain_utf8(path.read_bytes()))
        vocabulary, added = table["model"]["vocab"], table.get("added_tokens", [])
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        return int(1 + max([*ids, *(token["id"] for token in added)]))
    except OSError as error:
        raise ConfigError(f"no tokenizer at {path}: {error.strerror}", fix=_TOKENIZER_FIX) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a Hugging Face tokenizer file: {error!r}", fix=_TOKENIZER_FIX) from error


def _extent(deployment: Deployment) -> dict[str, tuple[int, int]]:
    """(min, max) over all shape ranges, by letter, of the dimensions that vary at run time."""
    dimensions = {"R": "rows", "T": "frames", "L": "tokens"}
    ranges = {letter: [getattr(shape, name) for shape in deployment.shapes] for letter, name in dimensions.items()}
    return {letter: (min(r.min for r in found), max(r.max for r in found)) for letter, found in ranges.items()}


def decoder_ranges(deployment: Deployment) -> tuple[dict[str, Range], ...]:
    """The deployment's shape ranges, one optimization profile each."""
    return tuple(
        {"R": _range(shape.rows), "T": _range(shape.frames), "L": _range(shape.tokens)} for shape in deployment.shapes
    )


def adapted_ranges(deployment: Deployment) -> tuple[dict[str, Range], ...]:
    """decoder_ranges() with the packed rank of adapters."""
    most = deployment.runtime.adapter_rank
    return tuple({**sizes, "Q": (ADAPTER_RANK_MULTIPLE, most, most)} for sizes in decoder_ranges(deployment))


def tick_ranges(
    deployment: Deployment, features: Collection[str], *, is_step: bool, row_multiple: int = 1
) -> tuple[dict[str, Range], ...]:
    """Sizes of the rows and step graphs: up to all slots with all their conditions, at every length of a shape range.

    Rows of all executes of a tick are in one buffer, each execute's at a multiple of `row_multiple`. Only blends have
    more than one positive and one negative row.
    """
    depth, first = deployment.runtime.depth, deployment.shapes[0].frames
    frames = (min(shape.frames.min for shape in deployment.shapes), first.opt, max_frames(deployment))
    per_slot = 2 if is_step and "blend" not in features else 2 * MAX_CONDITIONS
    conditions = (1, 2, MAX_CONDITIONS) if "blend" in features else (1, 1, 1)
    bands = (-(-frames[0] // 2), -(-frames[1] // 2), -(-frames[2] // 2))
    return (
        {
            "S": (1, depth, depth),
            "R": (1, 2 * depth, per_slot * depth * row_multiple),
            "T": frames,
            "B": bands,
            "K": conditions,
            "N": conditions,
        },
    )


def codec_ranges(
    hop_samples: int, half: CodecDecodeSpec | CodecEncodeSpec, batch: int = 1
) -> tuple[dict[str, Range], ...]:
    """Whole groups of frames: the fewest that there can be, up to the bundle's `window_frames` with both margins.

    With a batch a second range: of so many windows, as short as those of live sessions and of streams.
    """
    margins, least = 2 * half.margin_frames, 1 + half.missing(1)
    usual = max(min(SAMPLE_FRAMES * 2, half.window_frames) // half.align_frames * half.align_frames + margins, least)
    frames = (least, usual, max(half.window_frames + margins, least))
    samples = (frames[0] * hop_samples, frames[1] * hop_samples, frames[2] * hop_samples)
    alone: dict[str, Range] = {"B": (1, 1, 1), "T": frames, "W": samples}
    if batch == 1:
        return (alone,)
    few = (least, usual, usual)
    return alone, {"B": (2, batch, batch), "T": few, "W": (samples[0], samples[1], samples[1])}


def token_ranges(max_tokens: int) -> tuple[dict[str, Range], ...]:
    """One text at a time, of any length."""
    return ({"B": (1, 1, 1), "L": (1, -(-max_tokens // 2), max_tokens)},)


def decoder_samples(ranges: ShapeRanges) -> Iterator[Sizes]:
    """Corners of a range, kept small: opt lengths; all at min; max lengths with min rows; max rows with min frames.

    Of these only the first may be more work than LARGEST_SAMPLE.
    """
    rows, frames, tokens = ranges.rows, ranges.frames, ranges.tokens
    few = max(rows.min, min(2, rows.max, LARGEST_SAMPLE // frames.opt))
    yield {"R": few, "T": frames.opt, "L": tokens.opt}
    others = (
        {"R": rows.min, "T": frames.min, "L": tokens.min},
        {"R": rows.min, "T": frames.max, "L": tokens.max},
        {"R": rows.max, "T": frames.min, "L": tokens.opt},
    )
    yield from (sizes for sizes in others if sizes["R"] * sizes["T"] <= LARGEST_SAMPLE)


def new_lengths_first(samples: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """The first sample of every length T before all others: of a large graph only these are run on the CPU."""
    firsts: dict[int, Sizes] = {}
    for sizes in samples:
        firsts.setdefault(sizes["T"], sizes)
    return (*firsts.values(), *(sizes for sizes in samples if sizes not in firsts.values()))


def max_frames(deployment: Deployment) -> int:
    """The largest T of a deployment."""
    return max(ranges.frames.max for ranges in deployment.shapes)


def _range(limits: ShapeRange) -> Range:
    return limits.min, limits.opt, limits.max
