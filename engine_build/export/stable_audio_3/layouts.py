"""The two layouts of Stable Audio 3's checkpoints, stable-audio-tools' and diffusers', as the same parts.

stable-audio-tools': model_config.json and one safetensors file with transformer, autoencoder and conditioners; the text
encoder is a folder of its own. What weights do not show is read from model_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engine_build.export.checkpoint import (
    CONFIG,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    CheckpointModel,
    read_config,
)
from engine_build.export.stable_audio_3.bundle_text import MAX_TOKENS
from engine_build.export.stored_tensors import AGAIN, StoredTensor, stored_tensors
from runtime.base.errors import ConfigError

DURATION: Final = "duration_embedder"
PADDING: Final = "prompt_padding_embedding"
CLASSES: Final = {
    TRANSFORMER: "StableAudio3DiTModel",
    VAE: "AutoencoderSAME",
    DURATION: "StableAudio3DurationEmbedder",
}
OWN_CONFIG: Final = "model_config.json"
SCHEDULER_CONFIG: Final = "scheduler/scheduler_config.json"
# The schedule of both references, and the tokens of a text.
LOGSNR: Final = (-6.2, 2.0)
LICENSE: Final = "Stability AI Community License; of the text encoder: Gemma Terms of Use"
# SAME-S: of the small models, whose transformer has plain attention.
CHUNK_FRAMES: Final = 2

_PREFIXES: Final = {
    TRANSFORMER: "model.model.",
    VAE: "pretransform.model.",
    DURATION: "conditioner.conditioners.seconds_total.embedder.embedding.1.",
    TEXT_ENCODER: "conditioner.conditioners.prompt.model.",
}
_PROMPT: Final = "conditioner.conditioners.prompt."
_FEED_FORWARD: Final = {".ff.ff.0.proj.": ".ff.proj_in.", ".ff.ff.2.": ".ff.proj_out."}
# In this order; what begins a name comes first.
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    TRANSFORMER: {
        "transformer.project_in.": "proj_in.",
        "transformer.project_out.": "proj_out.",
        "transformer.layers.": "transformer_blocks.",
        "transformer.": "",
        **_FEED_FORWARD,
    },
    VAE: {
        "encoder.layers.0.": "encoder.blocks.0.",
        "encoder.layers.2.": "encoder.proj.",
        "decoder.layers.1.": "decoder.proj.",
        "decoder.layers.3.": "decoder.blocks.0.",
        "bottleneck.scaling_factor": "bottleneck.scale",
        ".pre_norm.": ".norm_attn.",
        ".self_attn.": ".attn.",
        ".ff_norm.": ".norm_ff.",
        **_FEED_FORWARD,
    },
    DURATION: {"": "linear."},
    TEXT_ENCODER: {},
}
# Of the autoencoder: what is computed, and noise that is left out.
_IGNORED: Final = (".rope.inv_freq", "bottleneck.noise_scaling_factor")
# stable-audio-tools' q, k, v, q2, k2 as diffusers' q1, q2, k1, k2, v.
DIFFERENTIAL: Final = (0, 3, 1, 4, 2)
DIFFERENTIAL_MODULE: Final = "self_attn.to_qkv"


@dataclass(frozen=True)
class ModelTraits:
    """What tells checkpoints apart beside their sizes.

    distilled: made for few steps without guidance. logsnr: start and end of the schedule. chunk_frames: of the
    autoencoder's attention; 0: a sliding window. max_tokens: of a text.
    """

    distilled: bool
    chunk_frames: int
    logsnr: tuple[float, float] = LOGSNR
    max_tokens: int = MAX_TOKENS
    license: str = LICENSE


@dataclass(frozen=True)
class StableAudioParts:
    """Parts by name. norm_eps: of the transformer's norms and of those of queries and keys, where they are not
    diffusers'. notes: lines for the report."""

    parts: Mapping[str, CheckpointModel]
    traits: ModelTraits
    norm_eps: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReorderedTensor(StoredTensor):
    """A tensor whose equal parts along the first dimension are read in another order."""

    order: tuple[int, ...] = ()

    def read(self) -> Tensor:
        """As StoredTensor's."""
        parts = super().read().chunk(len(self.order))
        return torch.cat([parts[index] for index in self.order])


