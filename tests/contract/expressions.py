"""Types of expressions: what is read has to be there, what is called has to take its arguments."""

from __future__ import annotations

import ast

from contract.foreign import Type, collection, given, pair_of, strings_in, unfit
from contract.lookup import Lookup, OwnClass, Scope

COLLECTIONS = ("list", "tuple", "Sequence", "Iterable", "Iterator", "deque", "set", "frozenset")
MAPPINGS = ("dict", "Mapping", "OrderedDict", "defaultdict")


def _fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass, in order."""
    named = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return [target.id for target in named if isinstance(target, ast.Name)]


class Expressions(Lookup):
    """Infers types; arguments and results of our own functions are remembered for the next round."""

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
        self._maybe_lost(node, scope)
        return Type("of items", node.attr, owner) if owner.kind in ("items", "mapping") else None

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

    def _others(self, node: ast.AST, scope: Scope) -> None:
        """Everything inside a node."""
        raise NotImplementedError
