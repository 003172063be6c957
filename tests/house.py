"""How large the source is and how much of it depends on what, against the limits in house.toml.

`make lint` runs `python tests/house.py`. A limit is the value at which it was set: a row may shrink, but not grow.
A row over its limit is compared with the commit that set the limits, and what grew since then is named.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from helpers.imports import PACKAGES, imports_of, longest_chain, module_graph, modules_in
from helpers.paths import ROOT

LIMITS = Path(__file__).with_suffix(".toml")
# Their lines are limited; those of configs, the demo's recipe, are not.
SHIPPED = ("runtime", "server", "engine_build", "profiling")
# Their parts are counted: folders, and the modules beside them that imports tie to another part.
DIVIDED = ("runtime", "server")
MOST_LINES = 450
MOST_METHODS = 25
MOST_NAMED = 10


@dataclass(frozen=True)
class Count:
    """A row: its value, and what it consists of: a file, class or arrow -> how much of it."""

    value: float
    items: Mapping[str, int]


@dataclass(frozen=True)
class Limit:
    """Of a row: its value at def26666, where the plan was made; what it may be; what it is to become."""

    limit: float
    before: float
    goal: float | None = None


@dataclass(frozen=True)
class Source:
    """One Python file."""

    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))


Sources = Mapping[str, Source]


def read_sources(root: Path, *folders: str) -> dict[str, Source]:
    """File -> source, for every Python file in folders under a root."""
    files = [file for folder in folders for file in sorted((root / folder).rglob("*.py"))]
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return {file: Source(text, ast.parse(text)) for file, text in texts.items()}


def counts(root: Path) -> dict[str, Count]:
    """Every row, of the tree under a root."""
    packages, tests = read_sources(root, *PACKAGES), read_sources(root, "tests")
    shipped = {file: source for file, source in packages.items() if file.startswith(SHIPPED)}
    modules = modules_in(root)
    graph = module_graph([item for file, source in packages.items() for item in imports_of(source.tree, file)], modules)
    return {
        **{f"lines of {package}": summed(lines(read_under(shipped, package))) for package in SHIPPED},
        "lines of these four": summed(lines(shipped)),
        "lines of tests": summed(lines(tests)),
        "lines of tests per line of source": ratio(lines(tests), lines(packages)),
        **{name: count for package in DIVIDED for name, count in divided(package, graph, modules).items()},
        "longest chain of imports": summed(dict.fromkeys(longest_chain(graph), 1)),
        "classes named *Plan*": summed(named_classes(shipped, lambda node: "Plan" in node.name)),
        "public class names twice": twice(public_classes(shipped)),
        "public function names twice": twice(public_functions(shipped)),
        f"classes above {MOST_METHODS} methods": summed(
            named_classes(shipped, lambda node: len(list(functions(node.body))) > MOST_METHODS)
        ),
        f"files above {MOST_LINES} lines": summed(
            {file: 1 for file, number in lines(shipped).items() if number > MOST_LINES}
        ),
        "monkeypatch.setattr in tests": summed(attributes(tests, sets_an_attribute)),
        "private members in tests": summed(attributes(tests, is_private_of_another)),
        "lines of README.md": summed({"README.md": len((root / "README.md").read_text("utf-8").splitlines())}),
    }


def summed(items: Mapping[str, int]) -> Count:
    return Count(sum(items.values()), items)


def ratio(items: Mapping[str, int], others: Mapping[str, int]) -> Count:
    return Count(round(sum(items.values()) / sum(others.values()), 3), items)


def read_under(sources: Sources, package: str) -> Sources:
    return {file: source for file, source in sources.items() if file.startswith(f"{package}/")}


def lines(sources: Sources) -> dict[str, int]:
    return {file: len(source.text.splitlines()) for file, source in sources.items()}


def divided(package: str, graph: Mapping[str, set[str]], modules: Mapping[str, str]) -> dict[str, Count]:
    """A package's parts, the arrows between them (imports, those of types too), and the longest chain of parts."""

    def part(module: str) -> str:
        below, _, rest = modules[module].removeprefix(f"{package}/").partition("/")
        return f"{package}/{below}/" if rest else f"{package}/{below}"

    inside = {name: part(name) for name, file in modules.items() if file.startswith(f"{package}/")}
    arrows = {(inside[name], inside[other]) for name in inside for other in graph[name] if other in inside}
    arrows = {(source, target) for source, target in arrows if source != target}
    folders = {name for name in inside.values() if name.endswith("/")}
    below: dict[str, set[str]] = {name: set() for name in folders.union(*arrows)}
    for source, target in arrows:
        below[source].add(target)
    return {
        f"parts of {package}": summed(dict.fromkeys(below, 1)),
        f"arrows between parts of {package}": summed({f"{source} -> {target}": 1 for source, target in arrows}),
        f"levels of parts of {package}": summed(dict.fromkeys(longest_chain(below), 1)),
    }


