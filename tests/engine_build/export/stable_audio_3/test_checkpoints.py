"""Both layouts are the same parts, by diffusers' names; what is not a Stable Audio 3 is refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_stable_audio_3 import MAX_TOKENS, SIZES, save_checkpoint, save_own_checkpoint, tiny_parts

from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from engine_build.export.stable_audio_3.layouts import LOGSNR, ModelTraits  # noqa: E402
from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint  # noqa: E402

NAMES = ("transformer", "vae", "duration_embedder", "text_encoder")


def changed(folder: Path, change: Any) -> Path:
    path = folder / "model_config.json"
    config = json.loads(path.read_text())
    change(config["model"])
    path.write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """By layout and size."""
    folder = tmp_path_factory.mktemp("checkpoints")
    own = {("own", size): save_own_checkpoint(folder / f"own-{size}", size) for size in SIZES}
    return own | {("diffusers", size): save_checkpoint(folder / size, size) for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("layout", "eps"), [("own", 1e-5), ("diffusers", 1e-6)])
def test_both_layouts_are_the_same_parts(folders: Any, layout: str, size: str, eps: float) -> None:
    """eps: of norms in blocks, which differs between the authors' code and diffusers."""
    source, wanted = StableAudioCheckpoint(folders[layout, size]), tiny_parts(size)
    for name in NAMES:
        found = source.load(name)
        assert not found.training
        state = found.state_dict()
        assert state.keys() == wanted[name].state_dict().keys()
        assert all(torch.equal(state[key], value) for key, value in wanted[name].state_dict().items()), name
        if name == "transformer":
            block = found.transformer_blocks[0]
            assert (block.pre_norm.eps, block.cross_attend_norm.eps, block.ff_norm.eps) == (eps, eps, eps)
            assert (block.self_attn.q_norm.eps, block.cross_attn.k_norm.eps) == (1e-6, 1e-6)
    assert torch.equal(source.load("prompt_padding_embedding"), wanted["transformer"].prompt_padding_embedding)
    assert source.load("tokenizer")("a").input_ids
    assert source.traits == ModelTraits(True, 2 if size == "small" else 0)
    report = "\n".join(source.report())
    assert "distilled (no guidance)" in report
    assert ("chunks of 2 frames" if size == "small" else "a sliding window") in report


def test_a_base_checkpoint_and_its_schedule(folders: Any, tmp_path: Path) -> None:
    def change(model: Any, **options: Any) -> None:
        model["diffusion"]["diffusion_objective"] = "rectified_flow"
        model["diffusion"]["sampling_distribution_shift_options"] = options

    folder, logsnr = shutil.copytree(folders["own", "small"], tmp_path / "base"), {"anchor_logsnr": -5.0}
    changed(folder, lambda model: change(model, type="logsnr", rate=0, logsnr_end=3.0, **logsnr))
    source = StableAudioCheckpoint(folder)
    assert source.traits == ModelTraits(False, 2, (-5.0, 3.0), MAX_TOKENS)
    assert "with guidance" in next(source.report())
    changed(folder, lambda model: change(model, type="flux", base_shift=0.5))
    source = StableAudioCheckpoint(folder)
    assert source.traits.logsnr == LOGSNR
    assert any("depends on the length" in line for line in source.report())


def transformer(**values: Any) -> Any:
    """Other values in the configuration of the transformer."""
    return lambda folder: changed(folder, lambda model: model["diffusion"]["config"].update(values))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (transformer(timestep_features_logsnr=True), "has timestep_features_logsnr"),
        (transformer(timestep_features_type="learned"), "timestep_features_type other than expo"),
        (transformer(patch_size=2), "patches of several frames"),
        (shutil.rmtree, "there is no folder"),
        (lambda folder: (folder / "model_config.json").unlink(), "is not a checkpoint of Stable Audio 3"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors file"),
        (lambda folder: (folder / "model_config.json").write_text("{}"), "does not describe a Stable Audio 3"),
    ],
)
def test_other_checkpoints_are_refused(folders: Any, tmp_path: Path, change: Any, says: str) -> None:
    change(shutil.copytree(folders["own", "small"], tmp_path / "c"))
    with pytest.raises(ConfigError, match=says):
        StableAudioCheckpoint(tmp_path / "c")


def test_a_text_encoder_is_a_t5gemma(folders: Any) -> None:
    folder = folders["diffusers", "small"]
    with pytest.raises(ConfigError, match="of a T5Gemma"):
        StableAudioCheckpoint(folder, folder / "vae")


def test_a_text_encoder_may_lie_elsewhere_with_its_decoder(folders: Any, tmp_path: Path) -> None:
    """google/t5gemma-b-b-ul2 has a decoder too, and names that begin with model."""
    moved = shutil.copytree(folders["own", "small"], tmp_path / "moved")
    folder = tmp_path / "ul2"
    (moved / "t5gemma").rename(folder)
    assert not StableAudioCheckpoint(moved).has("text_encoder")
    assert any("--text-encoder FOLDER" in line for line in StableAudioCheckpoint(moved).report())
    tensors = load_file(folder / "model.safetensors")
    decoder = {"model.decoder.norm.weight": torch.ones(3), "lm_head.out_proj.weight": torch.ones(3)}
    save_file({f"model.{key}": value for key, value in tensors.items()} | decoder, folder / "model.safetensors")
    found = StableAudioCheckpoint(moved, folder).load("text_encoder").state_dict()
    wanted = StableAudioCheckpoint(folders["own", "small"]).load("text_encoder").state_dict()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_a_name_with_one_part_too_many_is_known(folders: Any, tmp_path: Path) -> None:
    """As the authors' code reads checkpoints of wrapped modules; another unknown tensor is refused."""
    folder = shutil.copytree(folders["own", "small"], tmp_path / "c")
    tensors = load_file(folder / "model.safetensors")
    value = tensors.pop("model.model.to_cond_embed.0.weight")
    tensors["model.model.to_cond_embed._orig_mod.0.weight"] = value
    key = "model.model.transformer.layers.1.self_attn.to_out.weight"
    tensors[key.replace("to_out", "to_out.wrapped")] = tensors.pop(key)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"to_cond_embed\.0\.weight"):  # a size is read from it
        StableAudioCheckpoint(folder)
    tensors["model.model.to_cond_embed.0.weight"] = tensors.pop("model.model.to_cond_embed._orig_mod.0.weight")
    save_file(tensors, folder / "model.safetensors")
    found = StableAudioCheckpoint(folder).load("transformer").state_dict()
    assert torch.equal(
        found["transformer_blocks.1.self_attn.to_out.weight"], tensors[key.replace("to_out", "to_out.wrapped")]
    )
    save_file(tensors | {"model.model.other": value.clone()}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="'other'"):
        StableAudioCheckpoint(folder).load("transformer")
