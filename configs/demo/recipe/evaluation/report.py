"""What an evaluation finds: figures for bundle.toml, and tables for readers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.commands.terminal import markdown_table

Figures = dict[str, float]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """figures: by name. tables: rows by title; a row has a value per column."""

    figures: Figures
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


def markdown(groups: Mapping[str, Measured]) -> str:
    """Every group's figures and tables."""
    parts = []
    for name, measured in groups.items():
        figures = [{"figure": figure, "value": value} for figure, value in measured.figures.items()]
        parts += [f"# {name}", table(figures)]
        for title, rows in measured.tables.items():
            parts += [f"## {title}", table(rows)]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table with the columns of the first."""
    if not rows:
        return "none"
    columns = list(rows[0])
    cells = ([_text(row.get(column, "")) for column in columns] for row in rows)
    return "\n".join(markdown_table(columns, cells, len(columns)))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    return ", ".join(map(_text, value))
