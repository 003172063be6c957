"""Pages that are drawn from the source: commands from their --help, options, routes and messages from their schemas."""

from __future__ import annotations

import html
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, is_typeddict

import typer
from typer.core import TyperGroup

import tickrt
from runtime.commands.generate_options import NOTES, STEPS, TEXT, section_of
from runtime.commands.generate_options import SECTIONS as FLAG_SECTIONS
from runtime.commands.startup import COMMANDS
from runtime.commands.subcommands import InstalledCommand
from runtime.config.bundle import load_bundle
from runtime.live.protocol.server_messages import messages_schema
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.option_types import MAX_SECONDS
from runtime.requests.options import GenerationOptions
from server.app import create_app
from server.asgi.openapi import body_model
from server.config import ServerSettings

DEMO = Path(__file__).resolve().parents[1] / "demo"
BODY = "GenerationBody"
# Sections of options that generate_options.py does not know, as they have flags with a syntax of their own.
SECTIONS = {"prompt": TEXT, "notes": NOTES}
RESPONSE = "The response"
MOST_COLUMNS = 88
Schema = Mapping[str, Any]


def escaped(text: str) -> str:
    """A text as it is, in a cell of a Markdown table; `code` stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = (part if part.startswith("`") else _escaped(part) for part in parts)
    return "".join(plain).replace("|", "\\|")


def _escaped(text: str) -> str:
    return re.sub(r"([*_\[\]\\])", r"\\\1", html.escape(text, quote=False))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table of cells that are Markdown; nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    names = list(head)
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *lines, ""])


# Commands.


def commands() -> str:
    """Every installed command with its subcommands, and the exporters, as their --help has them."""
    modules = {**COMMANDS, "python -m engine_build.export": "engine_build.export.__main__"}
    found = [(name, typer.main.get_command(import_module(module).app)) for name, module in modules.items()]
    return "\n".join(_command(name, command, level=2) for name, command in found)


def _command(name: str, command: Any, level: int) -> str:
    context = typer.Context(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    paragraphs = [_escaped(" ".join(part.split())) for part in (command.help or "").split("\n\n")]
    parts = [f"{'#' * level} {name}", *paragraphs, f"```text\n{usage}\n```"]
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            title = parameter.rich_help_panel or f"{parameter.param_type_name}s".capitalize()
            sections.setdefault(title, []).append(record)
    for title, records in sections.items():
        parts += [
            f"**{title}**",
            table(("name", "does"), ((f"`{_cell(flag)}`", escaped(text)) for flag, text in records)),
        ]
    own = command.commands if isinstance(command, TyperGroup) else {}
    parts += [
        _command(f"{name} {sub}", _resolved(sub, item), level + 1)
        for sub, item in own.items()
        if not _is_listed(sub, item)
    ]
    return "\n\n".join(parts)


def _cell(code: str) -> str:
    """Code in a cell of a table: a pipe would end the cell."""
    return code.replace("|", "\\|")


def _is_listed(name: str, command: Any) -> bool:
    """Whether a subcommand stands on the page by itself."""
    return isinstance(command, InstalledCommand) and f"tickrt-{name}" in COMMANDS


def _resolved(name: str, command: Any) -> Any:
    """The command of a module that is imported when it is called."""
    is_elsewhere = isinstance(command, InstalledCommand)
    return command.make_context(name, [], resilient_parsing=True).command if is_elsewhere else command


# Schemas.


def taken(schema: Schema) -> str:
    """What a value may be, in words."""
    branches = [branch for branch in schema.get("anyOf") or schema.get("oneOf") or [schema] if not _is_null(branch)]
    first, *others = dict.fromkeys(filter(None, map(_branch, branches))) or ["any JSON"]
    lists = {f"list of {first}": "a list of them", f"list of list of {first}": "a list of such lists"}
    return ", or ".join([first, *(lists.get(other, other) for other in others)])


def _is_null(schema: Schema) -> bool:
    return schema.get("type") == "null"


def _branch(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "[the options](options.md)" if name == BODY else f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return f"({taken(schema)})"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            items = schema.get("items")
            return f"list of {_branch(items)}" if items else "list"
        case "integer" | "number" as kind:
            return _number(schema, "whole number" if kind == "integer" else "number")
        case "boolean":
            return "true or false"
        case "string":
            return "file" if schema.get("format") == "binary" else "text"
        case "object":
            return "object"
    return "any JSON"


def _number(schema: Schema, kind: str) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    parts = [f"above {_shown(above)}"] if above is not None else []
    if low is not None and high is not None:
        parts.append(f"{_shown(low)} to {_shown(high)}")
    else:
        parts += [f"from {_shown(low)}"] if low is not None else []
        parts += [f"up to {_shown(high)}"] if high is not None else []
    parts += [f"below {_shown(below)}"] if below is not None else []
    return " ".join([kind, *parts])


def _shown(number: float) -> str:
    power = {2**32 - 1: "2^32 - 1", 2**63 - 1: "2^63 - 1", 2**64 - 1: "2^64 - 1"}
    return power.get(int(number)) or f"{number:g}"


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value == "" or value == [] or value == {}:
        return ""
    text = str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else _json(value)
    return f"`{text}`"


def _json(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else json.dumps(value)


def _named(name: str, is_needed: Any) -> str:
    return f"`{name}`" + (" (needed)" if is_needed else "")


def members(schema: Schema, names: Iterable[str] | None = None) -> str:
    """A table of an object's members. names: those to list; all by default."""
    needed, properties = schema.get("required", ()), schema.get("properties", {})
    rows = [
        (_named(name, name in needed), taken(item), _default(item), escaped(item.get("description", "")))
        for name, item in [(name, properties[name]) for name in names or properties]
    ]
    return table(("member", "takes", "default", ""), rows)


