"""Command line flags of the generation options, made from GenerationOptions: names, descriptions and types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import from_json

from runtime.base.errors import RequestError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8
from runtime.config.explain import EXPECTED
from runtime.config.words import READERS
from runtime.requests.option_types import DcwOptions, TextOptions, WeightedPrompt
from runtime.requests.options import PLAN_OPTIONS, GenerationOptions

# Options whose flags have a syntax of their own: repeatable prompts, spans and adapters, one flag per DCW parameter, a
# file of notes.
SPECIAL_OPTIONS = ("prompt", "repaint", "dcw", "adapters", "notes")
CURVE, NAMES, NUMBERS = "CURVE", "TEXT,TEXT", "NUMBERS"
CODE_TYPES = ["string", "array"]
TYPE_NAMES = {"integer": "INTEGER", "number": "NUMBER", "string": "TEXT", "array": NUMBERS}
# Sections of --help. What needs a source is in SOURCE, the rest in STEPS.
TEXT, SOURCE, NOTES, STEPS = "Text", "Source and target", "Notes", "Each step"
SECTIONS = {
    TEXT: ("negative_prompt", "blend", *TextOptions.model_fields, "timbre_strength"),
    "Length and sampling": ("seconds", "seed", "noise", "steps", "shift", "timesteps", "solver", "ending", "finish"),
    "Plan": PLAN_OPTIONS,
    NOTES: ("notes_strength", "notes_exact"),
    "Guidance": ("guidance", "guidance_mode", "momentum", "rescale", "cfg_interval_start", "cfg_interval_end"),
    SOURCE: ("target_gate", "codes"),
}
MAX_SHOWN = 1e6
WEIGHT = WeightedPrompt.model_json_schema()["properties"]["weight"]
NUMBER = re.compile(r"[+-]?(\d++\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Parameters of the command that are no options.
INPUT_FLAGS = ("condition", "format", "source", "timbre", "structure")


def description(option: str) -> str:
    """The description of an option."""
    return str(GenerationOptions.model_fields[option].description)


def option_flags() -> list[inspect.Parameter]:
    """One keyword parameter `str | None` per option without a special syntax, and per parameter of `dcw`.

    An option that is true or false has a pair of flags, --NAME and --no-NAME, and `bool | None`.
    """
    return [_flag(name, entry) for name, entry in _flag_schemas().items()]


def range_text(low: float, high: float) -> str:
    """A range as --help shows it."""
    return f"{low:g}<=x<={high:g}"


def flag_values(
    prompts: list[str], repaints: list[str], flags: Mapping[str, str | bool | None], adapters: Sequence[str] = ()
) -> dict[str, Any]:
    """The options given by flags, as plain values that are not validated yet. Raises RequestError, FileError."""
    values: dict[str, Any] = {}
    if prompts:
        values["prompt"] = _prompt(prompts)
    if repaints:
        values["repaint"] = list(repaints)
    if adapters:
        values["adapters"] = list(adapters)
    schemas = _flag_schemas()
    for name, text in flags.items():
        if text is not None:
            if name in READERS:
                value = READERS[name](text)
            else:
                is_plain = isinstance(text, bool) or _is_text(text, schemas[name])
                value = text if is_plain else _value(str(text), name, schemas[name])
            if name.startswith("dcw_"):
                values.setdefault("dcw", {})[name.removeprefix("dcw_")] = value
            else:
                values[name] = value
    return values


def file_values(path: Path) -> dict[str, Any]:
    """Options from a JSON file, not validated yet. Raises RequestError, FileError."""
    values = _read_json(path)
    if not isinstance(values, dict):
        raise RequestError(f"{path} contains {type(values).__name__}, expected an object", field="options")
    return values


@contextmanager
def named_as_flags() -> Iterator[None]:
    """Name the flag in errors that name an option."""
    try:
        yield
    except RequestError as error:
        flag = _flag_of(error.field)
        if flag == error.field:
            raise
        fix = f"give {flag}" if error.what == f"{error.field}: {EXPECTED['missing']}" else ""
        raise error.renamed(flag, fix=fix) from None


def _flag_of(field: str) -> str:
    """The flag that sets the option at a path, such as --dcw-low for dcw.low; the path itself where there is none."""
    name, _, member = field.partition(".")
    if name == "target":
        return "--target-source"
    if name == "dcw" and member in DcwOptions.model_fields:
        return f"--dcw-{member}"
    known = name in GenerationOptions.model_fields and name != "dcw"
    return f"--{name.replace('_', '-')}" if known or name in INPUT_FLAGS else field


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`; of an option that is an object, such as dcw, only the named members change."""
    both = {
        name: {**values[name], **change} if isinstance(change, dict) and isinstance(values.get(name), dict) else change
        for name, change in changes.items()
    }
    return {**values, **both}


