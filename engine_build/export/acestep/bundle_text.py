"""bundle.toml of an exported ACE-Step, and a first deployment file. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_build.export.acestep.planner_text import BPM
from engine_build.export.toml_text import table_text, value_text

# The pipeline's defaults. Turbo checkpoints are guidance-distilled: their default is no guidance.
STEPS: Final = 8
SHIFT: Final = 3.0
GUIDANCE: Final = 7.0
DCW: Final = {"mode": "double", "low": 0.05, "high": 0.02}
# Windows of 5 s halve the memory of Oobleck's decoder, for one sixth more work at the margins.
WINDOW_FRAMES: Final = 128
OVERLAP_S: Final = 10.0
# Modules in LoRA adapters of ACE-Step's own trainer -> their names in diffusers.
ALIASES: Final = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out.0"}
# What checkpoints that know the task extract were trained to take out; turbo checkpoints were not.
TRACKS: Final = (
    "vocals", "backing_vocals", "drums", "bass", "guitar", "keyboard", "percussion", "strings", "synth", "fx", "brass",
    "woodwinds",
)  # fmt: skip
# Controls that are said in the caption.
SAID_CONTROLS: Final = {
    "density": {"words": ["sparse arrangement", "", "dense arrangement"]},
    "brightness": {"words": ["dark tone", "", "bright tone"]},
    "mute_bass": {"words": ["", "without bass"]},
    "mute_drums": {"words": ["", "without drums"]},
    "only_bass_and_drums": {"words": ["", "only bass and drums"]},
}

DECODER: Final = "decoder.onnx"
DECODE: Final = "codec_decode.onnx"
ENCODE: Final = "codec_encode.onnx"
TEXT_ENCODER: Final = "text_encoder.onnx"
LYRIC_ENCODER: Final = "lyric_encoder.onnx"
TIMBRE_ENCODER: Final = "timbre_encoder.onnx"
STRUCTURE_ENCODE: Final = "structure_encode.onnx"
STRUCTURE_DECODE: Final = "structure_decode.onnx"
TOKENIZER: Final = "tokenizer.json"
SILENCE: Final = "silence.npy"
NULL_CONDITION: Final = "null_condition.npy"


@dataclass(frozen=True)
class BundleFacts:
    """The content of bundle.toml.

    `silence`: one frame, or None where silence.npy has a sequence. adapters: the matrices of [adapters]. planner: its
    tables.
    """

    name: str
    description: str
    channels: int
    frame_rate_hz: float
    frame_multiple: int
    canvas_s: float
    is_turbo: bool
    sample_rate_hz: int
    audio_channels: int
    hop_samples: int
    decode_margin_frames: int
    encode_margin_frames: int
    silence: tuple[float, ...] | None
    has_null_condition: bool
    text_encoder: Mapping[str, Any] | None = None
    lyrics: Mapping[str, Any] | None = None
    timbre: Mapping[str, Any] | None = None
    adapters: Mapping[str, Any] = field(default_factory=dict)
    structure: Mapping[str, int] | None = None
    planner: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def canvas_frames(self) -> int:
        """Frames of a full generation, a multiple of frame_multiple."""
        return canvas_frames(self.canvas_s, self.frame_rate_hz, self.frame_multiple)

    @property
    def overlap_frames(self) -> int:
        """Frames that the next segment keeps: 10 s, at most a quarter of the canvas."""
        overlap = min(round(OVERLAP_S * self.frame_rate_hz), self.canvas_frames // 4)
        return max(overlap // self.frame_multiple, 1) * self.frame_multiple

    def even(self, frames: int) -> int:
        """`frames` rounded up to a multiple of frame_multiple."""
        return -(-frames // self.frame_multiple) * self.frame_multiple


def canvas_frames(canvas_s: float, frame_rate_hz: float, multiple: int) -> int:
    """Frames of `canvas_s` seconds, rounded down to a multiple, at least one."""
    return max(round(canvas_s * frame_rate_hz) // multiple, 1) * multiple


def bundle_text(facts: BundleFacts) -> str:
    """bundle.toml."""
    tables: dict[str, Mapping[str, Any]] = {
        "": {
            "schema_version": 1,
            "name": facts.name,
            "family": "flow",
            "description": facts.description,
        },
        "latents": {
            "channels": facts.channels,
            "frame_rate_hz": facts.frame_rate_hz,
            "frame_multiple": facts.frame_multiple,
            "canvas_frames": facts.canvas_frames,
        },
        **_decoder_tables(facts),
        **_codec_tables(facts),
        **_text_encoder_tables(facts),
        **_structure_tables(facts),
        **facts.planner,
        "sampler": {"steps": STEPS, "shift": SHIFT, "guidance": 1.0 if facts.is_turbo else GUIDANCE, "denoise": 1.0},
        "sampler.dcw": DCW,
        **_controls_tables(facts),
        "training": facts.figures,
    }
    if facts.adapters:
        tables |= {"adapters.aliases": ALIASES, "adapters.matrices": facts.adapters}
    return "\n".join(table_text(name, values) for name, values in tables.items())


def _decoder_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    null = {"null_condition": NULL_CONDITION} if facts.has_null_condition else {}
    return {
        "decoder": {"graph": DECODER, **null},
        "decoder.inputs": {
            "latents": "hidden_states",
            "time": "timestep",
            "condition": "encoder_hidden_states",
            "condition_mask": "condition_mask",
            "context": "context_latents",
        },
        "decoder.outputs": {"velocity": "velocity"},
        "context": {
            "layout": "known+mask",
            "overlap_frames": facts.overlap_frames,
            "silence": SILENCE if facts.silence is None else facts.silence,
        },
    }


def _codec_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    """Margins are multiples, as windows are: a codec whose frames come in pairs sees whole pairs."""
    return {
        "codec": {
            "sample_rate_hz": facts.sample_rate_hz,
            "channels": facts.audio_channels,
            "hop_samples": facts.hop_samples,
        },
        "codec.decode": {
            "graph": DECODE,
            "margin_frames": facts.even(facts.decode_margin_frames),
            "window_frames": facts.even(WINDOW_FRAMES),
            "inputs": {"latents": "latents"},
            "outputs": {"audio": "audio"},
        },
        "codec.encode": {
            "graph": ENCODE,
            "margin_frames": facts.even(facts.encode_margin_frames),
            "window_frames": facts.even(WINDOW_FRAMES),
            "inputs": {"audio": "audio"},
            "outputs": {"latents": "latents"},
        },
    }


def _text_encoder_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    text = {
        "inputs": {"tokens": "input_ids", "mask": "attention_mask"},
        "outputs": {"condition": "condition", "mask": "condition_mask"},
    }
    timbre = {"inputs": {"latents": "reference_latents"}, "outputs": {"condition": "condition"}}
    tables: dict[str, Mapping[str, Any]] = {}
    if facts.text_encoder is not None:
        entries = dict(facts.text_encoder)
        instructions = entries.pop("instructions", {})
        tables["text_encoder"] = {"graph": TEXT_ENCODER, "tokenizer": TOKENIZER, **entries, **text}
        tables["text_encoder.instructions"] = instructions
        if not facts.is_turbo and any("{track}" in text for text in instructions.get("extract", ())):
            tables["stems"] = {"tracks": TRACKS}
    if facts.lyrics is not None:
        tables["text_encoder.lyrics"] = {"graph": LYRIC_ENCODER, **facts.lyrics, **text}
    if facts.timbre is not None:
        tables["timbre"] = {"graph": TIMBRE_ENCODER, **facts.timbre, **timbre}
    return tables


def _controls_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    """Captions say what ACE-Step has no metadata for."""
    template = "" if facts.text_encoder is None else facts.text_encoder["template"]
    options = {"bpm": "bpm", "scale": "key"}
    metadata = {name: {"option": option} for name, option in options.items() if f"{{{option}}}" in template}
    ranges = {"options": {"bpm": BPM}} if "{bpm}" in template else {}
    return {**ranges, "controls": {**metadata, **SAID_CONTROLS}} if template else {}


def _structure_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    if facts.structure is None:
        return {}
    return {
        "structure": facts.structure,
        "structure.encode": {
            "graph": STRUCTURE_ENCODE,
            "inputs": {"latents": "latents"},
            "outputs": {"codes": "codes"},
        },
        "structure.decode": {"graph": STRUCTURE_DECODE, "inputs": {"codes": "codes"}, "outputs": {"hints": "hints"}},
    }


def deployment_text(facts: BundleFacts, bundle: Path, path: Path) -> str:
    """A deployment of the bundle on ONNX Runtime's CPU provider: small, so that it runs where it was exported."""
    canvas, multiple = facts.canvas_frames, facts.frame_multiple
    tokens = 64
    if facts.text_encoder is not None:
        lyrics = 0 if facts.lyrics is None else facts.lyrics["max_tokens"]
        tokens = facts.text_encoder["max_tokens"] + facts.text_encoder["prefix_tokens"] + lyrics
    return f"""# {facts.name} on the CPU: to try the bundle. A server with a GPU has ranges for what it serves.

[deployment]
bundle = {value_text(Path(os.path.relpath(bundle, path.parent)).as_posix())}
target = "cpu"

[[shapes]]
rows = {{ min = 1, opt = 2, max = 4 }}
frames = {{ min = {multiple}, opt = {canvas}, max = {canvas} }}
tokens = {{ min = 1, opt = {min(tokens, 32)}, max = {tokens} }}

[runtime]
depth = 2
queue = 8

[build]
step_variants = ["plain", "dcw", "dcw+guidance", "dcw+mask", "dcw+guidance+mask"]
"""
