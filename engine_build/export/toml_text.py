"""Plain values as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def table_text(name: str, values: Mapping[str, Any]) -> str:
    """One TOML table."""
    header = f"[{name}]\n" if name else ""
    return header + "".join(f"{_key(key)} = {value_text(value)}\n" for key, value in values.items())


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def value_text(value: Any) -> str:
    """One TOML value; JSON's strings are TOML's basic strings."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {value_text(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(inner) for inner in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else repr(value)
