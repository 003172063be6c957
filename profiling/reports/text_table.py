"""Tables that fit the terminal: the first column is cut in the middle, numbers never."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.untrusted import printable

LEAST_WIDTH = 8
# Columns between two cells: padding and the box's divider.
GAP = 2
Cell = str | Text


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], num_text: int = 1
) -> None:
    """Print rows of cells; the first `num_text` columns are text, the others numbers."""
    cells = [[cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row] for row in (columns, *rows)]
    others = sum(max(row[index].cell_len for row in cells) + GAP for index in range(1, len(columns)))
    width = max(console.width - others, LEAST_WIDTH)
    console.print(title, style="table.title", markup=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < num_text else "right", no_wrap=True)
    for first, *rest in cells[1:]:
        table.add_row(Text(cut_middle(first.plain, width), first.style), *rest)
    console.print(table)


def cut_middle(text: str, width: int) -> str:
    """At most `width` characters, with … in place of the middle: "layers.3…q_proj"."""
    if len(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
