"""What is known of names: foreign ones from the package's surface, our own from what was seen so far."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.foreign import Names, Type, distinctive_names, given, packages_of


@dataclass
class OwnClass:
    """A class of ours: what it derives from, what its attributes are, what its methods give."""

    module: str
    node: ast.ClassDef
    bases: list[Type] = field(default_factory=list)
    attributes: dict[str, Type] = field(default_factory=dict)
    returns: dict[str, Type | None] = field(default_factory=dict)
    properties: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)


@dataclass
class Scope:
    """Names and their types, inside one function or module. `owner` is the class whose method this is."""

    module: str
    types: dict[str, Type] = field(default_factory=dict)
    owner: OwnClass | None = None
    function: str = ""

    def inner(self, owner: OwnClass | None = None, function: str = "") -> Scope:
        """A scope that sees this one's names."""
        return Scope(self.module, dict(self.types), owner or self.owner, function or self.function)


class Lookup:
    """Names and their types. `findings` are what the surface does not have.

    `touched` are the foreign names that were met; `lost` are attributes of things whose type is not known but whose
    name only the foreign package has: a gap in the net.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.packages = packages_of(names)
        self.findings: list[str] = []
        self.touched: set[str] = set()
        self.lost: list[str] = []
        self.classes: dict[str, OwnClass] = {}
        self.functions: dict[str, Type | None] = {}
        self._parameters: dict[str, dict[str, Type | None]] = {}
        self._passed: dict[tuple[str, str], Type] = {}
        self._returned: dict[str, Type] = {}
        self._passes_on: dict[str, str] = {}
        self._distinctive = distinctive_names(names)

    def _known(self) -> int:
        """How much is known of attributes, arguments and results: what one round finds, the next one uses."""
        attributes = sum(len(own.attributes) for own in self.classes.values())
        return attributes + len(self._passed) + len(self._returned) + len(self._passes_on)

    def _named(self, name: str) -> Type | None:
        if name in self.names:
            self.touched.add(name)
            return self._of_entry(name, self.names[name])
        if name in self.classes:
            return Type("own class", name)
        if name in self.functions:
            return Type("own function", name)
        is_package = any(package == name or package.startswith(f"{name}.") for package in self.packages)
        return Type("module", name) if is_package else None

    def _of_module(self, node: ast.Attribute, owner: Type, scope: Scope) -> Type | None:
        found = self._named(f"{owner.name}.{node.attr}")
        if found is None and f"{owner.name}.{node.attr}" not in self.names:
            self._report(scope, node, f"{owner.name} has no {node.attr}")
        return found

    def _of_class(self, node: ast.Attribute, owner: Type, scope: Scope) -> Type | None:
        entry = self._find(owner.name, node.attr)
        if entry is None:
            if not (self._is_enum(owner.name) and node.attr in ("name", "value")):
                self._report(scope, node, f"{owner.name} has no {node.attr}")
            return None
        self.touched.add(f"{owner.name}.{node.attr}")
        return self._of_entry(f"{owner.name}.{node.attr}", entry)

    def _of_own(self, node: ast.Attribute, own: OwnClass, scope: Scope) -> Type | None:
        name = f"{own.module}.{own.node.name}"
        if node.attr in own.attributes or node.attr in own.assigned:
            return own.attributes.get(node.attr)
        if node.attr in own.returns:
            method = f"{name}.{node.attr}"
            if node.attr in own.properties:
                return own.returns[node.attr] or self._returned.get(method)
            return Type("own method", method)
        for base in self._foreign_bases(own):
            return self._of_class(node, Type("instance", base), scope)
        for inherited in own.bases:
            if inherited.kind == "own class":
                return self._of_own(node, self.classes[inherited.name], scope)
        return None

    def _of_entry(self, name: str, entry: Mapping[str, Any]) -> Type | None:
        if entry["kind"] == "module":
            return Type("module", name)
        if entry["kind"] in ("class", "alias"):
            return Type("class", entry["returns"] or name)
        if entry["kind"] == "function":
            return Type("call", name)
        return given(entry["returns"])

    @staticmethod
    def _attribute_type(own: OwnClass, name: str, found: Type | None) -> None:
        if found is not None and name not in own.attributes:
            own.attributes[name] = found

    def _foreign_bases(self, own: OwnClass) -> Iterator[str]:
        for base in own.bases:
            if base.kind == "class":
                yield base.name
            elif base.kind == "own class":
                yield from self._foreign_bases(self.classes[base.name])

    def _entry(self, path: str) -> Mapping[str, Any] | None:
        if path in self.names:
            return self.names[path]
        owner, _, member = path.rpartition(".")
        return self._find(owner, member) if owner else None

    def _find(self, owner: str, member: str) -> Mapping[str, Any] | None:
        entry = self._entry(owner)
        if entry is None:
            return None
        for path in (owner, *entry.get("bases", ())):
            found = (self._entry(path) or {}).get("members", {}).get(member)
            if found is not None:
                return found
        return None

    def _is_enum(self, path: str) -> bool:
        members = (self._entry(path) or {}).get("members", {})
        return any(member.get("is_member") for member in members.values())

    def _maybe_lost(self, node: ast.Attribute, scope: Scope) -> None:
        if node.attr in self._distinctive:
            self.lost.append(f"{scope.module}:{node.lineno}: {ast.unparse(node)}")

    def _report(self, scope: Scope, node: ast.AST, text: str) -> None:
        self.findings.append(f"{scope.module}:{getattr(node, 'lineno', 0)}: {text}")
