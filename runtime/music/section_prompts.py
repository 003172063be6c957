"""The prompts of a song's sections: each names the layers that sound in it, and those that do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from runtime.config.plan_spec import PlanSpec
from runtime.music.sections import SongSection
from runtime.requests.option_types import WeightedPrompt

PromptText = str | list[WeightedPrompt]


def section_prompts(
    spec: PlanSpec, prompt: PromptText, sections: Sequence[SongSection], start_frame: int, frames: int
) -> PromptText:
    """The prompts of `frames` frames from `start_frame` on, each with its sections' words and a curve over them.

    Curves of `prompt` span the same frames. Where the bundle has no words for layers it stays as it is.
    """
    if not spec.layer_words or not sections:
        return prompt
    if isinstance(prompt, str):
        prompt = spec.with_ensembles(prompt)
    given = [WeightedPrompt(text=prompt)] if isinstance(prompt, str) else prompt
    shares: dict[str, NDArray[np.float32]] = {}
    for section in sections:
        first, end = (min(max(frame - start_frame, 0), frames) for frame in (section.start_frame, section.end_frame))
        first = 0 if section is sections[0] else first
        end = frames if section is sections[-1] else end
        if first < end:
            share = shares.setdefault(_words(spec, section), np.zeros(frames, np.float32))
            share[first:end] = 1.0
    if isinstance(prompt, str) and len(shares) == 1:
        return _joined(prompt, *shares)
    return [
        item.model_copy(update={"text": _joined(text, words), "weight": (_curve(item, frames) * share).tolist()})
        for item, text in ((item, spec.with_ensembles(item.text)) for item in given)
        for words, share in shares.items()
    ]


def with_layers(sections: Sequence[SongSection], played: Iterable[tuple[str, int, int]]) -> tuple[SongSection, ...]:
    """The sections with the layers of what is played in them beside the plan: layer, first frame, the one behind it."""
    spans = list(played)
    return tuple(
        replace(section, others=tuple(dict.fromkeys((*section.others, *layers))))
        if (layers := [name for name, start, end in spans if start < section.end_frame and end > section.start_frame])
        else section
        for section in sections
    )


def _words(spec: PlanSpec, section: SongSection) -> str:
    sounding = {*section.layers, *section.others}
    return ", ".join(words[layer not in sounding] for layer, words in spec.layer_words.items())


def _joined(prompt: str, words: str) -> str:
    return f"{prompt}, {words}" if prompt else words


def _curve(item: WeightedPrompt, frames: int) -> NDArray[np.float32] | float:
    if not isinstance(item.weight, list):
        return item.weight
    places = np.linspace(0, len(item.weight) - 1, frames)
    return np.interp(places, np.arange(len(item.weight)), item.weight).astype(np.float32)
