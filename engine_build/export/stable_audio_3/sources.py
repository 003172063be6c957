"""Stable Audio 3's sources of modules: a checkpoint as published, or the published sizes with random weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from diffusers import AutoencoderSAME, StableAudio3DiTModel
from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder
from torch import Tensor, nn

from engine_build.export.bundle_export import CheckpointSource
from engine_build.export.checkpoint import (
    NULL,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    Checkpoint,
    RandomWeights,
    byte_tokenizer,
    seeded,
    with_drawn_weights,
)
from engine_build.export.stable_audio_3.layouts import CHUNK_FRAMES, DURATION, PADDING, ModelTraits, stable_audio_parts
from engine_build.export.stored_tensors import StoredTensor, fill, without_weights
from engine_build.export.torch_export import quiet
from runtime.base.errors import ConfigError

MODULES: Final = {TRANSFORMER: StableAudio3DiTModel, VAE: AutoencoderSAME, DURATION: StableAudio3DurationEmbedder}
# What is published, where it is not diffusers' default.
TRANSFORMER_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "small": {"embed_dim": 1024, "depth": 20, "num_heads": 16, "use_differential_attention": False},
    "medium": {"embed_dim": 1536, "depth": 24, "num_heads": 24},
}
VAE_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
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


class StableAudioCheckpoint(Checkpoint):
    """A folder as published, in either layout. Raises ConfigError where it is no checkpoint.

    text_encoder: T5Gemma's folder, where it is not in the checkpoint's. origins: as of `Checkpoint`.
    """

    title = "Stable Audio 3"
    own_layout = "stable-audio-tools'"

    def __init__(self, folder: Path, text_encoder: Path | None = None, origins: Sequence[str] = ("",)) -> None:
        super().__init__(folder, origins)
        found = stable_audio_parts(folder, text_encoder)
        self.parts, self.traits = found.parts, found.traits
        self.notes, self.norm_eps = found.notes, found.norm_eps

    def has(self, part: str) -> bool:
        """Whether the folder has it."""
        return super().has(part) or part == PADDING

    def load(self, part: str) -> Any:
        """As Checkpoint's; the padding `[D]`."""
        if part == PADDING:
            return self._padding().read()
        if part in (TEXT_ENCODER, TOKENIZER):
            return self.load_text(part)
        module = self.empty(part, MODULES[part])
        fill_like(module, self.parts[part].tensors)
        if part == TRANSFORMER and self.norm_eps is not None:
            set_norm_eps(module, *self.norm_eps)
        return module.eval()

    def report(self) -> Iterator[str]:
        """As Checkpoint's."""
        yield f"{self.name}: {'distilled (no guidance)' if self.traits.distilled else 'with guidance'}"
        yield from (f"  {name}: {part.report()}" for name, part in self.parts.items() if part.tensors)
        chunk = self.traits.chunk_frames
        yield f"  attention of the {VAE}: {f'chunks of {chunk} frames' if chunk else 'a sliding window'}"
        if not self.has(TEXT_ENCODER):
            yield f"  no {TEXT_ENCODER}: no texts, requests give condition tokens; --text-encoder FOLDER names one"
        yield from (f"  {note}" for note in self.notes)

    def more_to_hash(self) -> Iterator[str]:
        """What is read from configurations."""
        yield from (repr(self.traits), repr(self.norm_eps))

    def text_module(self, config: Any) -> nn.Module:
        """T5Gemma's encoder."""
        from transformers import T5GemmaEncoderModel

        config.is_encoder_decoder = False
        if config.encoder.sliding_window <= self.traits.max_tokens:
            folder, tokens = self.parts[TEXT_ENCODER].folder, config.encoder.sliding_window
            raise ConfigError(f"{folder} has a sliding window of {tokens} tokens")
        module: nn.Module = T5GemmaEncoderModel(config)
        return module

    def _padding(self) -> StoredTensor:
        tensors = self.parts[TRANSFORMER].tensors
        if PADDING not in tensors:
            raise ConfigError(f"{self.folder} has no tensor for padding, {PADDING}", fix="name a published checkpoint")
        return tensors[PADDING]


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


