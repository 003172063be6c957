"""mypy over our modules with stubs of the real packages, and attributes that do not exist for it to find."""

from __future__ import annotations

import ast
import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from helpers.paths import ROOT

PACKAGES = ("runtime", "engine_build", "server", "profiling")
IMPORT = re.compile(
    r"^\s*(?:from|import) (?:tensorrt(?:_rtx)?|cuda|nvtx|runtime\.engines\.tensorrt\.binding import (?:\w+, )*trt)\b",
    re.MULTILINE,
)
CONFIG = """[mypy]
strict = True
warn_unused_ignores = False
[mypy-tensorrt.*,tensorrt_rtx.*,cuda.*,nvtx.*]
ignore_errors = True
[mypy-av.*,onnx.*,onnxruntime.*,openvino.*,polygraphy.*,safetensors.*,soundfile.*,tokenizers.*]
ignore_missing_imports = True
follow_imports = skip
"""
PROBE = """from typing import TypeVar
T = TypeVar("T")
def existing_of(existing: T, made_up: object) -> T: return existing
"""


class TypeCheck:
    """Runs mypy in a copy of our packages. `stubs(version)` is a folder of stubs, `sources` the modules that import
    what they describe."""

    def __init__(self, folder: Path, stubs: Callable[[str], Path]) -> None:
        self._folder, self._stubs = folder, stubs
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in (("mypy.ini", CONFIG), ("probes.py", PROBE)):
            (folder / name).write_text(text, encoding="utf-8")
        files = [path for package in PACKAGES for path in sorted((folder / package).rglob("*.py"))]
        texts = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}
        self.sources = {path: text for path, text in texts.items() if IMPORT.search(text)}

    def errors(self, version: str, sources: Mapping[str, str]) -> list[str]:
        """The errors in modules (path -> text) and in what they import: "path:line: error: text  [code]"."""
        for path, text in sources.items():
            (self._folder / path).write_text(text, encoding="utf-8")
        cache = f"--cache-dir={ROOT / '.mypy_cache' / 'contract'}"
        command = [sys.executable, "-m", "mypy", "--no-error-summary", cache, *sources]
        environment = {**os.environ, "MYPYPATH": str(self._stubs(version))}
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if ": error: " in line]


class Probes(ast.NodeTransformer):
    """Beside every attribute with one of these names, reads one that does not exist: `x.shape` becomes
    `existing_of(x.shape, x.shape_probe_7)`, of the same type. mypy finds each, unless the type of `x` is not known.

    Annotations and base classes stay: a name that does not exist is always an error there.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.made_up: dict[str, str] = {}

    def insert(self, text: str, path: str) -> str:
        """A module's text with probes; `made_up` gets their names and what they stand beside."""
        self._path = path
        tree = self.visit(ast.parse(text))
        at = next(index for index, node in enumerate(tree.body) if "import" in ast.unparse(node))
        tree.body.insert(at + 1, ast.parse("from probes import existing_of").body[0])
        return ast.unparse(ast.fix_missing_locations(tree))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        probe = self._probe(node) if isinstance(node.ctx, ast.Load) else None
        self.generic_visit(node)
        if probe is None:
            return node
        return ast.Call(ast.Name("existing_of", ast.Load()), [node, probe], [])

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        probes = [self._probe(target) for target in node.targets if isinstance(target, ast.Attribute)]
        self.generic_visit(node)
        return [*(ast.Expr(probe) for probe in probes if probe is not None), node]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._visit_body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self._visit_body(node)

    def _visit_body(self, node: ast.FunctionDef | ast.ClassDef) -> Any:
        body = [self.visit(statement) for statement in node.body]
        node.body = [item for found in body for item in (found if isinstance(found, list) else [found])]
        return node

    def _probe(self, node: ast.Attribute) -> ast.Attribute | None:
        if node.attr not in self._names:
            return None
        name = f"{node.attr}_probe_{len(self.made_up)}"
        self.made_up[name] = f"{self._path}: {ast.unparse(node)}"
        return ast.Attribute(copy.deepcopy(node.value), name, ast.Load())