def definitions(schemas: Mapping[str, Schema], level: int) -> str:
    """A heading and a table for each object; a line for each list of choices."""
    parts = []
    for name, schema in sorted(schemas.items()):
        text = escaped(schema.get("description", ""))
        body = members(schema) if "properties" in schema else f"{taken(schema)}\n"
        parts.append(f"{'#' * level} {name}\n\n{text}\n\n{body}")
    return "\n".join(parts)


def referred(schemas: Mapping[str, Schema], *roots: Any) -> dict[str, Schema]:
    """The definitions that these schemas refer to, directly or by others."""
    found: dict[str, Schema] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name in schemas and name not in found and name != BODY:
                found[name] = schemas[name]
                waiting.append(schemas[name])
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return found


def options() -> str:
    """Every member of the body of a generation, by sections, with the demo's ranges and defaults."""
    schema = body_model(MAX_SECONDS, load_bundle(DEMO)).model_json_schema()
    sections: dict[str, list[str]] = {}
    for name, item in schema["properties"].items():
        is_option = name in GenerationOptions.model_fields
        title = SECTIONS.get(name) or (section_of(name, item) if is_option else RESPONSE)
        sections.setdefault(title, []).append(name)
    sections[TEXT].sort(key=lambda name: name != "prompt")
    order = [*FLAG_SECTIONS, STEPS, RESPONSE]
    assert set(order) == set(sections)
    parts = [f"## {title}\n\n{members(schema, sections[title])}" for title in order]
    return "\n".join([*parts, "## Objects\n", definitions(schema.get("$defs", {}), level=3)])


def _not_opened() -> NoReturn:
    raise AssertionError("only the routes are read")


def openapi() -> dict[str, Any]:
    """The OpenAPI document of a server with all routes, before its model is open."""
    opening: Callable[[], Pipeline] = _not_opened
    return create_app(opening, ServerSettings(admin_key="for the document")).openapi()  # type: ignore[arg-type]


def http() -> str:
    """Every route of the OpenAPI document, by groups."""
    document = openapi()
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = []
    for tag in document["tags"]:
        name = tag["name"].capitalize() if tag["name"].islower() else tag["name"]
        parts.append(f"## {name}\n\n{tag['description']}\n")
        parts += [_operation(*item) for item in operations if item[2].get("tags", [""])[0] == tag["name"]]
    schemas = document["components"]["schemas"]
    named = referred(schemas, [operation for _, _, operation in operations])
    return "\n".join([*parts, "## Objects\n", definitions(named, level=3)])


def _operation(path: str, method: str, operation: Schema) -> str:
    text = escaped(operation.get("description") or operation.get("summary", ""))
    parts = [f"### {method.upper()} {path}\n\n{text}\n"]
    rows = [_parameter(item, item["schema"]) for item in operation.get("parameters", ())]
    parts.append(table(("parameter", "in", "takes", "default", ""), rows))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content.get("schema", {})
        if "properties" in schema:
            parts.append(f"Body, `{kind}`:\n\n{members(schema)}")
        else:
            parts.append(f"Body, `{kind}`: {taken(schema)}.\n")
    answers = (_answer(*item) for item in operation["responses"].items())
    parts.append(table(("status", "", "content", "headers"), answers))
    return "\n".join(filter(None, parts))


def _parameter(item: Schema, schema: Schema) -> tuple[str, ...]:
    text = item.get("description", schema.get("description", ""))
    return _named(item["name"], item.get("required")), item["in"], taken(schema), _default(schema), escaped(text)


def _answer(status: str, answer: Schema) -> tuple[str, ...]:
    content = answer.get("content", {})
    kinds = ", ".join(f"`{kind}`" for kind in content)
    named = {taken(item["schema"]) for item in content.values() if "$ref" in item.get("schema", {})}
    headers = ", ".join(f"`{name}`" for name in answer.get("headers", {}))
    shown = ": ".join(filter(None, [kinds, *sorted(named)]))
    return f"`{status}`", escaped(answer.get("description", "")), shown, headers