def stable_audio_parts(folder: Path, text_encoder: Path | None = None) -> StableAudioParts:
    """A checkpoint folder in either layout. Only headers are read.

    text_encoder: T5Gemma's folder, where it is not in the checkpoint's. Raises ConfigError where the folder is no
    checkpoint, or a file is missing or damaged.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", fix="--checkpoint FOLDER, or --random small")
    own = read_config(folder / OWN_CONFIG)
    found = _diffusers_checkpoint(folder) if own is None else _own_checkpoint(folder, own)
    return found if text_encoder is None else _with_text_encoder(found, text_encoder)


def _diffusers_checkpoint(folder: Path) -> StableAudioParts:
    parts = {
        name: CheckpointModel(folder / name, _config(folder, name), stored_tensors(folder / name)) for name in CLASSES
    }
    is_small = not parts[TRANSFORMER].config.get("use_differential_attention", True)
    scheduler = read_config(folder / SCHEDULER_CONFIG) or {}
    found = StableAudioParts(
        parts,
        ModelTraits(bool(scheduler.get("stochastic_sampling")), CHUNK_FRAMES if is_small else 0),
        notes=() if scheduler else (f"no {SCHEDULER_CONFIG}: taken for a base model, with guidance",),
    )
    if not (folder / TEXT_ENCODER).is_dir():
        return found
    tokenizer = folder / TOKENIZER
    return _with_text_encoder(found, folder / TEXT_ENCODER, tokenizer if tokenizer.is_dir() else None)


def _config(folder: Path, part: str) -> dict[str, Any]:
    path = folder / part / CONFIG
    config = read_config(path)
    if config is None:
        raise ConfigError(
            f"{folder} is not a checkpoint of Stable Audio 3: {path} is missing or cannot be read",
            fix=f"name a folder with {OWN_CONFIG}, or one in diffusers' layout (transformer/, vae/, ...)",
        )
    if config.get("_class_name") != CLASSES[part]:
        raise ConfigError(
            f"{path} describes a {config.get('_class_name')}, expected {CLASSES[part]}",
            fix="name a checkpoint of Stable Audio 3",
        )
    return config


def _with_text_encoder(found: StableAudioParts, folder: Path, tokenizer: Path | None = None) -> StableAudioParts:
    """With T5Gemma's encoder; a decoder that is published with it is left out."""
    config = read_config(folder / CONFIG)
    if config is None or config.get("model_type") != "t5gemma":
        raise ConfigError(f"{folder} has no {CONFIG} of a T5Gemma", fix="--text-encoder FOLDER")
    models = {
        TEXT_ENCODER: CheckpointModel(folder, config, _encoder(stored_tensors(folder))),
        TOKENIZER: CheckpointModel(tokenizer or folder),
    }
    return replace(found, parts={**found.parts, **models})


def _encoder(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    plain = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in plain.items() if name.startswith("encoder.")}


