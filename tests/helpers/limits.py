"""What values models take, as text: limits and defaults that files, clients and stored sessions of others rely on."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

from helpers.paths import TESTS
from pydantic import TypeAdapter

LOWER = {"minimum": "", "exclusiveMinimum": ">", "minItems": "#", "minLength": "#"}
UPPER = {"maximum": "", "exclusiveMaximum": "<", "maxItems": "#", "maxLength": "#"}


def assert_limits(name: str, *models: type[Any]) -> None:
    """They are those of a file of tests/data/limits, which a change that is meant changes, too."""
    path = TESTS / "data" / "limits" / f"{name}.txt"
    known, found = path.read_text(encoding="utf-8"), limits_of(*models)
    difference = "\n".join(unified_diff(known.splitlines(), found.splitlines(), str(path), "now", n=1, lineterm=""))
    assert known == found, f"if that is meant, change the file:\n{difference}"


def limits_of(*models: type[Any]) -> str:
    """Models, also those inside, and a line for each member with a limit or a number as default.

    0..8 are the least and the greatest number, ">" and "<" exclude them, "#" counts items or characters; "=" is the
    default.
    """
    found: dict[str, str] = {}
    for model in models:
        schema = TypeAdapter(model).json_schema()
        for name, each in {**schema.get("$defs", {}), model.__name__: schema}.items():
            texts = {member: _text(value) for member, value in each.get("properties", {}).items()}
            found[name] = "".join([f"\n  {member} {text}" for member, text in texts.items() if text])
    return "".join([f"{name}{found[name]}\n" for name in sorted(found) if found[name]])


def _text(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    parts = [f"={_number(default)}"] if isinstance(default, int | float) and not isinstance(default, bool) else []
    return " ".join([*_limits(schema), *parts])


def _limits(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _limits(item)
    if not isinstance(schema, dict):
        return
    low, high = (
        [f"{mark}{_number(schema[key])}" for key, mark in marks.items() if key in schema] for marks in (LOWER, UPPER)
    )
    if low or high:
        yield f"{''.join(low)}..{''.join(high)}"
    for key in ("anyOf", "oneOf", "items", "prefixItems", "additionalProperties"):
        yield from _limits(schema.get(key))


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
