"""bundle.toml of an exported Stable Audio 3, and a first deployment file. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_build.export.bundle_tables import (
    DECODER,
    NULL_CONDITION,
    SAID_CONTROLS,
    SILENCE,
    TEXT_ENCODER,
    TOKENIZER,
    FamilyFacts,
    canvas_frames,
    codec_tables,
    model_tables,
    precision_text,
)
from engine_build.export.toml_text import table_text, value_text
from runtime.config.targets import Target

# The references' own: distilled checkpoints, and those before distillation.
STEPS: Final = 8
BASE_STEPS: Final = 100
BASE_LIVE_STEPS: Final = 30
BASE_GUIDANCE: Final = 7.0
GUIDANCE_REASON: Final = "it is distilled: guidance is in its weights"
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

    tokens: int
    is_distilled: bool
    logsnr: tuple[float, float]
    has_null_condition: bool
    text_encoder: Mapping[str, Any] | None = None
    adapters: Mapping[str, Any] = field(default_factory=dict)
    adapter_orders: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


def bundle_text(facts: BundleFacts) -> str:
    """bundle.toml."""
    model = model_tables(facts)
    tables: dict[str, Mapping[str, Any]] = {
        **model,
        "latents": {**model["latents"], "most_unused": MOST_UNUSED},
        **_decoder_tables(facts),
        **codec_tables(facts),
        **_text_encoder_tables(facts),
        "sampler": _sampler(facts),
        **({"controls": SAID_CONTROLS} if facts.text_encoder else {}),
        "training": facts.figures,
        **_adapter_tables(facts),
    }
    return "\n".join(table_text(name, values) for name, values in tables.items())


def _adapter_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    if not facts.adapters:
        return {}
    tables = {"aliases": ALIASES, "orders": facts.adapter_orders, "refused": REFUSED, "matrices": facts.adapters}
    return {f"adapters.{name}": values for name, values in tables.items() if values}


def _decoder_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
    """Without a mask of the condition: all of its tokens count, padding too."""
    null = {"null_condition": NULL_CONDITION} if facts.has_null_condition else {}
    return {
        "decoder": {"graph": DECODER, **null},
        "decoder.inputs": {
            "latents": "hidden_states",
            "time": "timestep",
            "condition": "encoder_hidden_states",
            "context": "context_latents",
        },
        "decoder.outputs": {"velocity": "velocity"},
        "context": {"layout": "known+mask", "overlap_frames": facts.overlap_frames, "silence": SILENCE},
    }


def _text_encoder_tables(facts: BundleFacts) -> dict[str, Mapping[str, Any]]:
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
    first, shapes = multiple, []
    for last in sorted(ends):
        shapes.append(
            f"""[[shapes]]
rows = {{ min = 1, opt = 2, max = 4 }}
frames = {{ min = {first}, opt = {last}, max = {last} }}
tokens = {{ min = {facts.tokens}, opt = {facts.tokens}, max = {facts.tokens} }}
"""
        )
        first = last + multiple
    variants = ["sde", "mask+sde"] if facts.is_distilled else ["plain", "guidance", "mask", "guidance+mask"]
    newline = "\n"
    return f"""# {facts.name} on {target}: to try the bundle. A server with a GPU has ranges for what it serves.

[deployment]
bundle = {value_text(Path(os.path.relpath(bundle, path.parent)).as_posix())}
target = "{target}"

{newline.join(shapes)}
[runtime]
depth = 2
queue = 8

[build]
{precision_text(target)}step_variants = {value_text(variants)}
"""
