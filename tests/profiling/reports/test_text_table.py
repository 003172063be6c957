"""Tables fit the terminal: names are cut in the middle, numbers stay whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from profiling.reports.text_table import cut_middle, print_table

NAME = "decoder.layers.3.attention.q_proj"


def lines(width: int, *rows: tuple[str | Text, ...]) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(console, "a title", ("layer", "kind", "ms"), rows, num_text=2)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("width", "cut"), [(40, NAME), (33, NAME), (16, "decoder.….q_proj"), (15, "decoder….q_proj"), (2, "d…"), (1, "…")]
)
def test_names_are_cut_in_the_middle(width: int, cut: str) -> None:
    assert cut_middle(NAME, width) == cut


def test_the_first_column_takes_the_width_that_is_left() -> None:
    found = lines(40, (NAME, "gemm", "123.456"), ("[b]", "norm", Text("1.000", "red")))
    assert max(map(len, found)) <= 40
    assert any(line.startswith("decoder.la") and line.rstrip().endswith("gemm  123.456") for line in found)
    assert any("[b]" in line and "1.000" in line for line in found)
    assert any(NAME in line for line in lines(80, (NAME, "gemm", "123.456")))
