"""Sources of modules: a checkpoint as published, or the published sizes with random weights.

Every call makes one module, in float32, so that an export has one module in memory at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import torch
from diffusers import AutoencoderSAME, StableAudio3DiTModel
from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder
from torch import nn

from engine_build.export.bundle_export import CheckpointSource
from engine_build.export.checkpoint import CONFIG, byte_tokenizer, describing, need_transformers, seeded
from engine_build.export.hub import Place
from engine_build.export.stable_audio_3.layouts import (
    CHUNK_FRAMES,
    DURATION,
    PADDING,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    ModelTraits,
    checkpoint_of,
)
from engine_build.export.stored_tensors import StoredTensor, fill, without_weights
from engine_build.export.torch_export import quiet
from runtime.base.errors import ConfigError
from runtime.engines.manifest import file_sha256

NULL: Final = "null_condition"
CLASSES: Final = {TRANSFORMER: StableAudio3DiTModel, VAE: AutoencoderSAME, DURATION: StableAudio3DurationEmbedder}
Size = Literal["small", "medium"]
# What is published, where it is not diffusers' default.
TRANSFORMER_CONFIGS: Final[Mapping[Size, Mapping[str, Any]]] = {
    "small": {"embed_dim": 1024, "depth": 20, "num_heads": 16, "use_differential_attention": False},
    "medium": {"embed_dim": 1536, "depth": 24, "num_heads": 24},
}
VAE_CONFIGS: Final[Mapping[Size, Mapping[str, Any]]] = {
    "small": {"encoder_channels": 128, "encoder_transformer_depths": (6,)},
    "medium": {"encoder_channels": 256, "encoder_transformer_depths": (12,), "decoder_sinusoidal_blocks": (8,)},
}
# T5Gemma b-b-ul2's.
TEXT_CONFIG: Final[Mapping[str, Any]] = {
    "vocab_size": 256_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": 4096,
}
TEXT_PARTS: Final = (TEXT_ENCODER, TOKENIZER, DURATION, PADDING)
# Over the root of a weight's inputs it keeps 24 layers near 1: with 1 or more, rounding grows from layer to layer.
WEIGHT_STD: Final = 0.7
SMALL_STD: Final = 0.1
# Buffers that are computed where a checkpoint has none.
COMPUTED: Final = ("freqs", "rotary_pos_emb.inv_freq", "bottleneck.running_std")


class StableAudioSource(CheckpointSource, Protocol):
    """The parts of an export by diffusers' names."""

    @property
    def traits(self) -> ModelTraits:
        """What tells checkpoints apart."""


