"""Text to condition tokens, by the bundle's tokenizer and text encoder; which words of a text it understands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from safetensors.numpy import load
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel

from runtime.base.errors import ConfigError, EngineError, FileError, RequestError, native_call
from runtime.base.untrusted import plain_utf8
from runtime.config.bundle import Bundle
from runtime.config.conditions import DEFAULTS, TextGraphSpec, filled, read_matrix
from runtime.engines.engine import RunnableGraph, run_once
from runtime.pipeline.songs.course import WORDS as COURSE_WORDS
from runtime.pipeline.structure import ContentCache
from runtime.pipeline.timbre import TimbreEncoder
from runtime.requests.prompt_words import WORD, PromptWords, with_corrections

Tokens = NDArray[np.float32]

CACHE_ENTRIES = 256
CONDITION_NAME = "condition"
# The header of a file with one tensor is short; a longer one is not parsed.
MAX_CONDITION_HEADER_BYTES = 4096
MAX_VOCABULARY = 2000
# Words of a text that near ones are looked for, how many of each, and the least share of letters that they have in
# common: words that only look alike have less.
MAX_NEAR_WORDS, NEAR_WORDS, NEAR_SHARE = 10, 2, 0.8
MIN_NEAR_LETTERS = 4
# Letters that a typo has in common with its word at least, but where only their order is another.
TYPO_SHARE = 0.85
PHRASE_ENDS = re.compile(r"[,;|\r\n]|(?<![.:!?])[.:!?]++(?:\s|$)")
PUNCTUATION = " \t.:!?…-–—_/*+=()[]{}\"'“”„‘’«»"


class Token(NamedTuple):
    """A token of a text, and its characters; those of what stands for several words are the last of them."""

    text: str
    start: int
    end: int


class TextEncoder:
    """The bundle's text encoder, with the cached tokens of the `cache_entries` texts used last. Any thread may call it.

    names: by kind what prompts may mean; {} where the bundle does not tell.
    lyrics: the engine of their graph, and `timbre`, where the bundle has them. Raises ConfigError where the bundle has
    no text encoder or its tokenizer cannot be read.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: RunnableGraph,
        lyrics: RunnableGraph | None = None,
        timbre: TimbreEncoder | None = None,
        *,
        cache_entries: int = CACHE_ENTRIES,
    ) -> None:
        if bundle.text_encoder is None:
            raise ConfigError(f"bundle {bundle.name!r} has no [text_encoder]: it takes no text")
        self.spec = bundle.text_encoder
        self.timbre = timbre
        self._tokenizer, self._unknown_id = read_tokenizer(bundle.folder / self.spec.tokenizer)
        self._phrases = lru_cache(cache_entries)(self._find_phrases)
        self._near = lru_cache(cache_entries)(self._find_near)
        self._null_condition = bundle.null_condition()
        self._canvas_s = bundle.canvas_s
        self.names = _checked_names(bundle, engine)
        meaning = self.spec.meaning.output if self.spec.meaning else ""
        self._text = _TextGraph(engine, self.spec, self._tokenizer, cache_entries, meaning)
        self._lyrics: _TextGraph | None = None
        if self.spec.lyrics is not None and lyrics is not None:
            self._lyrics = _TextGraph(lyrics, self.spec.lyrics, self._tokenizer, cache_entries)

    def num_tokens(self, text: str, *, seconds: float | None = None) -> int:
        """The number of tokens of a text in its template."""
        return len(self._text.ids(self._full_text(text, seconds, {})))

    def encode(
        self,
        text: str,
        *,
        seconds: float | None = None,
        field: str = "prompt",
        values: Mapping[str, Any] = {},
        timbre: Tokens | None = None,
    ) -> Tokens:
        """`[L, D]` float32: the tokens of lyrics, timbre and text that the encoders' masks keep, in the bundle's order.

        The empty text without values and timbre gives the bundle's null condition, where it has one. seconds: the
        length of the canvas, for templates that contain it and graphs that take it; default: the bundle's canvas.
        values: options that fill templates, by name, and the task. timbre `[P, D]`: in place of that of silence. Raises
        RequestError for more than `max_tokens` tokens, EngineError.
        """
        if not text and not values and timbre is None and self._null_condition is not None:
            return self._null_condition
        canvas_s = self._canvas_s if seconds is None else seconds
        parts = {"text": self._text.encode(self._full_text(text, seconds, values), field, canvas_s).tokens}
        if self._lyrics is not None:
            lyrics = filled(self._lyrics.spec.template, {**DEFAULTS, **values})
            parts["lyrics"] = self._lyrics.encode(lyrics, "lyrics", canvas_s).tokens
        if self.timbre is not None:
            parts["timbre"] = self.timbre.silence if timbre is None else timbre
        ordered = [parts[name] for name in self.spec.order if name in parts]
        return ordered[0] if len(ordered) == 1 else np.concatenate(ordered)

    @property
    def drawn_kind(self) -> str:
        """The kind of which prompts without any get one by their seed; "" where nothing is drawn."""
        return "" if self.spec.meaning is None else self.spec.meaning.drawn

    def meaning(
        self, text: str, *, seconds: float | None = None, field: str = "prompt", values: Mapping[str, Any] = {}
    ) -> Mapping[str, tuple[str, ...]]:
        """What the same text means to `encode`: by kind the names; kinds that it has none of are left out.

        {} where the bundle does not tell. Raises as `encode` does.
        """
        if not self.names or (not text and not values and self._null_condition is not None):
            return {}
        canvas_s = self._canvas_s if seconds is None else seconds
        means = self._text.encode(self.spec.text(text, canvas_s, values), field, canvas_s).means
        ends = accumulate(map(len, self.names.values()))
        found = {
            kind: tuple(name for name, is_meant in zip(names, means[end - len(names) : end], strict=True) if is_meant)
            for (kind, names), end in zip(self.names.items(), ends, strict=True)
        }
        return {kind: names for kind, names in found.items() if names}

    def words(self, texts: Iterable[str], negative: str = "") -> PromptWords:
        """Which phrases of texts are understood: the characters that the tokenizer makes its unknown token of are not.

        A tokenizer without an unknown token understands everything. Words that it drops are left out around phrases.
        A typo that is played as another word is understood as that; in the negative prompt there are none.
        """
        return self._words([*(with_corrections(text, self.corrections(text)) for text in texts), negative])

    def _words(self, texts: Iterable[str]) -> PromptWords:
        """Those of texts as they are."""
        phrases = [phrase for text in texts for phrase in self._phrases(text)]
        known, unknown = ([text for is_known, text in phrases if is_known is wanted] for wanted in (True, False))
        asked = islice(WORD.finditer(" ".join(unknown)), MAX_NEAR_WORDS)
        near = {word[0]: self._near(word[0].lower()) for word in asked}
        return PromptWords(
            tuple(dict.fromkeys(known)),
            tuple(dict.fromkeys(unknown)),
            {word: others for word, others in near.items() if others},
        )

    def tokens(self, text: str) -> list[Token]:
        """The tokens of a text, in its order, but for unknown ones."""
        encoding = encoded(self._tokenizer, text, add_special_tokens=False)
        found = zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)
        return [Token(token, *offsets) for number, token, offsets in found if number != self._unknown_id]

    def corrections(self, text: str) -> dict[str, str]:
        """By unknown word of a text the only word that it is a typo of, in all its forms: it is played as that.

        A word that the tokenizer makes other tokens of, too, is none, nor one that says how a song goes. Without names
        nothing is played as another word.
        """
        found = dict[str, str]()
        for word, near in self._words([text] if self.names else []).near.items():
            if word.lower() in COURSE_WORDS:
                continue
            meant = [other for other in near if _is_typo(word.lower(), other)]
            if len({other[:MIN_NEAR_LETTERS] for other in meant}) == 1 and self._phrases(word) == ((False, word),):
                found[word] = meant[0]
        return found

    @cached_property
    def vocabulary(self) -> tuple[str, ...] | None:
        """Every word that is understood, sorted, where the tokenizer has a closed list of at most MAX_VOCABULARY words.

        None for all others: their tokens are parts of words.
        """
        if not isinstance(self._tokenizer.model, WordLevel) or self._tokenizer.get_vocab_size() > MAX_VOCABULARY:
            return None
        words = {self._tokenizer.decode([number]) for number in range(self._tokenizer.get_vocab_size())}
        return tuple(sorted(word for word in words if self._phrases(word) == ((True, word),)))

    def _find_near(self, word: str) -> tuple[str, ...]:
        """The words of the vocabulary with its first letter that are written most like it, the nearest first."""
        if len(word) < MIN_NEAR_LETTERS:
            return ()
        others = [other for other in self.vocabulary or () if other[0] == word[0]]
        return tuple(get_close_matches(word, others, NEAR_WORDS, NEAR_SHARE))

    def _find_phrases(self, text: str) -> tuple[tuple[bool, str], ...]:
        """Phrases and whether they are understood: runs of known or of unknown tokens, cut at punctuation."""
        encoding, end = encoded(self._tokenizer, text, add_special_tokens=False), 0
        phrases: list[tuple[bool, str]] = []
        tokens = zip(encoding.ids, encoding.offsets, strict=True)
        for is_known, run in groupby(tokens, lambda token: token[0] != self._unknown_id):
            start, end = end, max(offsets[1] for _, offsets in run)
            parts = (self._without_dropped(part.strip(PUNCTUATION)) for part in PHRASE_ENDS.split(text[start:end]))
            phrases += [(is_known, part) for part in parts if part]
        return tuple(phrases)

    def _without_dropped(self, phrase: str) -> str:
        """A phrase without the words at its ends that the tokenizer makes no token of."""
        words = phrase.split(" ")
        while words and not self._is_token(words[0]):
            del words[0]
        while words and not self._is_token(words[-1]):
            del words[-1]
        return " ".join(words)

    def _is_token(self, word: str) -> bool:
        return bool(encoded(self._tokenizer, word, add_special_tokens=False).ids)

    def _full_text(self, text: str, seconds: float | None, values: Mapping[str, Any]) -> str:
        return self.spec.text(text, self._canvas_s if seconds is None else seconds, values)


