"""Sources of modules: checkpoints give diffusers' own parts; random weights are reproducible and finite."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_acestep import CHANNELS, CONDITION_WIDTH, TRANSFORMER, VAE, diffusers_pipeline, save_checkpoint

from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from diffusers.pipelines.ace_step import modeling_ace_step as ace_step  # noqa: E402

from engine_build.export.acestep.sources import (  # noqa: E402
    TURBO_CONFIG,
    XL_CONFIG,
    Checkpoint,
    RandomWeights,
    is_xl,
)

PARTS = ["transformer", "vae", "condition_encoder", "text_encoder", "audio_tokenizer", "audio_token_detokenizer"]


def equal(module: Any, wanted: Any) -> bool:
    """Parameters and buffers, the ones that no file has included."""
    found, expected = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (module, wanted))
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_loaded_as_diffusers_and_transformers_load_it(base: Path, part: str) -> None:
    module, wanted = Checkpoint(base).load(part), getattr(diffusers_pipeline(base), part)
    assert type(module) is type(wanted)
    assert not module.training
    assert equal(module, wanted)


def test_turbo_and_sizes_are_reported_before_anything_is_loaded(base: Path, tmp_path: Path) -> None:
    lines = list(Checkpoint(base).report())
    count = sum(parameter.numel() for parameter in Checkpoint(base).load("transformer").parameters())
    assert lines[0] == "Tiny_Base: with guidance, XL"
    assert f"  transformer: {count / 1e6:.1f} M parameters in f32, {count * 4 / 1e9:.2f} GB in memory" in lines
    assert not any(line.startswith("  no ") for line in lines)
    few = list(Checkpoint(save_checkpoint(tmp_path / "c", turbo=True, encoder=False)).report())
    assert few[0] == "c: turbo (no guidance), XL"
    assert "  no audio_tokenizer: covers have no structure" in few
    assert any(line.startswith("  no condition_encoder: no texts") for line in few)


def test_the_fingerprint_depends_on_every_file(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "c")
    first = Checkpoint(folder).fingerprint()
    assert Checkpoint(folder).fingerprint() == first
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    second = Checkpoint(folder).fingerprint()
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert len({first, second, Checkpoint(folder).fingerprint()}) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 48}, r"has '.*' of shape \[.*32.*\], the configuration describes \[.*48"),
        ({"num_hidden_layers": 2}, r"has a tensor 'layers\.2\..*', the configuration describes a model without it"),
        ({"num_hidden_layers": 4}, r"\d+ tensors that .* are missing in .*model\.safetensors: 'layers\.3\."),
    ],
)
def test_a_configuration_that_does_not_fit_names_the_tensor(tmp_path: Path, change: dict[str, int], says: str) -> None:
    folder = save_checkpoint(tmp_path / "c", text=False, encoder=False)
    config = folder / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ConfigError, match=says):
        Checkpoint(folder).load("transformer")


def test_a_configuration_that_makes_no_model_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "c", text=False, encoder=False)
    config = folder / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": "wide"}))
    with pytest.raises(ConfigError, match=r"transformer does not describe a model"):
        Checkpoint(folder).load("transformer")


def test_a_text_encoder_needs_its_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    save_checkpoint(tmp_path / "c")
    shutil.rmtree(tmp_path / "c" / "tokenizer")
    with pytest.raises(ConfigError, match=r"has a text encoder and no tokenizer/"):
        Checkpoint(tmp_path / "c").load("text_encoder")


def state(source: RandomWeights) -> dict[str, Any]:
    return dict(source.load("transformer").state_dict())


def test_random_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (state(RandomWeights(seed, transformer_changes=TRANSFORMER)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["layers.0.self_attn.to_q.weight"], other["layers.0.self_attn.to_q.weight"])


def test_a_layer_s_weights_do_not_depend_on_how_many_there_are() -> None:
    few = state(RandomWeights(transformer_changes=TRANSFORMER | {"num_hidden_layers": 1}))
    many = state(RandomWeights(transformer_changes=TRANSFORMER | {"num_hidden_layers": 3}))
    assert set(few) < set(many)
    assert all(torch.equal(few[name], many[name]) for name in few)


def test_24_random_layers_stay_finite_and_change_the_input() -> None:
    module = RandomWeights(transformer_changes=TRANSFORMER | {"num_hidden_layers": 24}).load("transformer")
    channels = TRANSFORMER["audio_acoustic_hidden_dim"]
    with torch.no_grad():
        velocity = module(
            hidden_states=torch.randn(2, 64, channels),
            timestep=torch.tensor([1.0, 0.2]),
            timestep_r=torch.tensor([1.0, 0.2]),
            encoder_hidden_states=torch.randn(2, 9, TRANSFORMER["encoder_hidden_size"]),
            context_latents=torch.randn(2, 64, 2 * channels),
        ).sample
    assert bool(torch.isfinite(velocity).all())
    assert 1e-3 < float(velocity.abs().max()) < 100.0


def test_the_published_size_is_what_is_built() -> None:
    from diffusers import AceStepTransformer1DModel

    with torch.device("meta"):
        module = AceStepTransformer1DModel(**TURBO_CONFIG)
    assert sum(parameter.numel() for parameter in module.parameters()) == 1_575_458_880


def test_the_random_codec_is_seeded() -> None:
    first, again = (RandomWeights(3, vae_changes=VAE).load("vae").state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_xl_s_published_size_is_what_is_built() -> None:
    """32 layers of 2560 on a condition encoder of 2048: 4.2 B parameters."""
    from diffusers import AceStepTransformer1DModel

    with torch.device("meta"):
        module = AceStepTransformer1DModel(**{**TURBO_CONFIG, **XL_CONFIG})
    assert module.condition_embedder.weight.shape == (2560, 2048)
    assert module.layers[0].self_attn.to_q.weight.shape == (32 * 128, 2560)
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count == 4_168_897_088


@pytest.mark.parametrize("is_wider", [True, False])
def test_xl_s_timbre_is_that_of_a_token_before_the_frames(tmp_path: Path, is_wider: bool) -> None:
    """The authors' rule, layer by layer. XL is where the condition encoder is narrower than the decoder."""
    folder = save_checkpoint(tmp_path / "c")
    if not is_wider:
        config = folder / "transformer" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"encoder_hidden_size": 32}))
    encoder = Checkpoint(folder).load("condition_encoder").timbre_encoder
    frames = torch.randn(2, 11, CHANNELS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = encoder(frames, torch.arange(2))[0][:, 0]
        assert (is_xl(Checkpoint(folder).parts["transformer"].config), found.shape) == (is_wider, (2, CONDITION_WIDTH))
        x = torch.nn.functional.linear(frames, encoder.embed_tokens.weight, encoder.embed_tokens.bias)
        if is_wider:
            x = torch.cat((encoder.special_token.expand(2, 1, -1), x), dim=1)
        count = x.shape[1]
        cos, sin = ace_step._ace_step_rotary_freqs(count, 8, 1e6, x.device, x.dtype)
        near = (torch.arange(count)[:, None] - torch.arange(count)).abs() <= 4
        mask = torch.where(near, 0.0, torch.finfo(x.dtype).min)[None, None]
        for index, layer in enumerate(encoder.layers):
            kwargs = {"position_embeddings": (cos, sin), "attention_mask": None if index % 2 else mask}
            x = layer(hidden_states=x, **kwargs)
        wanted = encoder.norm(x)[:, 0]
    assert (found - wanted).abs().max() < 1e-5


def test_random_weights_have_all_parts_where_they_are_asked_for() -> None:
    text = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    sizes = {**heads, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "encoder_hidden_size": 32}
    few = RandomWeights(transformer_changes=sizes)
    source = replace(few, text_changes={**text, **heads})
    parts = [part for part in PARTS if part != "vae"]
    assert [part for part in parts if few.has(part)] == ["transformer"]
    for part in parts:
        assert source.has(part)
        first, again = (source.load(part).state_dict() for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value, again[name]), name
            assert value.isfinite().all(), name
    assert source.load("condition_encoder").silence_latent.std() > 0.1
    ids = source.load("tokenizer")("a song").input_ids
    assert (len(ids), ids[-1]) == (7, 0)


def test_random_structure_comes_with_a_planner_whose_codes_it_makes_hints_of() -> None:
    parts = ("audio_tokenizer", "audio_token_detokenizer")
    assert [RandomWeights(planner="0.6b").has(part) for part in parts] == [True, True]
    assert [RandomWeights().has(part) for part in parts] == [False, False]
    assert not RandomWeights(planner="0.6b").has("text_encoder")
