"""What live sessions have to know of an open pipeline."""

from __future__ import annotations

from runtime.errors import ConfigError
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.option_types import DcwOptions
from runtime.requests.tasks import PLAIN_TASKS, known_tasks
from runtime.requests.validation import plan_text_options, untaken_options
from runtime.sessions.protocol.actions import LiveModel, PlanFacts


def live_model(pipeline: Pipeline) -> LiveModel:
    """The facts of a pipeline. Raises ConfigError where its model has no live sessions, as without a codec."""
    codec, bundle = pipeline.codec, pipeline.bundle
    if codec is None or pipeline.live_refusal:
        raise ConfigError(pipeline.live_refusal)
    sampler = bundle.sampler
    # With structure codes a cover starts from noise.
    denoise = {} if bundle.structure is None else {"denoise": sampler.denoise}
    return LiveModel(
        sample_rate_hz=codec.sample_rate_hz,
        channels=codec.channels,
        hop_samples=codec.hop_samples,
        frame_rate_hz=bundle.latents.frame_rate_hz,
        latent_channels=bundle.latents.channels,
        lengths=pipeline.lengths,
        overlap_frames=pipeline.overlap_frames,
        margin_frames=codec.margin_frames,
        window_frames=codec.spec.decode.window_frames,
        has_text=pipeline.text_encoder is not None,
        has_encoder=codec.can_encode,
        defaults={
            "guidance": sampler.guidance,
            "steps": sampler.live_steps,
            "shift": sampler.shift,
            "dcw": DcwOptions(**sampler.dcw.model_dump()),
            **denoise,
        },
        untaken=untaken_options(bundle)
        | plan_text_options(bundle)
        | ({"task"} if known_tasks(bundle) == list(PLAIN_TASKS) else set()),
        ranges=bundle.options,
        words=pipeline.text_encoder.words if pipeline.text_encoder else None,
        catalog=lambda: pipeline.engines.adapters,
        plan=PlanFacts.of(bundle),
    )