def _own_checkpoint(folder: Path, config: Mapping[str, Any]) -> StableAudioParts:
    """stable-audio-tools' layout. Raises ConfigError for a model that diffusers' cannot be."""
    path, tensors = folder / OWN_CONFIG, stored_tensors(folder)
    try:
        model = config["model"]
        diffusion = model["diffusion"]
        prompt, duration = (_conditioner(model, name) for name in ("prompt", "seconds_total"))
        transformer = _transformer_config(diffusion["config"], tensors)
        embedder = _duration_config(duration, tensors)
        vae, chunk_frames = _vae_config(model["pretransform"]["config"], int(config["sample_rate"]))
        norms = diffusion["config"].get("norm_kwargs", {}), diffusion["config"].get("attn_kwargs", {})
        distilled = diffusion["diffusion_objective"] == "rf_denoiser"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} does not describe a Stable Audio 3: {error!r}", fix=AGAIN) from error
    for what, is_unknown in _unsupported(model).items():
        if is_unknown:
            raise ConfigError(f"{path} has {what}, which the exporter does not know", fix="name a published checkpoint")
    configs = {TRANSFORMER: transformer, VAE: vae, DURATION: embedder}
    parts = {name: CheckpointModel(folder, configs[name], _own_tensors(tensors, name)) for name in CLASSES}
    for name, part in parts.items():
        if not part.tensors:
            raise ConfigError(f"{folder} has no tensor that begins with {_PREFIXES[name]!r}", fix=AGAIN)
    logsnr, notes = _schedule(diffusion)
    found = StableAudioParts(
        parts,
        ModelTraits(distilled, chunk_frames, logsnr, int(prompt.get("max_length", MAX_TOKENS))),
        (float(norms[0].get("eps", 1e-5)), float(norms[1].get("qk_norm_eps", 1e-6))),
        notes,
    )
    text = _own_text_folder(folder, prompt)
    if text is None:
        return found
    found = _with_text_encoder(found, text)
    if trained := _own_tensors(tensors, TEXT_ENCODER):
        model_part = CheckpointModel(text, found.parts[TEXT_ENCODER].config, trained)
        found = replace(found, parts={**found.parts, TEXT_ENCODER: model_part})
    return found


