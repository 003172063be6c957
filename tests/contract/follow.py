"""What our source touches of a foreign package, followed by type through the syntax tree, against its surface.

A name's type comes from imports, annotations, from what a factory of the package gives (its surface says so) and, for
attributes of our own classes, from what is assigned to them. Whatever has such a type must have the attribute that is
read, take the arguments that are passed, and be writable where it is assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from contract.expressions import Expressions
from contract.foreign import Names, Type, same_parameters, strings_in
from contract.lookup import OwnClass, Scope


def _assigned_to_self(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        is_stored = isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        if is_stored and isinstance(child.value, ast.Name) and child.value.id == "self":
            yield child.attr
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id


class Follower(Expressions):
    """Follows some modules of ours (dotted name -> source), again and again until nothing new is learned."""

    def __init__(self, sources: Mapping[str, str], names: Names) -> None:
        super().__init__(names)
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
            self._assignment(node, scope)
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

    def _assignment(self, node: ast.Assign, scope: Scope) -> None:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            return  # None stands for something that is not there yet, or not here: it has no type
        for target in node.targets:
            is_pairwise = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            if is_pairwise and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                values = [self.infer(value, scope) for value in node.value.elts]  # type: ignore[attr-defined]
                for element, value in zip(target.elts, values, strict=True):  # type: ignore[attr-defined]
                    self._assign(element, value, scope)
            else:
                self._assign(target, self.infer(node.value, scope), scope)

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
