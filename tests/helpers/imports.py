"""Which module imports which, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGES = ("runtime", "engine_build", "server", "profiling", "configs")


@dataclass(frozen=True)
class Import:
    """One import statement: the dotted name, the file and line."""

    name: str
    file: str
    line: int


def module_name(file: str) -> str:
    """The dotted name of a source file; the package tickrt begins in runtime/api."""
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__").removeprefix("runtime.api.")


def modules_in(root: Path) -> dict[str, str]:
    """Dotted name -> file, for every module of the packages under a root."""
    files = [file.relative_to(root) for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    return {module_name(file.as_posix()): file.as_posix() for file in files}


def imports_of(tree: ast.Module, file: str) -> Iterator[Import]:
    """Every import of a module: at the top, under TYPE_CHECKING, inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; name the package"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(name, file, node.lineno) for name in names)


def module_graph(imports: list[Import], modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> our modules that it imports, anywhere. `modules`: dotted name -> file."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    by_file = {file: name for name, file in modules.items()}
    for item in imports:
        target = item.name if item.name in modules else item.name.rpartition(".")[0]
        if target in modules and target != by_file[item.file]:
            graph[by_file[item.file]].add(target)
    return graph


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """The longest path through a graph, from its top down. Raises CycleError where there is a cycle."""
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        below = [chains[other] for other in sorted(graph[name])]
        chains[name] = [name, *max(below, key=len, default=[])]
    return max((chains[name] for name in sorted(chains)), key=len, default=[])
