"""bundle.toml of an exported ACE-Step, and a first deployment file. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_build.export.acestep.planner_text import BPM
from engine_build.export.bundle_tables import (
    SAID_CONTROLS,
    SILENCE,
    TEXT_ENCODER,
    TOKENIZER,
    FamilyFacts,
    Tables,
    codec_tables,
    decoder_tables,
    model_tables,
    shape_range,
    small_deployment,
    toml,
)
from runtime.config.deployment import Target

# Of turbo checkpoints, which are guidance-distilled: their default is no guidance.
STEPS: Final = 8
SHIFT: Final = 3.0
# Of the others, as their authors recommend (docs/en/INFERENCE.md and the model zoo of ACE-Step-1.5).
BASE_STEPS: Final = 50
BASE_SHIFT: Final = 1.0
GUIDANCE: Final = 7.0
# Turbo checkpoints alone: in music of sft its authors traced noise to it (ACE-Step-1.5, issues 1206, 1259, 1288, mended
# by 1273).
DCW: Final = {"mode": "double", "low": 0.05, "high": 0.02}
# Its pipeline's limits: tokens of a text with its template, and of lyrics. It cuts what is longer, here it is refused.
MAX_TEXT_TOKENS: Final = 256
MAX_LYRIC_TOKENS: Final = 2048
# Modules in LoRA adapters of ACE-Step's own trainer -> their names in diffusers.
ALIASES: Final = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out.0"}
# What base checkpoints were trained to take out; turbo and sft were not (the model zoo in their README).
TRACKS: Final = (
    "vocals", "backing_vocals", "drums", "bass", "guitar", "keyboard", "percussion", "strings", "synth", "fx", "brass",
    "woodwinds",
)  # fmt: skip
INPUTS: Final = {
    "latents": "hidden_states",
    "time": "timestep",
    "condition": "encoder_hidden_states",
    "condition_mask": "condition_mask",
    "context": "context_latents",
}
# The sets of step features that requests for a turbo checkpoint have without options, and those for another.
TURBO_VARIANTS: Final = ("plain", "dcw", "dcw+guidance", "dcw+mask", "dcw+guidance+mask")
STEP_VARIANTS: Final = ("plain", "guidance", "mask", "guidance+mask")
LYRIC_ENCODER: Final = "lyric_encoder.onnx"
TIMBRE_ENCODER: Final = "timbre_encoder.onnx"
STRUCTURE_ENCODE: Final = "structure_encode.onnx"
STRUCTURE_DECODE: Final = "structure_decode.onnx"


@dataclass(frozen=True, kw_only=True)
class BundleFacts(FamilyFacts):
    """The content of bundle.toml.

    knows_tracks: it was trained to take tracks out. silence: one frame, or None where silence.npy has a sequence.
    adapters: the matrices of [adapters]. planner: its tables.
    """

    inputs: Mapping[str, str] = field(default_factory=lambda: INPUTS)
    is_turbo: bool
    knows_tracks: bool = False
    silence: tuple[float, ...] | None
    lyrics: Mapping[str, Any] | None = None
    timbre: Mapping[str, Any] | None = None
    adapters: Mapping[str, Any] = field(default_factory=dict)
    structure: Mapping[str, int] | None = None
    planner: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def is_turbo(config: Mapping[str, Any]) -> bool:
    """Whether a decoder's configuration is of a guidance-distilled checkpoint, as AceStepPipeline decides it."""
    return bool(config.get("is_turbo") or config.get("model_version") == "turbo")


def knows_tracks(config: Mapping[str, Any], name: str) -> bool:
    """Whether a checkpoint was trained to take tracks out: base alone, which its authors, too, know by the name."""
    return not is_turbo(config) and "sft" not in f"{name} {config.get('model_version')}".lower()


def bundle_text(facts: BundleFacts) -> str:
    """bundle.toml."""
    tables: Tables = {
        **model_tables(facts),
        **decoder_tables(facts, SILENCE if facts.silence is None else facts.silence),
        **codec_tables(facts),
        **_text_encoder_tables(facts),
        **_structure_tables(facts),
        **facts.planner,
        "sampler": _sampler(is_turbo=facts.is_turbo),
        **({"sampler.dcw": DCW} if facts.is_turbo else {}),
        **_controls_tables(facts),
        "training": facts.figures,
    }
    if facts.adapters:
        tables |= {"adapters.aliases": ALIASES, "adapters.matrices": facts.adapters}
    return toml(tables)


def _sampler(*, is_turbo: bool) -> dict[str, float]:
    if is_turbo:
        return {"steps": STEPS, "shift": SHIFT, "guidance": 1.0, "denoise": 1.0}
    return {"steps": BASE_STEPS, "shift": BASE_SHIFT, "guidance": GUIDANCE, "denoise": 1.0}


def _text_encoder_tables(facts: BundleFacts) -> Tables:
    text = {
        "inputs": {"tokens": "input_ids", "mask": "attention_mask"},
        "outputs": {"condition": "condition", "mask": "condition_mask"},
    }
    timbre = {"inputs": {"latents": "reference_latents"}, "outputs": {"condition": "condition"}}
    tables: Tables = {}
    if facts.text_encoder is not None:
        entries = dict(facts.text_encoder)
        instructions = entries.pop("instructions", {})
        tables["text_encoder"] = {"graph": TEXT_ENCODER, "tokenizer": TOKENIZER, **entries, **text}
        tables["text_encoder.instructions"] = instructions
        if facts.knows_tracks and any("{track}" in text for text in instructions.get("extract", ())):
            tables["stems"] = {"tracks": TRACKS}
    if facts.lyrics is not None:
        tables["text_encoder.lyrics"] = {"graph": LYRIC_ENCODER, **facts.lyrics, **text}
    if facts.timbre is not None:
        tables["timbre"] = {"graph": TIMBRE_ENCODER, **facts.timbre, **timbre}
    return tables


def _controls_tables(facts: BundleFacts) -> Tables:
    """Captions say what ACE-Step has no metadata for."""
    template = "" if facts.text_encoder is None else facts.text_encoder["template"]
    options = {"bpm": "bpm", "scale": "key"}
    metadata = {name: {"option": option} for name, option in options.items() if f"{{{option}}}" in template}
    ranges = {"options": {"bpm": BPM}} if "{bpm}" in template else {}
    return {**ranges, "controls": {**metadata, **SAID_CONTROLS}} if template else {}


def _structure_tables(facts: BundleFacts) -> Tables:
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
    tokens = 64
    if facts.text_encoder is not None:
        lyrics = 0 if facts.lyrics is None else facts.lyrics["max_tokens"]
        tokens = facts.text_encoder["max_tokens"] + facts.text_encoder["prefix_tokens"] + lyrics
    shapes = [shape_range(facts, facts.frame_multiple, facts.canvas_frames, (1, tokens))]
    return small_deployment(facts, bundle, path, target, shapes, TURBO_VARIANTS if facts.is_turbo else STEP_VARIANTS)
