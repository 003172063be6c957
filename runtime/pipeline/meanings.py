"""What prompts mean to a bundle's text encoder, and what the seed draws for those that name nothing of some kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from runtime.pipeline.binding import bound_moods
from runtime.pipeline.compose import text_values
from runtime.pipeline.text_encoder import TextEncoder
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptMeaning
from runtime.requests.seeds import drawn_name


def prompt_meaning(
    text_encoder: TextEncoder, text: str, options: GenerationOptions, seed: int, field: str = "prompt"
) -> PromptMeaning:
    """What is played of a prompt, with the options that its template has; seed: what draws where it is drawn.

    A typo of one known word is played as that. The empty prompt gets nothing drawn. Raises RequestError, EngineError.
    """
    values = text_values(options, options.task or "text2music", text, None)
    found, kind = PromptMeaning(text, {}, corrections=text_encoder.corrections(text)), text_encoder.drawn_kind
    names = text_encoder.meaning(found.played_text, field=field, values=values)
    spec, read = text_encoder.spec.meaning, found.played_text
    if spec is not None and spec.moods:
        bound, read = bound_moods(spec, read, text_encoder.tokens(read), [*chain(*names.values())])
        found = replace(found, bound=bound, read=read)
        names = text_encoder.meaning(read, field=field, values=values)
    if kind and text.strip() and kind not in names:
        found = replace(found, drawn=(kind, drawn_name(text_encoder.names[kind], seed)))
        names = text_encoder.meaning(found.played_text, field=field, values=values)
    return replace(found, names=names)


def prompt_meanings(text_encoder: TextEncoder, options: GenerationOptions, seed: int) -> tuple[PromptMeaning, ...]:
    """What is played of each prompt of options; () where the bundle does not tell. Raises RequestError, EngineError."""
    if not text_encoder.names:
        return ()
    if isinstance(options.prompt, str):
        return (prompt_meaning(text_encoder, options.prompt, options, seed),)
    fields = ((f"prompt.{index}.text", item.text) for index, item in enumerate(options.prompt))
    return tuple(prompt_meaning(text_encoder, text, options, seed, field) for field, text in fields)


def with_drawn(text_encoder: TextEncoder, options: GenerationOptions, seed: int) -> GenerationOptions:
    """Options whose prompts are as played, with what the seed draws for them. Raises RequestError, EngineError."""
    if not text_encoder.names:
        return options
    texts = [meaning.played_text for meaning in prompt_meanings(text_encoder, options, seed)]
    if isinstance(options.prompt, str):
        return options.model_copy(update={"prompt": texts[0]})
    items = zip(options.prompt, texts, strict=True)
    return options.model_copy(update={"prompt": [item.model_copy(update={"text": text}) for item, text in items]})
