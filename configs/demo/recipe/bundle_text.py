"""The bundle's folder: every graph, the tokenizer and bundle.toml. Needs no torch."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnx

from configs.demo.recipe.binding import binding_tables
from configs.demo.recipe.codec.decoder import DECODE_MARGIN_FRAMES, build_decoder
from configs.demo.recipe.codec.encoder import ENCODE_MARGIN_FRAMES, build_encoder, load_weights
from configs.demo.recipe.corpus.batches import OVERLAP_FRAMES
from configs.demo.recipe.corpus.envelopes import ENVELOPES
from configs.demo.recipe.corpus.songs import BPM_RANGE
from configs.demo.recipe.corpus.theory import MODES, NOTE_NAMES
from configs.demo.recipe.instruments import (
    INSTRUMENTS,
    LAYERS,
    TIMBRE_CHANNELS,
    keys_of,
    pitch_channels,
    program_of,
    timbre_levels,
)
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    FRAME_RATE_HZ,
    FRAMES_PER_CODE,
    HOP_SAMPLES,
    LATENT_SCALE,
    NUM_CODES,
    SAMPLE_RATE_HZ,
    SILENCE,
    FloatArray,
)
from configs.demo.recipe.planner.pages import StructureCodes
from configs.demo.recipe.planner.tokens import beat_steps, planner_tables
from configs.demo.recipe.text_encoder import build_text_encoder, meaning_names
from configs.demo.recipe.tokenizer import MAX_TOKENS, TEMPLATE, build_tokenizer
from engine_build.export.bundle_tables import INPUTS, JUMP_INPUTS, table_text
from engine_build.graphs.planner_graph import cache_names

BUNDLE_FILE: Final = "bundle.toml"
ENCODER_FILE: Final = "codec_encoder.npz"  # beside the checkpoint, not in the bundle
TIMBRE_FRAMES: Final = 150
TIMBRE_TOKENS: Final = 2
SIZE_LIMIT_BYTES: Final = 32 * 2**20
# Frames between a note's hint and its sound, in the middle; measured, as evaluation/notes.py does.
HINT_DELAY: Final = 1
MEANING_FILE: Final = "meaning.json"
PLANNER_FILE: Final = "planner.onnx"
PLANNER_TOKENIZER_FILE: Final = "planner_tokenizer.json"
PLANNER_LAYERS: Final = 4
# Pages of training have at most 2304 tokens; longer sections are written in parts.
PLANNER_CAPACITY: Final = 2336
# Songs of the corpus are heard in their tonic in 55 of 60 cases, plans that are drawn once in no more.
PLANNER_OPENINGS: Final = 4
# Its clocks count frames.
DECODER_INPUTS: Final = {**INPUTS, "frame_numbers": "frame_numbers"}
# Shorter music has no room for a plan. What is planned keeps its beat behind the first canvas, and its key has a tonic
# where the decoder alone knows the scale: 21 of 24 pieces against 6.
PLANNED_FROM_S: Final = 6.0
# Names of modules in adapters of other trainers -> names here.
ADAPTER_ALIASES: Final = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out.0"}


def _envelope(instrument: str) -> dict[str, Any]:
    """The corpus' own, without tremolo and ring."""
    found = ENVELOPES[instrument]
    fall = {"decay": found.decay, "sustain": found.floor}
    return {"attack": list(found.attack), **fall, "release": list(found.release)}


def _note_layer(layer: str) -> dict[str, Any]:
    """A layer of `[notes]`."""
    instruments = [
        {"name": name, "levels": list(timbre_levels(layer, name)), "program": program_of(layer, name)}
        | ({} if layer == "drums" else {"envelope": _envelope(name)})
        for name in INSTRUMENTS[layer]
    ]
    channels = {"channels": list(pitch_channels(layer)), "keys": list(keys_of(layer))}
    timbre = {"timbre_channels": list(TIMBRE_CHANNELS[layer]), "instruments": instruments}
    return {"name": layer, **channels, **({"is_percussion": True} if layer == "drums" else {}), **timbre}


