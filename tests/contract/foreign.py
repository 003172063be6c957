"""Types as the follower knows them, and how calls and callbacks fit the signatures of a foreign package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Names = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Type:
    """kind: module, class, instance, call (a function or method), own, own class, items (a collection), strings."""

    kind: str
    name: str = ""
    item: Type | None = None
    strings: frozenset[str] = frozenset()


def packages_of(names: Names) -> set[str]:
    return {path.rpartition(".")[0] for path in names}


def distinctive_names(names: Names) -> set[str]:
    """Attribute names that say whose they are: with an underscore inside, as no builtin type has them."""
    builtin = {name for kind in (str, bytes, int, float, list, dict, set, tuple, object) for name in dir(kind)}
    members = {member for entry in names.values() for member in entry.get("members", ())}
    return {name for name in members if "_" in name.strip("_")} - builtin


def given(returns: str) -> Type | None:
    if returns.startswith("status["):
        return Type("status", item=given(returns[7:-1]))
    if returns.startswith("list["):
        return Type("items", item=Type("instance", returns[5:-1]))
    return Type("instance", returns) if returns else None


def pair_of(found: Type | None) -> tuple[Type | None, Type | None] | None:
    """Key and value of a mapping's item."""
    if found is None or found.kind != "pair":
        return None
    return (Type("strings", strings=found.strings) if found.strings else None), found.item


def collection(found: Sequence[Type | None]) -> Type:
    known = [item for item in found if item is not None]
    strings = frozenset().union(*(item.strings for item in known if item.kind == "strings"))
    if strings and all(item.kind == "strings" for item in known):
        return Type("items", item=Type("strings", strings=strings))
    return Type("items", item=known[0] if known else None)


def strings_in(found: Type | None) -> frozenset[str]:
    return found.item.strings if found is not None and found.item is not None else frozenset()


def unfit(signature: Sequence[Mapping[str, Any]], positional: int, keywords: Sequence[str]) -> str:
    """Why a call with so many positional arguments and these keywords does not fit; "" where it does."""
    kinds = {item["kind"] for item in signature}
    by_position = [item for item in signature if item["kind"] in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
    by_name = {item["name"] for item in signature if item["kind"] in ("KEYWORD_ONLY", "POSITIONAL_OR_KEYWORD")}
    if positional > len(by_position) and "VAR_POSITIONAL" not in kinds:
        return f"takes {len(by_position)} positional arguments, ours passes {positional}"
    taken = {item["name"] for item in by_position[:positional]}
    for name in keywords:
        if (name not in by_name and "VAR_KEYWORD" not in kinds) or name in taken:
            return f"takes no argument {name!r} there"
    for item in signature:
        is_variadic = item["kind"].startswith("VAR_")
        if not item["has_default"] and not is_variadic and item["name"] not in taken | set(keywords):
            return f"needs {item['name']!r}"
    return ""


def same_parameters(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(a.lstrip("_") == b or b.startswith("arg") for a, b in zip(ours, theirs, strict=True))
