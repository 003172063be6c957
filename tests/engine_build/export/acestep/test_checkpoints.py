"""Checkpoints in both layouts give diffusers' own parts, what is damaged is named; random weights are reproducible."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_acestep import (
    CHANNELS,
    CONDITION_WIDTH,
    TRANSFORMER,
    VAE,
    WEIGHTS,
    diffusers_pipeline,
    save_checkpoint,
)
from helpers.tiny_exports import TinyExports

from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from diffusers import AceStepTransformer1DModel  # noqa: E402
from diffusers.pipelines.ace_step import modeling_ace_step as ace_step  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from engine_build.export.acestep.layouts import acestep_parts  # noqa: E402
from engine_build.export.acestep.sources import (  # noqa: E402
    TURBO_CONFIG,
    XL_CONFIG,
    AceStepCheckpoint,
    RandomAceStep,
    is_xl,
)


@pytest.fixture(scope="module")
def own(tiny: TinyExports) -> Path:
    return tiny.acestep_own()


PARTS = ["transformer", "vae", "condition_encoder", "text_encoder", "audio_tokenizer", "audio_token_detokenizer"]


@pytest.mark.parametrize("named", ["decoder's folder", "folder of all"])
def test_ace_step_s_own_layout_has_the_same_parts(own: Path, base: Path, named: str) -> None:
    checkpoint, wanted = AceStepCheckpoint(own if named == "decoder's folder" else own.parent), AceStepCheckpoint(base)
    assert set(checkpoint.parts) == set(wanted.parts)
    for part in wanted.parts:
        if part == "tokenizer":
            assert checkpoint.load(part)("ab").input_ids == wanted.load(part)("ab").input_ids
            continue
        found, expected = checkpoint.load(part).state_dict(), wanted.load(part).state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found), part


def test_one_size_for_all_parts_where_the_configuration_has_no_other(own: Path, tmp_path: Path) -> None:
    """XL's encoders are narrower than its decoder; turbo, base and sft have no keys for them."""
    shutil.copytree(own.parent, tmp_path / "all")
    path = tmp_path / "all" / own.name / "config.json"
    config = json.loads(path.read_text())
    assert acestep_parts(tmp_path / "all")["audio_tokenizer"].config["hidden_size"] == CONDITION_WIDTH
    path.write_text(json.dumps({key: value for key, value in config.items() if not key.startswith("encoder_")}))
    parts = acestep_parts(tmp_path / "all")
    for part in ("condition_encoder", "audio_tokenizer", "audio_token_detokenizer"):
        assert parts[part].config["hidden_size"] == config["hidden_size"] == 32
    assert parts["transformer"].config.get("encoder_hidden_size") is None


def test_the_text_encoder_may_have_a_language_head(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "c")
    weights = tmp_path / "c" / "text_encoder" / "model.safetensors"
    tensors = {f"model.{name}": tensor for name, tensor in load_file(weights).items()}
    save_file({**tensors, "lm_head.weight": torch.zeros(300, 32)}, weights)
    found, wanted = (AceStepCheckpoint(folder).load("text_encoder").state_dict() for folder in (tmp_path / "c", base))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def configured(**changes: Any) -> Callable[[Path], object]:
    """Other values in the transformer's configuration."""

    def change(folder: Path) -> None:
        path = folder / "transformer" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def cut(folder: Path) -> None:
    weights = folder / "transformer" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])


FLUX = json.dumps({"_class_name": "FluxTransformer"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without(""), r"there is no folder.*copy"),
        (without("transformer"), r"not a checkpoint of ACE-Step: .*transformer.config\.json is missing"),
        (without("vae"), r"not a checkpoint of ACE-Step: .*vae.config\.json is missing"),
        (written("vae/config.json", "["), r"vae.*cannot be read"),
        (written("vae/config.json", "[]"), r"vae.*cannot be read"),
        (written("transformer/config.json", FLUX), "transformer.*describes a FluxTransformer, expected A"),
        (written("vae/config.json", FLUX), "vae.*describes a FluxTransformer, expected A"),
        (written("condition_encoder/config.json", FLUX), "condition_encoder.*describes a FluxTransformer, expected A"),
        (cut, r"transformer/diffusion_pytorch_model\.safetensors is cut off: '"),
        (without(f"transformer/{WEIGHTS}"), r"transformer has no safetensors file"),
    ],
)
def test_damage_is_found_before_anything_is_loaded(base: Path, tmp_path: Path, change: Any, says: str) -> None:
    change(Path(shutil.copytree(base, tmp_path / "copy")))
    with pytest.raises(ConfigError, match=says):
        acestep_parts(tmp_path / "copy")


@pytest.mark.parametrize(
    ("change", "part", "says"),
    [
        (
            configured(hidden_size=48),
            "transformer",
            r"of shape \[.*32.*\], the configuration describes \[.*48",
        ),
        (configured(num_hidden_layers=2), "transformer", r"has a tensor 'layers\.2\..*', the .* a model without it"),
        (configured(num_hidden_layers=4), "transformer", r"\d+ tensors that .* in .*model\.safetensors: 'layers\.3\."),
        (configured(hidden_size="wide"), "transformer", "transformer does not describe a model"),
        (without("tokenizer"), "text_encoder", "has a text encoder and no tokenizer/"),
    ],
)
def test_parts_that_do_not_fit_their_configuration_are_named(
    base: Path, tmp_path: Path, change: Any, part: str, says: str
) -> None:
    change(Path(shutil.copytree(base, tmp_path / "copy")))
    with pytest.raises(ConfigError, match=says):
        AceStepCheckpoint(tmp_path / "copy").load(part)


