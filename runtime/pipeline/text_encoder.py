"""Text to condition tokens, by the bundle's tokenizer and text encoder."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from runtime.config.bundle import Bundle
from runtime.engines.engine import RunnableGraph, run_once
from runtime.errors import ConfigError, EngineError, RequestError

Tokens = NDArray[np.float32]

CACHE_ENTRIES = 256


class TextEncoder:
    """The bundle's text encoder, with a cache of the `cache_entries` texts used last. Any thread may call it.

    Raises ConfigError where the bundle has no text encoder or its tokenizer cannot be read.
    """

    def __init__(self, bundle: Bundle, engine: RunnableGraph, *, cache_entries: int = CACHE_ENTRIES) -> None:
        if bundle.text_encoder is None:
            raise ConfigError(f"bundle {bundle.name!r} has no [text_encoder]: it takes no text")
        self.spec = bundle.text_encoder
        self._tokenizer = _open_tokenizer(bundle)
        self._null_condition = bundle.null_condition()
        self._canvas_s = bundle.canvas_s
        self._engine = engine
        self._cache_entries = cache_entries
        self._cache: OrderedDict[str, Tokens] = OrderedDict()
        self._lock = threading.Lock()

    def num_tokens(self, text: str, *, seconds: float | None = None) -> int:
        """The number of tokens of a text in its template."""
        return len(self._ids(self._full_text(text, seconds)))

    def encode(self, text: str, *, seconds: float | None = None, field: str = "prompt") -> Tokens:
        """`[L, D]` float32, read-only: the tokens that the encoder's mask keeps.

        The empty text gives the bundle's null condition, where it has one. seconds: the length of the canvas, for
        templates that contain it; default: the bundle's canvas. Raises RequestError for more than `max_tokens` tokens,
        EngineError.
        """
        if not text and self._null_condition is not None:
            return self._null_condition
        full_text = self._full_text(text, seconds)
        with self._lock:
            if full_text in self._cache:
                self._cache.move_to_end(full_text)
            else:
                self._store(full_text, self._run(self._checked_ids(full_text, field)))
            return self._cache[full_text]

    def _full_text(self, text: str, seconds: float | None) -> str:
        return self.spec.text(text, self._canvas_s if seconds is None else seconds)

    def _checked_ids(self, full_text: str, field: str) -> list[int]:
        ids = self._ids(full_text)
        if len(ids) > self.spec.max_tokens:
            raise RequestError(
                f"the text has {len(ids)} tokens, the model accepts {self.spec.max_tokens}",
                field=field,
                fix=f"shorten it by {len(ids) - self.spec.max_tokens} tokens",
            )
        return ids

    def _ids(self, full_text: str) -> list[int]:
        return list(self._tokenizer.encode(full_text).ids)

    def _run(self, ids: list[int]) -> Tokens:
        roles = self.spec.inputs
        tokens = np.array([ids], np.int64)
        outputs = run_once(self._engine, {roles.tokens: tokens, roles.mask: np.ones_like(tokens)})
        condition, mask = outputs[self.spec.outputs.condition], outputs[self.spec.outputs.mask]
        if condition.ndim != 3 or mask.shape != condition.shape[:2]:
            raise EngineError(
                f"{self._engine.name} returned shapes {condition.shape} and {mask.shape}, expected [1, L, D], [1, L]"
            )
        kept: Tokens = np.ascontiguousarray(condition[0][mask[0] > 0.5])
        if not len(kept):
            raise EngineError(f"{self._engine.name} returned a mask without any token")
        kept.flags.writeable = False
        return kept

    def _store(self, text: str, tokens: Tokens) -> None:
        self._cache[text] = tokens
        if len(self._cache) > self._cache_entries:
            self._cache.popitem(last=False)


def read_condition(path: Path) -> Tokens:
    """Condition tokens `[L, D]` float32 from a .npy file. Raises RequestError."""
    try:
        tokens = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RequestError(
            f"{path} cannot be read: {error}", field="condition", fix="numpy.save(FILE, tokens)"
        ) from error
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.float32 or tokens.ndim != 2:
        raise RequestError(f"{path} does not contain float32 [tokens, width]", field="condition")
    return tokens


def _open_tokenizer(bundle: Bundle) -> Tokenizer:
    assert bundle.text_encoder is not None
    path = bundle.folder / bundle.text_encoder.tokenizer
    try:
        text = path.read_text(encoding="utf-8")
        is_tokenizer = "model" in json.loads(text)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not is_tokenizer:
        raise ConfigError(f"{path} has no model, expected a tokenizer.json of the tokenizers library")
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