def messages() -> str:
    """Every message of the live protocol, and the objects that are their members."""
    schema = messages_schema()
    schemas = schema["$defs"]
    parts, named = [], set()
    for direction, title in (("client", "The client sends"), ("server", "The server sends")):
        parts.append(f"## {title}\n")
        for reference in schema[direction]["oneOf"]:
            name = reference["$ref"].rpartition("/")[2]
            named.add(name)
            message = schemas[name]
            kind = message["properties"]["type"]["const"]
            shown = [member for member in message["properties"] if member != "type"]
            heading = f"### {kind}" if direction == "client" else f"### {kind} (of the server)"
            parts.append(f"{heading}\n\n{escaped(message.get('description', ''))}\n\n{members(message, shown)}")
    others = {name: item for name, item in schemas.items() if name not in named}
    return "\n".join([*parts, "## Objects\n", definitions(others, level=3)])


# Python.


def python() -> str:
    """Every public name of the package, by its docstring: functions and classes, errors, types of arguments."""
    groups: dict[str, list[str]] = {"Functions and classes": [], "Errors": [], "Types of arguments": []}
    for name in tickrt.__all__:
        groups[_group(getattr(tickrt, name))].append(name)
    first = ("open", "Model", "Audio", "Live", "TickRT")
    groups["Functions and classes"].sort(key=lambda name: first.index(name) if name in first else len(first))
    parts = []
    for title, names in groups.items():
        parts += [f"## {title}\n", *(_documented(name, getattr(tickrt, name)) for name in names)]
    return "\n".join(parts)


def _group(item: Any) -> str:
    if isinstance(item, type) and issubclass(item, Exception):
        return "Errors"
    is_type = is_typeddict(item) or not (inspect.isfunction(item) or isinstance(item, type))
    return "Types of arguments" if is_type else "Functions and classes"


def _documented(name: str, item: Any) -> str:
    if is_typeddict(item):
        return f"### {name}\n\n{_text(item)}\n\n{_fields(item)}"
    if not isinstance(item, type):
        if inspect.isfunction(item):
            return f"### {name}\n\n{_signature(name, item)}\n\n{_text(item)}\n"
        return f"### {name}\n\n```python\n{_annotation(item)}\n```\n"
    parts = [f"### {name}\n\n{_text(item)}\n"]
    if not issubclass(item, Exception):
        inherited = [base for base in reversed(item.__mro__) if base.__module__ == item.__module__]
        members = {key: value for kind in inherited for key, value in vars(kind).items() if not key.startswith("_")}
        parts += [_member(name, key, value) for key, value in members.items() if inspect.getdoc(value)]
    return "\n".join(parts)


def _member(owner: str, name: str, item: Any) -> str:
    heading = f"#### {owner}.{name}\n\n"
    function = item.__func__ if isinstance(item, classmethod | staticmethod) else item
    if inspect.isfunction(function):
        return f"{heading}{_signature(name, function)}\n\n{_text(function)}\n"
    return f"{heading}{_text(item)}\n" if isinstance(item, property | cached_property) else ""


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [item for item in signature.parameters.values() if item.name != "self"]
    # Annotations are texts here: without their quotes.
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=parameters)))
    return f"```python\n{name}{_wrapped(text)}\n```"


def _wrapped(signature: str) -> str:
    """A long signature with a parameter per line."""
    if len(signature) <= MOST_COLUMNS:
        return signature
    inner, _, result = signature.removeprefix("(").rpartition(")")
    parameters = re.split(r", (?=\*|\w+(?::|=|$))", inner)
    return "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){result}"


def _text(item: Any) -> str:
    """A docstring; one that ends with all arguments of a generation refers to the page that has them."""
    text, _, arguments = (inspect.getdoc(item) or "").partition("\nArguments:\n")
    if not arguments:
        return text
    if not is_typeddict(item):
        return f"{text}\nArguments: [Arguments](#arguments).\n"
    lines = (line.strip().partition(": ") for line in arguments.splitlines())
    options = (line for line in lines if line[0] not in GenerationOptions.model_fields)
    rows = table(("input", ""), ((f"`{name}`", escaped(text)) for name, _, text in options))
    return f"{text}\n{rows}\nAll others are [options](options.md).\n"


def _fields(item: Any) -> str:
    needed = item.__required_keys__
    rows = (
        (_named(name, name in needed), f"`{_cell(_annotation(kind))}`") for name, kind in item.__annotations__.items()
    )
    return table(("member", "type"), rows)


def _annotation(kind: Any) -> str:
    """A type as it is written."""
    text = inspect.formatannotation(kind)
    text = re.sub(r"Required\[(.*)\]$", r"\1", text.replace("typing.", ""))
    return re.sub(r"\b(?:collections\.abc|numpy|pathlib|tickrt\.\w+|runtime(?:\.\w+)+)\.", "", text)


DRAWN: dict[str, Callable[[], str]] = {
    "commands": commands,
    "options": options,
    "http": http,
    "messages": messages,
    "python": python,
}
