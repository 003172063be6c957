"""What cannot be read or written now stays: every store, with a fault at every call that touches its files."""

from __future__ import annotations

import ast
import errno
import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.engine_behaviour import Bench, written
from helpers.paths import ROOT
from helpers.sources import store_of
from helpers.storage_faults import ERRNOS, faults
from helpers.store_contract import assert_same, snapshot
from simulator.fixture import Machine, simulated

from engine_build.compile.engine_folder import (
    locked,
    partial_folder,
    publish_engine,
    read_cache,
    remove_unwanted,
    updating,
)
from engine_build.compile.rebuild_check import _check_engine, _last_build
from engine_build.export.__main__ import _write_deployment
from engine_build.export.bundle_export import Steps, working_folder
from profiling.gpu_check import prepare
from profiling.gpu_check.unpack import unpack
from runtime.audio.formats import complete_file
from runtime.base.errors import TickError
from runtime.engines.loading import settle_kernels
from runtime.engines.manifest import (
    EngineMeasurement,
    Manifest,
    manifest_path,
    read_manifest,
    read_measurement,
    verify_file,
    write_atomically,
    write_manifest,
    write_measurement,
)
from runtime.engines.tensorrt.trials import Trial, crashed_levels, keep_trial, trial_of
from runtime.live.storage.sqlite_store import open_sqlite_store
from server.service.sources import SourceFolder
from server.service.temporary_folder import PREFIX, TemporaryFolder, remove_abandoned

PACKAGES = ("runtime", "server", "engine_build", "profiling")


@dataclass(frozen=True)
class Store:
    """A store of files: filled, used as the product does, and looked at once nothing fails any more.

    modules: those with the calls that remove or replace. use: may raise a TickError or OSError under faults.
    """

    name: str
    modules: tuple[str, ...]
    fill: Callable[[Path], None]
    use: Callable[[Path], None]
    check: Callable[[Path], None]


# Sources

SOURCES = [bytes([number]) * 40 for number in range(3)]
IDS = [hashlib.sha256(data).hexdigest() for data in SOURCES]


def fill_sources(folder: Path) -> None:
    sources = store_of(SourceFolder(folder))
    for data in SOURCES:
        sources.add(data)


def use_sources(folder: Path) -> None:
    sources = store_of(SourceFolder(folder))
    for source_id in IDS:
        with suppress(TickError):
            sources.latents(source_id)
    sources.add(b"new " * 10)


def check_sources(folder: Path) -> None:
    sources = store_of(SourceFolder(folder))
    assert [sources.data(source_id) for source_id in IDS] == SOURCES
    assert not list(folder.glob("*.part"))


# Sessions


def fill_sessions(folder: Path) -> None:
    with open_sqlite_store(folder) as store:
        for name in "ab":
            store.save(name, snapshot(1, canvas=1.0))


def use_sessions(folder: Path) -> None:
    with open_sqlite_store(folder) as store:
        store.ids()
        for name in "ab":
            with suppress(TickError):
                assert store.take(name) is not None, "None: there is none"
        store.save("a", snapshot(1, canvas=1.0))


def check_sessions(folder: Path) -> None:
    with open_sqlite_store(folder) as store:
        for name in "ab":
            assert_same(store.load(name), snapshot(1, canvas=1.0))
    assert not list(folder.glob("*unusable*"))


# Engines

ENGINE_MODULES = ("engine_build.compile.engine_folder", "runtime.engines.manifest")
DATA = b"weights"


CARD = {"gpu": "it"}


def crash_of(manifest: Manifest) -> Trial:
    return trial_of(manifest, CARD, "signal SIGSEGV")


def engine_manifest(engine: bytes) -> Manifest:
    return Manifest(
        name="decoder", target="cpu", tool_versions={}, device={}, graph_sha256="",
        build={"optimization_level": 3}, engine_file="decoder.onnx", engine_sha256=hashlib.sha256(engine).hexdigest(),
        data_files={"d.data": hashlib.sha256(DATA).hexdigest()},
        size_bytes=len(engine + DATA), inputs=(), outputs=(), error={}, build_s=0.0,
    )  # fmt: skip


def write_engine(folder: Path, engine: bytes) -> Manifest:
    manifest = engine_manifest(engine)
    (folder / "decoder.onnx").write_bytes(engine)
    (folder / "d.data").write_bytes(DATA)
    write_manifest(manifest_path(folder, "decoder"), manifest)
    return manifest


def fill_engines(folder: Path) -> None:
    engines = folder / "cpu"
    engines.mkdir()
    manifest = write_engine(engines, b"old")
    measurement = EngineMeasurement(engine_sha256=manifest.engine_sha256, error={"max_rel": 0.0}, measured_on="it")
    write_measurement(engines, "decoder", measurement)
    keep_trial(engines, "decoder", crash_of(manifest))