class Checkpoint:
    """A folder as published, in either layout. Raises ConfigError where it is no checkpoint.

    text_encoder: T5Gemma's folder, where it is not in the checkpoint's. origins: where on the hub they are from, as of
    `hub.Place`, the checkpoint's first.
    """

    def __init__(self, folder: Path, text_encoder: Path | None = None, origins: Sequence[str] = ("",)) -> None:
        self.folder = folder
        found = checkpoint_of(folder, text_encoder)
        self.parts, self.traits = found.parts, found.traits
        self.notes, self.norm_eps = found.notes, found.norm_eps
        self.name = Place(folder, origins[0]).name
        self.description = f"Stable Audio 3, exported from {' and '.join(filter(None, origins)) or self.name}."
        is_diffusers = (folder / TRANSFORMER / CONFIG).is_file()
        self.layout = "in diffusers' layout" if is_diffusers else "in stable-audio-tools' layout"

    def has(self, part: str) -> bool:
        """Whether the folder has it."""
        return part in self.parts or part == PADDING

    def load(self, part: str) -> Any:
        """A part in float32, the tokenizer, or the padding `[D]`. Raises ConfigError where files do not fit."""
        if part == PADDING:
            return self._padding().read()
        if part in (TEXT_ENCODER, TOKENIZER):
            return self._load_text(part)
        found = self.parts[part]
        with quiet(), describing(found), without_weights():
            module: nn.Module = CLASSES[part].from_config(found.config)
        fill_like(module, found.tensors)
        if part == TRANSFORMER and self.norm_eps is not None:
            set_norm_eps(module, *self.norm_eps)
        return module.eval()

    def report(self) -> Iterator[str]:
        """A line per part, and what a missing text encoder means."""
        yield f"{self.name}: {'distilled (no guidance)' if self.traits.distilled else 'with guidance'}"
        yield from (f"  {name}: {part.report()}" for name, part in self.parts.items() if part.tensors)
        chunk = self.traits.chunk_frames
        attention = f"chunks of {chunk} frames" if chunk else "a sliding window"
        yield f"  attention of the {VAE}: {attention}"
        if not self.has(TEXT_ENCODER):
            yield f"  no {TEXT_ENCODER}: no texts, requests give condition tokens; --text-encoder FOLDER names one"
        yield from (f"  {note}" for note in self.notes)

    def fingerprint(self) -> str:
        """SHA-256 over all files of all parts, and what is read from others."""
        files = sorted({file for part in self.parts.values() for file in part.files})
        texts = (*map(file_sha256, files), repr(self.traits), repr(self.norm_eps))
        return hashlib.sha256("".join(texts).encode()).hexdigest()

    def _padding(self) -> StoredTensor:
        tensors = self.parts[TRANSFORMER].tensors
        if PADDING not in tensors:
            raise ConfigError(f"{self.folder} has no tensor for padding, {PADDING}", fix="name a published checkpoint")
        return tensors[PADDING]

    def _load_text(self, part: str) -> Any:
        found = self.parts[part]
        need_transformers(found.folder)
        from transformers import AutoConfig, AutoTokenizer, T5GemmaEncoderModel

        with quiet(), describing(found):
            if part == TOKENIZER:
                return AutoTokenizer.from_pretrained(found.folder, local_files_only=True)
            config = AutoConfig.from_pretrained(found.folder, local_files_only=True, dtype=torch.float32)
            config.is_encoder_decoder = False
            with without_weights():
                module = T5GemmaEncoderModel(config)
        if config.encoder.sliding_window <= self.traits.max_tokens:
            raise ConfigError(f"{found.folder} has a sliding window of {config.encoder.sliding_window} tokens")
        fill(module, found.tensors)
        return module.eval()


def fill_like(module: nn.Module, tensors: Mapping[str, StoredTensor]) -> None:
    """`fill`, with what a checkpoint may lack, and names of one part too many, as the authors' code reads them."""
    expected = module.state_dict(keep_vars=True).keys()
    found = {_known_name(name, expected): tensor for name, tensor in tensors.items()}
    fill(module, found, given=[name for name in COMPUTED if name in expected and name not in found])


def _known_name(name: str, expected: Any) -> str:
    parts = name.split(".")
    shorter = (".".join((*parts[:index], *parts[index + 1 :])) for index in range(1, len(parts)))
    return name if name in expected else next((each for each in shorter if each in expected), name)


def set_norm_eps(transformer: Any, blocks: float, heads: float) -> None:
    for name, module in transformer.named_modules():
        if name.rpartition(".")[2] in ("pre_norm", "cross_attend_norm", "ff_norm"):
            module.eps = blocks
        elif name.rpartition(".")[2] in ("q_norm", "k_norm"):
            module.eps = heads