_TABLES: Final[dict[str, dict[str, Any]]] = {
    "": {
        "schema_version": 1,
        "name": "tickrt-demo",
        "version": "2.0.0",
        "family": "flow",
        "license": "Apache-2.0",
        "description": "A small music model of ACE-Step's architecture, trained on songs written by rule.",
    },
    "latents": {
        "channels": CHANNELS,
        "frame_rate_hz": FRAME_RATE_HZ,
        "frame_multiple": 2,
        "canvas_frames": CANVAS_FRAMES,
    },
    "decoder": {"graph": "decoder.onnx"},
    "decoder.inputs": DECODER_INPUTS,
    "decoder.outputs": {"velocity": "velocity"},
    "context": {"layout": "known+mask", "overlap_frames": OVERLAP_FRAMES, "silence": [SILENCE] * CHANNELS},
    "codec": {"sample_rate_hz": SAMPLE_RATE_HZ, "channels": 2, "hop_samples": HOP_SAMPLES, "gain_db": 3.0},
    "codec.decode": {
        "graph": "codec_decode.onnx",
        "margin_frames": DECODE_MARGIN_FRAMES,
        "inputs": {"latents": "latents", "start_frame": "start_frame"},
        "outputs": {"audio": "audio"},
    },
    "codec.encode": {
        "graph": "codec_encode.onnx",
        "margin_frames": ENCODE_MARGIN_FRAMES,
        "inputs": {"audio": "audio"},
        "outputs": {"latents": "latents"},
    },
    "text_encoder": {
        "graph": "text_encoder.onnx",
        "tokenizer": "tokenizer.json",
        "template": TEMPLATE,
        "max_tokens": MAX_TOKENS,
        "prefix_tokens": TIMBRE_TOKENS,
        "inputs": {"tokens": "input_ids", "mask": "attention_mask"},
        "outputs": {"condition": "condition", "mask": "condition_mask"},
    },
    "text_encoder.meaning": {"output": "meaning", "names": MEANING_FILE, "drawn": "genre", **binding_tables()},
    "timbre": {
        "graph": "timbre_encoder.onnx",
        "frames": TIMBRE_FRAMES,
        "inputs": {"latents": "reference_latents"},
        "outputs": {"condition": "condition"},
    },
    "structure": {"frames_per_code": FRAMES_PER_CODE, "num_codes": NUM_CODES},
    "structure.encode": {
        "graph": "structure_encode.onnx",
        "inputs": {"latents": "latents"},
        "outputs": {"codes": "codes"},
    },
    "structure.decode": {
        "graph": "structure_decode.onnx",
        "inputs": {"codes": "codes"},
        "outputs": {"hints": "hints"},
    },
    "notes": {
        "scale": LATENT_SCALE,
        "on": 0.12,
        "off": 0.06,
        "hint_delay": HINT_DELAY,
        "layers": [_note_layer(layer) for layer in LAYERS],
    },
    "stems": {"saturation": "tanh"},
    # Momentum of less than 0 is for many steps: with few ones the guidance goes up and down from step to step.
    "guidance": {"momentum": 0.0, "norm_limit": 4.375},
    "sampler": {
        "steps": 7,
        "live_steps": 5,
        "shift": 3.0,
        "schedules": {  # found by python -m configs.demo.recipe schedules 6 10 --interval-end 1
            "6": [1.0, 0.9557, 0.8872, 0.767, 0.6136, 0.3835],
            "10": [1.0, 0.9673, 0.926, 0.8858, 0.8287, 0.7466, 0.6631, 0.5584, 0.424, 0.2091],
        },
        "fitted": {  # found by python -m configs.demo.recipe fit 5 7
            "5": {
                "times": [1.0, 0.9639, 0.8804, 0.6703, 0.294],
                "ends": [0.9583, 0.8837, 0.6878, 0.2926, 0.0],
                "extrapolation": [0.0, 0.731, 0.7813, 0.7049, 0.4203],
            },
            "7": {
                "times": [1.0, 0.9677, 0.9114, 0.8472, 0.7558, 0.5133, 0.2535],
                "ends": [0.9644, 0.9095, 0.85, 0.763, 0.5189, 0.2529, 0.0],
                "extrapolation": [0.0, 0.7121, 0.6649, 0.6223, 0.7535, 0.7305, 0.7175],
            },
        },
        "kept": {"50": [*range(11), *range(13, 50, 3)]},  # found by tickrt-bench skip configs/demo.toml
        "solver": "ab2",
        "guidance": 2.14,
        "denoise": 1.0,
        "blend_power": 8,
        "blend_energy_below": 0.8,
    },
    "options": {
        "bpm": {"min": BPM_RANGE[0], "max": BPM_RANGE[1]},  # of the corpus
        "steps": {"usual": [4, 32]},
        "shift": {"usual": [1, 6]},
        "guidance": {"usual": [1, 5]},
        "velocity_scale": {"usual": [0.8, 1.2]},
        "momentum": {"usual": [-1, 0]},
        "ode_noise": {"usual": [0, 0.3]},
        "dcw_low": {"usual": [0, 0.02]},  # above, it loses its key
        "dcw_high": {"usual": [0, 0.2]},
    },
    "controls": {
        "bpm": {"option": "bpm"},
        "scale": {"option": "key", "values": [f"{note} {mode}" for mode in MODES for note in NOTE_NAMES]},
        "meter": {"option": "time_signature", "values": [4, 3, 6]},
        "density": {"words": ["sparse", "", "dense"]},
        "brightness": {"words": ["dark", "", "bright"]},
        "mute_bass": {"words": ["", "no bass"]},
        "mute_drums": {"words": ["", "no drums"]},
        "only_bass_and_drums": {"words": ["", "bass, drums, no pads, no arps, no melody"]},
    },
}


