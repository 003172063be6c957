"""Both layouts are the same parts, by diffusers' names; what is not a Stable Audio 3 is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_stable_audio_3 import MAX_TOKENS, SIZES, save_checkpoint, save_own_checkpoint, tiny_parts

from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from engine_build.export.stable_audio_3.layouts import LOGSNR, ModelTraits  # noqa: E402
from engine_build.export.stable_audio_3.sources import Checkpoint  # noqa: E402

NAMES = ("transformer", "vae", "duration_embedder", "text_encoder")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("own")
    return {size: save_own_checkpoint(folder / size, size) for size in SIZES}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("diffusers")
    return {size: save_checkpoint(folder / size, size) for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", ["own", "saved"])
def test_every_part_is_loaded_with_its_weights(request: Any, layout: str, size: str) -> None:
    source = Checkpoint(request.getfixturevalue(layout)[size])
    for name, wanted in tiny_parts(size).items():
        found = source.load(name)
        assert not found.training
        state = found.state_dict()
        assert state.keys() == wanted.state_dict().keys()
        assert all(torch.equal(state[key], value) for key, value in wanted.state_dict().items()), name
    assert torch.equal(
        source.load("prompt_padding_embedding"), tiny_parts(size)["transformer"].prompt_padding_embedding
    )
    assert source.load("tokenizer")("a").input_ids


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", ["own", "saved"])
def test_the_layout_tells_the_sampler_and_the_codecs_attention(request: Any, layout: str, size: str) -> None:
    source = Checkpoint(request.getfixturevalue(layout)[size])
    assert source.traits == ModelTraits(True, 2 if size == "small" else 0)
    report = "\n".join(source.report())
    assert "distilled (no guidance)" in report
    assert ("chunks of 2 frames" if size == "small" else "a sliding window") in report


def test_norms_are_those_of_the_layouts_own_code(own: dict[str, Path], saved: dict[str, Path]) -> None:
    """1e-5 in the authors' blocks, 1e-6 everywhere in diffusers'."""
    for folder, eps in ((own, 1e-5), (saved, 1e-6)):
        block = Checkpoint(folder["medium"]).load("transformer").transformer_blocks[0]
        assert (block.pre_norm.eps, block.cross_attend_norm.eps, block.ff_norm.eps) == (eps, eps, eps)
        assert (block.self_attn.q_norm.eps, block.cross_attn.k_norm.eps) == (1e-6, 1e-6)


def changed(folder: Path, change: Any) -> Path:
    path = folder / "model_config.json"
    config = json.loads(path.read_text())
    change(config["model"])
    path.write_text(json.dumps(config))
    return folder


def test_a_base_checkpoint_and_its_schedule(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model["diffusion"]["diffusion_objective"] = "rectified_flow"
        options = {"type": "logsnr", "rate": 0, "anchor_logsnr": -5.0, "logsnr_end": 3.0}
        model["diffusion"]["sampling_distribution_shift_options"] = options

    source = Checkpoint(changed(save_own_checkpoint(tmp_path / "base", "small"), change))
    assert source.traits == ModelTraits(False, 2, (-5.0, 3.0), MAX_TOKENS)
    assert "with guidance" in next(source.report())


def test_a_schedule_that_depends_on_the_length_is_reported(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model["diffusion"]["sampling_distribution_shift_options"] = {"type": "flux", "base_shift": 0.5}

    source = Checkpoint(changed(save_own_checkpoint(tmp_path / "flux", "small"), change))
    assert source.traits.logsnr == LOGSNR
    assert any("depends on the length" in line for line in source.report())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("timestep_features_logsnr", True, "has timestep_features_logsnr"),
        ("timestep_features_type", "learned", "timestep_features_type other than expo"),
        ("patch_size", 2, "patches of several frames"),
    ],
)
def test_what_the_exporter_does_not_know_is_refused(tmp_path: Path, name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Checkpoint(save_own_checkpoint(tmp_path / "c", "small", **{name: value}))


def test_other_folders_are_refused(tmp_path: Path, saved: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        Checkpoint(tmp_path / "none")
    with pytest.raises(ConfigError, match="is not a checkpoint of Stable Audio 3"):
        Checkpoint(tmp_path)
    (tmp_path / "model_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no safetensors file"):
        Checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="of a T5Gemma"):
        Checkpoint(saved["small"], saved["small"] / "vae")


def test_a_text_encoder_may_lie_elsewhere_with_its_decoder(tmp_path: Path, own: dict[str, Path]) -> None:
    """google/t5gemma-b-b-ul2 has a decoder too, and names that begin with model."""
    from safetensors.torch import load_file, save_file

    moved = save_own_checkpoint(tmp_path / "moved", "small")
    folder = tmp_path / "ul2"
    (moved / "t5gemma").rename(folder)
    assert not Checkpoint(moved).has("text_encoder")
    assert any("--text-encoder FOLDER" in line for line in Checkpoint(moved).report())
    tensors = load_file(folder / "model.safetensors")
    decoder = {"model.decoder.norm.weight": torch.ones(3), "lm_head.out_proj.weight": torch.ones(3)}
    save_file({f"model.{key}": value for key, value in tensors.items()} | decoder, folder / "model.safetensors")
    found = Checkpoint(moved, folder).load("text_encoder").state_dict()
    wanted = Checkpoint(own["small"]).load("text_encoder").state_dict()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_a_name_with_one_part_too_many_is_known(tmp_path: Path) -> None:
    """As the authors' code reads checkpoints of wrapped modules; another unknown tensor is refused."""
    from safetensors.torch import load_file, save_file

    folder = save_own_checkpoint(tmp_path / "c", "small")
    tensors = load_file(folder / "model.safetensors")
    value = tensors.pop("model.model.to_cond_embed.0.weight")
    tensors["model.model.to_cond_embed._orig_mod.0.weight"] = value
    key = "model.model.transformer.layers.1.self_attn.to_out.weight"
    tensors[key.replace("to_out", "to_out.wrapped")] = tensors.pop(key)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"to_cond_embed\.0\.weight"):  # a size is read from it
        Checkpoint(folder)
    tensors["model.model.to_cond_embed.0.weight"] = tensors.pop("model.model.to_cond_embed._orig_mod.0.weight")
    save_file(tensors, folder / "model.safetensors")
    found = Checkpoint(folder).load("transformer").state_dict()
    assert torch.equal(
        found["transformer_blocks.1.self_attn.to_out.weight"], tensors[key.replace("to_out", "to_out.wrapped")]
    )
    save_file(tensors | {"model.model.other": value.clone()}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="'other'"):
        Checkpoint(folder).load("transformer")
