"""Which room may import which: the arrows of the house, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import pytest
from helpers.paths import ROOT

ROOMS = ("runtime", "engine_build", "server", "profiling")
MAY_IMPORT = {"runtime": set(), "engine_build": {"runtime"}, "server": {"runtime"}, "profiling": {"runtime"}}

# Heavy packages and the only modules (or folders, with a slash) that import them.
HEAVY = {
    "onnxruntime": {
        "runtime/engines/onnxruntime.py",
        "engine_build/graphs/reference_session.py",
        "engine_build/export/torch_export.py",
        "engine_build/demo_model/",
    },
    "tensorrt": {"runtime/engines/tensorrt/library.py", "engine_build/build/tensorrt_compiler.py"},
    "cuda": {"runtime/devices/cuda_calls.py"},
    "nvtx": {"runtime/tick/clock.py"},
    "torch": {
        "engine_build/export/torch_export.py",
        "engine_build/export/masked_decoder.py",
        "profiling/bench/torch_baseline.py",
        "engine_build/export/acestep/",
        "engine_build/demo_model/",
    },
    "diffusers": {"engine_build/export/acestep/", "engine_build/demo_model/", "profiling/bench/torch_baseline.py"},
    "transformers": {"engine_build/export/acestep/"},
    "matplotlib": {"engine_build/demo_model/"},
    "tokenizers": {"runtime/pipeline/text_encoder.py", "engine_build/demo_model/"},
    "av": {"runtime/audio/decoding.py", "runtime/audio/encoding.py"},
    "soundfile": set(),
    "polygraphy": {"engine_build/build/verify.py"},
    "fastapi": {"server/"},
    "uvicorn": {"server/"},
}
SERVE_TIME = ("server.cli", "runtime.cli", "engine_build.cli", "profiling.bench_cli")


@dataclass(frozen=True)
class Import:
    """One import statement: the dotted name, the file and line, and whether it runs when the module is imported."""

    name: str
    file: str
    line: int
    at_import: bool


def imports_of(tree: ast.Module, file: str) -> Iterator[Import]:
    """Every import of a module: at the top, under TYPE_CHECKING, inside functions."""
    deferred = {id(child) for node in ast.walk(tree) if _is_deferred(node) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; name the room"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(name, file, node.lineno, id(node) not in deferred) for name in names)


def _is_deferred(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def wrong_arrows(imports: list[Import]) -> list[str]:
    """Imports between rooms that the house does not have."""
    found = []
    for item in imports:
        source, target = item.file.split("/")[0], item.name.split(".")[0]
        if target in ROOMS and target != source and target not in MAY_IMPORT[source]:
            found.append(f"{item.file}:{item.line}: {source} imports {item.name}")
    return found


def wrong_places(imports: list[Import]) -> list[str]:
    """Heavy imports outside of their module."""
    return [
        f"{item.file}:{item.line}: {item.name} belongs into {', '.join(sorted(places))}"
        for item in imports
        if (places := HEAVY.get(item.name.split(".")[0])) is not None
        and not any(item.file == place or (place.endswith("/") and item.file.startswith(place)) for place in places)
    ]


def module_graph(imports: list[Import], modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> our modules that it imports when it is imported. `modules`: dotted name -> file."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    by_file = {file: name for name, file in modules.items()}
    for item in imports:
        target = item.name if item.name in modules else item.name.rpartition(".")[0]
        if item.at_import and target in modules and target != by_file[item.file]:
            graph[by_file[item.file]].add(target)
    return graph


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One import cycle, empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def source_modules() -> dict[str, str]:
    """Dotted name -> file, for every module of the four rooms."""
    files = [file.relative_to(ROOT) for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    return {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file.as_posix() for file in files}


def source_imports() -> list[Import]:
    """Every import of the four rooms."""
    return [
        item
        for file in source_modules().values()
        for item in imports_of(ast.parse((ROOT / file).read_text(encoding="utf-8")), file)
    ]


def parsed(file: str, source: str) -> list[Import]:
    return list(imports_of(ast.parse(source), file))


def test_every_room_has_modules() -> None:
    assert {name.split(".")[0] for name in source_modules()} == set(ROOMS)
    assert len(source_imports()) > 100


def test_rooms_import_only_the_runtime() -> None:
    assert wrong_arrows(source_imports()) == []


def test_heavy_packages_are_imported_in_their_own_modules() -> None:
    assert wrong_places(source_imports()) == []


def test_no_import_cycle() -> None:
    assert cycle(module_graph(source_imports(), source_modules())) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("runtime/tick/loop.py", "from server.app import build"),
        ("runtime/tick/loop.py", "def f():\n    import profiling.bench_cli"),
        ("server/app.py", "from engine_build import builder"),
        ("server/app.py", "from profiling import bench"),
        ("profiling/bench_cli.py", "import server"),
    ],
)
def test_a_wrong_arrow_is_found(file: str, source: str) -> None:
    assert len(wrong_arrows(parsed(file, source))) == 1


def test_a_heavy_import_in_a_function_is_found() -> None:
    assert wrong_places(parsed("runtime/audio/codec.py", "def f():\n    import torch.nn"))
    assert not wrong_places(parsed("engine_build/demo_model/model.py", "import torch"))


def test_a_cycle_is_found() -> None:
    modules = {"runtime.a": "runtime/a.py", "runtime.b": "runtime/b.py"}
    there = parsed("runtime/a.py", "from runtime.b import thing")
    assert cycle(module_graph(there + parsed("runtime/b.py", "import runtime.a"), modules))
    deferred = parsed("runtime/b.py", "def f():\n    import runtime.a")
    assert not cycle(module_graph(there + deferred, modules))


def test_nothing_at_serve_time_imports_torch() -> None:
    program = "import sys; sys.modules.update(torch=None, diffusers=None, onnxscript=None)\n" + "\n".join(
        f"import {module}" for module in SERVE_TIME
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_runtime_opens_without_any_engine_library() -> None:
    blocked = ", ".join(f"{name}=None" for name in ("onnxruntime", "tensorrt", "cuda", "torch", "nvtx"))
    program = f"import sys; sys.modules.update({blocked})\nimport runtime.tick.loop, runtime.devices.device"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