def use_engines(folder: Path) -> None:
    """An engine that is there is reused; one that is built anew takes its place."""
    engines, built = folder / "cpu", engine_manifest(b"old")
    spec: Any = SimpleNamespace(name="decoder", graph=SimpleNamespace(size_bytes=0))
    with locked(engines):
        with suppress(TickError):
            decision = _check_engine(spec, built, engines, *_last_build(engines, spec.name))
            if decision.last is None or decision.last.engine_sha256 == built.engine_sha256:
                assert decision.action == "reuse", decision.reason
        with suppress(TickError):
            assert read_measurement(engines, built) is not None
        with suppress(TickError):
            assert crashed_levels(built, engines, CARD) == {3}
        keep_trial(engines, "decoder", trial_of(built, CARD))
        with partial_folder(engines, "decoder") as partial:
            publish_engine(partial, engines, write_engine(partial, b"new"))
        decided: Any = [SimpleNamespace(spec=spec)]
        assert list(remove_unwanted(engines, decided)) == []


def check_engines(folder: Path) -> None:
    with locked(folder / "cpu"):
        pass  # it puts back what was being replaced
    assert [path.suffix for path in (folder / "cpu").iterdir() if path.is_dir()] == []
    manifest = read_manifest(manifest_path(folder / "cpu", "decoder"))
    verify_file(manifest, folder / "cpu")
    assert crashed_levels(manifest, folder / "cpu", CARD) == {3}, "else the server would end where it did before"
    if manifest.engine_sha256 == engine_manifest(b"old").engine_sha256:
        assert read_measurement(folder / "cpu", manifest) is not None


# Caches


def fill_times(folder: Path) -> None:
    write_atomically(folder / "cache.timing", b"times")


def use_times(folder: Path) -> None:
    path = folder / "cache.timing"
    with suppress(TickError):
        assert read_cache(path).startswith(b"times")
    with updating(path) as (data, replacement):
        replacement.append(data + b" more")


def check_times(folder: Path) -> None:
    assert read_cache(folder / "cache.timing").startswith(b"times")


def play(folder: Path) -> Machine:
    """One process, which compiles what has not been kept."""
    engines = folder / "engines"
    with simulated(rtx=True) as machine:
        if not engines.is_dir():
            written(engines)
        bench = Bench(engines)
        engine = bench.open()
        engine.bind(bench.tensors()).prepare(bench.stream)
        settle_kernels("tensorrt-rtx")
        bench.close()
    return machine


def check_kernels(folder: Path) -> None:
    assert play(folder).compiled == []


# Files of other kinds


def complete_export(folder: Path, *, until: int = 3) -> list[str]:
    """The steps that were run."""
    run = list[str]()

    def step(number: int) -> dict[str, Any]:
        if number == until:
            raise KeyboardInterrupt
        run.append(str(number))
        (partial / f"{number}.onnx").write_text(str(number))
        return {}

    with working_folder(folder / "bundle") as partial:
        steps = Steps(partial, "key")
        for number in range(3):
            steps.run(str(number), lambda number=number: step(number))  # type: ignore[misc]
        steps.close()
    return run


def fill_export(folder: Path) -> None:
    """A bundle, and one that is to take its place: interrupted in its last step."""
    (folder / "bundle").mkdir()
    (folder / "bundle" / "0.onnx").write_text("old")
    with suppress(KeyboardInterrupt):
        complete_export(folder, until=2)


def use_export(folder: Path) -> None:
    with suppress(TickError, OSError):
        assert complete_export(folder) in (["2"], []), "complete steps are not run again"


def check_export(folder: Path) -> None:
    with suppress(KeyboardInterrupt):  # it puts back what was being replaced
        complete_export(folder, until=2)
    texts = {path.name: path.read_text() for path in (folder / "bundle").iterdir()}
    if texts == {"0.onnx": "old"}:
        complete_export(folder)
        texts = {path.name: path.read_text() for path in (folder / "bundle").iterdir()}
    assert texts == {f"{number}.onnx": str(number) for number in range(3)}


def fill_file(folder: Path) -> None:
    (folder / "song.wav").write_bytes(b"old")
    (folder / "bundle.toml").write_text("mine")


def use_file(folder: Path) -> None:
    with suppress(TickError), complete_file(folder / "song.wav") as file:
        file.write(b"new")
    _write_deployment(folder / "bundle.toml", folder, lambda path: "other")


def check_file(folder: Path) -> None:
    assert (folder / "song.wav").read_bytes() in (b"old", b"new")
    assert (folder / "bundle.toml").read_text() == "mine"


_running = dict[Path, TemporaryFolder]()


def fill_temporary(folder: Path) -> None:
    import tempfile

    tempfile.tempdir, before = str(folder), tempfile.tempdir
    try:
        _running[folder] = TemporaryFolder("results")
    finally:
        tempfile.tempdir = before
    (_running[folder].path / "song.wav").write_bytes(b"song")


def check_temporary(folder: Path) -> None:
    remove_abandoned(folder)
    assert (_running[folder].path / "song.wav").read_bytes() == b"song"
    assert len(list(folder.glob(f"{PREFIX}*"))) == 1
    _running.pop(folder).close()