@cache
def _flag_schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of every flag's option, by the flag's parameter name."""
    options = GenerationOptions.model_json_schema()["properties"]
    dcw = DcwOptions.model_json_schema()["properties"]
    return {name: entry for name, entry in options.items() if name not in SPECIAL_OPTIONS} | {
        f"dcw_{name}": entry for name, entry in dcw.items()
    }


def _flag(name: str, schema: dict[str, Any]) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    is_switch = schema.get("anyOf", [schema])[0].get("type") == "boolean"
    facts = "; ".join(filter(None, (_default(schema), _range(schema))))
    text = f"{schema['description']}  [{facts}]" if facts else schema["description"]
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if is_switch else flag,
        help=text,
        metavar=None if is_switch else _metavar(schema),
        show_default=False,
        rich_help_panel=section_of(name, schema),
    )
    annotation = Annotated[bool | None if is_switch else str | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def section_of(name: str, schema: dict[str, Any]) -> str:
    """The section of --help in which the flag of an option stands."""
    if "x-needs-source" in schema:
        return SOURCE
    return next((section for section, names in SECTIONS.items() if name in names), STEPS)


def _default(schema: dict[str, Any]) -> str:
    """The default where it is a value; the description says what another one means."""
    value = schema.get("default")
    if value in (None, "") or isinstance(value, bool):
        return ""
    return f"default: {value if isinstance(value, str) else format(value, 'g')}"


def _range(schema: dict[str, Any]) -> str:
    """The range of a number, or of a curve's values."""
    bounds = next((item for item in schema.get("anyOf", [schema]) if "minimum" in item), None)
    if bounds is None:
        return ""
    low, high = bounds["minimum"], bounds["maximum"]
    return range_text(low, high) if high <= MAX_SHOWN else f"x>={low:g}"


def _metavar(schema: dict[str, Any]) -> str:
    branches = schema.get("anyOf", [schema])
    if "enum" in branches[0]:
        return "|".join(map(str, branches[0]["enum"]))
    if branches[0].get("items", {}).get("type") == "string":
        return NAMES
    types = [branch["type"] for branch in branches if branch["type"] != "null"]
    if types[:2] == CODE_TYPES:
        return NUMBERS
    return TYPE_NAMES[types[0]] if len(types) == 1 else CURVE


def _is_text(text: str, schema: dict[str, Any]) -> bool:
    """Whether the option takes the text as it is; of codes, those that are no numbers."""
    types = [branch.get("type") for branch in schema.get("anyOf", [schema])]
    return _metavar(schema) == NAMES or (types[0] == "string" and (types[:2] != CODE_TYPES or text.startswith("<")))


def _prompt(texts: list[str]) -> str | list[dict[str, Any]]:
    prompts = [_weighted(text) for text in texts]
    return texts[0] if len(prompts) == 1 and "weight" not in prompts[0] else prompts


def _weighted(text: str) -> dict[str, Any]:
    """TEXT, or TEXT::WEIGHT. Raises RequestError where what follows the last `::` is not a weight."""
    head, separator, tail = text.rpartition("::")
    if not separator:
        return {"text": text}
    try:
        return {"text": head, "weight": _value(tail, "prompt", WEIGHT)}
    except RequestError:
        raise RequestError(
            f"expected TEXT::WEIGHT, got {tail!r:.60} after ::",
            field="prompt",
            fix="a weight such as ::0.5 or ::0,1; a text that contains :: goes into --options FILE",
        ) from None


def _value(text: str, name: str, schema: dict[str, Any]) -> Any:
    """A number; for a curve also 1,2,1, JSON, or @FILE with JSON. Raises RequestError, FileError."""
    is_list = _metavar(schema) == NUMBERS
    is_curve = is_list or _metavar(schema) == CURVE
    if is_curve and text.startswith("@"):
        return _read_json(Path(text[1:]))
    parts = text.split(",")
    with suppress(ValueError):
        if len(parts) == 1 or is_curve:
            numbers = [_number(part) for part in parts]
            return numbers[0] if len(numbers) == 1 and not is_list else numbers
    with suppress(ValueError):
        if is_curve:
            return from_json(text, allow_inf_nan=False)
    kind = "an integer" if schema.get("anyOf", [schema])[0].get("type") == "integer" else "a number"
    more = ", numbers over time such as 1,2,1, or @FILE" if is_curve else ""
    raise RequestError(f"expected {kind}{_bounds(schema)}{more}, got {text!r:.60}", field=name)


def _number(text: str) -> float:
    """A decimal number as people write it: .5, 1., +1, 2e-3. Raises ValueError."""
    if NUMBER.fullmatch(text.strip()) is None:
        raise ValueError
    return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)


def _bounds(schema: dict[str, Any]) -> str:
    """ " from MIN to MAX" of an option's numbers, in words; "" where its values are not bounded."""
    number = schema.get("anyOf", [schema])[0]
    low, high = number.get("minimum"), number.get("maximum", MAX_SHOWN + 1)
    if low is None:
        return ""
    return f" from {low:g} to {high:g}" if high <= MAX_SHOWN else f" from {low:g} on"


def _read_json(path: Path) -> Any:
    try:
        return from_json(plain_utf8(read_file(path, MAX_JSON_BYTES)), allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}", field="options") from error