def test_of_its_own_layout_several_decoders_are_listed_and_silence_is_needed(own: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(own.parent, tmp_path / "all"))
    shutil.copytree(own, folder / "acestep-v15-turbo")
    with pytest.raises(ConfigError, match="several decoders: acestep-v15-base, acestep-v15-turbo"):
        acestep_parts(folder)
    assert acestep_parts(folder / "acestep-v15-turbo")["vae"].folder == folder / "vae"
    silence = folder / own.name / "silence_latent.pt"
    silence.write_bytes(b"no tensor")
    with pytest.raises(ConfigError, match=r"silence_latent\.pt cannot be read"):
        AceStepCheckpoint(folder / own.name).load("condition_encoder")
    silence.unlink()
    with pytest.raises(ConfigError, match=r"silence_latent\.pt is missing"):
        acestep_parts(folder / own.name)


def test_a_text_encoder_needs_transformers(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "transformers" else find(name))
    with pytest.raises(ConfigError, match=r"(?s)needs the package transformers.*tickrt\[export\]"):
        AceStepCheckpoint(base).load("text_encoder")


def equal(module: Any, wanted: Any) -> bool:
    """Parameters and buffers, the ones that no file has included."""
    found, expected = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (module, wanted))
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_loaded_as_diffusers_and_transformers_load_it(base: Path, part: str) -> None:
    module, wanted = AceStepCheckpoint(base).load(part), getattr(diffusers_pipeline(base), part)
    assert type(module) is type(wanted)
    assert not module.training
    assert equal(module, wanted)


def test_turbo_and_sizes_are_reported_before_anything_is_loaded(base: Path, tmp_path: Path) -> None:
    lines = list(AceStepCheckpoint(base).report())
    count = sum(parameter.numel() for parameter in AceStepCheckpoint(base).load("transformer").parameters())
    assert lines[0] == "Tiny_Base: with guidance, XL"
    assert f"  transformer: {count / 1e6:.1f} M parameters in f32, {count * 4 / 1e9:.2f} GB in memory" in lines
    assert not any(line.startswith("  no ") for line in lines)
    few = list(AceStepCheckpoint(save_checkpoint(tmp_path / "c", turbo=True, encoder=False)).report())
    assert few[0] == "c: turbo (no guidance), XL"
    assert "  no audio_tokenizer: covers have no structure" in few
    assert any(line.startswith("  no condition_encoder: no texts") for line in few)


def test_the_fingerprint_depends_on_every_file(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "c"))
    first = AceStepCheckpoint(folder).fingerprint()
    assert AceStepCheckpoint(folder).fingerprint() == first
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    second = AceStepCheckpoint(folder).fingerprint()
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert len({first, second, AceStepCheckpoint(folder).fingerprint()}) == 3


def state(source: RandomAceStep) -> dict[str, Any]:
    return dict(source.load("transformer").state_dict())


def test_random_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (state(RandomAceStep(seed=seed, transformer_changes=TRANSFORMER)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["layers.0.self_attn.to_q.weight"], other["layers.0.self_attn.to_q.weight"])


def test_a_layer_s_weights_do_not_depend_on_how_many_there_are() -> None:
    few = state(RandomAceStep(transformer_changes=TRANSFORMER | {"num_hidden_layers": 1}))
    many = state(RandomAceStep(transformer_changes=TRANSFORMER | {"num_hidden_layers": 3}))
    assert set(few) < set(many)
    assert all(torch.equal(few[name], many[name]) for name in few)


def test_24_random_layers_stay_finite_and_change_the_input() -> None:
    module = RandomAceStep(transformer_changes=TRANSFORMER | {"num_hidden_layers": 24}).load("transformer")
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


def test_published_sizes_are_what_is_built() -> None:
    """XL: 32 layers of 2560 on a condition encoder of 2048: 4.2 B parameters."""
    with torch.device("meta"):
        assert sum(value.numel() for value in AceStepTransformer1DModel(**TURBO_CONFIG).parameters()) == 1_575_458_880
        module = AceStepTransformer1DModel(**{**TURBO_CONFIG, **XL_CONFIG})
    assert module.condition_embedder.weight.shape == (2560, 2048)
    assert module.layers[0].self_attn.to_q.weight.shape == (32 * 128, 2560)
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count == 4_168_897_088


@pytest.mark.parametrize("is_wider", [True, False])
def test_xl_s_timbre_is_that_of_a_token_before_the_frames(base: Path, tmp_path: Path, is_wider: bool) -> None:
    """The authors' rule, layer by layer. XL is where the condition encoder is narrower than the decoder."""
    folder = Path(shutil.copytree(base, tmp_path / "c"))
    if not is_wider:
        configured(encoder_hidden_size=32)(folder)
    encoder = AceStepCheckpoint(folder).load("condition_encoder").timbre_encoder
    frames = torch.randn(2, 11, CHANNELS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = encoder(frames, torch.arange(2))[0][:, 0]
        config = AceStepCheckpoint(folder).parts["transformer"].config
        assert (is_xl(config), found.shape) == (is_wider, (2, CONDITION_WIDTH))
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
    few = RandomAceStep(seed=3, transformer_changes=sizes, vae_changes=VAE)
    source = replace(few, text_changes={**text, **heads})
    assert [part for part in PARTS if few.has(part)] == ["transformer", "vae"]
    for part in PARTS:
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
    assert [RandomAceStep(planner="0.6b").has(part) for part in parts] == [True, True]
    assert [RandomAceStep().has(part) for part in parts] == [False, False]
    assert not RandomAceStep(planner="0.6b").has("text_encoder")