@dataclass(frozen=True)
class RandomWeights:
    """The published sizes with seeded random weights: the same graphs and the same work, no music.

    `transformer_changes`, `vae_changes` and `text_changes` replace values of the configuration; text_changes None: no
    text encoder, nor what belongs to it.
    """

    size: Size
    seed: int = 0
    transformer_changes: Mapping[str, Any] = field(default_factory=dict)
    vae_changes: Mapping[str, Any] = field(default_factory=dict)
    text_changes: Mapping[str, Any] | None = None

    @classmethod
    def of_layers(
        cls, size: str, seed: int, layers: int | None, text_changes: Mapping[str, Any] | None = None
    ) -> RandomWeights:
        """With this many layers in the decoder and in each half of the codec. None: as published."""
        if size not in ("small", "medium"):
            raise ConfigError(f"there is no size {size!r}", fix="--random small, or --random medium")
        if layers is None:
            return cls(size, seed, text_changes=text_changes)  # type: ignore[arg-type]
        codec = {"encoder_transformer_depths": (layers,)}
        return cls(size, seed, {"depth": layers}, codec, text_changes)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """With the size."""
        return f"stable-audio-3-{self.size}-random"

    @property
    def description(self) -> str:
        """It states that the weights are random."""
        return f"Stable Audio 3's graphs with random weights (seed {self.seed}): for measuring, makes noise."

    @property
    def traits(self) -> ModelTraits:
        """Of the published one, which is distilled; SAME-S is small's. Random weights have no licence."""
        return ModelTraits(True, CHUNK_FRAMES if self.size == "small" else 0, license="")

    def has(self, part: str) -> bool:
        """The decoder, the codec, a null condition, and a text encoder where it was asked for."""
        return part in (TRANSFORMER, VAE, NULL) or (self.text_changes is not None and part in TEXT_PARTS)

    def load(self, part: str) -> Any:
        """A module, the tokenizer, the padding `[D]`, or the null condition f32 `[1 + max_tokens, D]`."""
        if part == NULL:
            width = {"cond_token_dim": 768, **self.transformer_changes}["cond_token_dim"]
            duration, padding = torch.randn(2, width, generator=seeded(self.seed, NULL))
            return torch.stack((duration, *[padding] * self.traits.max_tokens))
        if part == TOKENIZER:
            return byte_tokenizer()
        text = {**TEXT_CONFIG, **(self.text_changes or {})}
        if part == PADDING:
            return torch.randn(text["hidden_size"], generator=seeded(self.seed, PADDING))
        if part in (DURATION, TEXT_ENCODER):
            with quiet(), without_weights():
                encoder = _text_encoder(text) if part == TEXT_ENCODER else CLASSES[part](output_dim=text["hidden_size"])
            return randomise(encoder, self.seed).eval()
        sizes = TRANSFORMER_CONFIGS if part == TRANSFORMER else VAE_CONFIGS
        changes = self.transformer_changes if part == TRANSFORMER else self.vae_changes
        with quiet(), without_weights():
            module: nn.Module = CLASSES[part](**{**sizes[self.size], **changes})
        return randomise(module, self.seed).eval()

    def report(self) -> Iterator[str]:
        """The description."""
        yield self.description

    def fingerprint(self) -> str:
        """The values that the weights depend on."""
        return repr(self)


def _text_encoder(sizes: dict[str, Any]) -> nn.Module:
    from transformers.models.t5gemma import T5GemmaConfig, T5GemmaEncoderModel
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

    text = T5GemmaModuleConfig(**sizes).to_dict()
    return T5GemmaEncoderModel(T5GemmaConfig(encoder=text, decoder=text, is_encoder_decoder=False))


def randomise(module: nn.Module, seed: int) -> nn.Module:
    """Draw all weights, also those that a new module has as zeros, of a size that keeps every part audible."""
    for name, parameter in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        value = torch.empty(parameter.shape)
        if leaf in ("gamma", "alpha", "scale"):
            value.fill_(1.0)
        elif leaf == "weight_g":
            value.fill_(WEIGHT_STD)
        else:
            value.normal_(0.0, _weight_std(leaf, value.shape), generator=seeded(seed, name))
        module.get_submodule(path)._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    return module


def _weight_std(leaf: str, shape: torch.Size) -> float:
    """Learned tokens are as large as what they stand beside, weights are scaled by the number of their inputs."""
    if leaf.endswith("_tokens"):
        return WEIGHT_STD
    is_small = leaf in ("bias", "beta") or len(shape) == 1
    return SMALL_STD if is_small else WEIGHT_STD / math.sqrt(math.prod(shape[1:]))
