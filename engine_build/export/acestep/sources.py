"""Sources of modules: a checkpoint in diffusers' layout, or the published configuration with random weights.

Every call makes one module, in float32, so that an export has one module in memory at a time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import diffusers
import torch
from diffusers import AceStepTransformer1DModel, AutoencoderOobleck
from diffusers.pipelines.ace_step import modeling_ace_step as ace_step
from safetensors import SafetensorError
from torch import nn

from engine_build.export.torch_export import quiet
from runtime.errors import ConfigError

TRANSFORMER: Final = "transformer"
VAE: Final = "vae"
CONDITION_ENCODER: Final = "condition_encoder"
TEXT_ENCODER: Final = "text_encoder"
TOKENIZER: Final = "tokenizer"
AUDIO_TOKENIZER: Final = "audio_tokenizer"
AUDIO_DETOKENIZER: Final = "audio_token_detokenizer"
NULL: Final = "null_condition"
CLASSES: Final = {
    TRANSFORMER: "AceStepTransformer1DModel",
    VAE: "AutoencoderOobleck",
    CONDITION_ENCODER: "AceStepConditionEncoder",
    AUDIO_TOKENIZER: "AceStepAudioTokenizer",
    AUDIO_DETOKENIZER: "AceStepAudioTokenDetokenizer",
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
VAE_CONFIG: Final[Mapping[str, Any]] = {"downsampling_ratios": [2, 4, 4, 6, 10], "sampling_rate": 48_000}
# Small enough that 24 layers of residuals stay near 1, large enough that every layer changes something.
WEIGHT_STD: Final = 0.02


class Source(Protocol):
    """The parts of an export, by diffusers' names."""

    @property
    def name(self) -> str:
        """The default name of the bundle."""

    @property
    def description(self) -> str:
        """The bundle's description."""

    def has(self, part: str) -> bool:
        """Whether `load(part)` has something to load."""

    def load(self, part: str) -> Any:
        """A new module in float32, in eval mode; for `tokenizer` the fast tokenizer."""


class Checkpoint:
    """A folder as diffusers saves it: transformer/, vae/ and, for texts, condition_encoder/, text_encoder/, tokenizer/.

    Raises ConfigError where a folder is missing or has another model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self.description = f"ACE-Step, exported from {self.name}."
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}", fix="--checkpoint FOLDER, or --random")
        for part in CLASSES:
            self._check(part, optional=part not in (TRANSFORMER, VAE))

    def has(self, part: str) -> bool:
        """Whether the folder has it."""
        return (self.folder / part).is_dir()

    def load(self, part: str) -> Any:
        """A part in float32, or the tokenizer. Raises ConfigError where its files cannot be read."""
        if part in (TEXT_ENCODER, TOKENIZER):
            return self._load_text(part)
        kind = getattr(ace_step, CLASSES[part], None) or getattr(diffusers, CLASSES[part])
        return self._load(kind, part)

    def _load_text(self, part: str) -> Any:
        if importlib.util.find_spec("transformers") is None:
            raise ConfigError(
                f"{self.folder / part} needs the package transformers, which is not installed",
                fix="pip install 'tickrt[export]'; or --no-text",
            )
        if not self.has(TOKENIZER):
            raise ConfigError(f"{self.folder} has a text encoder and no {TOKENIZER}/", fix="copy it too; or --no-text")
        from transformers import AutoModel, AutoTokenizer

        with quiet(), _loading(self.folder / part):
            if part == TOKENIZER:
                return AutoTokenizer.from_pretrained(self.folder / part, local_files_only=True)
            model = AutoModel.from_pretrained(self.folder / part, dtype=torch.float32, local_files_only=True)
        return model.eval()

    def _check(self, part: str, *, optional: bool) -> None:
        path = self.folder / part / "config.json"
        if optional and not self.has(part):
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8")).get("_class_name")
        except (OSError, ValueError, AttributeError):
            raise ConfigError(
                f"{self.folder} is not a checkpoint in diffusers' layout: {path} is missing or cannot be read",
                fix="convert the original with scripts/convert_ace_step_to_diffusers.py of diffusers' repository",
            ) from None
        if found != CLASSES[part]:
            raise ConfigError(
                f"{path} describes a {found}, expected {CLASSES[part]}", fix="name an ACE-Step checkpoint"
            )

    def _load(self, kind: Any, part: str) -> nn.Module:
        with quiet(), _loading(self.folder / part):
            module: nn.Module = kind.from_pretrained(
                self.folder / part,
                torch_dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                low_cpu_mem_usage=importlib.util.find_spec("accelerate") is not None,
            )
        return module.eval()


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """Turn the errors of diffusers and transformers for damaged files into one that names the folder."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{folder} cannot be loaded: {error}", fix="copy or download it again") from error


@dataclass(frozen=True)
class RandomWeights:
    """The published configuration with seeded random weights: the same graphs and the same work, no music.

    `transformer_changes` and `vae_changes` replace values of the configuration.
    """

    seed: int = 0
    transformer_changes: Mapping[str, Any] = field(default_factory=dict)
    vae_changes: Mapping[str, Any] = field(default_factory=dict)
    name: str = "acestep-random"

    @property
    def description(self) -> str:
        """It states that the weights are random."""
        return f"ACE-Step's graphs with random weights (seed {self.seed}): for measuring, makes noise."

    def has(self, part: str) -> bool:
        """The decoder, the codec and one token as the null condition."""
        return part in (TRANSFORMER, VAE, NULL)

    def load(self, part: str) -> Any:
        """A module, or the null condition f32 `[1, D]`."""
        if part == NULL:
            width = {**TURBO_CONFIG, **self.transformer_changes}["encoder_hidden_size"]
            return torch.randn(1, width, generator=self._generator(NULL))
        return (self._transformer() if part == TRANSFORMER else self._vae()).eval()

    def _transformer(self) -> nn.Module:
        """Linear and convolution weights are normal, norms 1, biases 0."""
        with quiet(), torch.device("meta"):
            module = AceStepTransformer1DModel(**{**TURBO_CONFIG, **self.transformer_changes})
        module.to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                self._fill(name, parameter)
        return module

    def _vae(self) -> nn.Module:
        """The module's own initialisation, which keeps audio near full scale."""
        with quiet(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            module: nn.Module = AutoencoderOobleck(**{**VAE_CONFIG, **self.vae_changes})
        return module

    def _fill(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.ndim > 1:
            parameter.normal_(0.0, WEIGHT_STD, generator=self._generator(name))
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    def _generator(self, name: str) -> torch.Generator:
        """A generator per name: a layer's weights do not depend on the number of layers."""
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
