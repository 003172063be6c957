"""Sources of modules, as all families have them: checkpoints on disk, and the published sizes with random weights.

Every call makes one module, in float32, so that an export has one module in memory at a time.
"""

from __future__ import annotations

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from pydantic_core import from_json
from torch import Tensor, nn

from engine_build.export.hub import Place
from engine_build.export.stored_tensors import AGAIN, StoredTensor, fill, without_weights
from engine_build.export.torch_export import quiet
from runtime.base.errors import ConfigError
from runtime.base.files import own_entries
from runtime.base.untrusted import plain_utf8
from runtime.engines.manifest import file_sha256

CONFIG: Final = "config.json"
# Parts of both families. NULL: the null condition of random weights.
TRANSFORMER: Final = "transformer"
VAE: Final = "vae"
TEXT_ENCODER: Final = "text_encoder"
TOKENIZER: Final = "tokenizer"
NULL: Final = "null_condition"


@dataclass(frozen=True)
class CheckpointModel:
    """One model of a checkpoint. `tensors`: by the names of its module."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """Everything that the part is read from."""
        weights = {tensor.file for tensor in self.tensors.values()}
        small = {file for file in own_entries(self.folder) if file.suffix in (".json", ".txt")}
        return sorted(weights | small)

    def report(self) -> str:
        """Parameters, how they are stored, memory in float32."""
        count = sum(tensor.count for tensor in self.tensors.values())
        dtypes = ", ".join(sorted({tensor.dtype.lower() for tensor in self.tensors.values()}))
        return f"{count / 1e6:,.1f} M parameters in {dtypes}, {count * 4 / 1e9:.2f} GB in memory"


class Checkpoint(ABC):
    """A folder as published, in diffusers' layout or its authors' own. Raises ConfigError where it is no checkpoint.

    origins: where on the hub its parts are from, as of `hub.Place`, the checkpoint's first.
    """

    title: ClassVar[str]
    own_layout: ClassVar[str]
    parts: Mapping[str, CheckpointModel]

    def __init__(self, folder: Path, origins: Sequence[str]) -> None:
        self.folder = folder
        self.name = Place(folder, origins[0]).name
        self.description = f"{self.title}, exported from {' and '.join(filter(None, origins)) or self.name}."
        is_diffusers = (folder / TRANSFORMER / CONFIG).is_file()
        self.layout = f"in {'diffusers' if is_diffusers else self.own_layout} layout"

    def has(self, part: str) -> bool:
        """Whether the folder has it."""
        return part in self.parts

    @abstractmethod
    def load(self, part: str) -> Any:
        """A part in float32, in eval mode, or the tokenizer. Raises ConfigError where files do not fit."""

    @abstractmethod
    def report(self) -> Iterator[str]:
        """A line per part: parameters, how they are stored, memory in float32; and what the missing parts mean."""

    def fingerprint(self) -> str:
        """SHA-256 over all files of all parts, and what is read from others."""
        files = sorted({file for part in self.parts.values() for file in part.files})
        return hashlib.sha256("".join([*map(file_sha256, files), *self.more_to_hash()]).encode()).hexdigest()

    def more_to_hash(self) -> Iterator[str]:
        """What else the modules depend on."""
        yield from ()

    def empty(self, part: str, kind: Any) -> nn.Module:
        """A module of diffusers' class, without weights."""
        with quiet(), describing(self.parts[part]), without_weights():
            module: nn.Module = kind.from_config(self.parts[part].config)
        return module

    def load_text(self, part: str) -> Any:
        """The tokenizer, or the text encoder."""
        found = self.parts[part]
        if importlib.util.find_spec("transformers") is None:
            what = f"{found.folder} needs the package transformers, which is not installed"
            raise ConfigError(what, fix="pip install 'tickrt[export]'; or --no-text")
        if not self.has(TOKENIZER):
            raise ConfigError(f"{self.folder} has a text encoder and no {TOKENIZER}/", fix="copy it too; or --no-text")
        from transformers import AutoConfig, AutoTokenizer

        with quiet(), describing(found):
            if part == TOKENIZER:
                return AutoTokenizer.from_pretrained(found.folder, local_files_only=True)
            config = AutoConfig.from_pretrained(found.folder, local_files_only=True, dtype=torch.float32)
            with without_weights():
                module = self.text_module(config)
        fill(module, found.tensors)
        return module.eval()

    @abstractmethod
    def text_module(self, config: Any) -> nn.Module:
        """transformers' text encoder with this configuration. Raises ConfigError where it does not fit."""


@dataclass(frozen=True, kw_only=True)
class RandomWeights(ABC):
    """The published configuration with seeded random weights: the same graphs and the same work, no music.

    `transformer_changes`, `vae_changes` and `text_changes` replace values of the configuration; text_changes None: no
    text encoder, nor what belongs to it.
    """

    seed: int = 0
    transformer_changes: Mapping[str, Any] = field(default_factory=dict)
    vae_changes: Mapping[str, Any] = field(default_factory=dict)
    text_changes: Mapping[str, Any] | None = None
    title: ClassVar[str]
    text_parts: ClassVar[tuple[str, ...]]

    @property
    def description(self) -> str:
        """It states that the weights are random."""
        return f"{self.title}'s graphs with random weights (seed {self.seed}): for measuring, makes noise."

    def has(self, part: str) -> bool:
        """The decoder, the codec, a null condition, and a text encoder where it was asked for."""
        return part in (TRANSFORMER, VAE, NULL) or (self.text_changes is not None and part in self.text_parts)

    @abstractmethod
    def load(self, part: str) -> Any:
        """A module, the tokenizer, or the null condition f32 `[tokens, D]`."""

    def report(self) -> Iterator[str]:
        """The description."""
        yield self.description

    def fingerprint(self) -> str:
        """The values that the weights depend on."""
        return repr(self)


def with_drawn_weights(module: nn.Module, draw: Callable[[str, Tensor], object]) -> Any:
    """The module in eval mode, with new parameters. draw: fills the values of a name in place."""
    for name, parameter in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        value = torch.empty(parameter.shape)
        draw(name, value)
        module.get_submodule(path)._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    return module.eval()


def byte_tokenizer() -> Any:
    """For random weights: a token per byte, and an end token behind every text, as published tokenizers have one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {end: 0, **{letter: index for index, letter in enumerate(letters, 1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([end])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)


def read_config(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is none."""
    try:
        found = from_json(plain_utf8(path.read_bytes()))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def describing(part: CheckpointModel) -> Iterator[None]:
    """Turn what diffusers and transformers raise for a configuration into an error that names the folder."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError, AssertionError) as error:
        raise ConfigError(f"{part.folder} does not describe a model: {error}", fix=AGAIN) from error


def seeded(seed: int, name: str) -> torch.Generator:
    """A generator per name: a layer's random weights do not depend on the number of layers."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
