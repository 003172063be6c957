"""ACE-Step's sources of modules: a checkpoint as published, or the published configuration with random weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import diffusers
import torch
from diffusers import AceStepTransformer1DModel, AutoencoderOobleck
from diffusers.pipelines.ace_step import modeling_ace_step as ace_step
from torch import Tensor, nn

from engine_build.export.acestep.bundle_text import is_turbo
from engine_build.export.acestep.layouts import (
    AUDIO_DETOKENIZER,
    AUDIO_TOKENIZER,
    CLASSES,
    CONDITION_ENCODER,
    DRAFT,
    PLANNER,
    AceStepModel,
    acestep_parts,
)
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
from engine_build.export.stored_tensors import AGAIN, fill, without_weights
from engine_build.export.torch_export import quiet
from runtime.base.errors import ConfigError

# What a checkpoint's bundle cannot do without a part.
ABSENT: Final = {
    CONDITION_ENCODER: "no texts, no lyrics, no timbre, no learned null condition",
    TEXT_ENCODER: "no texts: requests give condition tokens",
    AUDIO_TOKENIZER: "covers have no structure",
    AUDIO_DETOKENIZER: "covers have no structure, no structure codes",
}
# What is published with ACE-Step v1.5's turbo checkpoint; diffusers' own defaults are the rest of it.
TURBO_CONFIG: Final[Mapping[str, Any]] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "encoder_hidden_size": 2048,
    "is_turbo": True,
}
# XL, where it differs: its condition encoder and its audio tokenizers are those of the smaller one.
XL_CONFIG: Final[Mapping[str, Any]] = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
# Qwen3-Embedding-0.6B's.
TEXT_CONFIG: Final[Mapping[str, Any]] = {
    "vocab_size": 151_669,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
VAE_CONFIG: Final[Mapping[str, Any]] = {"downsampling_ratios": [2, 4, 4, 6, 10], "sampling_rate": 48_000}
# Small enough that 24 layers of residuals stay near 1, large enough that every layer changes something.
WEIGHT_STD: Final = 0.02
SILENCE_STD: Final = 0.5
# What makes hints of a planner's codes.
STRUCTURE_PARTS: Final = (AUDIO_TOKENIZER, AUDIO_DETOKENIZER)


def is_xl(config: Mapping[str, Any]) -> bool:
    """Whether a decoder's configuration is of XL, whose condition encoder is narrower."""
    return config.get("encoder_hidden_size") not in (None, config.get("hidden_size", TURBO_CONFIG["hidden_size"]))


def sum_up_timbre(timbre_encoder: Any) -> None:
    """Make a timbre encoder XL's, as the authors' code has it, in place: a learned token before the frames.

    Its output is the timbre. That of the smaller models, and of diffusers for both, is read off at the first frame.
    """

    def with_token(_: nn.Module, __: Any, frames: torch.Tensor) -> torch.Tensor:
        """`[N, T, D]` -> `[N, 1 + T, D]`."""
        token = timbre_encoder.special_token.expand(frames.shape[0], 1, -1)
        return torch.cat((token, frames), dim=1)

    timbre_encoder.embed_tokens.register_forward_hook(with_token)


class AceStepCheckpoint(Checkpoint):
    """A folder as published, in diffusers' layout or ACE-Step's own. Raises ConfigError where it is no checkpoint.

    planner: the folder of the language model that writes its structure codes; draft: of a smaller one with the same
    tokens. origins: as of `Checkpoint`.
    """

    title = "ACE-Step"
    own_layout = "ACE-Step's own"
    parts: Mapping[str, AceStepModel]

    def __init__(
        self, folder: Path, planner: Path | None = None, draft: Path | None = None, origins: Sequence[str] = ("",)
    ) -> None:
        super().__init__(folder, origins)
        folders = {PLANNER: planner, DRAFT: draft}
        self._language_models = {
            part: _planner().LanguageModelFolder(path) for part, path in folders.items() if path is not None
        }
        if draft is not None:
            self._language_models[PLANNER].check_draft(self._language_models[DRAFT])
        self.parts = acestep_parts(folder)

    def has(self, part: str) -> bool:
        """Whether the folder has it."""
        return super().has(part) or part in self._language_models

    def load(self, part: str) -> Any:
        """As Checkpoint's."""
        if part in self._language_models:
            return self._language_models[part]
        if part in (TEXT_ENCODER, TOKENIZER):
            return self.load_text(part)
        found = self.parts[part]
        module = self.empty(part, getattr(ace_step, CLASSES[part], None) or getattr(diffusers, CLASSES[part]))
        fill(module, found.tensors, given=("silence_latent",) if found.silence_file else ())
        if found.silence_file:
            module.silence_latent = _silence(found.silence_file)
        if part == CONDITION_ENCODER and is_xl(self.parts[TRANSFORMER].config):
            sum_up_timbre(module.timbre_encoder)
        return module.eval()

    def report(self) -> Iterator[str]:
        """As Checkpoint's."""
        config = self.parts[TRANSFORMER].config
        kind = "turbo (no guidance)" if is_turbo(config) else "with guidance"
        yield f"{self.name}: {kind}{', XL' if is_xl(config) else ''}"
        yield from (f"  {name}: {part.report()}" for name, part in self.parts.items() if part.tensors)
        yield from (f"  no {name}: {means}" for name, means in ABSENT.items() if not self.has(name))
        yield from (f"  {part}: {model.report()}" for part, model in self._language_models.items())

    def more_to_hash(self) -> Iterator[str]:
        """The language models' files."""
        yield from (model.fingerprint() for model in self._language_models.values())

    def text_module(self, config: Any) -> nn.Module:
        """Qwen3."""
        from transformers import AutoModel

        module: nn.Module = AutoModel.from_config(config)
        return module


