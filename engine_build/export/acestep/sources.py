"""Sources of modules: a checkpoint as published, or the published configuration with random weights.

Every call makes one module, in float32, so that an export has one module in memory at a time.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import diffusers
import torch
from diffusers import AceStepTransformer1DModel, AutoencoderOobleck
from diffusers.pipelines.ace_step import modeling_ace_step as ace_step
from torch import nn

from engine_build.export.acestep.bundle_text import is_turbo
from engine_build.export.acestep.layouts import (
    AUDIO_DETOKENIZER,
    AUDIO_TOKENIZER,
    CLASSES,
    CONDITION_ENCODER,
    DRAFT,
    PLANNER,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    parts_of,
)
from engine_build.export.checkpoint import CONFIG, byte_tokenizer, describing, need_transformers, seeded
from engine_build.export.hub import Place
from engine_build.export.stored_tensors import AGAIN, fill, without_weights
from engine_build.export.torch_export import quiet
from runtime.base.errors import ConfigError
from runtime.engines.manifest import file_sha256

NULL: Final = "null_condition"
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
TEXT_PARTS: Final = (CONDITION_ENCODER, TEXT_ENCODER, TOKENIZER, *STRUCTURE_PARTS)


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


class Checkpoint:
    """A folder as published, in diffusers' layout or ACE-Step's own. Raises ConfigError where it is no checkpoint.

    planner: the folder of the language model that writes its structure codes; draft: of a smaller one with the same
    tokens. origins: where on the hub they are from, as of `hub.Place`, the checkpoint's first.
    """

    def __init__(
        self, folder: Path, planner: Path | None = None, draft: Path | None = None, origins: Sequence[str] = ("",)
    ) -> None:
        self.folder = folder
        folders = {PLANNER: planner, DRAFT: draft}
        self._language_models = {
            part: _planner().PlannerFolder(path) for part, path in folders.items() if path is not None
        }
        if draft is not None:
            self._language_models[PLANNER].check_draft(self._language_models[DRAFT])
        self.parts = parts_of(folder)
        self.name = Place(folder, origins[0]).name
        self.description = f"ACE-Step, exported from {' and '.join(filter(None, origins)) or self.name}."
        is_diffusers = (folder / TRANSFORMER / CONFIG).is_file()
        self.layout = "in diffusers' layout" if is_diffusers else "in ACE-Step's own layout"

    def has(self, part: str) -> bool:
        """Whether the folder has it."""
        return part in self.parts or part in self._language_models

    def load(self, part: str) -> Any:
        """A part in float32, or the tokenizer. Raises ConfigError where files and configuration do not fit."""
        if part in self._language_models:
            return self._language_models[part]
        if part in (TEXT_ENCODER, TOKENIZER):
            return self._load_text(part)
        found = self.parts[part]
        kind = getattr(ace_step, CLASSES[part], None) or getattr(diffusers, CLASSES[part])
        with quiet(), describing(found), without_weights():
            module: nn.Module = kind.from_config(found.config)
        fill(module, found.tensors, given=("silence_latent",) if found.silence_file else ())
        if found.silence_file:
            module.silence_latent = _silence(found.silence_file)
        if part == CONDITION_ENCODER and is_xl(self.parts[TRANSFORMER].config):
            sum_up_timbre(module.timbre_encoder)
        return module.eval()

    def report(self) -> Iterator[str]:
        """A line per part: parameters, how they are stored, memory in float32; and what the missing parts mean."""
        config = self.parts[TRANSFORMER].config
        kind = "turbo (no guidance)" if is_turbo(config) else "with guidance"
        yield f"{self.name}: {kind}{', XL' if is_xl(config) else ''}"
        for name, part in self.parts.items():
            if part.tensors:
                yield f"  {name}: {part.report()}"
        yield from (f"  no {name}: {means}" for name, means in ABSENT.items() if not self.has(name))
        yield from (f"  {part}: {model.report()}" for part, model in self._language_models.items())

    def fingerprint(self) -> str:
        """SHA-256 over all files of all parts."""
        files = sorted({file for part in self.parts.values() for file in part.files})
        models = [model.fingerprint() for model in self._language_models.values()]
        return hashlib.sha256("".join([*map(file_sha256, files), *models]).encode()).hexdigest()

    def _load_text(self, part: str) -> Any:
        need_transformers(self.parts[part].folder)
        if not self.has(TOKENIZER):
            raise ConfigError(f"{self.folder} has a text encoder and no {TOKENIZER}/", fix="copy it too; or --no-text")
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        found = self.parts[part]
        with quiet(), describing(found):
            if part == TOKENIZER:
                return AutoTokenizer.from_pretrained(found.folder, local_files_only=True)
            config = AutoConfig.from_pretrained(found.folder, local_files_only=True, dtype=torch.float32)
            with without_weights():
                module = AutoModel.from_config(config)
        fill(module, found.tensors)
        return module.eval()


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


@dataclass(frozen=True)
class RandomWeights:
    """The published configuration with seeded random weights: the same graphs and the same work, no music.

    `transformer_changes`, `vae_changes` and `text_changes` replace values of the configuration; text_changes None: no
    text encoder, nor what belongs to it. planner, draft: sizes of language models; structure comes with them.
    """

    seed: int = 0
    planner: str | None = None
    draft: str | None = None
    transformer_changes: Mapping[str, Any] = field(default_factory=dict)
    vae_changes: Mapping[str, Any] = field(default_factory=dict)
    text_changes: Mapping[str, Any] | None = None
    name: str = "acestep-random"

    @property
    def description(self) -> str:
        """It states that the weights are random."""
        return f"ACE-Step's graphs with random weights (seed {self.seed}): for measuring, makes noise."

    def has(self, part: str) -> bool:
        """The decoder, the codec, one token as the null condition, and what was asked for."""
        is_asked = self.text_changes is not None and part in TEXT_PARTS
        is_asked |= self.planner is not None and part in STRUCTURE_PARTS
        return is_asked or part in (TRANSFORMER, VAE, NULL) or part in self._language_models

    def load(self, part: str) -> Any:
        """A module, the tokenizer, or the null condition f32 `[1, D]`."""
        if part in self._language_models:
            return _planner().RandomPlanner(self._language_models[part], self.seed)
        if part == NULL:
            width = {**TURBO_CONFIG, **self.transformer_changes}["encoder_hidden_size"]
            return torch.randn(1, width, generator=seeded(self.seed, NULL))
        if part == TOKENIZER:
            return byte_tokenizer()
        return (self._vae() if part == VAE else self._drawn(part)).eval()

    def report(self) -> Iterator[str]:
        """The description, and a line per language model. Raises ConfigError where there is none of that size."""
        yield self.description
        yield from (f"  {part}: {self.load(part).report()}" for part in self._language_models)

    def fingerprint(self) -> str:
        """The values that the weights depend on."""
        return repr(self)

    @property
    def _language_models(self) -> dict[str, str]:
        sizes = {PLANNER: self.planner, DRAFT: self.draft}
        return {part: size for part, size in sizes.items() if size is not None}

    def _drawn(self, part: str) -> nn.Module:
        """Linear and convolution weights are normal, norms 1, biases 0."""
        with quiet(), without_weights():
            module = self._module(part)
        for name, parameter in module.named_parameters():
            path, _, leaf = name.rpartition(".")
            value = torch.empty(parameter.shape)
            self._fill(name, value)
            module.get_submodule(path)._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        if part == CONDITION_ENCODER:
            module.silence_latent.normal_(0.0, SILENCE_STD, generator=seeded(self.seed, "silence"))
        return module

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
        return module

    def _fill(self, name: str, value: torch.Tensor) -> None:
        if value.ndim > 1:
            value.normal_(0.0, WEIGHT_STD, generator=seeded(self.seed, name))
        else:
            value.fill_(0.0 if name.endswith("bias") else 1.0)
