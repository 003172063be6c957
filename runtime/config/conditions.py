"""[text_encoder] and [timbre] of bundle.toml: the graphs that make condition tokens, and the templates of the texts.

Placeholders of a template are names of public options, and {prompt} and {seconds}.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from runtime.base.errors import FileError, native_call
from runtime.base.files import read_file
from runtime.config.explain import FileName, TomlTable

Task = Literal["text2music", "cover", "repaint", "extract", "lego", "complete"]
Part = Literal["lyrics", "timbre", "text"]
PLACEHOLDERS = (
    "prompt", "seconds", "bpm", "key", "time_signature", "instruction", "lyrics", "language", "track", "track_classes",
)  # fmt: skip
PATTERN = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
# What a placeholder stands for where a text is made without it.
DEFAULTS: Mapping[str, Any] = {"lyrics": "", "language": "en", "task": "text2music"}
REFERENCE_PARTS = 3
MAX_ARRAY_BYTES = 2**30


def placeholders(template: str) -> frozenset[str]:
    """The names of a template's placeholders."""
    return frozenset(PATTERN.findall(template))


def filled(template: str, values: Mapping[str, Any], missing: str = "") -> str:
    """A template with its placeholders replaced, all at once; `missing` for values that are None or not there."""

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1])
        return missing if found is None else f"{found:g}" if isinstance(found, float) else str(found)

    return PATTERN.sub(value, template)


class TextEncoderInputs(TomlTable):
    """Role -> tensor name. tokens `[B,L]` int64, mask `[B,L]` int64 (1 = token), seconds `[B]` float32.

    seconds: the length of the canvas that the text is for, also of a generation's segment.
    """

    tokens: str
    mask: str
    seconds: str | None = None


class TextEncoderOutputs(TomlTable):
    """Role -> tensor name. condition `[B,L',D]` float32, mask `[B,L']` float32 (1 = keep)."""

    condition: str
    mask: str


class TextGraphSpec(TomlTable):
    """A graph that makes condition tokens of a filled template of at most `max_tokens` tokens."""

    graph: FileName
    template: str
    max_tokens: int = Field(ge=1)
    inputs: TextEncoderInputs
    outputs: TextEncoderOutputs


class LyricsSpec(TextGraphSpec):
    """Lyrics -> condition tokens. template: with `{lyrics}` and optionally `{language}`; also of empty lyrics."""

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if "lyrics" not in placeholders(self.template):
            raise ValueError("template has no {lyrics}: all lyrics would be the same")
        return self


class MoodSpec(TomlTable):
    """What a mood does that a prompt says of some parts of the music, such as the first of "loud drums, soft piano".

    It is only for these parts, and not read by the model, where other ones play, too. words: tokens of the tokenizer.
    level_db: how much louder the notes of these parts are. is_sparse: of notes that follow each other within a beat
    these parts have the first. against: moods one of which the prompt has to say, too; none: it is always for its parts
    alone. is_read: the model reads it all the same.
    """

    words: tuple[str, ...] = Field(min_length=1)
    level_db: float = Field(default=0.0, ge=-24.0, le=12.0)
    is_sparse: bool = False
    against: tuple[str, ...] = ()
    is_read: bool = False


class PartSpec(TomlTable):
    """Words for a part of the music. words: tokens of the tokenizer. names: of the meaning, by layer of [notes]."""

    words: tuple[str, ...] = Field(min_length=1)
    names: Mapping[str, tuple[str, ...]]


class MeaningSpec(TomlTable):
    """An output of the text's graph that tells what a prompt means: `[B,N]` float32, 1 where it means name number n.

    names: a JSON file with lists of names by kind, in the order in which they are said; one after the other they are
    the N names. drawn: the kind of which a prompt without any gets one, by the generation's seed. moods, parts: which
    words bind to which; they need [notes].
    """

    output: str
    names: FileName
    drawn: str = ""
    moods: Mapping[str, MoodSpec] = {}
    parts: tuple[PartSpec, ...] = ()

    @model_validator(mode="after")
    def _check_moods(self) -> Self:
        for name, mood in self.moods.items():
            if unknown := set(mood.against) - self.moods.keys():
                raise ValueError(f"moods.{name} is against {min(unknown)!r}, which is none of moods")
        return self


