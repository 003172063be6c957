"""A program that prints the classes, members and signatures of packages as JSON.

`python surface.py ALIAS=PACKAGE ...` imports each PACKAGE and prints {"version": ..., "names": {"ALIAS.Name": entry}}.
Entry: kind (class, alias, function, property, value, module), signatures (the parameters of every overload, None where
they are not known), returns (one type per overload, or the type of a property or value), bases and members of a class.
Types are written as in a stub file: dotted names, "typing.Any" where the type is not known.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
import re
import sys
from types import ModuleType
from typing import Any

ANY = "typing.Any"
BUILTIN_TYPES = ("bool", "bytes", "dict", "float", "int", "list", "memoryview", "object", "slice", "str", "tuple")
TYPING_MODULES = ("typing.", "typing_extensions.", "collections.abc.")
OPEN, CLOSE = "([{<", ")]}>"
PYBIND_LINE = re.compile(r"^(?:\d+\. )?(\w+)\((.*)\)(?: -> (.+))?$")


class Surface:
    """The surfaces of packages, by dotted name."""

    def __init__(self, packages: dict[str, str]) -> None:
        self.modules = {alias: importlib.import_module(name) for alias, name in packages.items()}
        self.names: dict[str, dict[str, Any]] = {}
        self._classes: dict[int, str] = {}
        for alias, module in self.modules.items():
            self._find_classes(alias, module)
        for alias, module in self.modules.items():
            for name, value in vars(module).items():
                if not name.startswith("_") and self._belongs(value, module):
                    self.names[f"{alias}.{name}"] = self._entry(value, f"{alias}.{name}")

    def _find_classes(self, prefix: str, owner: Any) -> None:
        for name, value in list(vars(owner).items()):
            if inspect.isclass(value) and not name.startswith("_") and id(value) not in self._classes:
                if isinstance(owner, ModuleType) and not self._belongs(value, owner):
                    continue
                self._classes[id(value)] = f"{prefix}.{name}"
                self._find_classes(f"{prefix}.{name}", value)

    @staticmethod
    def _belongs(value: Any, module: ModuleType) -> bool:
        """Whether the module defines the value, or a package of it."""
        if isinstance(value, ModuleType):
            return value.__name__.startswith(module.__name__)
        home = getattr(value, "__module__", None)
        return not isinstance(home, str) or home.split(".")[0] == module.__name__.split(".")[0]

    def _entry(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, ModuleType):
            return {"kind": "module"}
        if inspect.isclass(value):
            return self._class(value, path)
        if callable(value) and not isinstance(type(value), enum.EnumMeta):
            signatures, returns = self._signatures(value, is_method=False)
            return {"kind": "function", "signatures": signatures, "returns": returns}
        return {"kind": "value", "returns": self._type_of(value)}

    def _class(self, value: type, path: str) -> dict[str, Any]:
        if self._classes.get(id(value)) != path:
            return {"kind": "alias", "returns": self._classes.get(id(value), "")}
        members = {name: self._member(value, name, path) for name in self._member_names(value)}
        bases = [self._classes[id(base)] for base in value.__mro__[1:] if id(base) in self._classes]
        signatures, _ = self._signatures(value.__init__, is_method=True)  # type: ignore[misc]
        if signatures is None:
            signatures = self._python_signatures(value, is_method=False)[0]
        entry = {"kind": "class", "bases": bases, "members": members, "signatures": signatures, "returns": path}
        return {**entry, "callbacks": _callbacks(value.__doc__ or ""), "is_iterable": hasattr(value, "__getitem__")}

    @staticmethod
    def _member_names(value: type) -> list[str]:
        names = [name for name in vars(value) if not name.startswith(("_", "sim_"))]
        return names + [name for name in getattr(value, "__members__", {}) if name not in names]

    def _member(self, owner: type, name: str, path: str) -> dict[str, Any]:
        if name in getattr(owner, "__members__", {}):
            return {"kind": "value", "returns": path, "is_member": True}
        static = inspect.getattr_static(owner, name, None)
        if inspect.isclass(static):
            return self._class(static, f"{path}.{name}")
        if isinstance(static, property) or inspect.isdatadescriptor(static):
            return self._property(static)
        if callable(static) or isinstance(static, (staticmethod, classmethod)):
            is_static = isinstance(static, (staticmethod, classmethod))
            signatures, returns = self._signatures(getattr(owner, name), is_method=not is_static)
            flags = {"is_static": is_static, "is_deprecated": "eprecated" in (getattr(static, "__doc__", None) or "")}
            return {"kind": "function", "signatures": signatures, "returns": returns, **flags}
        return {"kind": "value", "returns": self._type_of(static)}

    def _property(self, static: Any) -> dict[str, Any]:
        getter = getattr(static, "fget", None)
        line = (getattr(getter, "__doc__", None) or "").strip().split("\n")[0]
        returns = line.rpartition(" -> ")[2] if " -> " in line else ""
        if not returns and getter is not None:
            returns = _text(getattr(getter, "__annotations__", {}).get("return", ""))
        if not returns and not isinstance(static, property):
            returns = (getattr(static, "__doc__", None) or "").split("\n")[0].partition(": ")[2]
        is_writable = static.fset is not None if isinstance(static, property) else True
        return {"kind": "property", "returns": self._annotation(returns), "is_writable": is_writable}

    def _signatures(self, function: Any, *, is_method: bool) -> tuple[list[Any] | None, list[str]]:
        """The parameters of every overload, and what each returns."""
        lines = (getattr(function, "__doc__", None) or "").split("\n")
        found = [match for line in lines if (match := PYBIND_LINE.match(line.strip()))]
        name = getattr(function, "__name__", "")
        found = [match for match in found if match[1] == name and match[2] != "*args, **kwargs"]
        is_compiled = not hasattr(function, "__code__") and not hasattr(function, "__annotations__")
        if found and is_compiled:
            parameters = [_pybind_parameters(match[2])[1 if is_method else 0 :] for match in found]
            signatures = [[{**item, "type": self._annotation(item["type"])} for item in items] for items in parameters]
            return signatures, [self._annotation(match[3] or "") for match in found]
        return self._python_signatures(function, is_method=is_method)

    def _python_signatures(self, function: Any, *, is_method: bool) -> tuple[list[Any] | None, list[str]]:
        if isinstance(function, type(object.__init__)):
            return None, []
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            return None, []
        parameters = list(signature.parameters.values())[1 if is_method else 0 :]
        described = [{**_parameter(item), "type": self._annotation(_text(item.annotation))} for item in parameters]
        returns = self._status(getattr(function, "__doc__", None) or "") or _text(signature.return_annotation)
        return [described], [self._annotation(returns)]

    @staticmethod
    def _status(text: str) -> str:
        """The tuple that a function of CUDA returns, status first, from its docstring in numpy's style."""
        section = text.partition("Returns\n-------\n")[2].partition("\n\n")[0].split("\n")
        if not section[0].startswith("cudaError_t"):
            return ""
        plain = [re.sub(r"~\.|[:`]|py:obj", "", line) for line in section[1:] if line and not line[0].isspace()]
        return f"tuple[{', '.join(['cudaError_t', *(line.partition('  ')[2] or 'Any' for line in plain)])}]"

    def _type_of(self, value: Any) -> str:
        return self._classes.get(id(type(value))) or self._annotation(type(value).__name__)

    def _annotation(self, text: str) -> str:
        """A type's text with full names of classes; Any in place of every name that is not known."""

        def full_name(match: re.Match[str]) -> str:
            name = match[0]
            if name == "None" or name.startswith(TYPING_MODULES):
                return name
            return f"builtins.{name}" if name in BUILTIN_TYPES else self._class_named(name) or ANY

        written = re.sub(r"[A-Za-z_][\w.:]*", full_name, text.replace("'", ""))
        try:
            ast.parse(written, mode="eval")
        except SyntaxError:
            return ANY
        return ANY if f"{ANY}[" in written else written

    def _class_named(self, name: str) -> str:
        """The dotted name of a class here that ends like `name`: the shortest one, "" where there is none."""
        parts = name.replace("::", ".").split(".")
        for size in range(len(parts), 0, -1):
            ending = "." + ".".join(parts[-size:])
            found = [path for path in self._classes.values() if path.endswith(ending)]
            if found:
                return min(found, key=len)
        return ""


