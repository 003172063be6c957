"""Checkpoint folders in both layouts give the same parts; what is damaged is named before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.tiny_acestep import CHANNELS, CONDITION_WIDTH, WEIGHTS, save_checkpoint, save_own_checkpoint

from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from engine_build.export.acestep.layouts import parts_of  # noqa: E402
from engine_build.export.acestep.sources import Checkpoint  # noqa: E402


@pytest.fixture(scope="module")
def own(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_own_checkpoint(base, tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize("named", ["decoder's folder", "folder of all"])
def test_ace_step_s_own_layout_has_the_same_parts(own: Path, base: Path, named: str) -> None:
    checkpoint, wanted = Checkpoint(own if named == "decoder's folder" else own.parent), Checkpoint(base)
    assert set(checkpoint.parts) == set(wanted.parts)
    for part in wanted.parts:
        if part == "tokenizer":
            assert checkpoint.load(part)("ab").input_ids == wanted.load(part)("ab").input_ids
            continue
        found, expected = checkpoint.load(part).state_dict(), wanted.load(part).state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found), part


def test_own_layout_s_parts_compute_the_same(own: Path, base: Path) -> None:
    latents = torch.randn(1, 10, CHANNELS, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = (Checkpoint(folder).load("audio_tokenizer").tokenize(latents) for folder in (own, base))
    assert torch.equal(first[1], second[1])


def test_one_size_for_all_parts_where_the_configuration_has_no_other(own: Path, tmp_path: Path) -> None:
    """XL's encoders are narrower than its decoder; turbo, base and sft have no keys for them."""
    shutil.copytree(own.parent, tmp_path / "all")
    path = tmp_path / "all" / own.name / "config.json"
    config = json.loads(path.read_text())
    assert parts_of(tmp_path / "all")["audio_tokenizer"].config["hidden_size"] == CONDITION_WIDTH
    path.write_text(json.dumps({key: value for key, value in config.items() if not key.startswith("encoder_")}))
    parts = parts_of(tmp_path / "all")
    for part in ("condition_encoder", "audio_tokenizer", "audio_token_detokenizer"):
        assert parts[part].config["hidden_size"] == config["hidden_size"] == 32
    assert parts["transformer"].config.get("encoder_hidden_size") is None


def test_several_decoders_are_listed(own: Path, tmp_path: Path) -> None:
    shutil.copytree(own.parent, tmp_path / "all")
    shutil.copytree(own, tmp_path / "all" / "acestep-v15-turbo")
    with pytest.raises(ConfigError, match=r"several decoders: acestep-v15-base, acestep-v15-turbo"):
        parts_of(tmp_path / "all")
    assert parts_of(tmp_path / "all" / "acestep-v15-turbo")["vae"].folder == tmp_path / "all" / "vae"


def test_own_layout_needs_its_silence(own: Path, tmp_path: Path) -> None:
    shutil.copytree(own.parent, tmp_path / "all")
    silence = tmp_path / "all" / own.name / "silence_latent.pt"
    silence.write_bytes(b"no tensor")
    with pytest.raises(ConfigError, match=r"silence_latent\.pt cannot be read"):
        Checkpoint(tmp_path / "all").load("condition_encoder")
    silence.unlink()
    with pytest.raises(ConfigError, match=r"silence_latent\.pt is missing"):
        parts_of(tmp_path / "all")


def test_the_text_encoder_may_have_a_language_head(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "c")
    weights = tmp_path / "c" / "text_encoder" / "model.safetensors"
    tensors = {f"model.{name}": tensor for name, tensor in load_file(weights).items()}
    save_file({**tensors, "lm_head.weight": torch.zeros(300, 32)}, weights)
    found, wanted = (Checkpoint(folder).load("text_encoder").state_dict() for folder in (tmp_path / "c", base))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def folder_with(tmp_path: Path, **classes: str) -> Path:
    for part, name in classes.items():
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "config.json").write_text(json.dumps({"_class_name": name}))
        save_file({"a": torch.zeros(1)}, tmp_path / part / WEIGHTS)
    return tmp_path


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder.*none"):
        parts_of(tmp_path / "none")


@pytest.mark.parametrize("part", ["transformer", "vae"])
def test_a_missing_part_is_named(tmp_path: Path, part: str) -> None:
    classes = {"transformer": "AceStepTransformer1DModel", "vae": "AutoencoderOobleck"}
    del classes[part]
    with pytest.raises(ConfigError, match=rf"not a checkpoint of ACE-Step: .*{part}.config\.json is missing"):
        parts_of(folder_with(tmp_path, **classes))


@pytest.mark.parametrize("part", ["transformer", "vae", "condition_encoder"])
def test_another_model_is_named(tmp_path: Path, part: str) -> None:
    classes = {"transformer": "AceStepTransformer1DModel", "vae": "AutoencoderOobleck"} | {part: "FluxTransformer"}
    with pytest.raises(ConfigError, match=f"{part}.*describes a FluxTransformer, expected A"):
        parts_of(folder_with(tmp_path, **classes))


@pytest.mark.parametrize("text", ["[", "[]"])
def test_a_damaged_configuration_is_named(tmp_path: Path, text: str) -> None:
    folder_with(tmp_path, transformer="AceStepTransformer1DModel", vae="AutoencoderOobleck")
    (tmp_path / "vae" / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"vae.*cannot be read"):
        parts_of(tmp_path)


def test_damage_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    weights = save_checkpoint(tmp_path / "c", text=False, encoder=False) / "transformer" / WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match=r"transformer/diffusion_pytorch_model\.safetensors is cut off: '"):
        parts_of(tmp_path / "c")
    weights.unlink()
    with pytest.raises(ConfigError, match=r"transformer has no safetensors file"):
        parts_of(tmp_path / "c")