def _planner() -> Any:
    """The module that exports planners. Raises ConfigError where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("--planner needs the package transformers", fix="pip install 'tickrt[export]'")
    from engine_build.export.acestep import planner

    return planner


def _silence(file: Path) -> torch.Tensor:
    """ACE-Step's own file `[1, C, T]` as the condition encoder's buffer f32 `[1, T, C]`. Raises ConfigError."""
    try:
        stored = torch.load(file, weights_only=True, map_location="cpu")
        return stored.transpose(1, 2).float().contiguous()
    except (OSError, RuntimeError, ValueError, AttributeError, IndexError, UnpicklingError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", fix=AGAIN) from error


@dataclass(frozen=True, kw_only=True)
class RandomAceStep(RandomWeights):
    """As RandomWeights. planner, draft: sizes of language models; structure comes with them."""

    planner: str | None = None
    draft: str | None = None
    name: str = "acestep-random"
    title = "ACE-Step"
    text_parts = (CONDITION_ENCODER, TEXT_ENCODER, TOKENIZER, *STRUCTURE_PARTS)

    def has(self, part: str) -> bool:
        """As RandomWeights', one token as the null condition, and the language models that were asked for."""
        is_structure = self.planner is not None and part in STRUCTURE_PARTS
        return super().has(part) or is_structure or part in self._language_models

    def load(self, part: str) -> Any:
        """As RandomWeights'."""
        if part in self._language_models:
            return _planner().RandomLanguageModel(self._language_models[part], self.seed)
        if part == NULL:
            width = {**TURBO_CONFIG, **self.transformer_changes}["encoder_hidden_size"]
            return torch.randn(1, width, generator=seeded(self.seed, NULL))
        if part == TOKENIZER:
            return byte_tokenizer()
        return self._vae() if part == VAE else self._drawn(part)

    def report(self) -> Iterator[str]:
        """As RandomWeights', and a line per language model. Raises ConfigError where there is none of that size."""
        yield self.description
        yield from (f"  {part}: {self.load(part).report()}" for part in self._language_models)

    @property
    def _language_models(self) -> dict[str, str]:
        sizes = {PLANNER: self.planner, DRAFT: self.draft}
        return {part: size for part, size in sizes.items() if size is not None}

    def _drawn(self, part: str) -> Any:
        with quiet(), without_weights():
            empty = self._module(part)
        module: Any = with_drawn_weights(empty, self._draw)
        if part == CONDITION_ENCODER:
            module.silence_latent.normal_(0.0, SILENCE_STD, generator=seeded(self.seed, "silence"))
        return module

    def _draw(self, name: str, value: Tensor) -> None:
        """Linear and convolution weights are normal, norms 1, biases 0."""
        if value.ndim > 1:
            value.normal_(0.0, WEIGHT_STD, generator=seeded(self.seed, name))
        else:
            value.fill_(0.0 if name.endswith("bias") else 1.0)

    def _module(self, part: str) -> Any:
        sizes = {**TURBO_CONFIG, **self.transformer_changes}
        if part == TRANSFORMER:
            return AceStepTransformer1DModel(**sizes)
        text = {**TEXT_CONFIG, **(self.text_changes or {})}
        if part == TEXT_ENCODER:
            from transformers import Qwen3Config, Qwen3Model

            return Qwen3Model(Qwen3Config(**text))
        # Their other sizes are diffusers' own defaults, XL's too.
        width = {"hidden_size": sizes["encoder_hidden_size"]}
        if part == CONDITION_ENCODER:
            return ace_step.AceStepConditionEncoder(**width, text_hidden_dim=text["hidden_size"])
        codes = {"fsq_dim": sizes["encoder_hidden_size"]} if part == AUDIO_TOKENIZER else {}
        return getattr(ace_step, CLASSES[part])(**width, **codes)

    def _vae(self) -> nn.Module:
        """The module's own initialisation, which keeps audio near full scale."""
        with quiet(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            module: nn.Module = AutoencoderOobleck(**{**VAE_CONFIG, **self.vae_changes})
        return module.eval()