class _Encoded(NamedTuple):
    """tokens `[L, D]` float32, read-only. means `[N]`: which names a text means; () where the graph does not tell."""

    tokens: Tokens
    means: tuple[bool, ...] = ()


class _TextGraph:
    """A graph that makes condition tokens of a text, with a cache. meaning: its output that tells what a text means."""

    def __init__(
        self,
        engine: RunnableGraph,
        spec: TextGraphSpec,
        tokenizer: Tokenizer,
        cache_entries: int,
        meaning: str = "",
    ) -> None:
        self.spec = spec
        self._engine, self._tokenizer, self._meaning = engine, tokenizer, meaning
        # By text, and by seconds where the graph takes them.
        self._cache: ContentCache[_Encoded] = ContentCache(cache_entries)

    def encode(self, text: str, field: str, seconds: float) -> _Encoded:
        """What the graph makes of it. Raises RequestError for more than `max_tokens` tokens, EngineError.

        seconds: the length of the canvas.
        """
        key = text if self.spec.inputs.seconds is None else (text, seconds)
        return self._cache.get(key, lambda: self._run(self._checked_ids(text, field), seconds))

    def ids(self, text: str) -> list[int]:
        """The text's tokens."""
        return list(encoded(self._tokenizer, text).ids)

    def _checked_ids(self, text: str, field: str) -> list[int]:
        ids = self.ids(text)
        if len(ids) > self.spec.max_tokens:
            raise RequestError(
                f"the text has {len(ids)} tokens, the model accepts {self.spec.max_tokens}",
                field=field,
                fix=f"shorten it by {len(ids) - self.spec.max_tokens} tokens",
            )
        return ids

    def _run(self, ids: list[int], seconds: float) -> _Encoded:
        roles = self.spec.inputs
        # A text without tokens, where a tokenizer adds none of its own: one token that does not count.
        tokens = np.array([ids or [0]], np.int64)  # [1, L]
        feeds: dict[str, NDArray[Any]] = {roles.tokens: tokens, roles.mask: np.full_like(tokens, bool(ids))}
        if roles.seconds is not None:
            feeds[roles.seconds] = np.array([seconds], np.float32)  # [1]
        outputs = run_once(self._engine, feeds)
        condition, mask = outputs[self.spec.outputs.condition], outputs[self.spec.outputs.mask]
        if condition.ndim != 3 or mask.shape != condition.shape[:2]:
            raise EngineError(
                f"{self._engine.name} returned shapes {condition.shape} and {mask.shape}, expected [1, L, D], [1, L]"
            )
        kept: Tokens = np.ascontiguousarray(condition[0][mask[0] > 0.5])
        if not len(kept):
            raise EngineError(f"{self._engine.name} returned a mask without any token")
        kept.flags.writeable = False
        return _Encoded(kept, tuple((outputs[self._meaning][0] > 0.5).tolist()) if self._meaning else ())


