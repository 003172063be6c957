"""Lyrics, metadata and the instruction: what is refused, in which words."""

from typing import Any

import pytest

from runtime.base.errors import RequestError
from runtime.requests.options import parse_options


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lyrics", "x" * 8193, "at most 8192 characters"),
        ("language", "english!", "text that matches"),
        ("bpm", 29, "at least 30"),
        ("bpm", 301, "at most 300"),
        ("bpm", "fast", "a number"),
        ("key", "C7", 'such as "C major", "F# minor"'),
        ("key", "H major", 'such as "C major"'),
        ("time_signature", 5, "2, 3, 4 or 6"),
        ("time_signature", "7/8", "2, 3, 4 or 6"),
        ("task", "remix", "'lego' or 'complete'"),
        ("track", "", "at least 1 character"),
        ("track_classes", [], "at least 1 item"),
        ("track_classes", 7, "a list"),
        ("instruction", "x" * 501, "at most 500 characters"),
        ("timbre_strength", 1.1, "number from 0 to 1"),
    ],
)
def test_refusals_name_the_option(name: str, value: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_options({"prompt": "a", name: value})
    assert caught.value.field.partition(".")[0] == name
    assert words in caught.value.what


@pytest.mark.parametrize("key", ["C major", "F# minor", "Bb major", "Ab minor"])
def test_keys_as_the_model_knows_them(key: str) -> None:
    assert parse_options({"prompt": "", "key": key}).key == key
