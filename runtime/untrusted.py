"""Input of unknown origin: JSON that is bounded before it is parsed, and text that is bounded in messages and logs."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from runtime.errors import RequestError

# Each may occur that often in the text, inside strings too; this bounds the time and memory of parsing.
MAX_JSON_CONTAINERS = 32_768
MAX_JSON_COLONS = 32_768
MAX_JSON_MEMBERS = 1_000
MAX_QUOTED_CHARACTERS = 80


class MalformedJsonError(RequestError):
    """A text is not JSON, or has more structure than any request needs."""

    code = "malformed_json"
    status = 400


def parse_json_object(text: bytes | str) -> dict[str, Any]:
    """A JSON object, without repeated names, NaN and Infinity, of at most MAX_JSON_MEMBERS members at all depths.

    Raises MalformedJsonError; RequestError where it is not an object or a name is repeated.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > MAX_JSON_CONTAINERS:
        raise MalformedJsonError(f"the JSON has more than {MAX_JSON_CONTAINERS} arrays and objects")
    if data.count(b":") > MAX_JSON_COLONS:
        raise MalformedJsonError(f"the JSON has more than {MAX_JSON_MEMBERS} members")
    try:
        value = from_json(data, allow_inf_nan=False)  # bounds the depth, refuses NaN; json.loads sees every name
        json.loads(data, object_pairs_hook=_MemberCount().add)
    except ValueError as error:
        raise MalformedJsonError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("expected a JSON object")
    return value


class _MemberCount:
    """Counts members while objects are parsed; pydantic_core keeps the last of repeated names without an error."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, pairs: list[tuple[str, Any]]) -> None:
        """Count the members of one object."""
        self._count += len(pairs)
        if self._count > MAX_JSON_MEMBERS:
            raise MalformedJsonError(f"the JSON has more than {MAX_JSON_MEMBERS} members")
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RequestError(f"the key {quoted(name)} occurs more than once")
            seen.add(name)


def quoted(value: object, limit: int = MAX_QUOTED_CHARACTERS) -> str:
    """`value` in quotes on one line: at most `limit` characters of it, control characters escaped."""
    return repr(shortened(str(value), limit))


def one_line(text: str, limit: int) -> str:
    """`text` with characters that do not print escaped, lone surrogates and line ends among them; cut at `limit`."""
    text = shortened(text, limit)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, limit: int) -> str:
    """The first `limit` characters, with an ellipsis where there are more."""
    return text if len(text) <= limit else text[:limit] + "…"
