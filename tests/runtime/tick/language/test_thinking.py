from __future__ import annotations

import pytest
from helpers.tiny_planner import byte_tokenizer, planner_spec
from tokenizers import Tokenizer, models

from runtime.base.errors import ConfigError
from runtime.tick.language.thinking import Choice, Fixed, Text, ThinkingGrammar, thinking_values


def test_the_segments_are_start_names_values_and_end() -> None:
    grammar = ThinkingGrammar(planner_spec(), byte_tokenizer())
    kinds = [type(segment) for segment in grammar.segments({"language": "de"}, ())]
    assert kinds == [Fixed, Fixed, Choice, Fixed, Text, Fixed, Fixed, Fixed]
    assert len(grammar.segments({}, {"bpm", "caption"})) == 4


def test_text_has_no_special_tokens_no_codes_and_nothing_that_is_left_out() -> None:
    grammar = ThinkingGrammar(planner_spec(), byte_tokenizer())
    assert grammar.is_text["caption"].sum() == 255
    assert not grammar.is_text["caption"][256:].any()
    indented = {text for text, found in zip(grammar.texts, grammar.is_indented, strict=True) if found}
    assert indented == {" ", "\t"}
    grammar.texts = ["", " a", "\tb", "a ", " "]
    del grammar.is_indented
    assert grammar.is_indented.tolist() == [False, True, True, False, True]


def test_a_tokenizer_that_joins_name_and_value_is_refused() -> None:
    """One token per text: "bpm:" and "bpm: 30" are one each."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    with pytest.raises(ConfigError, match="does not begin"):
        ThinkingGrammar(planner_spec(), tokenizer)


def test_values_of_a_text_are_read_with_their_further_lines() -> None:
    text = "<think>\nbpm: 95\ncaption: Slow: rock,\n  a piano\n  late.\nkeyscale: F# minor\n</think>"
    assert thinking_values(text) == {"bpm": "95", "caption": "Slow: rock, a piano late.", "keyscale": "F# minor"}
