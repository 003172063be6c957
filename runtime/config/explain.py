"""Files and tables checked by pydantic models; errors are plain sentences: key, what was expected, a similar name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from runtime.base.errors import ConfigError, FileError, did_you_mean
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8

MAX_LINES = 8
# For which tomllib takes a time that grows with the square of the names.
MAX_KEY_NAMES = 200
DEEP_KEY = re.compile(rf"(?<![^,=\n])(?:[^.,=\n]*+\.){{{MAX_KEY_NAMES - 1}}}")
# Type of a pydantic error -> sentence; the names in braces are members of the error's context.
EXPECTED = {
    "missing": "is missing",
    "extra_forbidden": "is not a known name",
    "greater_than_equal": "expected at least {ge}",
    "greater_than": "expected more than {gt}",
    "less_than_equal": "expected at most {le}",
    "less_than": "expected less than {lt}",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "string_too_short": "expected at least {min_length} character(s)",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length} item(s)",
    "too_long": "expected at most {max_length} items",
    "multiple_of": "expected a multiple of {multiple_of}",
    "value_error": "{error}",
} | {
    f"{kind}{suffix}": sentence
    for kind, sentence in {
        "int": "expected an integer",
        "float": "expected a number",
        "bool": "expected true or false",
        "string": "expected a text",
        "path": "expected a path",
        "list": "expected a list",
        "tuple": "expected a list",
        "dict": "expected a table of names and values",
        "model": "expected a table of names and values",
    }.items()
    for suffix in ("_type", "_parsing", "_from_float", "_parsing_size", "_unicode", "_sub_type", "_attributes_type")
}
WITHOUT_VALUE = ("missing", "extra_forbidden", "value_error")
Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises ConfigError."""
    try:
        text = plain_utf8(read_file(path, MAX_JSON_BYTES)).decode()
        if DEEP_KEY.search(text):
            raise ConfigError(f"{path} has a key of {MAX_KEY_NAMES} names or more, with dots between them")
        return deepcopy(_parsed(text))
    except FileError as error:
        raise ConfigError(error.what) from error
    except (ValueError, RecursionError) as error:
        fix = "save it again with the encoding UTF-8" if isinstance(error, UnicodeError) else ""
        raise ConfigError(f"{path} is not TOML: {error}", fix=fix) from error


@lru_cache(maxsize=4)
def _parsed(text: str) -> dict[str, Any]:
    """The tables of a text. A command reads its bundle several times, and parsing takes longest."""
    return tomllib.loads(text)


# Tags of a union's alternatives: one value, or a table of them.
VALUE, TABLE = "value", "table"
# The name of a file, relative to the folder of the table's own.
FileName = Annotated[str, "file"]


class TomlTable(BaseModel):
    """A table of a file: unknown keys are errors, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def file_names(self) -> Iterator[tuple[str, str]]:
        """Key and name of every file that it and the tables in it name."""
        types = get_type_hints(type(self), include_extras=True)
        for key, value in self:
            if isinstance(value, TomlTable):
                yield from value.file_names()
            elif isinstance(value, str) and FileName in (types[key], *get_args(types[key])):
                yield key, value


def validated(model: type[Model], table: Mapping[str, Any], where: str) -> Model:
    """`table` as `model`. Raises ConfigError that begins with `where`, and names key and expectation."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, model)}") from error


def sentence(item: ErrorDetails) -> str:
    """What was expected, without the value. `item` is made with its context."""
    context = {name: f"{value:g}" if isinstance(value, float) else value for name, value in item.get("ctx", {}).items()}
    return EXPECTED[item["type"]].format_map(context) if item["type"] in EXPECTED else item["msg"]


def similar_name(item: ErrorDetails, model: type[BaseModel]) -> str:
    """The question "did you mean NAME?" for an unknown name; "" for other errors, and where none is similar."""
    if item["type"] != "extra_forbidden":
        return ""
    *parents, name = item["loc"]
    return did_you_mean(str(name), _walk(model, parents)[1])


def full_sentence(item: ErrorDetails, model: type[BaseModel]) -> str:
    """What was expected, and the similar name of an unknown one."""
    similar = similar_name(item, model)
    return f"{sentence(item)}; {similar}" if similar else sentence(item)


def key_of(item: ErrorDetails, model: type[BaseModel]) -> str:
    """The path of the wrong value ("shapes.0.rows"), without pydantic's names of a union's alternatives."""
    parts = _walk(model, item["loc"])[0]
    return ".".join(map(str, [*parts, item["loc"][-1]] if item["type"] == "extra_forbidden" else parts))


def explain(error: ValidationError, model: type[BaseModel], *, with_values: bool = True) -> str:
    """All errors as one line: key, what was expected and the value found, separated by semicolons.

    with_values False: no value is repeated, because one may be secret.
    """
    found: dict[str, list[ErrorDetails]] = {}
    items = error.errors(include_url=False)
    places = {item["loc"] for item in items}
    for item in items:
        # Of a list, wrong items do not count: it is too short only because of them.
        if item["type"] == "too_short" and any(_is_inside(place, item["loc"]) for place in places):
            continue
        found.setdefault(key_of(item, model) or "(whole file)", []).append(item)
    shown = [_line(key, items, model, with_values) for key, items in islice(found.items(), MAX_LINES)]
    more = [f"and {len(found) - MAX_LINES} more"] if len(found) > MAX_LINES else []
    return "; ".join(shown + more)


def _is_inside(place: Sequence[int | str], outer: Sequence[int | str]) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _line(key: str, items: Sequence[ErrorDetails], model: type[BaseModel], with_value: bool) -> str:
    text = " or ".join(dict.fromkeys(full_sentence(item, model) for item in items))
    values = (item["input"] for item in items if with_value and item["type"] not in WITHOUT_VALUE)
    value = next((f" (found {value!r:.80})" for value in values), "")
    return f"{key}: {text.replace(' or expected ', ' or ')}{value}"


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[int | str], list[str]]:
    """The leading parts of `loc` that are fields or indices, and the names of the fields at their end."""
    models, known = [model], list[int | str]()
    for part in loc:
        fields = [one.model_fields[part] for one in models if isinstance(part, str) and part in one.model_fields]
        if part in (VALUE, TABLE) and not fields:
            continue
        if isinstance(part, str) and not fields:
            break
        known.append(part)
        models = [found for field in fields for found in _models_in(field.annotation)] if fields else models
    return known, [name for one in models for name in one.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a type consists of, such as that of `list[Span] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models_in(inner)]
