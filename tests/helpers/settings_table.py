"""The table of a README that lists settings, drawn from their fields."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

MOST_LISTED = 5


def settings_table(model: type[BaseModel]) -> str:
    """Name, default and description of every field, as Markdown."""
    rows = [f"| `{name}` | {_shown(name, field.default)} | {field.description} |" for name, field in fields(model)]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""])


def fields(model: type[BaseModel]) -> list[tuple[str, Any]]:
    """Of a model, by name."""
    return list(model.model_fields.items())


def _shown(name: str, default: Any) -> str:
    """As a deployment file has it; empty where the description says it."""
    if default is None or default == "":
        return ""
    if isinstance(default, tuple) and len(default) > MOST_LISTED:
        return f"{len(default)} of them"
    if name.endswith("_bytes"):
        unit, factor = next(
            (unit, 1 << 10 * power) for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")) if default >> 10 * power
        )
        return f"{default / factor:g} {unit}"
    return f"`{json.dumps(default)}`"
