"""Input of unknown origin: JSON and safetensors headers that are bounded before they are parsed, text in messages."""

from __future__ import annotations

import json
from typing import Any, BinaryIO, TypeGuard

from pydantic_core import from_json

from runtime.base.errors import RequestError

# Each may occur that often in the text, inside strings too; this bounds the time and memory of parsing.
MAX_JSON_CONTAINERS = 32_768
MAX_JSON_COLONS = 32_768
MAX_JSON_MEMBERS = 1_000
MAX_QUOTED_CHARACTERS = 80
SAFETENSORS_LENGTH_BYTES = 8
# Metadata is part of the header: up to 1 MiB of options, with every quote escaped.
MAX_HEADER_BYTES = 4 * 2**20


class MalformedJsonError(RequestError):
    """A text is not JSON, or has more structure than any request needs."""

    code = "malformed_json"
    status = 400


def parse_json_object(text: bytes | str, max_members: int = MAX_JSON_MEMBERS) -> dict[str, Any]:
    """A JSON object, without repeated names, NaN and Infinity, of at most `max_members` members at all depths.

    Raises MalformedJsonError; RequestError where it is not an object or a name is repeated.
    """
    try:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        data = plain_utf8(data)
    except ValueError as error:
        raise MalformedJsonError(f"not valid JSON: {error}") from None
    if data.count(b"[") + data.count(b"{") > MAX_JSON_CONTAINERS:
        raise MalformedJsonError(f"the JSON has more than {MAX_JSON_CONTAINERS} arrays and objects")
    if data.count(b":") > MAX_JSON_COLONS:
        raise _too_many(max_members)
    try:
        value = from_json(data, allow_inf_nan=False)  # bounds the depth, refuses NaN; json.loads sees every name
        json.loads(data, object_pairs_hook=_MemberCount(max_members).add)
    except ValueError as error:
        raise MalformedJsonError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("expected a JSON object")
    return value


def plain_utf8(data: bytes) -> bytes:
    """A text's bytes without the mark (BOM) that Notepad and PowerShell begin it with. Raises ValueError for UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        raise ValueError("it is UTF-16, expected UTF-8: save it again with the encoding UTF-8")
    return data.removeprefix(b"\xef\xbb\xbf")


def check_members(value: Any, max_members: int = MAX_JSON_MEMBERS) -> None:
    """Raises MalformedJsonError where what another parser has read has more members than parse_json_object takes."""
    waiting, members = [value], 0
    while waiting and members <= max_members:
        item = waiting.pop()
        members += len(item) if isinstance(item, dict) else 0
        inner = item.values() if isinstance(item, dict) else item
        waiting += [each for each in inner if isinstance(each, dict | list)]
    if members > max_members:
        raise _too_many(max_members)


def _too_many(max_members: int) -> MalformedJsonError:
    return MalformedJsonError(f"the JSON has more than {max_members} members")


class _MemberCount:
    """Counts members while objects are parsed; pydantic_core keeps the last of repeated names without an error."""

    def __init__(self, limit: int) -> None:
        self._count, self._limit = 0, limit

    def add(self, pairs: list[tuple[str, Any]]) -> None:
        """Count the members of one object."""
        self._count += len(pairs)
        if self._count > self._limit:
            raise _too_many(self._limit)
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RequestError(f"the key {quoted(name)} occurs more than once")
            seen.add(name)


def safetensors_header(file: BinaryIO, max_members: int = MAX_JSON_MEMBERS) -> dict[str, Any]:
    """The header of a safetensors file: tensors by name. The tensors' bytes follow. Raises RequestError."""
    length = int.from_bytes(file.read(SAFETENSORS_LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise _not_safetensors(f"its header has {length} bytes, at most {MAX_HEADER_BYTES} are read")
    try:
        return parse_json_object(file.read(length), max_members)
    except RequestError as error:
        raise _not_safetensors(f"its header: {error.what}") from None


def safetensors_bytes(file: BinaryIO, start: int, offsets: Any, num_bytes: int) -> bytes:
    """The bytes between `offsets`, counted from `start`, the end of the header. Raises RequestError."""
    if is_pair(offsets) and 0 <= offsets[0] <= 2**62 and offsets[1] - offsets[0] == num_bytes:
        file.seek(start + offsets[0])
        values = file.read(num_bytes)
        if len(values) == num_bytes:
            return values
    raise _not_safetensors(f"its data_offsets {quoted(offsets, 40)} are not {num_bytes} bytes of the file")


def is_pair(value: Any) -> TypeGuard[list[int]]:
    """Whether a parsed value is a list of two integers."""
    return isinstance(value, list) and len(value) == 2 and all(type(item) is int for item in value)


def _not_safetensors(what: str) -> RequestError:
    return RequestError(f"not a safetensors file ({what})")


def quoted(value: object, limit: int = MAX_QUOTED_CHARACTERS) -> str:
    """`value` in quotes on one line: at most `limit` characters of it, control characters escaped."""
    return repr(shortened(str(value), limit))


def one_line(text: str, limit: int) -> str:
    """`text` with characters that do not print escaped, lone surrogates and line ends among them; cut at `limit`."""
    return printable(shortened(text, limit))


def printable(text: str) -> str:
    """`text` with characters that do not print escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, limit: int) -> str:
    """The first `limit` characters, with an ellipsis where there are more."""
    return text if len(text) <= limit else text[:limit] + "…"
