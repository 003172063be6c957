"""Every regular expression of the packages with its uses, and texts on which one that can backtrack is slow."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

FINDING = ("search", "findall", "finditer", "sub", "subn", "split")
METHODS = ("match", "fullmatch", *FINDING)
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
# A repeat of fewer takes little, however often it is tried.
MANY = 20
# What takes long for so few repetitions takes twice as long for each one more.
FEW = 18
# A character of every kind that patterns tell apart, and one that none of them mentions.
PROBES = "a1A _-.\n\t!é~"
UNKNOWN = "\x01"


class PatternUse(NamedTuple):
    """A pattern, where its source is, and the functions of `re` that it is used with."""

    where: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


def pattern_uses(root: Path, packages: Iterable[str]) -> tuple[list[PatternUse], list[str]]:
    """Every pattern that is compiled or given to a function of `re` in packages, and where one is made at run time."""
    trees = {file: ast.parse(text) for file, text in _sources(root, packages) if "re." in text}
    methods, found, made = _methods_by_name(trees.values()), list[PatternUse](), list[str]()
    for file, tree in trees.items():
        names = _names_of_values(tree)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _function(node)):
            where, function = f"{file.relative_to(root)}:{call.lineno}", _function(call)
            used = methods.get(names.get(call, ""), {"search"}) if function == "compile" else {function}
            try:
                found.append(PatternUse(where, _compiled(call, function, file, root), frozenset(used)))
            except NameError:
                made.append(where)
    known = {use.pattern for use in found}
    return found + [use for use in _loaded_patterns(packages) if use.pattern not in known], made


@dataclass(frozen=True)
class Attack:
    """A text that repeats what a pattern repeats, and ends in what does not fit."""

    before: str
    repeated: str
    after: str

    def text(self, length: int) -> str:
        """So many characters or more: a third as many repetitions at least, and FEW where it has as many."""
        times = max(length // len(self.repeated), length // 3, min(length, FEW))
        return self.before + self.repeated * times + self.after


def attacks(pattern: re.Pattern[Any]) -> list[Attack]:
    """Texts for every repeat of a pattern: it, what comes before it, and both of them many times over."""
    tree = list(_parser.parse(pattern.pattern, pattern.flags))
    found: dict[Attack, None] = {}
    for prefix, unit in dict.fromkeys(_pumps(tree, "", _alphabet(tree))):
        for before, repeated in ((prefix, unit), ("", prefix + unit), ("", prefix), ("", unit)):
            found |= {Attack(before, repeated, after): None for after in ("", UNKNOWN, "x", "\n") if repeated}
    return list(found)


def _sources(root: Path, packages: Iterable[str]) -> Iterator[tuple[Path, str]]:
    for package in packages:
        for file in sorted((root / package).rglob("*.py")):
            yield file, file.read_text(encoding="utf-8")


def _methods_by_name(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Name of a constant -> the methods that are called on it anywhere."""
    found: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            found.setdefault(getattr(node.value, "id", getattr(node.value, "attr", "")), set()).add(node.attr)
    return found


def _names_of_values(tree: ast.Module) -> dict[ast.AST, str]:
    """A value -> the name that it is given."""
    names: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            are_several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=False) if are_several else [(target, node.value)]
            names |= {value: getattr(name, "id", getattr(name, "attr", "")) for name, value in pairs}
    return names


def _function(call: ast.Call) -> str:
    """The function of `re` that is called; "" for another one."""
    function = call.func
    is_re = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "re"
    return function.attr if is_re and function.attr in ("compile", *METHODS) else ""  # type: ignore[union-attr]


def _compiled(call: ast.Call, function: str, file: Path, root: Path) -> re.Pattern[Any]:
    """The pattern of a call. Raises NameError where it is not known before the call."""
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] or call.args[
        {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(function, 2) :
    ]
    values = [
        eval(compile(ast.Expression(node), str(file), "eval"), _names(node, file, root))
        for node in (call.args[0], *flags[:1])
    ]
    return values[0] if isinstance(values[0], re.Pattern) else re.compile(*values)


def _names(node: ast.expr, file: Path, root: Path) -> dict[str, Any]:
    """What the names of an expression are: those of its module, which is imported only for them."""
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    if used <= {"re"}:
        return {"re": re}
    return dict(vars(importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))))