def _is_typo(word: str, known: str) -> bool:
    """Whether a word has the letters of another in another order, or almost all of them."""
    return sorted(word) == sorted(known) or SequenceMatcher(None, word, known).ratio() >= TYPO_SHARE


def _checked_names(bundle: Bundle, engine: RunnableGraph) -> Mapping[str, tuple[str, ...]]:
    """The names of the bundle's meanings, one for each column of the graph's output. Raises ConfigError."""
    spec, names = bundle.text_encoder, bundle.meaning_names()
    if spec is None or spec.meaning is None:
        return {}
    output, count = engine.outputs.get(spec.meaning.output), sum(map(len, names.values()))
    if output is None or output.shape[1:] != (count,):
        found = "no such output" if output is None else f"one of shape {list(output.shape)}"
        raise ConfigError(
            f"{spec.meaning.names} has {count} names, expected an output {spec.meaning.output!r} [B, {count}] of "
            f"{engine.name}; it has {found}",
            fix="export the bundle again, then build its engines",
        )
    return names


def encoded(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> Encoding:
    """The tokens of a text. Only for batches the tokenizer lets other threads run: a long text takes 20 ms.

    Raises RequestError where the tokenizer cannot read it.
    """
    with native_call("the text cannot be read by the model's tokenizer", field="prompt", fix="shorten or change it"):
        return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]


