"""Files and tables checked by pydantic models; errors are plain sentences: key, what was expected, a similar name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from runtime.errors import ConfigError, did_you_mean

MAX_LINES = 8
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
        return deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


@lru_cache(maxsize=4)
def _parsed(text: str) -> dict[str, Any]:
    """The tables of a text. A command reads its bundle several times, and parsing takes longest."""
    return tomllib.loads(text)


class TomlTable(BaseModel):
    """A table of a file: unknown keys are errors, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    lines: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        key = key_of(item, model) or "(whole file)"
        lines.setdefault(key, []).append(full_sentence(item, model))
        if with_values and item["type"] not in WITHOUT_VALUE and key not in found:
            found[key] = f" (found {item['input']!r:.80})"
    texts = {key: " or ".join(dict.fromkeys(lines[key])).replace(" or expected ", " or ") for key in lines}
    shown = [f"{key}: {text}{found.get(key, '')}" for key, text in texts.items()]
    more = [f"and {len(shown) - MAX_LINES} more"] if len(shown) > MAX_LINES else []
    return "; ".join(shown[:MAX_LINES] + more)


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[int | str], list[str]]:
    """The leading parts of `loc` that are fields or indices, and the names of the fields at their end."""
    models, known = [model], list[int | str]()
    for part in loc:
        fields = [one.model_fields[part] for one in models if isinstance(part, str) and part in one.model_fields]
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
