"""What our source touches of a foreign package, followed by type through the syntax tree, against its surface.

A name's type comes from imports, annotations, from what a factory of the package gives (its surface says so) and, for
attributes of our own classes, from what is assigned to them. Whatever has such a type must have the attribute that is
read, take the arguments that are passed, and be writable where it is assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.foreign import (
    Names,
    Type,
    collection,
    distinctive_names,
    given,
    packages_of,
    pair_of,
    same_parameters,
    strings_in,
    unfit,
)

COLLECTIONS = ("list", "tuple", "Sequence", "Iterable", "Iterator", "deque", "set", "frozenset")
MAPPINGS = ("dict", "Mapping", "OrderedDict", "defaultdict")


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


def _fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass, in order."""
    named = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return [target.id for target in named if isinstance(target, ast.Name)]


def _assigned_to_self(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        is_stored = isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        if is_stored and isinstance(child.value, ast.Name) and child.value.id == "self":
            yield child.attr
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id


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


class Follower:
    """Follows some modules of ours (dotted name -> source). `findings` are what the surface does not have.

    `touched` are the foreign names that were followed; `lost` are attributes of things whose type is not known but
    whose name only the foreign package has: a gap in the net.
    """

    def __init__(self, sources: Mapping[str, str], names: Names) -> None:
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
        trees = {module: ast.parse(source) for module, source in sources.items()}
        scopes = {module: Scope(module) for module in trees}
        known = -1
        while known != self._known():
            known = self._known()
            self.findings, self.lost = [], []
            for module, tree in trees.items():
                self._declare(module, tree, scopes[module])
            for module, tree in trees.items():
                self._block(tree.body, scopes[module])

    def _known(self) -> int:
        """How much is known of attributes, arguments and results: what one round finds, the next one uses."""
        attributes = sum(len(own.attributes) for own in self.classes.values())
        return attributes + len(self._passed) + len(self._returned) + len(self._passes_on)

    # Declarations

    def _declare(self, module: str, tree: ast.Module, scope: Scope) -> None:
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node, scope)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                own = self.classes.setdefault(f"{module}.{node.name}", OwnClass(module, node))
                scope.types[node.name] = Type("own class", f"{module}.{node.name}")
                self._declare_class(own, scope)
            elif isinstance(node, ast.FunctionDef):
                self.functions[f"{module}.{node.name}"] = self._annotation(node.returns, scope)
                scope.types[node.name] = Type("own function", f"{module}.{node.name}")

    def _declare_class(self, own: OwnClass, scope: Scope) -> None:
        own.assigned |= set(_assigned_to_self(own.node))
        own.bases = [found for base in own.node.bases if (found := self._quietly(base, scope)) is not None]
        for node in own.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._attribute_type(own, node.target.id, self._annotation(node.annotation, scope))
            elif isinstance(node, ast.FunctionDef):
                own.returns[node.name] = self._annotation(node.returns, scope)
                if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
                    own.properties.add(node.name)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name, bound = alias.name, alias.asname or alias.name.split(".")[0]
                name = name if alias.asname else bound
            else:
                name, bound = f"{node.module}.{alias.name}", alias.asname or alias.name
            found = self._named(name)
            if found is not None:
                scope.types[bound] = found
            elif name not in self.names and isinstance(node, ast.ImportFrom) and node.module in self.packages:
                self._report(scope, node, f"{node.module} has no {alias.name}")

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

    # Statements

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for node in body:
            self._statement(node, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node, scope)
        elif isinstance(node, ast.Assign):
            value = self.infer(node.value, scope)
            if isinstance(node.value, ast.Constant) and node.value.value is None:
                return  # None stands for something that is not there yet, or not here: it has no type
            for target in node.targets:
                self._assign(target, value, scope)
        elif isinstance(node, ast.AnnAssign):
            value = self.infer(node.value, scope) if node.value else None
            has_strings = value is not None and (value.strings or strings_in(value))
            said = self._annotation(node.annotation, scope)
            self._assign(node.target, value if has_strings or said is None else said, scope)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assign(node.target, self._item(self.infer(node.iter, scope)), scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.With):
            for item in node.items:
                value = self.infer(item.context_expr, scope)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, value, scope)
            self._block(node.body, scope)
        elif isinstance(node, ast.Return) and node.value is not None:
            self._return(node.value, scope)
        else:
            self._others(node, scope)

    def _return(self, value: ast.expr, scope: Scope) -> None:
        """What a function gives where its annotation does not say: one of its arguments, or something it made."""
        found = self.infer(value, scope)
        if isinstance(value, ast.Name) and value.id in self._parameters.get(scope.function, {}):
            self._passes_on[scope.function] = value.id
        elif found is not None and found.kind in ("instance", "own", "items"):
            self._returned.setdefault(scope.function, found)

    def _others(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.infer(child, scope)
            elif isinstance(child, ast.stmt):
                self._statement(child, scope)
            else:
                self._others(child, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        own = self.classes.get(f"{scope.module}.{node.name}")
        if own is None:
            own = self.classes[f"{scope.module}.{node.name}"] = OwnClass(scope.module, node)
            self._declare_class(own, scope)
        for base in own.bases:
            if base.kind == "class":
                self._callbacks(own, base.name, scope)
        self._block(node.body, scope.inner(own))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        prefix = f"{scope.owner.module}.{scope.owner.node.name}" if scope.owner is not None else scope.module
        key = f"{prefix}.{node.name}"
        inner = scope.inner(function=key)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._parameters[key] = {}
        for argument in arguments:
            found = self._annotation(argument.annotation, scope) or self._passed.get((key, argument.arg))
            self._parameters[key][argument.arg] = found
            inner.types.pop(argument.arg, None)
            if found is not None:
                inner.types[argument.arg] = found
        if scope.owner is not None and arguments and arguments[0].arg == "self":
            inner.types["self"] = Type("own", f"{scope.owner.module}.{scope.owner.node.name}")
        for default in [*node.args.defaults, *node.args.kw_defaults, *node.decorator_list]:
            if default is not None:
                self.infer(default, scope)
        self._block(node.body, inner)

    def _assign(self, target: ast.expr, value: Type | None, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.types.pop(target.id, None)
            if value is not None:
                scope.types[target.id] = value
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value, scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            pair = pair_of(value) if len(target.elts) == 2 else None
            if value is not None and value.kind == "status":
                pair = None, value.item
            for index, element in enumerate(target.elts):
                self._assign(element, pair[index] if pair else self._item(value), scope)
        else:
            self.infer(target, scope)

    def _assign_attribute(self, target: ast.Attribute, value: Type | None, scope: Scope) -> None:
        owner = self.infer(target.value, scope)
        if owner is None:
            self._maybe_lost(target, scope)
        elif owner.kind == "instance":
            entry = self._find(owner.name, target.attr)
            if entry is None:
                self._report(scope, target, f"{owner.name} has no {target.attr}")
            elif not entry.get("is_writable", False):
                self._report(scope, target, f"{owner.name}.{target.attr} cannot be assigned")
            self.touched.add(f"{owner.name}.{target.attr}")
        elif owner.kind == "own":
            self._attribute_type(self.classes[owner.name], target.attr, value)
            for base in self._foreign_bases(self.classes[owner.name]):
                entry = self._find(base, target.attr)
                if entry is not None and not entry.get("is_writable", True):
                    self._report(scope, target, f"{base}.{target.attr} cannot be assigned")

    @staticmethod
    def _attribute_type(own: OwnClass, name: str, found: Type | None) -> None:
        if found is not None and name not in own.attributes:
            own.attributes[name] = found

    # Expressions

    def infer(self, node: ast.expr, scope: Scope) -> Type | None:
        """The type of an expression, where it is known; everything inside is checked on the way."""
        if isinstance(node, ast.Name):
            return scope.types.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope)
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, ast.Constant):
            return Type("strings", strings=frozenset({node.value})) if isinstance(node.value, str) else None
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return collection([self.infer(element, scope) for element in node.elts])
        if isinstance(node, ast.Dict):
            keys = collection([self.infer(key, scope) for key in node.keys if key is not None])
            values = collection([self.infer(value, scope) for value in node.values])
            return Type("mapping", item=values.item if values else None, strings=strings_in(keys))
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._comprehension(node, scope)
        if isinstance(node, ast.IfExp):
            self.infer(node.test, scope)
            return collection([self.infer(node.body, scope), self.infer(node.orelse, scope)]).item
        if isinstance(node, ast.BoolOp):
            return collection([self.infer(value, scope) for value in node.values]).item
        if isinstance(node, ast.NamedExpr):
            value = self.infer(node.value, scope)
            self._assign(node.target, value, scope)
            return value
        if isinstance(node, ast.Lambda):
            self.infer(node.body, scope.inner())
            return None
        if isinstance(node, ast.Starred):
            return self._item(self.infer(node.value, scope))
        self._others(node, scope)
        return None

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Type | None:
        owner = self.infer(node.value, scope)
        if owner is None:
            self._maybe_lost(node, scope)
            return None
        if node.attr.startswith("__") and owner.kind in ("class", "instance", "module", "call"):
            return Type("members", owner.name) if node.attr == "__members__" else None
        if owner.kind == "module":
            return self._of_module(node, owner, scope)
        if owner.kind in ("class", "instance"):
            return self._of_class(node, owner, scope)
        if owner.kind == "own":
            return self._of_own(node, self.classes[owner.name], scope)
        return Type("of items", node.attr, owner) if owner.kind in ("items", "mapping") else None

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

    def _call(self, node: ast.Call, scope: Scope) -> Type | None:
        function = self.infer(node.func, scope)
        arguments = [self.infer(argument, scope) for argument in node.args]
        named = {keyword.arg or "": self.infer(keyword.value, scope) for keyword in node.keywords}
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "getattr" and arguments[0] is not None and arguments[0].kind in ("class", "module", "instance"):
            return self._members(node, arguments[0], arguments[1], scope)
        if name in ("list", "tuple", "sorted", "reversed", "iter", "set") and arguments:
            return arguments[0]
        if name == "super" and scope.owner is not None:
            return next((Type("instance", base) for base in self._foreign_bases(scope.owner)), None)
        if function is None:
            return None
        if function.kind in ("class", "call"):
            return self._foreign_call(node, function, scope)
        return self._own_call(node, function, arguments, named, scope)

    def _own_call(
        self,
        node: ast.Call,
        function: Type,
        positional: list[Type | None],
        named: dict[str, Type | None],
        scope: Scope,
    ) -> Type | None:
        arguments = [*positional, *named.values()]
        enums = [item for item in arguments if item is not None and item.kind == "class" and self._is_enum(item.name)]
        for item in arguments:
            if enums and item is not None and item.kind == "strings":
                self._members(node, enums[0], item, scope)
        if function.kind == "own class":
            self._construct(self.classes[function.name], positional, named)
            return Type("own", function.name)
        if function.kind in ("own function", "own method"):
            given_by_name = self._pass(function.name, positional, named)
            return self._result(function, given_by_name, arguments)
        if function.kind == "of items" and function.item is not None:
            if function.name == "items":
                return Type("items", item=Type("pair", item=function.item.item, strings=function.item.strings))
            if function.name == "values":
                return Type("items", item=function.item.item)
            return function.item.item if function.name in ("get", "pop", "popleft", "setdefault") else None
        return None

    def _construct(self, own: OwnClass, positional: list[Type | None], named: dict[str, Type | None]) -> None:
        name = f"{own.module}.{own.node.name}"
        if "__init__" in own.returns:
            self._pass(f"{name}.__init__", positional, named)
            return
        for key, value in {**dict(zip(_fields(own.node), positional, strict=False)), **named}.items():
            self._attribute_type(own, key, value)

    def _pass(
        self, function: str, positional: list[Type | None], named: dict[str, Type | None]
    ) -> dict[str, Type | None]:
        """Remember what a function is called with; its arguments by name."""
        names = [name for name in self._parameters.get(function, {}) if name != "self"]
        given_by_name = {**dict(zip(names, positional, strict=False)), **named}
        for name, value in given_by_name.items():
            if value is not None and value.kind in ("instance", "own", "items"):
                self._passed.setdefault((function, name), value)
        return given_by_name

    def _result(
        self, function: Type, given_by_name: dict[str, Type | None], arguments: list[Type | None]
    ) -> Type | None:
        name = function.name
        owner, _, method = name.rpartition(".")
        said = self.classes[owner].returns.get(method) if function.kind == "own method" else self.functions.get(name)
        status = next((item for item in arguments if item is not None and item.kind == "status"), None)
        if said is not None or name in self._passes_on:
            return said or given_by_name.get(self._passes_on[name])
        return status.item if status is not None else self._returned.get(name)

    def _foreign_call(self, node: ast.Call, function: Type, scope: Scope) -> Type | None:
        entry = self._entry(function.name)
        if entry is None:
            return None
        signatures = entry["signatures"]
        if entry["kind"] == "class" and self._is_enum(function.name):
            return Type("instance", function.name)
        is_splat = any(isinstance(argument, ast.Starred) for argument in node.args)
        is_splat |= any(keyword.arg is None for keyword in node.keywords)
        keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
        if signatures is not None and not is_splat:
            problems = [unfit(signature, len(node.args), keywords) for signature in signatures]
            if all(problems):
                self._report(scope, node, f"{function.name}: {problems[0]}")
        return given(entry["returns"])

    def _members(self, node: ast.AST, owner: Type, found: Type | None, scope: Scope) -> Type | None:
        """Members of an enum (or a class) that are named by strings."""
        if found is None or not found.strings:
            self._report(scope, node, f"{owner.name}: a member is named by an expression that cannot be followed")
            return None
        given: Type | None = None
        for name in sorted(found.strings):
            entry = self._find(owner.name, name)
            if entry is None:
                self._report(scope, node, f"{owner.name} has no {name}")
            else:
                self.touched.add(f"{owner.name}.{name}")
                given = self._of_entry(f"{owner.name}.{name}", entry)
        return given

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Type | None:
        owner, key = self.infer(node.value, scope), self.infer(node.slice, scope)
        if owner is None:
            return None
        if owner.kind == "members" or (owner.kind == "class" and self._is_enum(owner.name)):
            return self._members(node, Type("class", owner.name), key, scope)
        if owner.kind == "items" and isinstance(node.slice, ast.Slice):
            return owner
        return owner.item if owner.kind in ("items", "mapping") else None

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Type | None:
        inner = scope.inner()
        for generator in node.generators:
            self._assign(generator.target, self._item(self.infer(generator.iter, inner)), inner)
            for test in generator.ifs:
                self.infer(test, inner)
        if isinstance(node, ast.DictComp):
            self.infer(node.key, inner)
            return Type("mapping", item=self.infer(node.value, inner))
        return Type("items", item=self.infer(node.elt, inner))

    @staticmethod
    def _item(found: Type | None) -> Type | None:
        if found is None:
            return None
        if found.kind == "mapping":
            return Type("strings", strings=found.strings) if found.strings else None
        return found.item if found.kind == "items" else None

    # Annotations, classes, entries

    def _annotation(self, node: ast.expr | None, scope: Scope) -> Type | None:
        if node is None:
            return None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._annotation(ast.parse(node.value, mode="eval").body, scope)
        if isinstance(node, ast.BinOp):
            return self._annotation(node.left, scope) or self._annotation(node.right, scope)
        if isinstance(node, ast.Subscript):
            kind = ast.unparse(node.value).rpartition(".")[2]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if kind in COLLECTIONS:
                return Type("items", item=self._annotation(inner[0], scope))
            return Type("mapping", item=self._annotation(inner[1], scope)) if kind in MAPPINGS else None
        found = self._quietly(node, scope)
        if found is None or found.kind not in ("class", "own class"):
            return None
        return Type("instance" if found.kind == "class" else "own", found.name)

    def _quietly(self, node: ast.expr, scope: Scope) -> Type | None:
        return self.infer(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None

    def _callbacks(self, own: OwnClass, base: str, scope: Scope) -> None:
        """A subclass overrides what the base calls, with parameters of the same number and names."""
        defined = {node.name: node for node in own.node.body if isinstance(node, ast.FunctionDef)}
        entry = self._entry(base)
        assert entry is not None
        for name, member in entry["members"].items():
            if member["kind"] != "function" or member["signatures"] is None:
                continue
            if name not in defined:
                if not member.get("optional"):
                    self._report(scope, own.node, f"{own.node.name} does not override {base}.{name}")
                continue
            self.touched.add(f"{base}.{name}")
            ours = [argument.arg for argument in defined[name].args.args[1:]]
            theirs = [[item["name"] for item in signature] for signature in member["signatures"]]
            theirs = [entry["callbacks"][name]] if name in entry["callbacks"] else theirs
            if not any(same_parameters(ours, wanted) for wanted in theirs):
                self._report(scope, defined[name], f"{base}.{name} takes {theirs[0]}, ours takes {ours}")

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
