"""A check of an ACE-Step checkpoint on this machine: its bundle against diffusers' pipeline, times, and one sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from diffusers import AceStepPipeline, FlowMatchEulerDiscreteScheduler

from engine_build.export.acestep.bundle_text import GUIDANCE, SHIFT, AceStepFacts
from engine_build.export.acestep.export import acestep_export
from engine_build.export.acestep.graphs import OobleckDecoder
from engine_build.export.acestep.layouts import CONDITION_ENCODER
from engine_build.export.acestep.sources import AceStepCheckpoint, is_xl
from engine_build.export.bundle_export import BundleExport
from engine_build.export.check_report import CheckFigure
from engine_build.export.checkpoint import TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from engine_build.export.parity import PROMPT, Asked, CheckpointCheck, Reference, reference_of, relative
from engine_build.export.torch_export import quiet
from runtime.config.codec import Latents, Pcm
from runtime.requests.timesteps import noise

STEPS: Final = 8
TEXT: Final[Mapping[str, Any]] = {
    "lyrics": "[Verse]\nSoft lights over the water\nand the city far away\n",
    "language": "en",
    "bpm": 90,
    "key": "C major",
    "time_signature": 4,
}


class AceStepCheck(CheckpointCheck[AceStepCheckpoint, AceStepFacts]):
    """As CheckpointCheck."""

    title = "ACE-Step v1.5"
    name = "acestep"
    needed = (TRANSFORMER, VAE, CONDITION_ENCODER, TEXT_ENCODER, TOKENIZER)

    def export(self) -> BundleExport[AceStepFacts]:
        """As CheckpointCheck's."""
        return acestep_export(self.source)

    def about(self, facts: AceStepFacts) -> Mapping[str, str]:
        """As CheckpointCheck's."""
        hidden = self.source.parts[TRANSFORMER].config.get("hidden_size", 2048)
        return {
            "kind": "turbo, without guidance" if facts.is_turbo else "with guidance",
            "decoder": f"{facts.figures['parameters'] / 1e6:.4g} M parameters, {facts.figures['layers']} layers of "
            f"{hidden}",
        }

    def asked(self, facts: AceStepFacts) -> Asked:
        """As CheckpointCheck's."""
        return Asked(PROMPT, TEXT, {"steps": STEPS, "shift": SHIFT, "guidance": _guidance(facts)})

    def reference(self, facts: AceStepFacts) -> Reference:
        """As CheckpointCheck's."""
        with quiet(), torch.no_grad():
            pipeline = self._pipeline()
            frames, channels = facts.canvas_frames, facts.channels

            def latents(seed: int) -> Latents:
                start = torch.from_numpy(noise(frames, channels, seed))[None]  # [1, T, C]
                found = pipeline(
                    PROMPT,
                    lyrics=TEXT["lyrics"],
                    vocal_language=TEXT["language"],
                    bpm=TEXT["bpm"],
                    keyscale=TEXT["key"],
                    timesignature=str(TEXT["time_signature"]),
                    audio_duration=frames / facts.frame_rate_hz,
                    num_inference_steps=STEPS,
                    guidance_scale=_guidance(facts),
                    shift=SHIFT,
                    latents=start,
                    output_type="latent",
                )
                values: Latents = found.audios[0].numpy()
                return values

            decoder = OobleckDecoder(pipeline.vae.decoder)

            def audio(values: Latents) -> Pcm:
                pcm: Pcm = decoder(torch.from_numpy(values)[None])[0].T.numpy()
                return pcm

            return reference_of(latents, audio)

    def more_figures(self, facts: AceStepFacts) -> Iterator[CheckFigure]:
        """How far XL's token of timbre is from the one that diffusers makes, without a token that sums it up."""
        if not is_xl(self.source.parts[TRANSFORMER].config):
            return
        encoder: Any = self.source.load(CONDITION_ENCODER)
        timbre, frames = encoder.timbre_encoder, (facts.timbre or {}).get("frames", 1)
        silence, order = encoder.silence_latent[:, :frames], torch.zeros(1, dtype=torch.int64)
        with quiet(), torch.no_grad():
            authors = timbre(silence, order)[0].numpy()
            timbre.embed_tokens._forward_hooks.clear()
            theirs = timbre(silence, order)[0].numpy()
        name = "XL: diffusers' token of timbre differs from the authors', of its rms"
        yield CheckFigure(name, relative(theirs, authors))

    def _pipeline(self) -> Any:
        """Of a checkpoint in either layout; XL's timbre encoder is that of the authors' code."""
        scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0)
        pipeline = AceStepPipeline(**{part: self.source.load(part) for part in self.needed}, scheduler=scheduler)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def _guidance(facts: AceStepFacts) -> float:
    return 1.0 if facts.is_turbo else GUIDANCE
