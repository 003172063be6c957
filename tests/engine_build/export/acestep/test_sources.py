"""Sources of modules: damaged folders are refused by name; random weights are reproducible and finite."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_acestep import TRANSFORMER, VAE, save_checkpoint

from runtime.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from engine_build.export.acestep.sources import TURBO_CONFIG, Checkpoint, RandomWeights  # noqa: E402


def folder_with(tmp_path: Path, **classes: str) -> Path:
    for part, name in classes.items():
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "config.json").write_text(json.dumps({"_class_name": name}))
    return tmp_path


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder.*none"):
        Checkpoint(tmp_path / "none")


@pytest.mark.parametrize("part", ["transformer", "vae"])
def test_a_missing_part_is_named(tmp_path: Path, part: str) -> None:
    classes = {"transformer": "AceStepTransformer1DModel", "vae": "AutoencoderOobleck"}
    del classes[part]
    with pytest.raises(ConfigError, match=rf"not a checkpoint in diffusers' layout: .*{part}.config\.json"):
        Checkpoint(folder_with(tmp_path, **classes))


@pytest.mark.parametrize("part", ["transformer", "vae", "condition_encoder"])
def test_another_model_is_named(tmp_path: Path, part: str) -> None:
    classes = {"transformer": "AceStepTransformer1DModel", "vae": "AutoencoderOobleck"} | {part: "FluxTransformer"}
    with pytest.raises(ConfigError, match=f"{part}.*describes a FluxTransformer, expected A"):
        Checkpoint(folder_with(tmp_path, **classes))


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    folder_with(tmp_path, transformer="AceStepTransformer1DModel", vae="AutoencoderOobleck")
    (tmp_path / "vae" / "config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"vae.*cannot be read"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_damaged_weights_are_named(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path / "c", text=False, encoder=False)
    weights = tmp_path / "c" / "transformer" / "diffusion_pytorch_model.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        config = weights.with_name("config.json")
        config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 48'))
    with pytest.raises(ConfigError, match=r"transformer cannot be loaded"):
        Checkpoint(tmp_path / "c").load("transformer")


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