# Parts of a check of a GPU, and what they are joined to.

CARRIED = {"source/a": b"a" * 50, "source/file.rest": b"b" * 30}


def fill_parts(folder: Path) -> None:
    (folder / "from").mkdir()
    for name, data in CARRIED.items():
        (folder / "from" / Path(name).name).write_bytes(data)
    write_parts(folder)
    unpack(folder / "parts", folder / "dest")


def write_parts(folder: Path) -> None:
    (folder / "parts").mkdir(exist_ok=True)
    carried = {name: folder / "from" / Path(name).name for name in CARRIED}
    drawn = {"path": "source/file", "bytes": 30, "drawn": [], "sha256": hashlib.sha256(b"b" * 30).hexdigest()}
    here = {"python": "", "machine": ""}
    prepare.write_parts(folder / "parts", carried, {"weights": [drawn], "wheels": [], "missing": [], "machine": here})


def use_parts(folder: Path) -> None:
    (folder / "dest" / "source" / "a").write_bytes(b"")
    write_parts(folder)
    unpack(folder / "parts", folder / "dest")


def check_parts(folder: Path) -> None:
    assert unpack(folder / "parts", folder / "dest") == []
    assert {name: (folder / "dest" / name).read_bytes() for name in CARRIED} == CARRIED
    assert (folder / "dest" / "source" / "file").read_bytes() == b"b" * 30


STORES = [
    Store("sources", ("server.service.sources",), fill_sources, use_sources, check_sources),
    Store("sessions", ("runtime.base.files",), fill_sessions, use_sessions, check_sessions),
    Store("engines", ENGINE_MODULES, fill_engines, use_engines, check_engines),
    Store("timing cache", (), fill_times, use_times, check_times),
    Store("kernel cache", (), play, play, check_kernels),
    Store("export", ("engine_build.export.bundle_export",), fill_export, use_export, check_export),
    Store("files", ("runtime.audio.formats",), fill_file, use_file, check_file),
    Store("temporary folders", ("server.service.temporary_folder",), fill_temporary, remove_abandoned, check_temporary),
    Store("parts", ("profiling.gpu_check.unpack", "profiling.gpu_check.prepare"), fill_parts, use_parts, check_parts),
]  # fmt: skip


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_nothing_is_lost_to_a_fault(store: Store, tmp_path: Path) -> None:
    """The errors take turns."""
    inject(store, tmp_path, ERRNOS, stay=False)


@pytest.mark.slow
@pytest.mark.parametrize("stay", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", ERRNOS, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_nothing_is_lost_to_any_error(store: Store, code: int, stay: bool, tmp_path: Path) -> None:
    inject(store, tmp_path, [code], stay=stay)


def inject(store: Store, tmp_path: Path, codes: Sequence[int], *, stay: bool) -> None:
    """Use a store with a fault at its first call, its second, and so on, until there are no more calls."""
    for first in count(1):
        folder = tmp_path / str(first)
        folder.mkdir()
        store.fill(folder)
        with faults(folder, first, codes[first % len(codes)], stay=stay) as found:
            with suppress(TickError, OSError):
                store.use(folder)
            gc.collect(0)  # what a failure left open
        try:
            store.check(folder)
        except BaseException as error:
            error.add_note(f"after {', '.join(found.refused)}")
            raise
        if not found.refused:
            break
    assert first > 3


# Modules that remove, replace or write files of which none is kept from one start to the next, or that the user names
# for that; and why.
EXCUSED = {
    "runtime.audio.playback": "a temporary file of one playback",
    "server.protocols.acestep.tasks": "results in a temporary folder, which expire",
    "server.protocols.mcp.files": "results under random names; those that are kept are never removed",
    "server.cluster.local_cluster": "sockets",
    "server.service.shared_sources": "no files but keys of a Redis: tests/server/service/test_sources.py",
    "server.cluster.ray_cluster": "what a running cluster was started with",
    "engine_build.reports.inventory": "tickrt-build clean, which is asked to",
    "engine_build.shipping": "a new folder, refused where one has files",
    "engine_build.export.torch_export": "inside of an export's working folder",
}


def removals(module: Path) -> Iterator[str]:
    """The calls of a module that remove or rename files, or write text or bytes in their place."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, ast.unparse(node.func.value)
        is_path_replace = name == "replace" and (owner == "os" or (len(node.args) == 1 and not node.keywords))
        if is_path_replace or name in ("unlink", "rmtree", "rmdir", "rename") or f"{owner}.{name}" == "os.remove":
            yield f"{owner}.{name}, line {node.lineno}"


def test_every_module_that_removes_files_is_in_the_table() -> None:
    found = dict[str, list[str]]()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if calls := list(removals(path)):
                found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = calls
    known = {module for store in STORES for module in store.modules} | EXCUSED.keys()
    assert {module: calls for module, calls in found.items() if module not in known} == {}, "lacks a store, or a reason"
    assert known - found.keys() == set(), "removes nothing any more"
