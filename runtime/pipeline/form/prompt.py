"""What options say of a song: tokens of its prompt, its tempo, and the kinds of its sections."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.config.conditions import filled
from runtime.config.plan_spec import PlanSpec
from runtime.config.words import is_instrumental
from runtime.errors import RequestError
from runtime.pipeline.sequences import Sequences
from runtime.requests.form.tempo import prompt_tempo
from runtime.requests.options import TEXT_OPTIONS, GenerationOptions

_TAG, _TAG_NAME = re.compile(r"\[([^\[\]\n]*)\]"), re.compile(r"[a-z -]+")


@dataclass(frozen=True)
class SongPrompt:
    """tokens: of the prompt. bpm: exactly, where it is given. kinds: of the first sections, in tokens."""

    tokens: tuple[int, ...]
    negative: tuple[int, ...]
    bpm: float | None
    kinds: tuple[int, ...]


def read_prompt(sequences: Sequences, options: GenerationOptions) -> SongPrompt:
    """What options say of a song. Raises RequestError."""
    spec, bundle = sequences.spec.plan, sequences.bundle
    assert spec is not None
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    prompt = ", ".join(texts)
    given = {name: getattr(options, name) for name in TEXT_OPTIONS}
    tokens = sequences.tokens(filled(spec.prompt, {**given, "prompt": prompt}))
    bpm = prompt_tempo(prompt, bundle.options.bpm) if options.bpm is None else options.bpm
    sings = bundle.text_encoder is not None and "lyrics" in bundle.text_encoder.placeholders
    negative = sequences.tokens(options.negative_prompt)
    return SongPrompt(tokens, negative, bpm, section_tags(spec, options.lyrics, sings=sings))


def section_tags(spec: PlanSpec, lyrics: str, *, sings: bool) -> tuple[int, ...]:
    """The kinds that lyrics name in brackets, such as [verse], in tokens. A model that sings takes the rest as text.

    Raises RequestError for other words where it does not.
    """
    names, kinds = {name: name for name in spec.kind.values} | dict(spec.tags), list[int]()
    for tag in _TAG.findall(lyrics):
        said = _TAG_NAME.match(tag.lower())
        if said is not None and said[0].strip() in names:
            kinds.append(spec.kind.token(names[said[0].strip()]))
        elif not sings and not is_instrumental(tag):
            raise _no_tag(f"[{tag:.40}]", names)
    if not sings and (rest := _TAG.sub("", lyrics).strip()) and not is_instrumental(rest):
        raise _no_tag(f"{rest:.40}", names)
    if len(kinds) > spec.most_sections:
        raise RequestError(f"has {len(kinds)} sections, at most {spec.most_sections} are possible", field="lyrics")
    return tuple(kinds)


def _no_tag(found: str, names: Iterable[str]) -> RequestError:
    tags = " ".join(f"[{name}]" for name in names)
    return RequestError(f"this model does not sing, got {found!r}", field="lyrics", fix=f"only section tags: {tags}")
