"""TOML text is read back as the values that were written."""

from __future__ import annotations

import tomllib

from engine_build.export.toml_text import table_text, value_text

VALUES = {
    "name": 'a "quoted" \\ name\nof two lines, ü',
    "steps": 8,
    "shift": 3.0,
    "small": 1e-05,
    "is_turbo": True,
    "silence": [-0.25, 0.5],
    "inputs": {"latents": "hidden_states", "sizes": [1, 2], "two words": 1},
    "empty": [],
}


def test_a_table_is_read_as_written() -> None:
    assert tomllib.loads(table_text("model", VALUES)) == {"model": VALUES}


def test_a_table_without_a_name_is_the_top_of_the_file() -> None:
    assert tomllib.loads(table_text("", VALUES) + table_text("more", {"x": 1})) == {**VALUES, "more": {"x": 1}}


def test_booleans_are_lower_case() -> None:
    assert (value_text(True), value_text(1)) == ("true", "1")