class TextEncoderSpec(TextGraphSpec):
    """Text -> condition tokens. The empty text is the null condition.

    template: the text that is tokenized, with `{prompt}`, and optionally `{seconds}` for the canvas's length and other
    placeholders. missing: what stands for metadata that are not given. instructions: what `{instruction}` is, by task:
    the first one whose placeholders (`{track}`, `{track_classes}`) all have values; instruction_end is appended to one
    that does not end with it. lyrics: their graph; its tokens, those of [timbre] and the text's follow each other in
    `order`. prefix_tokens: the most tokens beside the text's where there are no lyrics.
    """

    tokenizer: FileName
    template: str = "{prompt}"
    missing: str = ""
    instructions: Mapping[Task, tuple[str, ...]] = {}
    instruction_end: str = ""
    prefix_tokens: int = Field(default=0, ge=0)
    order: tuple[Part, ...] = ("lyrics", "timbre", "text")
    lyrics: LyricsSpec | None = None
    meaning: MeaningSpec | None = None

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if "prompt" not in placeholders(self.template):
            raise ValueError("template has no {prompt}: every text would be the same")
        for name in frozenset().union(*map(placeholders, self._instruction_texts)) - {"track", "track_classes"}:
            raise ValueError(f"instructions have {{{name}}}, they take {{track}} and {{track_classes}}")
        if sorted(self.order) != ["lyrics", "text", "timbre"]:
            raise ValueError("order has to name lyrics, timbre and text once each")
        return self

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders of all templates."""
        templates = [self.template, *self._instruction_texts, *([self.lyrics.template] if self.lyrics else [])]
        return frozenset().union(*map(placeholders, templates))

    @property
    def _instruction_texts(self) -> list[str]:
        return [text for texts in self.instructions.values() for text in texts]

    def text(self, prompt: str, seconds: float, values: Mapping[str, Any] = {}) -> str:
        """The template filled in; `seconds` is rounded down. values: options by name, and the task."""
        values = {**DEFAULTS, **values}
        given = {"prompt": prompt, "seconds": int(seconds), "instruction": self._instruction(values)}
        return filled(self.template, {**values, **given}, self.missing)

    def _instruction(self, values: Mapping[str, Any]) -> str:
        """The given instruction, else the task's. Tracks are in upper case, separated by " | "."""
        text = values.get("instruction")
        if text is None:
            classes = " | ".join(values.get("track_classes") or ())
            tracks = {"track": (values.get("track") or "").upper(), "track_classes": classes.upper()}
            texts = self.instructions.get(values["task"], ())
            text = next((filled(t, tracks) for t in texts if all(tracks[name] for name in placeholders(t))), "")
        return text if text.endswith(self.instruction_end) else f"{text}{self.instruction_end}"


class TimbreInputs(TomlTable):
    """Role -> tensor name. latents `[B,T,C]` float32."""

    latents: str


class TimbreOutputs(TomlTable):
    """Role -> tensor name. condition `[B,P,D]` float32."""

    condition: str


class TimbreSpec(TomlTable):
    """Latents of a reference -> condition tokens. frames: T, three parts of equal length; silence where none is given.

    The parts are the reference's first, those from its third on, and its last.
    """

    graph: FileName
    frames: int = Field(ge=REFERENCE_PARTS, multiple_of=REFERENCE_PARTS)
    inputs: TimbreInputs
    outputs: TimbreOutputs


def read_matrix(path: Path) -> NDArray[np.float32]:
    """float32 `[rows, columns]` of a .npy file. Raises FileError where the file cannot be read, or is none of these."""
    data, what = read_file(path, MAX_ARRAY_BYTES), f"{path!s:.200} does not hold float32 [rows, columns]"
    fix = "numpy.save(FILE, array)"
    if not data.startswith(np.lib.format.MAGIC_PREFIX):
        raise FileError(f"{what}: it is no .npy file", fix=fix)
    with native_call(f"{what}: its header", fix=fix, kind=FileError):
        array: NDArray[np.float32] = np.load(io.BytesIO(data), allow_pickle=False)
    if array.dtype != np.float32 or array.ndim != 2:
        raise FileError(f"{what}: it has {array.dtype} {list(array.shape)}", fix=fix)
    return array
