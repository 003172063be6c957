"""Output of the commands: tables on standard output; JSON where --json asks for it, to a file or with `-` to standard
output, and then nothing else there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.base.errors import ConfigError
from runtime.commands.terminal import Terminal

STANDARD_OUTPUT = Path("-")
JSON_HELP = "Write the result as JSON to a file; - is standard output, the tables go to standard error then."


def open_console(json_path: Path | None) -> Console:
    """The console for tables: standard output, or standard error where JSON goes to standard output."""
    return Terminal(stderr=json_path == STANDARD_OUTPUT)


def check_folders(*paths: Path | None) -> None:
    """Raises ConfigError for an output file whose folder does not exist, before anything is measured."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}", fix=f"mkdir {path.parent}")


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
