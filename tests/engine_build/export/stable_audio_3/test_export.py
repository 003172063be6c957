"""The bundle of an export: what it says, what an interrupted one keeps, random weights of the published sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from helpers.tiny_stable_audio_3 import CHANNELS, CONDITION_WIDTH, HOP_SAMPLES, TRANSFORMER, VAE, save_checkpoint

from engine_build.export.cleanup import paths_in
from runtime.base.errors import BuildError, ConfigError
from runtime.config.bundle import load_bundle

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")


def export(source: Any, folder: Path, on_progress: Any = lambda text: None, **options: Any) -> Any:
    from engine_build.export.bundle_export import ExportOptions
    from engine_build.export.stable_audio_3.export import export_bundle

    return export_bundle(source, folder, ExportOptions("tiny", **{"canvas_s": 2.0, **options}), on_progress)


def random_source(**changes: Any) -> Any:
    from engine_build.export.stable_audio_3.sources import RandomWeights

    return RandomWeights("small", 1, {**TRANSFORMER, "depth": 1, **changes}, {**VAE, "encoder_transformer_depths": [2]})


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


def test_the_bundle_contains_no_paths(bundle: Path) -> None:
    for file in bundle.iterdir():
        if file.suffix in (".onnx", ".toml"):
            assert not paths_in(file), file.name


def test_random_weights_make_a_bundle_with_its_weights_beside_the_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted behind the decoder, it goes on there."""
    from engine_build.export.stable_audio_3 import export as module

    monkeypatch.setattr("engine_build.export.torch_export.INLINE_LIMIT_BYTES", 1000)
    said: list[str] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "encode_silence", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export(random_source(), tmp_path / "bundle", said.append)
    assert said[-1] == "kept for the next run: decoder, codec"
    assert not (tmp_path / "bundle").exists()
    monkeypatch.setattr(module, "decoder_facts", interrupt)
    facts = export(random_source(), tmp_path / "bundle", said.append)
    assert "decoder: complete since an earlier run" in said
    loaded = load_bundle(tmp_path / "bundle")
    assert (facts.figures["layers"], loaded.license, loaded.text_encoder) == (1, "", None)
    null = loaded.null_condition()
    assert null is not None
    assert null.shape == (257, CONDITION_WIDTH)
    for name in ("decoder", "codec_decode", "codec_encode"):
        assert (tmp_path / "bundle" / f"{name}.onnx.data").stat().st_size > 1000
        onnxruntime.InferenceSession(str(tmp_path / "bundle" / f"{name}.onnx"))


def test_random_weights_are_seeded_scaled_and_nowhere_zero() -> None:
    from engine_build.export.stable_audio_3.sources import RandomWeights

    source = random_source()
    for part in ("transformer", "vae"):
        one, other = source.load(part).state_dict(), source.load(part).state_dict()
        assert all(torch.equal(one[name], value) for name, value in other.items())
        assert all(value.abs().max() > 0.01 for value in one.values()), part
    width = TRANSFORMER["embed_dim"]
    weight = source.load("transformer").transformer_blocks[0].ff.proj_in.weight
    assert abs(float(weight.std()) * width**0.5 - 0.7) < 0.03
    assert not torch.equal(
        RandomWeights("small", 2).load("null_condition"), RandomWeights("small", 3).load("null_condition")
    )


def test_published_sizes() -> None:
    """Parameters of the decoder and of the codec, as counted from the published models."""
    from engine_build.export.stable_audio_3.sources import TRANSFORMER_CONFIGS, VAE_CONFIGS

    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        for size, transformer, vae in (("small", 459e6, 107e6), ("medium", 1453e6, 852e6)):
            found = diffusers.StableAudio3DiTModel(**TRANSFORMER_CONFIGS[size])
            assert abs(sum(value.numel() for value in found.parameters()) / transformer - 1) < 0.01
            codec = diffusers.AutoencoderSAME(**VAE_CONFIGS[size])
            assert abs(sum(value.numel() for value in codec.parameters()) / vae - 1) < 0.01


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="none for inpainting"):
        export(random_source(local_add_cond_dim=3), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_folder_with_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "songs").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not a bundle: it is not replaced"):
        export(random_source(), tmp_path)
    assert (tmp_path / "songs").read_text() == "mine"


def test_deployments_have_the_lengths_up_to_the_canvas() -> None:
    from engine_build.export.stable_audio_3.bundle_text import BundleFacts, deployment_text

    facts: dict[str, Any] = {
        "name": "tiny", "description": "", "channels": 256, "frame_rate_hz": 11_025 / 1024, "frame_multiple": 2,
        "sample_rate_hz": 44_100, "audio_channels": 2, "hop_samples": 4096, "decode_margin_frames": 2,
        "encode_margin_frames": 2, "tokens": (1, 257), "is_distilled": True, "logsnr": (-6.2, 2.0),
        "has_null_condition": False,
    }  # fmt: skip
    for canvas_s, ends in ((120.0, [324, 646, 1292]), (45.0, [324, 486])):
        text = deployment_text(BundleFacts(**facts, canvas_s=canvas_s), Path("b"), Path("b.toml"))
        starts = [2, *(end + 2 for end in ends)]
        for start, end in zip(starts, ends, strict=False):
            assert f"frames = {{ min = {start}, opt = {end}, max = {end} }}" in text
        assert text.count("[[shapes]]") == len(ends)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory is read from /proc")
def test_an_export_needs_little_more_than_its_largest_part(tmp_path: Path) -> None:
    from helpers.export_memory import peak_bytes

    tiny = save_checkpoint(tmp_path / "tiny", "small")
    large = save_checkpoint(tmp_path / "large", "small")
    wide = {**TRANSFORMER, "embed_dim": 1024, "depth": 3, "num_heads": 16, "use_differential_attention": False}
    for file in (large / "transformer").iterdir():
        file.unlink()
    import diffusers

    transformer: Any = diffusers.StableAudio3DiTModel(**wide).to(torch.bfloat16)
    transformer.save_pretrained(large / "transformer", max_shard_size="40MB")
    weights_bytes = 4 * sum(parameter.numel() for parameter in transformer.parameters())
    assert weights_bytes > 200e6
    small = peak_bytes("stable_audio_3", tiny, tmp_path / "a", "--no-text")
    more_bytes = peak_bytes("stable_audio_3", large, tmp_path / "b", "--no-text") - small
    print(f"{more_bytes / weights_bytes:.2f} times the weights")
    assert more_bytes < 1.3 * weights_bytes
