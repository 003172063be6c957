"""tickrt-bench skip: which steps can be left out."""

from __future__ import annotations

import tomllib
from io import StringIO
from typing import Any

import pytest
from conftest import Built
from rich.console import Console

from profiling.bench.skip import dense_then_every, measure_skips, print_skips
from runtime.base.errors import ConfigError

SIZES: dict[str, Any] = {"steps": 20, "sampler": 'solver = "ode"\nshift = 2.0'}


def shown(result: dict[str, Any]) -> str:
    text = StringIO()
    print_skips(Console(file=text, width=100), result)
    return text.getvalue()


def test_the_first_choice_that_is_near_enough_has_the_fewest_rows(built: Built) -> None:
    result = measure_skips(built(**SIZES), 20, 12, ["a", "b"])
    usual, *tried = result["choices"]
    assert (usual["kept"], usual["rows"], result["all_rows"]) == ((), 24, 40)
    assert [each["rows"] for each in tried] == sorted(each["rows"] for each in tried)
    assert result["best"] == tried[-1]
    assert tried[-1]["distance"] <= usual["distance"] < min(each["distance"] for each in tried[:-1])
    table = tomllib.loads(shown(result).partition("in bundle.toml:")[2])["sampler"]
    assert table == {"guidance_mode": tried[-1]["mode"], "kept": {"20": list(tried[-1]["kept"])}}


def test_where_nothing_is_near_enough_it_says_so(built: Built) -> None:
    result = measure_skips(built(**SIZES), 20, 19, ["a"])
    assert result["best"] is None
    assert "nothing is as near to all steps as 19 plain ones" in shown(result)


@pytest.mark.parametrize("plain", [4, 20])
def test_plain_steps_are_fewer_than_all(plain: int, built: Built) -> None:
    with pytest.raises(ConfigError, match=f"{plain} of 20 steps"):
        measure_skips(built(**SIZES), 20, plain)


def test_a_pattern_is_dense_at_first() -> None:
    assert dense_then_every(12, 4, 3) == (0, 1, 2, 3, 4, 7, 10)