def classes(sources: Sources) -> Iterator[tuple[str, ast.ClassDef]]:
    """File and class, nested ones too."""
    for file, source in sources.items():
        yield from ((file, node) for node in source.nodes if isinstance(node, ast.ClassDef))


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def named_classes(sources: Sources, fits: Callable[[ast.ClassDef], bool]) -> dict[str, int]:
    return dict(Counter(f"{file}: {node.name}" for file, node in classes(sources) if fits(node)))


def public_classes(sources: Sources) -> Iterator[tuple[str, str]]:
    """Name and file."""
    return ((node.name, file) for file, node in classes(sources) if not node.name.startswith("_"))


def public_functions(sources: Sources) -> Iterator[tuple[str, str]]:
    """Name and file, of functions of modules."""
    for file, source in sources.items():
        yield from ((node.name, file) for node in functions(source.tree.body) if not node.name.startswith("_"))


def twice(names: Iterator[tuple[str, str]]) -> Count:
    """Names that stand in several places, with these."""
    places: dict[str, list[str]] = {}
    for name, file in names:
        places.setdefault(name, []).append(file)
    return summed({f"{name} in {', '.join(files)}": 1 for name, files in places.items() if len(files) > 1})


def attributes(sources: Sources, fits: Callable[[ast.Attribute], bool]) -> dict[str, int]:
    """File -> how many attributes in it fit."""
    found = {
        file: sum(fits(node) for node in source.nodes if isinstance(node, ast.Attribute))
        for file, source in sources.items()
    }
    return {file: number for file, number in found.items() if number}


def sets_an_attribute(node: ast.Attribute) -> bool:
    return node.attr == "setattr" and isinstance(node.value, ast.Name) and node.value.id == "monkeypatch"


def is_private_of_another(node: ast.Attribute) -> bool:
    is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return node.attr.startswith("_") and not node.attr.startswith("__") and not is_own


def read_limits(text: str) -> dict[str, Limit]:
    return {name: Limit(**values) for name, values in tomllib.loads(text).items()}


def earlier_counts(root: Path, limits: Path) -> dict[str, Count] | None:
    """The rows of the commit that set the limits; None where git does not know it."""
    found = git(root, "log", "-1", "--format=%H", "--", str(limits))
    files = git(root, "archive", found.decode().strip(), "--", "*.py", "README.md") if found else b""
    if not files:
        return None
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(files)) as archive:
        archive.extractall(folder, filter="data")
        return counts(Path(folder))


def git(root: Path, *arguments: str) -> bytes:
    """What git prints; nothing where it fails or is not there."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def table(found: Mapping[str, Count], limits: Mapping[str, Limit]) -> Iterator[str]:
    """The lines of the table; a row over its limit ends with a mark."""
    yield f"{'':<36}{'def26666':>10}{'now':>10}{'limit':>10}{'goal':>10}"
    for name, count in found.items():
        limit = limits[name]
        goal = "" if limit.goal is None else f"{limit.goal:g}"
        mark = "  over" if count.value > limit.limit else ""
        yield f"{name:<36}{limit.before:>10.6g}{count.value:>10.6g}{limit.limit:>10.6g}{goal:>10}{mark}"


def complaint(name: str, count: Count, limit: Limit, earlier: Count | None) -> Iterator[str]:
    """Of a row over its limit: what grew since the limits were set, else what is largest."""
    yield f"{name}: {count.value:g}, limit {limit.limit:g}"
    base = {} if earlier is None else earlier.items
    grown = {item: number - base.get(item, 0) for item, number in count.items.items()}
    yield "  largest:" if earlier is None else "  grew since the limits were set:"
    for item, number in sorted(grown.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_NAMED]:
        if number > 0:
            yield f"    {number:+} {item}" if earlier else f"    {number} {item}"
    yield f"  fix: remove as much elsewhere; where the growth is worth it, raise the limit in tests/{LIMITS.name}"


def main(root: Path = ROOT, limits_file: Path = LIMITS) -> int:
    """Print the table, and every row over its limit. Returns the exit status: 1 where there is one."""
    found, limits = counts(root), read_limits(limits_file.read_text(encoding="utf-8"))
    print("\n".join(table(found, limits)))
    over = [name for name, count in found.items() if count.value > limits[name].limit]
    earlier = earlier_counts(root, limits_file) if over else None
    for name in over:
        print("\n".join(complaint(name, found[name], limits[name], earlier[name] if earlier else None)))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
