"""ACE-Step's 5 Hz language models as a bundle's planner and its draft: published checkpoints, or random weights."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from pydantic_core import from_json
from transformers import AutoConfig, AutoModel, AutoTokenizer

from engine_build.export.acestep.bundle_text import (
    CAPACITY,
    DRAFT_GRAPH,
    INSTRUCTION,
    PLANNER_GRAPH,
    PLANNER_TOKENIZER,
    chat_prompts,
    draft_tables,
    plain_chat,
    planner_tables,
)
from engine_build.export.bundle_export import checked
from engine_build.export.stored_tensors import AGAIN, StoredTensor, fill, stored_tensors, without_weights
from engine_build.export.torch_export import open_without_copies, quiet, release
from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names, planner_graph
from engine_build.precision.casts import FileWeights
from runtime.base.errors import ConfigError
from runtime.base.files import own_entries
from runtime.base.untrusted import plain_utf8
from runtime.config.planner import NO_WINDOW
from runtime.engines.manifest import file_sha256

PREFIX: Final = "model."
CODE: Final = re.compile(r"<\|audio_code_(\d+)\|>")
_CHECKED_TOKENS: Final = 8
_WEIGHT_STD: Final = 0.02
# What the published models have in common; sizes by name.
_CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 217_204,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
_CODES: Final = {"first": 151_669, "count": 64_000}
_END_TOKEN: Final = 151_645
RANDOM_SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072},
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144},
    "4b": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
}


class LanguageModel(ABC):
    """A language model in Qwen3's layout. `tensors`: by the checkpoint's names."""

    config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def capacity(self) -> int:
        """Tokens of its cache."""
        return min(CAPACITY, int(self.config["max_position_embeddings"]))

    @abstractmethod
    def report(self) -> str:
        """Its parameters, and how they are stored."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that is read."""

    @abstractmethod
    def tables(self, sizes: Qwen3Sizes, folder: Path) -> dict[str, Any]:
        """The tables of `[planner]`; writes the tokenizer, where there is one, into the bundle's folder."""


class LanguageModelFolder(LanguageModel):
    """A checkpoint's folder as published. Raises ConfigError where it is none."""

    def __init__(self, folder: Path) -> None:
        try:
            self.config = from_json(plain_utf8((folder / "config.json").read_bytes()))
            Qwen3Sizes.of(self.config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{folder} is not a language model in Qwen3's layout: {error!r}",
                fix="--planner FOLDER, such as acestep-5Hz-lm-0.6B",
            ) from error
        self.folder, self.tensors = folder, {_full_name(name): item for name, item in stored_tensors(folder).items()}
        if "lm_head.weight" not in self.tensors:
            self.config["tie_word_embeddings"] = True

    def report(self) -> str:
        """Parameters, how they are stored."""
        count = sum(tensor.count for tensor in self.tensors.values())
        dtypes = ", ".join(sorted({tensor.dtype.lower() for tensor in self.tensors.values()}))
        return f"{count / 1e6:,.1f} M parameters in {dtypes}"

    def fingerprint(self) -> str:
        """SHA-256 over all files."""
        files = sorted(file for file in own_entries(self.folder) if file.suffix in (".json", ".txt", ".jinja"))
        weights = sorted({tensor.file for tensor in self.tensors.values()})
        return hashlib.sha256("".join(map(file_sha256, [*files, *weights])).encode()).hexdigest()

    def tables(self, sizes: Qwen3Sizes, folder: Path) -> dict[str, Any]:
        """With the prompts as the tokenizer's chat template writes them. Raises ConfigError."""
        self._tokenizer.backend_tokenizer.save(str(folder / PLANNER_TOKENIZER))
        codes = _codes(self._tokenizer.get_added_vocab())
        end, prompts = self._tokenizer.eos_token_id, chat_prompts(self._chat)
        return planner_tables(sizes, self.capacity, codes, end, prompts, tokenizer=PLANNER_TOKENIZER)

    def check_draft(self, draft: LanguageModelFolder) -> None:
        """Raises ConfigError where a number is another token, or no token, of the draft."""
        ours, theirs = (item._tokenizer.get_vocab() for item in (self, draft))
        names = sorted({name for name, _ in ours.items() ^ theirs.items()}, key=lambda name: (ours.get(name, -1), name))
        if names:
            what = f"token {names[0]!r} is {ours.get(names[0])} and {theirs.get(names[0])}"
        elif self.config["vocab_size"] != draft.config["vocab_size"]:
            what = f"vocab_size is {self.config['vocab_size']} and {draft.config['vocab_size']}"
        else:
            return
        raise ConfigError(
            f"the tokens of the planner {self.folder} are not those of the draft {draft.folder}: {what}",
            fix="--planner and --draft of one release, such as acestep-5Hz-lm-4B and acestep-5Hz-lm-0.6B",
        )

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            with quiet():
                return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.folder} has no tokenizer: {error}", fix=AGAIN) from error

    def _chat(self, user: str, assistant: str | None) -> str:
        """The published pipeline's: a turn of the assistant that has begun ends with a line."""
        turns = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": user}]
        if assistant is not None:
            turns.append({"role": "assistant", "content": assistant})
        template = self._tokenizer.apply_chat_template
        text = str(template(turns, tokenize=False, add_generation_prompt=assistant is None))
        return text if assistant is None or text.endswith("\n") else f"{text}\n"


@dataclass(frozen=True)
class RandomTensor(StoredTensor):
    """A seeded tensor of a checkpoint that does not exist: norms 1, the rest normal."""

    seed: int = 0

    def read(self) -> torch.Tensor:
        """The tensor in float32."""
        if len(self.shape) == 1:
            return torch.ones(self.shape)
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(self.seed)) * _WEIGHT_STD


