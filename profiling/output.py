"""Output of the commands: tables on standard output; JSON where --json asks for it, to a file or with `-` to standard
output, and then nothing else there; plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.base.errors import ConfigError
from runtime.base.untrusted import printable
from runtime.commands.terminal import Terminal

STANDARD_OUTPUT = Path("-")
Line = Sequence[tuple[float, float]]
JSON_HELP = "Write the result as JSON to a file; - is standard output, the tables go to standard error then."


def open_console(json_path: Path | None) -> Console:
    """The console for tables: standard output, or standard error where JSON goes to standard output."""
    return Terminal(stderr=json_path == STANDARD_OUTPUT)


def check_folders(*paths: Path | None) -> None:
    """Raises ConfigError for an output file whose folder does not exist, before anything is measured."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}", fix=f"mkdir {path.parent}")


def check_plot(path: Path | None) -> None:
    """Raises ConfigError for a plot that cannot be written, before anything is measured."""
    if path is not None and path.suffix != ".svg":
        raise ConfigError(f"{path} is not the name of an SVG file", fix="--plot sweep.svg")
    check_folders(path)


def save_plot(console: Console, path: Path, title: str, axes: tuple[str, str], lines: Mapping[str, Line]) -> None:
    """Draw named lines of points `(x, y)`, both 0 or more, into an SVG file; where Matplotlib is missing say so.

    axes: what is on x, and on y.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        console.print(f"{path} is not drawn without Matplotlib: pip install 'tickrt[plots]'", style="yellow")
        return
    # Names come from models: none of them is a formula.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none"}):
        figure = Figure((7.2, 4.4), layout="constrained")
        plot = figure.subplots()
        for name, line in lines.items():
            plot.plot(*zip(*line, strict=True), marker="o", label=printable(name))
        plot.set(title=printable(title), xlabel=axes[0], ylabel=axes[1], xlim=(0, None), ylim=(0, None))
        plot.grid(axis="y")
        if lines:
            plot.legend()
        figure.savefig(path, metadata={"Date": None})


def write_json(path: Path, content: Any) -> None:
    """Write JSON to a file, or to standard output for `-`; lists of objects with an object per line."""
    if path == STANDARD_OUTPUT:
        print(json_text(content))
    else:
        path.write_text(json_text(content) + "\n", encoding="utf-8")


def json_text(content: Any) -> str:
    """JSON with a member of the outermost object per line, and an object per line in lists of objects."""
    if isinstance(content, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {_value(value)}" for key, value in content.items()) + "\n}"
    return _value(content)


def _value(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
    return json.dumps(value)
