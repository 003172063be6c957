"""What a package offers: every class, member and signature, as JSON. A program, run where the package can be imported.

`python surface.py ALIAS=PACKAGE ...` imports each PACKAGE and prints {"version": ..., "names": {"ALIAS.Name": entry}}.
Entry: kind (class, function, property, value, module), signatures (parameters of every overload, None where they
cannot be known), returns (the type that a call or a property gives), bases and members of a class.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
import sys
from types import ModuleType
from typing import Any

OPEN, CLOSE = "([{<", ")]}>"
PYBIND_LINE = re.compile(r"^(?:\d+\. )?(\w+)\((.*)\)(?: -> (.+))?$")


class Surface:
    """The names of some packages, by the dotted name under which they are used."""

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
        """Not something that the module only imports from elsewhere."""
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
        return {"kind": "value", "returns": self._classes.get(id(type(value)), "")}

    def _class(self, value: type, path: str) -> dict[str, Any]:
        if self._classes.get(id(value)) != path:
            return {"kind": "alias", "returns": self._classes.get(id(value), "")}
        members = {name: self._member(value, name, path) for name in self._member_names(value)}
        bases = [self._classes[id(base)] for base in value.__mro__[1:] if id(base) in self._classes]
        signatures, _ = self._signatures(value.__init__, is_method=True)  # type: ignore[misc]
        if signatures is None:
            fields = getattr(value, "__dataclass_fields__", None)
            signatures = [_fields(fields)] if fields else self._python_signatures(value, is_method=False)[0]
        entry = {"kind": "class", "bases": bases, "members": members, "signatures": signatures, "returns": path}
        return {**entry, "callbacks": _callbacks(value.__doc__ or "")}

    @staticmethod
    def _member_names(value: type) -> list[str]:
        names = [name for name in vars(value) if not name.startswith("_")]
        names += [name for name in getattr(value, "__members__", {}) if name not in names]
        return names + [name for name in getattr(value, "__dataclass_fields__", {}) if name not in names]

    def _member(self, owner: type, name: str, path: str) -> dict[str, Any]:
        if name in getattr(owner, "__members__", {}):
            return {"kind": "value", "returns": path, "is_member": True}
        static = inspect.getattr_static(owner, name, None)
        if inspect.isclass(static):
            return self._class(static, f"{path}.{name}")
        if isinstance(static, property) or inspect.isdatadescriptor(static):
            return self._property(static)
        if callable(static) or isinstance(static, (staticmethod, classmethod)):
            is_method = not isinstance(static, (staticmethod, classmethod))
            signatures, returns = self._signatures(getattr(owner, name), is_method=is_method)
            text = getattr(static, "__doc__", None) or ""
            return {"kind": "function", "signatures": signatures, "returns": returns, "optional": "eprecated" in text}
        return {"kind": "value", "returns": self._classes.get(id(type(static)), "")}

    def _property(self, static: Any) -> dict[str, Any]:
        getter = getattr(static, "fget", None)
        line = (getattr(getter, "__doc__", None) or "").strip().split("\n")[0]
        returns = line.rpartition(" -> ")[2] if " -> " in line else ""
        if not returns and getter is not None:
            returns = str(getattr(getter, "__annotations__", {}).get("return", ""))
        if not returns and not isinstance(static, property):
            returns = (getattr(static, "__doc__", None) or "").split("\n")[0].partition(": ")[2]
        is_writable = static.fset is not None if isinstance(static, property) else True
        return {"kind": "property", "returns": self._resolve(returns), "is_writable": is_writable}

    def _signatures(self, function: Any, *, is_method: bool) -> tuple[list[Any] | None, str]:
        lines = (getattr(function, "__doc__", None) or "").split("\n")
        found = [match for line in lines if (match := PYBIND_LINE.match(line.strip()))]
        name = getattr(function, "__name__", "")
        found = [match for match in found if match[1] == name and match[2] != "*args, **kwargs"]
        is_compiled = not hasattr(function, "__code__") and not hasattr(function, "__annotations__")
        if found and is_compiled:
            signatures = [_pybind_parameters(match[2])[1 if is_method else 0 :] for match in found]
            return signatures, self._resolve(found[0][3] or "")
        return self._python_signatures(function, is_method=is_method)

    def _python_signatures(self, function: Any, *, is_method: bool) -> tuple[list[Any] | None, str]:
        if isinstance(function, type(object.__init__)):
            return None, ""
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            return None, ""
        parameters = list(signature.parameters.values())[1 if is_method else 0 :]
        returns = signature.return_annotation
        text = "" if returns is signature.empty else getattr(returns, "__name__", None) or str(returns)
        returns_text = self._resolve(text) or self._status(getattr(function, "__doc__", None) or "")
        return [[_parameter(item) for item in parameters]], returns_text

    def _status(self, text: str) -> str:
        """CUDA's functions give (status, value); their text says of what type, in numpy's style."""
        lines = [line.strip() for line in text.partition("Returns\n-------\n")[2].split("\n")]
        values = [line.partition(" : ")[2] for line in lines if re.match(r"^\w+ : ", line)]
        if not lines[0].startswith(("cudaError_t", "CUresult")) or len(values) != 1:
            return ""
        return f"status[{self._resolve(re.sub(r'[:`~]|py:obj', '', values[0]))}]"

    def _resolve(self, text: str) -> str:
        """A type's text to the dotted name of a class here, "" where it is none of ours. Of alternatives, the first."""
        text = text.strip("'\" ")
        item = re.fullmatch(r"(?:typing\.)?(?:list|List|tuple|Sequence)\[([\w.]+)(?:, \.\.\.)?\]", text)
        if item:
            inner = self._resolve(item[1])
            return f"list[{inner}]" if inner else ""
        for part in text.split(" | "):
            tail = part.strip("'\" ").split(".")
            for size in range(len(tail), 0, -1):
                ending = "." + ".".join(tail[-size:])
                fitting = [path for path in self._classes.values() if path.endswith(ending)]
                if fitting:
                    return min(fitting, key=len)
        return ""


def _callbacks(text: str) -> dict[str, list[str]]:
    """What a subclass shall define, as the class's own text shows it: the method's signature is the caller's side."""
    found = re.findall(r"def (\w+)\(self,? ?(.*?)\)(?: ->|:)", text)
    return {
        name: [part["name"] for part in _pybind_parameters(arguments)] for name, arguments in found if name[0] != "_"
    }


def _fields(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters of a dataclass. Compiled ones have no signature of their own; every one may have a default."""
    return [{"name": name, "kind": "POSITIONAL_OR_KEYWORD", "has_default": True} for name in fields]


def _parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    has_default = parameter.default is not parameter.empty
    return {"name": parameter.name, "kind": parameter.kind.name, "has_default": has_default}


def _pybind_parameters(text: str) -> list[dict[str, Any]]:
    found, keyword_only = [], False
    for part in _split(text):
        name = part.partition(":")[0].partition("=")[0].strip()
        if name == "*":
            keyword_only = True
            continue
        kind = "POSITIONAL_ONLY" if re.fullmatch(r"arg\d+|self", name) else "POSITIONAL_OR_KEYWORD"
        kind = "KEYWORD_ONLY" if keyword_only else kind
        kind = {1: "VAR_POSITIONAL", 2: "VAR_KEYWORD"}.get(len(name) - len(name.lstrip("*")), kind)
        found.append({"name": name.lstrip("*"), "kind": kind, "has_default": " = " in part})
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
