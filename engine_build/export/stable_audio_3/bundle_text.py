"""bundle.toml of an exported Stable Audio 3, and the ranges of a first deployment. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine_build.export.bundle_tables import (
    INPUTS,
    SAID_CONTROLS,
    SILENCE,
    TEXT_ENCODER,
    TEXT_INPUTS,
    TEXT_OUTPUTS,
    TOKENIZER,
    FamilyFacts,
    Tables,
    canvas_frames,
)

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
class StableAudioFacts(FamilyFacts):
    """The content of bundle.toml. tokens: of a condition, with the duration's. logsnr: the schedule's start and end.

    adapter_orders: of `[adapters]`, where the authors' layout has outputs in another order.
    """

    inputs: Mapping[str, str] = field(default_factory=lambda: INPUTS)
    tokens: tuple[int, int]
    is_distilled: bool
    logsnr: tuple[float, float]
    adapter_orders: Mapping[str, Any] = field(default_factory=dict)

    def family_tables(self) -> Tables:
        """As FamilyFacts'."""
        return {
            "latents": {"most_unused": MOST_UNUSED},
            "decoder": {"mask_counts": True},
            **self._text_tables(),
            "sampler": self._sampler(),
            **({"controls": SAID_CONTROLS} if self.text_encoder else {}),
            "training": self.figures,
            **self.adapter_tables(aliases=ALIASES, orders=self.adapter_orders, refused=REFUSED),
        }

    def context_silence(self) -> str:
        """As FamilyFacts'."""
        return SILENCE

    def shapes(self) -> list[Mapping[str, Any]]:
        """Canvases of 30, 60 and 120 s as far as the bundle has them."""
        multiple = self.frame_multiple
        ends = {canvas_frames(seconds, self.frame_rate_hz, multiple) for seconds in LENGTHS_S}
        ends = {each for each in ends if each < self.canvas_frames} | {self.canvas_frames}
        firsts = [multiple, *(last + multiple for last in sorted(ends))]
        return [self.shape_range(*each, self.tokens) for each in zip(firsts, sorted(ends), strict=False)]

    def step_variants(self) -> Sequence[str]:
        """Those that requests without options have."""
        return ("sde", "mask+sde") if self.is_distilled else ("plain", "guidance", "mask", "guidance+mask")

    def _text_tables(self) -> Tables:
        if self.text_encoder is None:
            return {}
        tensors = {"inputs": {**TEXT_INPUTS, "seconds": "seconds"}, "outputs": TEXT_OUTPUTS}
        return {"text_encoder": {"graph": TEXT_ENCODER, "tokenizer": TOKENIZER, **self.text_encoder, **tensors}}

    def _sampler(self) -> dict[str, Any]:
        schedule = {"kind": "logsnr", "start": self.logsnr[0], "end": self.logsnr[1]}
        common = {"schedule": schedule, "noise_layout": "channels_time"}
        if self.is_distilled:
            return {"steps": STEPS, "solver": "sde", "guidance": 1.0, "guidance_reason": GUIDANCE_REASON, **common}
        steps = {"steps": BASE_STEPS, "live_steps": BASE_LIVE_STEPS}
        return {**steps, "solver": "ode", "guidance": BASE_GUIDANCE, **common}
