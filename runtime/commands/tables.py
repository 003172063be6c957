"""Tables in the terminal and as Markdown. Names in them are of unknown origin: each stays text, on its own line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.base.untrusted import printable

LEAST_WIDTH = 8
# Columns between two cells: padding and the box's divider.
GAP = 2
# Columns of a name in Markdown: viewers show it whole.
MARKDOWN_WIDTH = 160
# What begins markup inside a line of Markdown; an underscore within a word does not.
_MARKUP = re.compile(r"[\\`*\[\]<>&~|$#]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
Cell = str | Text


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], num_text: int = 1
) -> None:
    """Print rows of cells; the first `num_text` columns are text, the others numbers.

    Rows fit the terminal: the first column is cut in the middle, numbers never.
    """
    cells = [[cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row] for row in (columns, *rows)]
    others = sum(max(row[index].cell_len for row in cells) + GAP for index in range(1, len(columns)))
    width = max(console.width - others, LEAST_WIDTH)
    console.print(printable(title), style="table.title", markup=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < num_text else "right", no_wrap=True)
    for first, *rest in cells[1:]:
        table.add_row(Text(cut_middle(first.plain, width), first.style), *rest)
    console.print(table)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1) -> Iterator[str]:
    """The lines of a table in GitHub's dialect; the first `num_text` columns are text, the others numbers.

    The first column is cut in the middle to MARKDOWN_WIDTH.
    """
    yield _markdown_row(columns)
    yield f"| {' | '.join('---' if index < num_text else '---:' for index in range(len(columns)))} |"
    yield from map(_markdown_row, rows)


def markdown_text(text: str) -> str:
    """A text that Markdown shows literally, on one line."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def _markdown_row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f"| {' | '.join(map(markdown_text, (cut_middle(printable(first), MARKDOWN_WIDTH), *rest)))} |"


def cut_middle(text: str, width: int) -> str:
    """At most `width` columns of a terminal, with … in place of the middle: "layers.3…q_proj"."""
    if cell_len(text) <= width:
        return text
    head = width // 2
    return f"{set_cell_size(text, head)}…{set_cell_size(text[::-1], width - 1 - head)[::-1]}"