def _text(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _callbacks(text: str) -> dict[str, list[str]]:
    """Parameters of callbacks, from the class's docstring; the methods' signatures are those of the caller."""
    found = re.findall(r"def (\w+)\(self,? ?(.*?)\)(?: ->|:)", text)
    return {name: [part["name"] for part in _pybind_parameters(text)] for name, text in found if name[0] != "_"}


def _parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    has_default = parameter.default is not parameter.empty
    return {"name": parameter.name, "kind": parameter.kind.name, "has_default": has_default}


def _pybind_parameters(text: str) -> list[dict[str, Any]]:
    found, keyword_only = [], False
    for part in _split(text):
        name, _, kind_text = part.partition(" = ")[0].partition(":")
        name = name.partition("=")[0].strip()
        if name == "*":
            keyword_only = True
            continue
        kind = "POSITIONAL_ONLY" if re.fullmatch(r"arg\d+|self", name) else "POSITIONAL_OR_KEYWORD"
        kind = "KEYWORD_ONLY" if keyword_only else kind
        kind = {1: "VAR_POSITIONAL", 2: "VAR_KEYWORD"}.get(len(name) - len(name.lstrip("*")), kind)
        found.append({"name": name.lstrip("*"), "kind": kind, "has_default": " = " in part, "type": kind_text.strip()})
    return [item for item in found if item["name"] != "/"]


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in OPEN) - (letter in CLOSE and text[index - 1 : index + 1] != "->")
        if letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [part for part in [*parts, text[start:].strip()] if part]


def main(arguments: list[str]) -> None:
    """Print the surface of the packages that the arguments name."""
    packages = dict(argument.split("=") for argument in arguments)
    surface = Surface(packages)
    versions = {alias: getattr(module, "__version__", "") for alias, module in surface.modules.items()}
    print(json.dumps({"versions": versions, "names": surface.names}))


if __name__ == "__main__":
    main(sys.argv[1:])