def write_codec(folder: Path, encoder_weights: Path) -> None:
    """Write both halves of the codec, the encoder with the weights that `train-encoder` wrote."""
    onnx.save(build_decoder(), folder / "codec_decode.onnx")
    onnx.save(build_encoder(load_weights(encoder_weights)), folder / "codec_encode.onnx")


def write_text_side(folder: Path, token_table: FloatArray) -> None:
    """Write tokenizer, text_encoder with its table of tokens f32 `[NUM_TOKENS, D]`, and the names of its meaning."""
    onnx.save(build_text_encoder(token_table), folder / "text_encoder.onnx")
    (folder / "tokenizer.json").write_text(build_tokenizer().to_str(), encoding="utf-8")
    (folder / MEANING_FILE).write_text(json.dumps(meaning_names(), indent=1) + "\n", encoding="utf-8")


def write_bundle_file(
    folder: Path,
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    matrices: Mapping[str, Any] = {},
) -> None:
    """Write bundle.toml, with the planner where its graph is there, and jumps where the decoder's graph takes where
    they end; figures are free tables of plain values.

    matrices: those of the decoder that take adapters, by module path.
    """
    tables = _TABLES | {"training": dict(training), "evaluation": dict(evaluation)}
    if (decoder := folder / _TABLES["decoder"]["graph"]).exists() and jumps(onnx.load(decoder)):
        tables |= _jump_tables()
    if (folder / PLANNER_FILE).exists():
        tables |= _planner_tables(folder)
    if matrices:
        tables |= {"adapters.aliases": ADAPTER_ALIASES, "adapters.matrices": dict(matrices)}
    text = "\n".join(table_text(name, values) for name, values in tables.items())
    (folder / BUNDLE_FILE).write_text(text, encoding="utf-8")


def rewrite_bundle_file(
    folder: Path,
    training: Mapping[str, Any] = {},
    evaluation: Mapping[str, Any] = {},
    matrices: Mapping[str, Any] = {},
) -> None:
    """Write bundle.toml again, with these figures in place of those of the same name or beside the others."""
    tables = read_bundle_file(folder)
    matrices = matrices or tables.get("adapters", {}).get("matrices", {})
    write_bundle_file(folder, tables["training"] | training, tables["evaluation"] | evaluation, matrices)


def jumps(decoder: onnx.ModelProto) -> bool:
    """Whether a decoder's graph takes where a jump ends."""
    return JUMP_INPUTS["time_end"] in {each.name for each in decoder.graph.input}


def _jump_tables() -> dict[str, dict[str, Any]]:
    """The tables of a decoder that jumps: what it is without is what it falls back to."""
    velocity = {
        name: _TABLES["sampler"][name] for name in ("solver", "steps", "live_steps", "schedules", "kept", "fitted")
    }
    jumps = {"solver": "jump", "steps": 6, "live_steps": 4, "schedules": {}, "kept": {}, "fitted": {}}
    return {
        "decoder": _TABLES["decoder"] | {"jump_guidance": [1.0, 4.0]},
        "decoder.inputs": DECODER_INPUTS | JUMP_INPUTS,
        "sampler": _TABLES["sampler"] | jumps,
        "sampler.velocity": velocity,
    }


def _planner_tables(folder: Path) -> dict[str, dict[str, Any]]:
    """`[planner]` and its tables."""
    tables, names = planner_tables(), cache_names(PLANNER_LAYERS)
    structure = StructureCodes(folder)
    tables["plan"] |= {"silent": structure.silent, "openings": PLANNER_OPENINGS}
    tables["plan"] |= {"scales": list(MODES.values()), "pitches": structure.pitches}
    tables["plan"] |= {"steps": beat_steps(), "onsets": structure.onsets}
    nested = {f"planner.{name}": tables.pop(name) for name in ("sampler", "plan", "codes")}
    files = {"graph": PLANNER_FILE, "tokenizer": PLANNER_TOKENIZER_FILE, "capacity": PLANNER_CAPACITY}
    files |= {"default": True, "default_from_s": PLANNED_FROM_S}
    inputs = {"planner.inputs": {"past": names.past}, "planner.outputs": {"present": names.present}}
    return {"planner": files | tables, **inputs, **nested}


def read_bundle_file(folder: Path) -> dict[str, Any]:
    """bundle.toml as nested dictionaries."""
    return tomllib.loads((folder / BUNDLE_FILE).read_text(encoding="utf-8"))


def bundle_size_bytes(folder: Path) -> int:
    """Size of everything in the folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
