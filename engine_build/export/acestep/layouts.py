"""The two layouts of published checkpoints, diffusers' and ACE-Step's own, as the same parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine_build.export.checkpoint import (
    CONFIG,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    CheckpointModel,
    read_config,
)
from engine_build.export.stored_tensors import AGAIN, StoredTensor, stored_tensors
from runtime.base.errors import ConfigError
from runtime.base.files import own_entries

CONDITION_ENCODER: Final = "condition_encoder"
AUDIO_TOKENIZER: Final = "audio_tokenizer"
AUDIO_DETOKENIZER: Final = "audio_token_detokenizer"
PLANNER: Final = "planner"
DRAFT: Final = "planner_draft"
CLASSES: Final = {
    TRANSFORMER: "AceStepTransformer1DModel",
    VAE: "AutoencoderOobleck",
    CONDITION_ENCODER: "AceStepConditionEncoder",
    AUDIO_TOKENIZER: "AceStepAudioTokenizer",
    AUDIO_DETOKENIZER: "AceStepAudioTokenDetokenizer",
}
REQUIRED: Final = (TRANSFORMER, VAE)

SILENCE_FILE: Final = "silence_latent.pt"
# A key of the configuration of ACE-Step's own layout, whose one file has four models.
_OWN_KEY: Final = "num_lyric_encoder_hidden_layers"
_PREFIXES: Final = {
    TRANSFORMER: "decoder.",
    CONDITION_ENCODER: "encoder.",
    AUDIO_TOKENIZER: "tokenizer.",
    AUDIO_DETOKENIZER: "detokenizer.",
}
_RENAMED: Final = {
    "proj_in.1.": "proj_in_conv.",
    "proj_out.1.": "proj_out_conv.",
    ".q_proj.": ".to_q.",
    ".k_proj.": ".to_k.",
    ".v_proj.": ".to_v.",
    ".o_proj.": ".to_out.0.",
    ".q_norm.": ".norm_q.",
    ".k_norm.": ".norm_k.",
}
# The condition encoder and the audio tokenizers of XL are narrower than its decoder: keys of their own.
_ENCODER_SIZES: Final = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


@dataclass(frozen=True)
class AceStepModel(CheckpointModel):
    """One model, by diffusers' names. `silence_file`: where silence is a file of its own."""

    silence_file: Path | None = None

    @property
    def files(self) -> list[Path]:
        """Everything that the part is read from."""
        return sorted([*super().files, *([self.silence_file] if self.silence_file else [])])


def acestep_parts(folder: Path) -> dict[str, AceStepModel]:
    """The parts of a checkpoint folder in either layout, by diffusers' names. Only headers are read.

    Raises ConfigError where the folder is no checkpoint, or a file is missing or damaged.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", fix="--checkpoint FOLDER, or --random")
    own = _own_folder(folder)
    return _diffusers_parts(folder) if own is None else _own_parts(own)


def _diffusers_parts(folder: Path) -> dict[str, AceStepModel]:
    parts = {}
    for name in (*CLASSES, TEXT_ENCODER):
        if name in REQUIRED or (folder / name).is_dir():
            parts[name] = AceStepModel(folder / name, _config(folder, name), _tensors(folder / name, name))
    if (folder / TOKENIZER).is_dir():
        parts[TOKENIZER] = AceStepModel(folder / TOKENIZER)
    return parts


def _config(folder: Path, part: str) -> dict[str, Any]:
    path = folder / part / CONFIG
    config = read_config(path)
    if config is None:
        raise ConfigError(
            f"{folder} is not a checkpoint of ACE-Step: {path} is missing or cannot be read",
            fix="name a folder in diffusers' layout (transformer/, vae/) or in ACE-Step's own (acestep-v15-turbo/)",
        )
    if part in CLASSES and config.get("_class_name") != CLASSES[part]:
        raise ConfigError(
            f"{path} describes a {config.get('_class_name')}, expected {CLASSES[part]}",
            fix="name an ACE-Step checkpoint",
        )
    return config


def _tensors(folder: Path, part: str) -> dict[str, StoredTensor]:
    """A text encoder saved with its language head has a prefix before its names."""
    found = stored_tensors(folder)
    if part != TEXT_ENCODER:
        return found
    return {name.removeprefix("model."): tensor for name, tensor in found.items() if name != "lm_head.weight"}


def _own_folder(folder: Path) -> Path | None:
    """The folder of the decoder in ACE-Step's own layout: this one, or the only one in it. Raises ConfigError."""
    configs = {path: read_config(path / CONFIG) or {} for path in (folder, *own_entries(folder))}
    found = [path for path, config in configs.items() if _OWN_KEY in config and "_class_name" not in config]
    if len(found) > 1 and found[0] != folder:
        names = ", ".join(path.name for path in found)
        raise ConfigError(f"{folder} has several decoders: {names}", fix=f"--checkpoint {found[0]}")
    return found[0] if found else None


def _own_parts(folder: Path) -> dict[str, AceStepModel]:
    """ACE-Step's own layout: one file with four models; codec and text encoder are the folders beside it."""
    config = read_config(folder / CONFIG) or {}
    tensors = stored_tensors(folder)
    parts = {
        name: AceStepModel(folder, _own_config(config, name), _own_tensors(tensors, name))
        for name, prefix in _PREFIXES.items()
        if any(key.startswith(prefix) for key in tensors)
    }
    if TRANSFORMER not in parts:
        raise ConfigError(f"{folder} has no tensor that begins with {_PREFIXES[TRANSFORMER]!r}", fix=AGAIN)
    if encoder := parts.get(CONDITION_ENCODER):
        silence = folder / SILENCE_FILE
        if not silence.is_file():
            raise ConfigError(f"{silence} is missing: the condition encoder needs it", fix=AGAIN)
        parts[CONDITION_ENCODER] = AceStepModel(folder, encoder.config, encoder.tensors, silence)
    parts[VAE] = AceStepModel(folder.parent / VAE, _config(folder.parent, VAE), stored_tensors(folder.parent / VAE))
    for text in [path for path in own_entries(folder.parent) if "mbedding" in path.name]:
        parts[TEXT_ENCODER] = AceStepModel(text, _config(folder.parent, text.name), _tensors(text, TEXT_ENCODER))
        parts[TOKENIZER] = AceStepModel(text)
    return parts


def _own_tensors(tensors: Mapping[str, StoredTensor], part: str) -> dict[str, StoredTensor]:
    """The part's tensors by diffusers' names. The null condition is the condition encoder's."""
    prefix = _PREFIXES[part]
    found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    if part == CONDITION_ENCODER and "null_condition_emb" in tensors:
        found["null_condition_emb"] = tensors["null_condition_emb"]
    for old, new in _RENAMED.items():
        found = {key.replace(old, new): tensor for key, tensor in found.items()}
    return found


def _own_config(config: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The part's configuration; what diffusers' model does not take is ignored when it is made."""
    found = {**config, "_class_name": CLASSES[part]}
    if part == TRANSFORMER:
        return found
    found |= {key: config.get(f"encoder_{key}", config[key]) for key in _ENCODER_SIZES}
    layers = config.get("num_attention_pooler_hidden_layers", 2)
    # The condition encoder's layers alternate by themselves; the list is the decoder's.
    found["layer_types"] = None if part == CONDITION_ENCODER else config["layer_types"][:layers]
    return found
