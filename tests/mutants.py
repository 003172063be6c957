"""A sample of mutants: small changes of random lines of the source, each of which some test should find.

    python tests/mutants.py runtime server --number 80 --seed 1 2

For each one the tests run that execute its line, then those of its folder; what no test finds is printed. Which they
are is recorded first, in ten minutes, and kept in build/ until a source or a test changes. What a test does in another
process is not seen. Where no test executes a line, or importing does, tests run that execute anything of its module or
name it. With --mirrored nothing is recorded: the tests of the same place run, then those that name the module, then
those of the folder; what they do not find, others still may. Exporters' tests run in .venv-export then, where that is.
It changes files of the tree that it lies in, one at a time, and restores them: run it in a copy.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).resolve().parents[1]
MARKS = "not export and not slow and not gpu and not page and not clients and not builder and not docs and not shipped"
EXPORT_MARKS = "not slow and not gpu and not builder and not page and not clients and not shipped and not docs"
EXPORT_PYTHON = ROOT / ".venv-export/bin/python"
# Tests that take longer hang.
NEARBY_S = 1800.0
PACKAGES = ["runtime", "server", "engine_build", "profiling"]
RECORD = ROOT / "build/mutants.coverage"
TIMES = RECORD.with_suffix(".json")
OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "first": "last", "ceil": "floor", "floor": "ceil"}


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


def tests_of(file: Path, text: str, line: int, times: dict[str, float]) -> list[set[str]]:
    """Tests: of a line; of the folder; where none is of the line, those that execute the module or name it."""
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    is_inside = any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)
    starts = [node.lineno for node in nodes if isinstance(node, ast.stmt | ast.ExceptHandler)]
    lines = range(max(start for start in starts if start <= line), line + 1) if is_inside else ()
    data = CoverageData(str(RECORD))
    data.read()
    tests = data.contexts_by_lineno(str(file.relative_to(ROOT)))
    of_line = {name for each in lines for name in tests.get(each, ()) if name}
    files = {name: name.split("::")[0] for name in times}
    of_folder = {name for name in times if Path(files[name]).parent == "tests" / file.parent.relative_to(ROOT)}
    if of_line:
        return [of_line, of_folder]
    naming = {
        name for name in set(files.values()) if f"{file.stem} import" in (ROOT / name).read_text(encoding="utf-8")
    }
    return [of_folder, {name for name in times if files[name] in naming}.union(*tests.values())]


def is_found(rounds: list[set[str]], times: dict[str, float]) -> bool:
    for number, tests in enumerate(rounds):
        chosen = {name: times[name] for name in tests.difference(*rounds[:number]) if name in times}
        command = [sys.executable, __file__, "--chosen"]
        given = json.dumps(chosen).encode()
        if chosen and subprocess.run(command, cwd=ROOT, input=given, capture_output=True).returncode:
            return True
    return False


def is_found_nearby(file: Path) -> bool:
    """Whether tests of the same place find it, or those that name the module, or those of the folder."""
    folder = ROOT / "tests" / file.parent.relative_to(ROOT)
    beside = set(folder.glob("test_*.py"))
    naming = {test for test in (ROOT / "tests").rglob("test_*.py") if f"{file.stem} import" in test.read_text("utf-8")}
    own = {test for test in beside if test.stem == f"test_{file.stem}"}
    is_export = file.is_relative_to(ROOT / "engine_build/export") and EXPORT_PYTHON.is_file()
    python, marks = (str(EXPORT_PYTHON), EXPORT_MARKS) if is_export else (sys.executable, MARKS)
    seen = set[Path]()
    for tests in (own, naming, beside):
        if chosen := sorted(tests - seen):
            command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks, *map(str, chosen)]
            try:
                found = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=NEARBY_S).returncode
            except subprocess.TimeoutExpired:
                return True  # it hangs
            if found not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                return True
        seen |= tests
    return False


class Recording:
    """Tells coverage which test runs, and takes the time of each test that passes."""

    def __init__(self) -> None:
        self.times, self.failed = Counter[str](), set[str]()
        self.coverage = Coverage(str(RECORD), source=PACKAGES, config_file=False)
        self.coverage.set_option("run:core", "ctrace")
        self.coverage.set_option("run:relative_files", True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.times[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


class Chosen:
    """Only tests that have a time; the quickest file's first, and in a file the quickest. One that hangs ends all."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.files = times, Counter[str]()
        for name, time_s in times.items():
            self.files[name.split("::")[0]] += time_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.times]
        items.sort(key=lambda item: (self.files[item.location[0]], item.location[0], self.times[item.nodeid]))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        signal.alarm(60 + int(10 * self.times[item.nodeid]))


def run_tests(arguments: list[str], plugin: Recording | Chosen) -> int:
    return pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", MARKS, *arguments], plugins=[plugin])


def run_chosen() -> None:
    """Runs the tests whose times come from standard input."""
    chosen = Chosen(json.load(sys.stdin))
    sys.exit(run_tests(list(chosen.files), chosen))


def record() -> None:
    recording = Recording()
    recording.coverage.erase()
    with recording.coverage.collect():
        run_tests(["--maxfail", "1000", "--ignore", "tests/configs"], recording)
    recording.coverage.save()
    times = {name: time_s for name, time_s in recording.times.items() if name not in recording.failed}
    TIMES.write_text(json.dumps({"files": files_hash(), "times": times}), encoding="utf-8")


def files_hash() -> str:
    files = sorted(file for folder in (*PACKAGES, "tests") for file in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def recorded_times() -> dict[str, float]:
    RECORD.parent.mkdir(exist_ok=True)
    if not TIMES.is_file() or json.loads(TIMES.read_text(encoding="utf-8"))["files"] != files_hash():
        subprocess.run([sys.executable, __file__, "--record"], cwd=ROOT, check=True)
    times: dict[str, float] = json.loads(TIMES.read_text(encoding="utf-8"))["times"]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mirrored", action="store_true")
    given = parser.parse_args()
    times = {} if given.mirrored else recorded_times()
    found = 0
    for number, (file, place) in enumerate(sample(given.folders, given.number, given.seed), start=1):
        text = file.read_text(encoding="utf-8")
        mutation = Mutation(place)
        changed = mutation.visit(ast.parse(text))
        rounds = [] if given.mirrored else tests_of(file, text, mutation.line, times)
        try:
            file.write_text(ast.unparse(ast.fix_missing_locations(changed)), encoding="utf-8")
            is_killed = is_found_nearby(file) if given.mirrored else is_found(rounds, times)
        finally:
            file.write_text(text, encoding="utf-8")
        found += is_killed
        line = text.splitlines()[mutation.line - 1].strip()
        mark = "found" if is_killed else "NOT FOUND"
        print(f"{mark} {file.relative_to(ROOT)}:{mutation.line}: {mutation.said}: {line}", flush=True)
        print(f"  {found} of {number}", flush=True)


if __name__ == "__main__":
    {"--record": record, "--chosen": run_chosen}.get(sys.argv[1], main)()