def _loaded_patterns(packages: Iterable[str]) -> Iterator[PatternUse]:
    """Those that modules, their classes and their routers hold, however they came there."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages:
            holders = [module, *(value for value in vars(module).values() if isinstance(value, type))]
            for value in [value for holder in holders for value in vars(holder).values()]:
                if isinstance(value, re.Pattern):
                    yield PatternUse(name, value, frozenset(("match", "search")))
                for route in getattr(value, "routes", ()) if hasattr(value, "prefix") else ():
                    yield PatternUse(f"{name} {route.path}", route.path_regex, frozenset(("match",)))


def _pumps(items: list[Any], prefix: str, alphabet: str) -> Iterator[tuple[str, str]]:
    """For each repeat what comes before it, and what it repeats."""
    for operation, argument in items:
        if operation in REPEATS:
            _, most, body = argument
            if most > MANY:
                yield from ((prefix, unit) for unit in _units(list(body), alphabet))
        for inner in _inner(operation, argument):
            yield from _pumps(inner, prefix, alphabet)
            if operation in REPEATS:
                yield from _pumps(inner, prefix + _sample(inner, alphabet), alphabet)
        prefix += _sample([(operation, argument)], alphabet)


def _units(body: list[Any], alphabet: str) -> list[str]:
    """Texts that a repeat's body matches: every character of it where it is one, else one of each branch."""
    if len(body) == 1 and body[0][0] in (codes.IN, codes.ANY, codes.NOT_LITERAL, codes.LITERAL, codes.CATEGORY):
        return [char for char in alphabet if _takes(body[0], char)]
    branches = body[0][1][1] if len(body) == 1 and body[0][0] is codes.BRANCH else [body]
    return [text for branch in branches if (text := _sample(list(branch), alphabet, least=1))]


def _inner(operation: Any, argument: Any) -> list[list[Any]]:
    """The sequences inside an item."""
    if operation in REPEATS:
        return [list(argument[2])]
    if operation is codes.SUBPATTERN:
        return [list(argument[-1])]
    if operation is codes.BRANCH:
        return [list(branch) for branch in argument[1]]
    if operation is codes.ATOMIC_GROUP:
        return [list(argument)]
    return [list(argument[1])] if operation in (codes.ASSERT, codes.ASSERT_NOT) else []


def _sample(items: list[Any], alphabet: str, least: int = 0) -> str:
    """A short text that items match, as far as one can be told without looking around. least: of each repeat."""
    text = ""
    for operation, argument in items:
        inner = _inner(operation, argument)
        if operation in REPEATS:
            text += _sample(inner[0], alphabet, least) * max(argument[0], least)
        elif inner and operation not in (codes.ASSERT, codes.ASSERT_NOT):
            text += _sample(inner[0], alphabet, least)
        elif not inner:
            text += next((char for char in alphabet if _takes((operation, argument), char)), "")
    return text


def _takes(item: tuple[Any, Any], char: str) -> bool:
    """Whether an item that takes one character takes this one."""
    operation, argument = item
    if operation is codes.LITERAL:
        return ord(char) == argument
    if operation is codes.NOT_LITERAL:
        return ord(char) != argument
    if operation is codes.RANGE:
        return argument[0] <= ord(char) <= argument[1]
    if operation is codes.CATEGORY:
        return re.match(CATEGORIES[argument], char) is not None
    if operation is codes.IN:
        is_negated = argument[0][0] is codes.NEGATE
        return is_negated is not any(_takes(part, char) for part in argument[is_negated:])
    return operation is codes.ANY and char != "\n"


def _alphabet(tree: list[Any]) -> str:
    """Every character that a pattern names, then PROBES."""
    return "".join(dict.fromkeys([*_literals(tree), *PROBES]))


def _literals(items: list[Any]) -> Iterator[str]:
    for operation, argument in items:
        if operation in (codes.LITERAL, codes.NOT_LITERAL):
            yield chr(argument)
        elif operation is codes.RANGE:
            yield from map(chr, argument)
        elif operation is codes.IN:
            yield from _literals(argument)
        for inner in _inner(operation, argument):
            yield from _literals(inner)
