"""A check of an ACE-Step checkpoint on this machine: its bundle against diffusers' pipeline, times, and one sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from diffusers import AceStepPipeline, FlowMatchEulerDiscreteScheduler

from engine_build.export.acestep.bundle_text import GUIDANCE, SHIFT, BundleFacts, deployment_text
from engine_build.export.acestep.codec import LatentsToAudio
from engine_build.export.acestep.export import export_bundle
from engine_build.export.acestep.layouts import CONDITION_ENCODER, TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from engine_build.export.acestep.sources import Checkpoint, is_xl
from engine_build.export.bundle_export import ERROR_LIMIT, ExportOptions, OnProgress, need_parts
from engine_build.export.check_report import Check, CheckFigure, CheckReport, measured, this_machine, versions_of
from engine_build.export.parity import BUNDLE, Asked, CheckOptions, Reference, compare, reference_of, relative
from engine_build.export.torch_export import quiet
from runtime.config.codec import Latents, Pcm
from runtime.requests.timesteps import noise

STEPS: Final = 8
PROMPT: Final = "Warm piano and soft strings, slow"
TEXT: Final[Mapping[str, Any]] = {
    "lyrics": "[Verse]\nSoft lights over the water\nand the city far away\n",
    "language": "en",
    "bpm": 90,
    "key": "C major",
    "time_signature": 4,
}
NEEDED: Final = (TRANSFORMER, VAE, CONDITION_ENCODER, TEXT_ENCODER, TOKENIZER)


def check_checkpoint(source: Checkpoint, options: CheckOptions, on_progress: OnProgress = print) -> CheckReport:
    """Export the checkpoint's bundle into `options.out`, run it, and compare it.

    Raises ConfigError where the checkpoint lacks a part, EngineError where the target has no GPU, BuildError where a
    graph differs from its module.
    """
    need_parts(source, source.folder, NEEDED)
    machine = this_machine(options.target)  # a GPU that is missing is told before the export
    export = ExportOptions("acestep-check", options.seconds, description=source.description)
    facts = export_bundle(source, options.out / BUNDLE, export, on_progress)
    on_progress("diffusers' pipeline ...")
    guidance = 1.0 if facts.is_turbo else GUIDANCE
    reference = _reference(source, facts, guidance)
    asked = Asked(PROMPT, TEXT, {"steps": STEPS, "shift": SHIFT, "guidance": guidance})
    text = deployment_text(facts, options.out / BUNDLE, options.deployment)
    checks, figures = compare(text, options, asked, reference, on_progress)
    return CheckReport(
        "ACE-Step v1.5",
        _about(source, facts),
        machine,
        versions_of(options.target),
        [_graph(facts), *checks],
        [*figures, *_timbre(source, facts)],
    )


def _graph(facts: BundleFacts) -> Check:
    error = facts.figures["decoder_max_error"]
    return measured("the decoder's graph equals its module", error, at_most=ERROR_LIMIT, detail="largest difference")


def _about(source: Checkpoint, facts: BundleFacts) -> dict[str, str]:
    """What the checkpoint is, without its name: that may be anything."""
    config = source.parts[TRANSFORMER].config
    return {
        "checkpoint": source.layout,
        "kind": "turbo, without guidance" if facts.is_turbo else "with guidance",
        "decoder": f"{facts.figures['parameters'] / 1e6:.4g} M parameters, {facts.figures['layers']} layers of "
        f"{config.get('hidden_size', 2048)}",
        "SHA-256 of its files": source.fingerprint(),
    }


def _reference(source: Checkpoint, facts: BundleFacts, guidance: float) -> Reference:
    """diffusers' pipeline on the same weights, in float32."""
    with quiet(), torch.no_grad():
        pipeline = diffusers_pipeline(source)
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
                guidance_scale=guidance,
                shift=SHIFT,
                latents=start,
                output_type="latent",
            )
            values: Latents = found.audios[0].numpy()
            return values

        decoder = LatentsToAudio(pipeline.vae.decoder)

        def audio(values: Latents) -> Pcm:
            pcm: Pcm = decoder(torch.from_numpy(values)[None])[0].T.numpy()
            return pcm

        return reference_of(latents, audio)


def diffusers_pipeline(source: Checkpoint) -> Any:
    """diffusers' pipeline of a checkpoint in either layout; XL's timbre encoder is that of the authors' code."""
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0)
    pipeline = AceStepPipeline(**{part: source.load(part) for part in NEEDED}, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _timbre(source: Checkpoint, facts: BundleFacts) -> list[CheckFigure]:
    """How far XL's token of timbre is from the one that diffusers makes, without a token that sums it up."""
    if not is_xl(source.parts[TRANSFORMER].config):
        return []
    encoder: Any = source.load(CONDITION_ENCODER)
    timbre, frames = encoder.timbre_encoder, (facts.timbre or {}).get("frames", 1)
    silence, order = encoder.silence_latent[:, :frames], torch.zeros(1, dtype=torch.int64)
    with quiet(), torch.no_grad():
        authors = timbre(silence, order)[0].numpy()
        timbre.embed_tokens._forward_hooks.clear()
        theirs = timbre(silence, order)[0].numpy()
    return [
        CheckFigure("XL: diffusers' token of timbre differs from the authors', of its rms", relative(theirs, authors))
    ]
