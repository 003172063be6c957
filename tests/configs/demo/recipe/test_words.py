"""The word lists: every concept has words, every word one concept, nothing is written with an accent."""

import doctest
import re

from helpers.paths import DEMO_BUNDLE

from configs.demo.recipe.corpus.genres import GENRES
from configs.demo.recipe.corpus.vocabulary import (
    BPM_CONCEPTS,
    FRACTION_CONCEPTS,
    KEY_CONCEPTS,
    NO_INSTRUMENT_CONCEPTS,
    NO_LAYER_CONCEPTS,
    PAIR_CONCEPTS,
    WORD_CONCEPTS,
)
from configs.demo.recipe.words import FILLERS, WORDS

PHRASES = [phrase for listed in WORDS.values() for phrase in listed.split(", ")]


def test_every_concept_has_words_and_every_word_one_concept() -> None:
    by_rule = {*BPM_CONCEPTS, *FRACTION_CONCEPTS, *KEY_CONCEPTS, *NO_LAYER_CONCEPTS, *PAIR_CONCEPTS}
    by_rule |= set(NO_INSTRUMENT_CONCEPTS)
    assert set(WORDS) | by_rule == set(WORD_CONCEPTS)
    assert len(PHRASES) == len(set(PHRASES))
    assert not set(PHRASES) & set(FILLERS.split())


def test_words_are_plain_letters() -> None:
    assert all(re.fullmatch(r"[a-z0-9&-]+", phrase) for phrase in PHRASES)


def test_there_are_a_few_hundred_words() -> None:
    assert len(PHRASES) > 700


def test_the_readme_lists_every_genre_and_its_example_runs() -> None:
    path = DEMO_BUNDLE / "README.md"
    section = path.read_text(encoding="utf-8").partition("## What a prompt of the demo can say")[2]
    assert all(re.search(rf"\b{genre}\b", section) for genre in GENRES)
    found = doctest.testfile(str(path), module_relative=False)
    assert found.attempted >= 2
    assert not found.failed
