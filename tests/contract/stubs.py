"""Stub files (.pyi) from a package's surface, for mypy."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contract.surface import ANY

Surface = Mapping[str, Any]
Entry = Mapping[str, Any]

IMPORTS = "import abc, builtins, collections.abc, typing, typing_extensions"
# pybind11 takes a tuple or list of integers for Dims.
LIBRARIES = ("tensorrt", "tensorrt_rtx")
CONVERTED = {f"{name}.Dims": f"{name}.Dims | collections.abc.Sequence[builtins.int]" for name in LIBRARIES}
# What pybind11 passes into callbacks for what it takes in calls.
PASSED = {"typing.SupportsInt": "builtins.int", "typing.SupportsFloat": "builtins.float"}
# Classes with the buffer protocol, which Python 3.11 does not show.
BUFFERS = tuple(f"{name}.IHostMemory" for name in LIBRARIES)
ENUM_MEMBERS = (
    "name: builtins.str",
    "value: builtins.int",
    "def __init__(self, value: typing.SupportsInt) -> None: ...",
    "def __int__(self) -> builtins.int: ...",
    "def __index__(self) -> builtins.int: ...",
)
UNKNOWN: Sequence[Entry] = (
    {"name": "args", "kind": "VAR_POSITIONAL", "has_default": False, "type": ANY},
    {"name": "kwargs", "kind": "VAR_KEYWORD", "has_default": False, "type": ANY},
)


def write_stubs(surface: Surface, folder: Path) -> None:
    """One stub package per module of a surface, in folders like its dotted name."""
    names = surface["names"]
    for module in {path.rpartition(".")[0] for path in names}:
        own = {path.rpartition(".")[2]: entry for path, entry in names.items() if path.rpartition(".")[0] == module}
        lines = [IMPORTS, f"import {module}", "__version__: builtins.str"]
        lines += [line for name, entry in own.items() for line in _definition(name, entry)]
        package = folder
        for part in module.split("."):
            package /= part
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.pyi").touch()
        (package / "__init__.pyi").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _definition(name: str, entry: Entry, *, in_class: bool = False) -> Iterator[str]:
    kind = entry["kind"]
    if keyword.iskeyword(name):
        return
    if kind == "class":
        yield from _class(name, entry)
    elif kind == "alias":
        yield f"{name} = {entry['returns'] or ANY}"
    elif kind == "function":
        yield from _functions(name, entry, has_self=in_class and not entry["is_static"])
    elif kind == "property" and not entry["is_writable"]:
        yield from ("@property", f"def {name}(self) -> {entry['returns']}: ...")
    elif kind in ("property", "value"):
        yield f"{name}: {entry['returns']}"


def _class(name: str, entry: Entry) -> Iterator[str]:
    path, members = entry["returns"], entry["members"]
    lines = []
    if any(member.get("is_member") for member in members.values()):
        lines += [*ENUM_MEMBERS, f"__members__: typing.ClassVar[builtins.dict[builtins.str, {path}]]"]
        members = {member: found for member, found in members.items() if member not in ("name", "value")}
    else:
        lines += _functions("__init__", {**entry, "returns": ["None"] * len(entry["signatures"] or [0])})
    if entry["is_iterable"]:
        lines.append(f"def __iter__(self) -> collections.abc.Iterator[{ANY}]: ...")
    if path in BUFFERS:
        lines.append("def __buffer__(self, flags: builtins.int, /) -> builtins.memoryview: ...")
    # An interface that can be constructed is there for subclasses, which override all its methods.
    is_interface = name.startswith("I") and entry["signatures"] == [[]]
    for member, found in members.items():
        if is_interface and found["kind"] == "function":
            lines += [] if found["is_deprecated"] else ["@abc.abstractmethod"]
            found = _callback(found, entry["callbacks"].get(member))
        lines += _definition(member, found, in_class=True)
    yield f"class {name}({', '.join(entry['bases'])}):"
    yield from (f"    {line}" for line in [*lines, "..."])


def _callback(entry: Entry, parameters: Sequence[str] | None) -> Entry:
    """A method that a subclass overrides: with the parameters that the class's docstring shows."""
    signatures = entry["signatures"] or [[]]
    if parameters is not None and parameters != [item["name"] for item in signatures[0]]:
        signatures = [[{"name": name, "kind": "", "has_default": False, "type": ANY} for name in parameters]]
    passed = [[{**item, "type": PASSED.get(item["type"], item["type"])} for item in items] for items in signatures]
    return {**entry, "signatures": passed if entry["signatures"] else None}


def _functions(name: str, entry: Entry, *, has_self: bool = True) -> Iterator[str]:
    signatures, returns = entry["signatures"], entry["returns"]
    if signatures is None:
        signatures, returns = [UNKNOWN], returns or [ANY]
    for signature, found in zip(signatures, returns, strict=True):
        if len(signatures) > 1:
            yield "@typing.overload"
        if not has_self and entry.get("is_static"):
            yield "@staticmethod"
        parameters = ", ".join([*(["self"] if has_self else []), *_parameters(signature)])
        yield f"def {name}({parameters}) -> {found}: ..."


def _parameters(signature: Sequence[Entry]) -> Iterator[str]:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    last = ""
    for index, item in enumerate(signature):
        kind = item["kind"]
        if last == "POSITIONAL_ONLY" != kind:
            yield "/"
        if kind == "KEYWORD_ONLY" and last not in (kind, "VAR_POSITIONAL"):
            yield "*"
        last = kind
        # A parameter before one without default has none either, in a stub.
        later = [after for after in signature[index:] if after["kind"].startswith("POSITIONAL")]
        has_default = item["has_default"] and (kind == "KEYWORD_ONLY" or all(after["has_default"] for after in later))
        default = " = ..." if has_default else ""
        name = f"{item['name']}_" if keyword.iskeyword(item["name"]) else item["name"]
        yield f"{stars.get(kind, '')}{name}: {CONVERTED.get(item['type'], item['type'])}{default}"
    if last == "POSITIONAL_ONLY":
        yield "/"