def read_condition(path: Path) -> Tokens:
    """Condition tokens `[L, D]` float32 from a .npy file. Raises RequestError."""
    try:
        return read_matrix(path)
    except FileError as error:
        raise RequestError(error.what, field="condition", fix=error.fix) from error


def parse_condition(data: bytes) -> Tokens:
    """Condition tokens: the only tensor, "condition" `[L, D]` float32, of a safetensors file. Raises RequestError."""
    fix = f'safetensors.numpy.save({{"{CONDITION_NAME}": tokens}}), tokens float32 [L, D]'
    if int.from_bytes(data[:8], "little") > MAX_CONDITION_HEADER_BYTES:
        raise RequestError("is not a safetensors file with one tensor", field="condition", fix=fix)
    with native_call("is not a safetensors file", field="condition", fix=fix):
        tensors = load(data)
    tokens: Tokens | None = tensors.get(CONDITION_NAME)
    if len(tensors) != 1 or tokens is None or tokens.dtype != np.float32 or tokens.ndim != 2:
        raise RequestError(f'expected one tensor "{CONDITION_NAME}", float32 [L, D]', field="condition", fix=fix)
    return tokens


def read_tokenizer(path: Path) -> tuple[Tokenizer, int | None]:
    """A tokenizer without padding and truncation, and the id of its unknown token, if any. Raises ConfigError."""
    try:
        text = plain_utf8(path.read_bytes()).decode()
        model = from_json(text).get("model")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(model, dict):
        raise ConfigError(f"{path} has no model, expected a tokenizer.json of the tokenizers library")
    with native_call(f"{path} is not a tokenizer of the tokenizers library", kind=ConfigError):
        tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    unknown = model.get("unk_token")
    return tokenizer, model.get("unk_id") if unknown is None else tokenizer.token_to_id(unknown)
