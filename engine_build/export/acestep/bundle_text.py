"""bundle.toml of an exported ACE-Step, and a first deployment file. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_build.export.acestep.planner_text import BPM
from engine_build.export.bundle_tables import (
    DECODER,
    NULL_CONDITION,
    SAID_CONTROLS,
    SILENCE,
    TEXT_ENCODER,
    TOKENIZER,
    FamilyFacts,
    codec_tables,
    model_tables,
    precision_text,
)
from engine_build.export.toml_text import table_text, value_text
from runtime.config.targets import Target

# Of turbo checkpoints, which are guidance-distilled: their default is no guidance.
STEPS: Final = 8
SHIFT: Final = 3.0
# Of the others, as their authors recommend (docs/en/INFERENCE.md and the model zoo of ACE-Step-1.5).
BASE_STEPS: Final = 50
BASE_SHIFT: Final = 1.0
GUIDANCE: Final = 7.0
DCW: Final = {"mode": "double", "low": 0.05, "high": 0.02}
# Modules in LoRA adapters of ACE-Step's own trainer -> their names in diffusers.
ALIASES: Final = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out.0"}
# What checkpoints that know the task extract were trained to take out; turbo checkpoints were not.
TRACKS: Final = (
    "vocals", "backing_vocals", "drums", "bass", "guitar", "keyboard", "percussion", "strings", "synth", "fx", "brass",
    "woodwinds",
)  # fmt: skip
LYRIC_ENCODER: Final = "lyric_encoder.onnx"
TIMBRE_ENCODER: Final = "timbre_encoder.onnx"
STRUCTURE_ENCODE: Final = "structure_encode.onnx"
STRUCTURE_DECODE: Final = "structure_decode.onnx"


@dataclass(frozen=True, kw_only=True)
class BundleFacts(FamilyFacts):
    """The content of bundle.toml.

    `silence`: one frame, or None where silence.npy has a sequence. adapters: the matrices of [adapters]. planner: its
    tables.
    """

    is_turbo: bool
    silence: tuple[float, ...] | None
    has_null_condition: bool
    text_encoder: Mapping[str, Any] | None = None
    lyrics: Mapping[str, Any] | None = None
    timbre: Mapping[str, Any] | None = None
    adapters: Mapping[str, Any] = field(default_factory=dict)
    structure: Mapping[str, int] | None = None
    planner: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


def bundle_text(facts: BundleFacts) -> str:
    """bundle.toml."""
    tables: dict[str, Mapping[str, Any]] = {
        **model_tables(facts),
        **_decoder_tables(facts),
        **codec_tables(facts),
        **_text_encoder_tables(facts),
        **_structure_tables(facts),
        **facts.planner,
        "sampler": _sampler(is_turbo=facts.is_turbo),
        "sampler.dcw": DCW,
        **_controls_tables(facts),
        "training": facts.figures,
    }
    if facts.adapters:
        tables |= {"adapters.aliases": ALIASES, "adapters.matrices": facts.adapters}
    return "\n".join(table_text(name, values) for name, values in tables.items())


def _sampler(*, is_turbo: bool) -> dict[str, float]:
    if is_turbo:
        return {"steps": STEPS, "shift": SHIFT, "guidance": 1.0, "denoise": 1.0}
    return {"steps": BASE_STEPS, "shift": BASE_SHIFT, "guidance": GUIDANCE, "denoise": 1.0}


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


def deployment_text(facts: BundleFacts, bundle: Path, path: Path, target: Target = "cpu") -> str:
    """A deployment of the bundle, small, so that it runs where it was exported; on GPUs in the checkpoint's bf16."""
    canvas, multiple = facts.canvas_frames, facts.frame_multiple
    tokens = 64
    if facts.text_encoder is not None:
        lyrics = 0 if facts.lyrics is None else facts.lyrics["max_tokens"]
        tokens = facts.text_encoder["max_tokens"] + facts.text_encoder["prefix_tokens"] + lyrics
    return f"""# {facts.name} on {target}: to try the bundle. A server with a GPU has ranges for what it serves.

[deployment]
bundle = {value_text(Path(os.path.relpath(bundle, path.parent)).as_posix())}
target = "{target}"

[[shapes]]
rows = {{ min = 1, opt = 2, max = 4 }}
frames = {{ min = {multiple}, opt = {canvas}, max = {canvas} }}
tokens = {{ min = 1, opt = {min(tokens, 32)}, max = {tokens} }}

[runtime]
depth = 2
queue = 8

[build]
{precision_text(target)}step_variants = ["plain", "dcw", "dcw+guidance", "dcw+mask", "dcw+guidance+mask"]
"""
