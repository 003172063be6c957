"""Prompts that say which layers sound, section by section."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from helpers.songs import SPEC, sections

from runtime.music.section_prompts import section_prompts
from runtime.music.sections import SongSection
from runtime.requests.option_types import WeightedPrompt

WORDS = SPEC.model_copy(update={"layer_words": {"drums": ("drums", "no drums"), "bass": ("bass", "no bass")}})
FIRST, SECOND, THIRD = (
    section.planned(SPEC, None) for section in sections("verse 2", "break 1 bass", "chorus 1 drums bass")
)


def test_every_section_has_its_words_in_its_frames() -> None:
    found = section_prompts(WORDS, "calm", [FIRST, SECOND, THIRD], 90, 80)
    assert isinstance(found, list)
    assert [item.text for item in found] == ["calm, drums, bass", "calm, no drums, bass"]
    alike, alone = (np.array(item.weight) for item in found)
    assert np.flatnonzero(alone).tolist() == list(range(10, 60))
    assert np.array_equal(alike, 1 - alone), "sections with the same layers share a prompt"


def test_what_given_codes_sound_is_not_said_to_be_silent() -> None:
    assert section_prompts(WORDS, "calm", [replace(SECOND, others=("drums",))], 100, 50) == "calm, drums, bass"


def test_one_prompt_stays_a_text_and_none_is_only_words() -> None:
    assert section_prompts(WORDS, "calm", [SECOND], 100, 50) == "calm, no drums, bass"
    assert section_prompts(WORDS, "", [FIRST, SECOND], 0, 100) == "drums, bass"
    assert section_prompts(WORDS, "calm", [FIRST], 0, 500) == "calm, drums, bass", "also behind the last section"


def test_what_an_ensemble_stands_for_is_in_the_prompt() -> None:
    named = WORDS.model_copy(update={"ensembles": {"string quartet": "strings, violin"}})
    assert section_prompts(named, "a String Quartet", [FIRST], 0, 9) == "a strings, violin, drums, bass"
    found = section_prompts(named, [WeightedPrompt(text="string quartet")], [FIRST, SECOND], 75, 51)
    assert [item.text for item in found if isinstance(item, WeightedPrompt)] == [
        "strings, violin, drums, bass",
        "strings, violin, no drums, bass",
    ]


def test_weights_of_prompts_are_kept() -> None:
    given = [WeightedPrompt(text="a", weight=[0.0, 1.0]), WeightedPrompt(text="b", weight=0.5, start=0.25)]
    found = section_prompts(WORDS, given, [FIRST, SECOND], 75, 51)
    assert isinstance(found, list)
    assert [item.text for item in found] == [
        "a, drums, bass",
        "a, no drums, bass",
        "b, drums, bass",
        "b, no drums, bass",
    ]
    weights = np.array([item.weight for item in found])
    assert np.allclose(weights[0] + weights[1], np.linspace(0, 1, 51))
    assert np.allclose(weights[2] + weights[3], 0.5)
    assert found[3].start == 0.25


def test_nothing_is_said_without_words_or_sections() -> None:
    none: list[SongSection] = []
    assert (section_prompts(SPEC, "calm", [FIRST], 0, 9), section_prompts(WORDS, "calm", none, 0, 9)) == (
        "calm",
        "calm",
    )
