"""A sample of mutants: small changes of random lines of the source, each of which some test should find.

    python tests/mutants.py runtime server --number 80 --seed 1

For each one the tests of its folder run first, then those that import its module; what no test finds is printed. It
changes files of the tree that it lies in, one at a time, and restores them: run it in a copy.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKS = "not export and not slow and not gpu and not page and not clients and not builder and not docs"
OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "first": "last", "ceil": "floor", "floor": "ceil"}
TIMEOUT_S = 600


class Mutation(ast.NodeTransformer):
    """Changes the place of a number, in the order of a walk. `said`: what it became."""

    def __init__(self, place: int) -> None:
        self.place, self.count, self.said, self.line = place, -1, "", 0

    def _is_here(self, node: ast.stmt | ast.expr) -> bool:
        self.count += 1
        if self.count == self.place:
            self.line = node.lineno
        return self.count == self.place

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            first, node.body = node.body[0], node.body[1:]
            self.generic_visit(node)
            node.body = [first, *node.body]
            return node
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if (kind := OPPOSITES.get(type(node.ops[0]))) and self._is_here(node):
            self.said, node.ops[0] = kind.__name__, kind()
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self._is_here(node):
            node.op = OPPOSITES[type(node.op)]()
            self.said = type(node.op).__name__
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(node.op, ast.Mult)
        if (kind := OPPOSITES.get(type(node.op))) and not text and self._is_here(node):
            self.said, node.op = kind.__name__, kind()
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not) and self._is_here(node):
            self.said = "no not"
            return node.operand
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in NAMES and self._is_here(node):
            node.func.id = self.said = NAMES[node.func.id]
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Call) and "log" not in ast.unparse(node.value.func) and self._is_here(node):
            self.said = "no call"
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None and self._is_here(node):
            self.said, node.value = "None", ast.Constant(None)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) in (int, float, bool) and self._is_here(node):
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
            self.said = str(node.value)
        return node


def sample(folders: list[str], number: int, seed: int) -> Iterator[tuple[Path, int]]:
    """Files and places in them, every place as likely as any other."""
    places = []
    for file in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        every = Mutation(-2)
        every.visit(ast.parse(file.read_text(encoding="utf-8")))
        places += [(file, place) for place in range(every.count + 1)]
    yield from random.Random(seed).sample(places, number)


def rounds_of_tests(file: Path) -> Iterator[list[str]]:
    """Paths: of the tests of a module's folder; then of those that name the module."""
    path = file.relative_to(ROOT)
    folder = ROOT / "tests" / path.parent
    own = sorted(str(each.relative_to(ROOT)) for each in folder.glob("test_*.py"))
    yield own
    dotted = ".".join(path.with_suffix("").parts)
    words = (dotted.removeprefix("runtime.api."), f"from {dotted.rpartition('.')[0]} import {path.stem}")
    others = (each for each in (ROOT / "tests").rglob("test_*.py"))
    yield sorted(
        name
        for each in others
        if (name := str(each.relative_to(ROOT))) not in own
        and any(word in each.read_text(encoding="utf-8") for word in words)
    )
    yield ["tests/integration"]


def is_found(file: Path) -> bool:
    for paths in rounds_of_tests(file):
        if paths:
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", MARKS, *paths]
            try:
                done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return True
            if done.returncode not in (0, 5):
                return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = 0
    for number, (file, place) in enumerate(sample(given.folders, given.number, given.seed), start=1):
        text = file.read_text(encoding="utf-8")
        mutation = Mutation(place)
        changed = mutation.visit(ast.parse(text))
        try:
            file.write_text(ast.unparse(ast.fix_missing_locations(changed)), encoding="utf-8")
            is_killed = is_found(file)
        finally:
            file.write_text(text, encoding="utf-8")
        found += is_killed
        line = text.splitlines()[mutation.line - 1].strip()
        mark = "found" if is_killed else "NOT FOUND"
        print(f"{mark} {file.relative_to(ROOT)}:{mutation.line}: {mutation.said}: {line}", flush=True)
        print(f"  {found} of {number}", flush=True)


if __name__ == "__main__":
    main()