def _conditioner(model: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The configuration of a conditioner. Raises KeyError."""
    found: Mapping[str, Any] = {each["id"]: each["config"] for each in model["conditioning"]["configs"]}[name]
    return found


def _own_tensors(tensors: Mapping[str, StoredTensor], part: str) -> dict[str, StoredTensor]:
    """The part's tensors by diffusers' names, in diffusers' order of queries, keys and values."""
    prefix, found = _PREFIXES[part], {}
    for name, tensor in tensors.items():
        if name.startswith(prefix) and not name.endswith(_IGNORED if part == VAE else ("\0",)):
            found[_renamed(name.removeprefix(prefix), _RENAMED[part])] = _reordered(name, tensor)
    if part == TRANSFORMER and f"{_PROMPT}padding_embedding" in tensors:
        found[PADDING] = tensors[f"{_PROMPT}padding_embedding"]
    return found


def _renamed(name: str, pairs: Mapping[str, str]) -> str:
    for old, new in pairs.items():
        if old.startswith("."):
            name = name.replace(old, new)
        elif name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _reordered(name: str, tensor: StoredTensor) -> StoredTensor:
    if name.endswith(f"{DIFFERENTIAL_MODULE}.weight") and tensor.shape[0] == len(DIFFERENTIAL) * tensor.shape[1]:
        return ReorderedTensor(**vars(tensor), order=DIFFERENTIAL)
    return tensor


def _transformer_config(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """diffusers' configuration; sizes are read from the tensors."""
    prefix = _PREFIXES[TRANSFORMER]
    block = f"{prefix}transformer.layers.0."

    def shape(name: str) -> tuple[int, ...]:
        return tensors[name].shape

    width, features = shape(f"{prefix}to_timestep_embed.0.weight")
    return {
        "io_channels": shape(f"{prefix}postprocess_conv.weight")[0],
        "patch_size": int(config.get("patch_size", 1)),
        "embed_dim": width,
        "depth": int(config["depth"]),
        "num_heads": width // shape(f"{block}self_attn.q_norm.gamma")[0],
        "cond_token_dim": shape(f"{prefix}to_cond_embed.0.weight")[1],
        "global_cond_dim": shape(f"{prefix}to_global_embed.0.weight")[1],
        "local_add_cond_dim": shape(f"{block}to_local_embed.0.weight")[1],
        "timestep_features_dim": features,
        "ff_mult": shape(f"{block}ff.ff.0.proj.weight")[0] / (2 * width),
        "num_memory_tokens": shape(f"{prefix}transformer.memory_tokens")[0],
        "use_differential_attention": shape(f"{block}self_attn.to_qkv.weight")[0] == len(DIFFERENTIAL) * width,
    }


def _duration_config(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """diffusers' configuration."""
    width, features = tensors[f"{_PREFIXES[DURATION]}weight"].shape
    limits = {"min_val": float(config["min_val"]), "max_val": float(config["max_val"])}
    return {"output_dim": width, "fourier_dim": features, **limits}


def _vae_config(config: Mapping[str, Any], sample_rate_hz: int) -> tuple[dict[str, Any], int]:
    """diffusers' configuration, and the frames of a chunk: 0 where attention has a sliding window."""
    encoder, decoder = config["encoder"]["config"], config["decoder"]["config"]
    window, strides = encoder.get("sliding_window"), [int(stride) for stride in encoder["strides"]]
    if len(strides) != 1 or (window and len(set(window)) != 1):
        raise ValueError(f"strides {strides} and sliding_window {window}, expected one stride, and one width")
    found = {
        "audio_channels": int(config.get("io_channels", 2)),
        "patch_size": int(config["pretransform"]["config"]["patch_size"]),
        "encoder_channels": int(encoder["channels"]),
        "encoder_c_mults": list(encoder["c_mults"]),
        "encoder_strides": strides,
        "encoder_transformer_depths": list(encoder["transformer_depths"]),
        "latent_dim": int(encoder["latent_dim"]),
        "use_differential_attention": bool(encoder.get("differential", True)),
        "dim_heads": int(encoder.get("dim_heads", 128)),
        "ff_mult": encoder.get("ff_mult", 3),
        "sliding_window": window[0] if window else 1,
        "encoder_sinusoidal_blocks": _levels(encoder.get("sinusoidal_blocks", 0)),
        "decoder_sinusoidal_blocks": _levels(decoder.get("sinusoidal_blocks", 0)),
        "sampling_rate": sample_rate_hz,
    }
    chunk_frames = 0 if window else int(encoder.get("chunk_size", 128)) // strides[0]
    if chunk_frames % 2:
        raise ValueError(f"chunks of {chunk_frames} frames, expected an even number: they are shifted by half")
    return found, chunk_frames


def _levels(value: Any) -> list[int]:
    return [int(each) for each in value][:1] if isinstance(value, list) else [int(value)]


def _unsupported(model: Mapping[str, Any]) -> dict[str, bool]:
    """What no tensor shows and diffusers' model does not have -> whether this model has it."""
    transformer, codec = model["diffusion"]["config"], model["pretransform"]["config"]
    halves = [codec[half]["config"] for half in ("encoder", "decoder")]
    return {
        "timestep_features_logsnr": bool(transformer.get("timestep_features_logsnr")),
        "timestep_features_type other than expo": transformer.get("timestep_features_type") != "expo",
        "global_cond_type other than adaLN": transformer.get("global_cond_type") != "adaLN",
        "patches of several frames": int(transformer.get("patch_size", 1)) != 1,
        "soft_clip": bool(codec["decoder"].get("soft_clip")),
        "chunks without chunk_midpoint_shift": any(
            not half.get("sliding_window") and not half.get("chunk_midpoint_shift") for half in halves
        ),
        "a padding_mode other than learned": _conditioner(model, "prompt").get("padding_mode") != "learned",
    }


def _schedule(diffusion: Mapping[str, Any]) -> tuple[tuple[float, float], tuple[str, ...]]:
    """Start and end of the log-SNR schedule; a line for the report where the configuration wants another one."""
    options = diffusion.get("sampling_distribution_shift_options")
    if options is None:
        return LOGSNR, ()
    if options.get("type") == "logsnr" and options.get("rate", 1.0) == 0:
        return (float(options.get("anchor_logsnr", LOGSNR[0])), float(options.get("logsnr_end", LOGSNR[1]))), ()
    return LOGSNR, (f"its schedule {dict(options)} depends on the length: [sampler] has {LOGSNR[0]} to {LOGSNR[1]}",)


def _own_text_folder(folder: Path, prompt: Mapping[str, Any]) -> Path | None:
    """T5Gemma's folder in the checkpoint's or beside it."""
    named = [folder / prompt["subfolder"]] if prompt.get("subfolder") else []
    beside = [path for place in (folder, folder.resolve().parent) for path in sorted(place.glob("*t5gemma*"))]
    return next((path for path in (*named, *beside) if (path / CONFIG).is_file()), None)
