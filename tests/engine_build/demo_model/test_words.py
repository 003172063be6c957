"""The word lists: every concept has words, every word one concept, nothing is written with an accent."""

import re

from engine_build.demo_model.corpus.vocabulary import (
    BPM_CONCEPTS,
    KEY_CONCEPTS,
    NO_LAYER_CONCEPTS,
    PAIR_CONCEPTS,
    WORD_CONCEPTS,
)
from engine_build.demo_model.words import FILLERS, WORDS

PHRASES = [phrase for listed in WORDS.values() for phrase in listed.split(", ")]


def test_every_concept_has_words_and_every_word_one_concept() -> None:
    by_rule = {*BPM_CONCEPTS, *KEY_CONCEPTS, *NO_LAYER_CONCEPTS, *PAIR_CONCEPTS}
    assert set(WORDS) | by_rule == set(WORD_CONCEPTS)
    assert len(PHRASES) == len(set(PHRASES))
    assert not set(PHRASES) & set(FILLERS.split())


def test_words_are_plain_letters() -> None:
    assert all(re.fullmatch(r"[a-z0-9&-]+", phrase) for phrase in PHRASES)


def test_there_are_a_few_hundred_words() -> None:
    assert len(PHRASES) > 700
