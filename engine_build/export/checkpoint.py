"""A part of a checkpoint on disk, and what all families load alike: text encoders, tokenizers, seeded weights."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from pydantic_core import from_json

from engine_build.export.stored_tensors import AGAIN, StoredTensor
from runtime.base.errors import ConfigError
from runtime.base.files import own_entries
from runtime.base.untrusted import plain_utf8

CONFIG: Final = "config.json"


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


def need_transformers(folder: Path) -> None:
    """Raises ConfigError where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"{folder} needs the package transformers, which is not installed",
            fix="pip install 'tickrt[export]'; or --no-text",
        )


def seeded(seed: int, name: str) -> torch.Generator:
    """A generator per name: a layer's random weights do not depend on the number of layers."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
