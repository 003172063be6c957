"""bundle.toml of an exported Stable Audio 3, and a first deployment file. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_build.export.bundle_tables import (
    SAID_CONTROLS,
    SILENCE,
    TEXT_ENCODER,
    TOKENIZER,
    FamilyFacts,
    Tables,
    canvas_frames,
    codec_tables,
    decoder_tables,
    model_tables,
    shape_range,
    small_deployment,
    toml,
)
from runtime.config.deployment import Target

# Of the decoder, by role.
INPUTS: Final = {
    "latents": "hidden_states",
    "time": "timestep",
    "condition": "encoder_hidden_states",
    "condition_mask": "condition_mask",
    "context": "context_latents",
}
# Their authors' own (docs/workflows/inference.md): distilled checkpoints, and those before distillation.
STEPS: Final = 8
BASE_STEPS: Final = 50
BASE_LIVE_STEPS: Final = 30
BASE_GUIDANCE: Final = 7.0
GUIDANCE_REASON: Final = "it is distilled: guidance is in its weights"
# Of a text, where a checkpoint does not say it. The authors' code cuts what is longer, here it is refused.
MAX_TOKENS: Final = 256
# Music depends on its length, and every frame is attended to: a generation is hardly longer than what is asked for.
MOST_UNUSED: Final = 0.1
# Ranges of lengths that have engines of their own, up to the canvas.
LENGTHS_S: Final = (30.0, 60.0, 120.0)
# Names of modules in LoRA adapters of the authors' trainer -> diffusers'; and what else it adapts.
ALIASES: Final = {
    "model": "",
    "transformer.project_in": "proj_in",
    "transformer.project_out": "proj_out",
    "transformer.layers": "transformer_blocks",
    "transformer": "",
    "ff.ff.0.proj": "ff.proj_in",
    "ff.ff.2": "ff.proj_out",
}
REFUSED: Final = {"conditioners": "train it with --exclude seconds_total: the text's graph takes no adapters"}


@dataclass(frozen=True, kw_only=True)
class BundleFacts(FamilyFacts):
    """The content of bundle.toml. tokens: of a condition, with the duration's. logsnr: the schedule's start and end.

    adapter_orders: of `[adapters]`, where the authors' layout has outputs in another order.
    """

    inputs: Mapping[str, str] = field(default_factory=lambda: INPUTS)
    tokens: tuple[int, int]
    is_distilled: bool
    logsnr: tuple[float, float]
    adapters: Mapping[str, Any] = field(default_factory=dict)
    adapter_orders: Mapping[str, Any] = field(default_factory=dict)


def bundle_text(facts: BundleFacts) -> str:
    """bundle.toml."""
    model, decoder = model_tables(facts), decoder_tables(facts, SILENCE)
    tables: Tables = {
        **model,
        "latents": {**model["latents"], "most_unused": MOST_UNUSED},
        **decoder,
        "decoder": {**decoder["decoder"], "mask_counts": True},
        **codec_tables(facts),
        **_text_encoder_tables(facts),
        "sampler": _sampler(facts),
        **({"controls": SAID_CONTROLS} if facts.text_encoder else {}),
        "training": facts.figures,
        **_adapter_tables(facts),
    }
    return toml(tables)


def _adapter_tables(facts: BundleFacts) -> Tables:
    if not facts.adapters:
        return {}
    tables = {"aliases": ALIASES, "orders": facts.adapter_orders, "refused": REFUSED, "matrices": facts.adapters}
    return {f"adapters.{name}": values for name, values in tables.items() if values}


def _text_encoder_tables(facts: BundleFacts) -> Tables:
    if facts.text_encoder is None:
        return {}
    tensors = {
        "inputs": {"tokens": "input_ids", "mask": "attention_mask", "seconds": "seconds"},
        "outputs": {"condition": "condition", "mask": "condition_mask"},
    }
    return {"text_encoder": {"graph": TEXT_ENCODER, "tokenizer": TOKENIZER, **facts.text_encoder, **tensors}}


def _sampler(facts: BundleFacts) -> dict[str, Any]:
    schedule = {"kind": "logsnr", "start": facts.logsnr[0], "end": facts.logsnr[1]}
    common = {"schedule": schedule, "noise_layout": "channels_time"}
    if facts.is_distilled:
        return {
            "steps": STEPS,
            "solver": "sde",
            "guidance": 1.0,
            "guidance_reason": GUIDANCE_REASON,
            **common,
        }
    return {
        "steps": BASE_STEPS,
        "live_steps": BASE_LIVE_STEPS,
        "solver": "ode",
        "guidance": BASE_GUIDANCE,
        **common,
    }


def deployment_text(facts: BundleFacts, bundle: Path, path: Path, target: Target = "cpu") -> str:
    """A small deployment, for canvases of 30, 60 and 120 s as far as the bundle has them; on GPUs in bf16."""
    multiple = facts.frame_multiple
    ends = {canvas_frames(seconds, facts.frame_rate_hz, multiple) for seconds in LENGTHS_S}
    ends = {each for each in ends if each < facts.canvas_frames} | {facts.canvas_frames}
    firsts = [multiple, *(last + multiple for last in sorted(ends))]
    shapes = [shape_range(facts, first, last, facts.tokens) for first, last in zip(firsts, sorted(ends), strict=False)]
    variants = ("sde", "mask+sde") if facts.is_distilled else ("plain", "guidance", "mask", "guidance+mask")
    return small_deployment(facts, bundle, path, target, shapes, variants)