@dataclass(frozen=True, kw_only=True)
class RandomStableAudio(RandomWeights):
    """As RandomWeights, of a size."""

    size: str
    title = "Stable Audio 3"
    text_parts = (TEXT_ENCODER, TOKENIZER, DURATION, PADDING)

    @classmethod
    def of_layers(
        cls, size: str, seed: int, layers: int | None, text_changes: Mapping[str, Any] | None = None
    ) -> RandomStableAudio:
        """With this many layers in the decoder and in each half of the codec. None: as published."""
        changes: dict[str, Mapping[str, Any]] = {}
        if layers is not None:
            depths = {"encoder_transformer_depths": (layers,)}
            changes = {"transformer_changes": {"depth": layers}, "vae_changes": depths}
        return cls(size=size, seed=seed, text_changes=text_changes, **changes)

    @property
    def name(self) -> str:
        """With the size."""
        return f"stable-audio-3-{self.size}-random"

    @property
    def traits(self) -> ModelTraits:
        """Of the published one, which is distilled; SAME-S is small's. Random weights have no licence."""
        return ModelTraits(True, CHUNK_FRAMES if self.size == "small" else 0, license="")

    def load(self, part: str) -> Any:
        """As RandomWeights', with as many tokens as a condition has; the padding `[D]`."""
        if part == NULL:
            width = {"cond_token_dim": 768, **self.transformer_changes}["cond_token_dim"]
            duration, padding = torch.randn(2, width, generator=seeded(self.seed, NULL))
            return torch.stack((duration, *[padding] * self.traits.max_tokens))
        if part == TOKENIZER:
            return byte_tokenizer()
        text = {**TEXT_CONFIG, **(self.text_changes or {})}
        if part == PADDING:
            return torch.randn(text["hidden_size"], generator=seeded(self.seed, PADDING))
        changes = {
            TRANSFORMER: {**TRANSFORMER_CONFIGS[self.size], **self.transformer_changes},
            VAE: {**VAE_CONFIGS[self.size], **self.vae_changes},
            DURATION: {"output_dim": text["hidden_size"]},
        }
        with quiet(), without_weights():
            module: Any = _text_encoder(text) if part == TEXT_ENCODER else MODULES[part](**changes[part])
        return randomise(module, self.seed)


def _text_encoder(sizes: dict[str, Any]) -> nn.Module:
    from transformers.models.t5gemma import T5GemmaConfig, T5GemmaEncoderModel
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

    text = T5GemmaModuleConfig(**sizes).to_dict()
    return T5GemmaEncoderModel(T5GemmaConfig(encoder=text, decoder=text, is_encoder_decoder=False))


def randomise(module: nn.Module, seed: int) -> Any:
    """Draw all weights, also those that a new module has as zeros, of a size that keeps every part audible."""

    def draw(name: str, value: Tensor) -> None:
        leaf = name.rpartition(".")[2]
        if leaf in ("gamma", "alpha", "scale"):
            value.fill_(1.0)
        elif leaf == "weight_g":
            value.fill_(WEIGHT_STD)
        else:
            value.normal_(0.0, _weight_std(leaf, value.shape), generator=seeded(seed, name))

    return with_drawn_weights(module, draw)


def _weight_std(leaf: str, shape: torch.Size) -> float:
    """Learned tokens are as large as what they stand beside, weights are scaled by the number of their inputs."""
    if leaf.endswith("_tokens"):
        return WEIGHT_STD
    is_small = leaf in ("bias", "beta") or len(shape) == 1
    return SMALL_STD if is_small else WEIGHT_STD / math.sqrt(math.prod(shape[1:]))