class RandomLanguageModel(LanguageModel):
    """The published sizes with random weights, and changes of them; token ids only, for measuring."""

    def __init__(self, size: str, seed: int = 0, **changes: Any) -> None:
        if size not in RANDOM_SIZES:
            raise ConfigError(f"a language model of {size} with --random: expected {', '.join(RANDOM_SIZES)}")
        self.config = {**_CONFIG, **RANDOM_SIZES[size], **changes}
        self.tensors = dict(self._made(seed))

    def report(self) -> str:
        """Its parameters."""
        count = sum(int(np.prod(tensor.shape)) for tensor in self.tensors.values())
        return f"{count / 1e6:,.1f} M parameters, random"

    def fingerprint(self) -> str:
        """The values that the weights depend on."""
        return repr((self.config, sorted(self.tensors.items())))

    def tables(self, sizes: Qwen3Sizes, folder: Path) -> dict[str, Any]:
        """Without a tokenizer and without thinking."""
        prompts = {"codes": chat_prompts(plain_chat)["codes"]}
        return planner_tables(sizes, self.capacity, _CODES, _END_TOKEN, prompts)

    def _made(self, seed: int) -> Iterator[tuple[str, StoredTensor]]:
        with quiet(), torch.device("meta"):
            module = AutoModel.from_config(AutoConfig.for_model(**self.config))
        for name, parameter in module.state_dict().items():
            own = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little") >> 1
            yield f"{PREFIX}{name}", RandomTensor(Path("random"), "F32", tuple(parameter.shape), 0, 0, own)


def export_planner(source: LanguageModel, folder: Path, num_codes: int | None = None) -> dict[str, Any]:
    """Write the graph, its weights beside it and the tokenizer; returns the tables of `[planner]`.

    num_codes: the codes that the bundle's structure has. Raises BuildError where the graph differs from its module.
    """
    sizes = Qwen3Sizes.of(source.config)
    tables = source.tables(sizes, folder)
    if num_codes is not None and tables["planner.codes"]["groups"][0]["count"] > num_codes:
        tables["planner.codes"]["groups"][0]["count"] = num_codes
    _export_graph(source, sizes, tables["planner"]["capacity"], folder / PLANNER_GRAPH)
    return tables


def export_draft(source: LanguageModel, folder: Path, capacity: int) -> dict[str, Any]:
    """Write the graph and its weights beside it; returns the tables of `[planner.draft]`. capacity: the planner's.

    Raises BuildError where the graph differs from its module.
    """
    sizes = Qwen3Sizes.of(source.config)
    _export_graph(source, sizes, capacity, folder / DRAFT_GRAPH)
    return draft_tables(sizes, capacity)


def _export_graph(source: LanguageModel, sizes: Qwen3Sizes, capacity: int, path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (1, _CHECKED_TOKENS))
    expected = module_logits(source, tokens)

    def read(name: str) -> NDArray[np.float32]:
        return np.asarray(source.tensors[name].read().numpy())

    weights = FileWeights(path.parent, path.with_name(f"{path.name}.data"))
    onnx.save(planner_graph(sizes, capacity, read, weights.write), path)
    onnx.checker.check_model(str(path), full_check=True)
    checked(path.name, float(np.abs(graph_logits(path, sizes, capacity, tokens) - expected).max()))


def module_logits(source: LanguageModel, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """What transformers' model gives for tokens `[1, U]`, `[1, U, V]`."""
    config = AutoConfig.for_model(**{**source.config, "dtype": "float32"})
    with quiet(), without_weights():
        module = AutoModel.from_config(config).eval()
    head = source.tensors.get("lm_head.weight") or source.tensors[f"{PREFIX}embed_tokens.weight"]
    own = {name.removeprefix(PREFIX): item for name, item in source.tensors.items() if name != "lm_head.weight"}
    fill(module, own)
    with torch.no_grad():
        hidden = module(torch.from_numpy(tokens), use_cache=False).last_hidden_state
        logits: NDArray[np.float32] = (hidden @ head.read().T).numpy()
    release(module)
    return logits


def graph_logits(path: Path, sizes: Qwen3Sizes, capacity: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """What the graph gives for the same tokens."""
    count = tokens.shape[1]
    cache = np.zeros((1, sizes.kv_heads, capacity, sizes.head_width), np.float32)
    zero = np.zeros(1, np.int64)
    feeds = {
        "tokens": tokens,
        "position": zero,
        "write": zero,
        "window": np.full(1, NO_WINDOW),
        "slots": np.arange(count),
        "pick": np.arange(count)[None, :, None],
        **dict.fromkeys(cache_names(sizes.layers).past, cache),
    }
    logits: NDArray[np.float32] = open_without_copies(path).run(["logits"], feeds)[0]
    return logits


def _full_name(name: str) -> str:
    """A checkpoint saved without its language head has no prefix before its names."""
    return name if name.startswith((PREFIX, "lm_head.")) else f"{PREFIX}{name}"


def _codes(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """The range of the code tokens. Raises ConfigError where there is none."""
    found = {int(match[1]): token for name, token in vocabulary.items() if (match := CODE.fullmatch(name))}
    first = found.get(0)
    if first is None or any(token != first + code for code, token in found.items()):
        raise ConfigError("the tokenizer has no tokens <|audio_code_0|>, <|audio_code_1|>, ... in a row", fix=AGAIN)
    return {"first": first, "count": len(found)}
