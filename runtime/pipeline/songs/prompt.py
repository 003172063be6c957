"""What options say of a song: tokens of its prompt, its tempo, and the kinds of its sections."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from runtime.base.errors import RequestError
from runtime.config.conditions import filled
from runtime.config.plan_spec import PlanSpec
from runtime.config.words import is_instrumental, with_word
from runtime.music.tempo import prompt_tempo
from runtime.pipeline.songs.course import Course, read_course
from runtime.pipeline.songs.planner import Planner
from runtime.requests.options import TEXT_OPTIONS, GenerationOptions

# Tokens of a section: kind, layers, bars.
ITEM_SIZE, NO_COURSE = 3, Course()
_TAG, _TAG_NAME = re.compile(r"\[([^\[\]\n]*)\]"), re.compile(r"[a-z -]+")


@dataclass(frozen=True)
class SongPrompt:
    """tokens: of the prompt. bpm: exactly, where it is given. kinds: of all sections, in tokens; () for any.

    course: what the prompt says of the first sections. voices: how many layers sections have at least.
    """

    tokens: tuple[int, ...]
    negative: tuple[int, ...]
    bpm: float | None
    kinds: tuple[int, ...]
    course: Course = NO_COURSE
    voices: int = 0

    @property
    def given(self) -> dict[int, int]:
        """Places of a plan behind its header -> the token that is given there."""
        if self.kinds:
            return {ITEM_SIZE * place: kind for place, kind in enumerate(self.kinds)}
        kinds = {ITEM_SIZE * place: kind for place, kind in enumerate(self.course.kinds)}
        return kinds | {ITEM_SIZE * place + 1: layers for place, layers in enumerate(self.course.layers)}

    @property
    def num_given(self) -> int:
        """How many sections have something that is given."""
        return len(self.kinds) or max(len(self.course.kinds), len(self.course.layers))


def read_prompt(planner: Planner, options: GenerationOptions) -> SongPrompt:
    """What options say of a song. Raises RequestError."""
    spec, bundle = planner.spec.plan, planner.bundle
    assert spec is not None
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    prompt = ", ".join(texts)
    given = {name: getattr(options, name) for name in TEXT_OPTIONS}
    tokens = planner.tokens(filled(spec.prompt, {**given, "prompt": spec.with_ensembles(prompt)}))
    tokens = _without_unasked(spec, prompt, tokens, planner)
    bpm = prompt_tempo(prompt, bundle.options.bpm) if options.bpm is None else options.bpm
    sings = bundle.text_encoder is not None and "lyrics" in bundle.text_encoder.placeholders
    negative = planner.tokens(options.negative_prompt)
    voices = max((number for word, number in spec.voices.items() if _has_word(prompt, word)), default=0)
    tags = section_tags(spec, options.lyrics, sings=sings)
    return SongPrompt(tokens, negative, bpm, tags, read_course(spec, prompt, planner.tokens), voices)


def _has_word(text: str, word: str) -> bool:
    return with_word(text, word, "") != text


def _without_unasked(spec: PlanSpec, prompt: str, tokens: tuple[int, ...], planner: Planner) -> tuple[int, ...]:
    """The tokens of a prompt, with layers ruled out that only a word implies which may sound without them."""
    found = list(tokens)
    for word, layers in spec.unasked.items():
        if not _has_word(prompt, word):
            continue
        rest = reduce(lambda text, implying: with_word(text, implying, " "), (word, *spec.tempos), prompt)
        asked = spec.layers_named(planner.tokens(rest))
        for layer in set(layers) - asked:
            found = [token for token in found if token != spec.named.get(layer)]
            found += [spec.absent[layer]] if layer in spec.absent else []
    return tuple(found)


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
