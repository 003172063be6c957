"""The bundle of an export: what it says; random weights of the published sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_exports import export_bundle
from helpers.tiny_stable_audio_3 import CHANNELS, CONDITION_WIDTH, HOP_SAMPLES, TRANSFORMER, VAE

from runtime.base.errors import BuildError
from runtime.config.bundle import load_bundle

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from engine_build.export.stable_audio_3.sources import (  # noqa: E402
    TRANSFORMER_CONFIGS,
    VAE_CONFIGS,
    RandomStableAudio,
)


def random_source(**changes: Any) -> RandomStableAudio:
    sizes = {**TRANSFORMER, "depth": 1, **changes}
    vae = {**VAE, "encoder_transformer_depths": [2]}
    return RandomStableAudio(size="small", seed=1, transformer_changes=sizes, vae_changes=vae)


def test_the_bundle_says_what_the_checkpoint_is(bundle: Path, size: str) -> None:
    loaded = load_bundle(bundle)
    align = 2 if size == "small" else 1
    assert (loaded.latents.channels, loaded.latents.frame_rate_hz) == (CHANNELS, 10.7666015625)
    assert (loaded.latents.frame_multiple, loaded.latents.canvas_frames) == (align, 98 if size == "small" else 97)
    assert loaded.codec is not None
    assert (loaded.codec.sample_rate_hz, loaded.codec.hop_samples, loaded.codec.channels) == (11_025, HOP_SAMPLES, 2)
    schedule = loaded.sampler.schedule
    assert schedule is not None
    assert (schedule.kind, schedule.start, schedule.end) == ("logsnr", -6.2, 2.0)
    assert loaded.sampler.noise_layout == "channels_time"
    assert bool(loaded.sampler.guidance_reason) == (size == "small")
    assert loaded.text_encoder is not None
    assert (loaded.text_encoder.max_tokens, loaded.text_encoder.inputs.seconds) == (256, "seconds")
    assert "Stability AI Community License" in loaded.license
    assert loaded.adapters is not None
    assert "transformer_blocks.2.cross_attn.to_kv" in loaded.adapters.matrices
    assert loaded.training["decoder_max_error"] < 1e-5


def test_random_weights_make_a_bundle_without_texts(tmp_path: Path) -> None:
    facts = export_bundle(random_source(), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle")
    assert (facts.figures["layers"], loaded.license, loaded.text_encoder) == (1, "", None)
    null = loaded.null_condition()
    assert null is not None
    assert null.shape == (257, CONDITION_WIDTH)


def test_random_weights_are_seeded_scaled_and_nowhere_zero() -> None:
    source = random_source()
    for part in ("transformer", "vae"):
        one, other = source.load(part).state_dict(), source.load(part).state_dict()
        assert all(torch.equal(one[name], value) for name, value in other.items())
        assert all(value.abs().max() > 0.01 for value in one.values()), part
    width = TRANSFORMER["embed_dim"]
    weight = source.load("transformer").transformer_blocks[0].ff.proj_in.weight
    assert abs(float(weight.std()) * width**0.5 - 0.7) < 0.03
    first, second = (RandomStableAudio(size="small", seed=seed).load("null_condition") for seed in (2, 3))
    assert not torch.equal(first, second)


def test_published_sizes() -> None:
    """Parameters of the decoder and of the codec, as counted from the published models."""
    with torch.device("meta"):
        for size, transformer, vae in (("small", 459e6, 107e6), ("medium", 1453e6, 852e6)):
            found = diffusers.StableAudio3DiTModel(**TRANSFORMER_CONFIGS[size])
            assert abs(sum(value.numel() for value in found.parameters()) / transformer - 1) < 0.01
            codec = diffusers.AutoencoderSAME(**VAE_CONFIGS[size])
            assert abs(sum(value.numel() for value in codec.parameters()) / vae - 1) < 0.01


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="none for inpainting"):
        export_bundle(random_source(local_add_cond_dim=3), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
