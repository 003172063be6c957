"""Builds for the target cpu: engines run, are reused with a reason, and failures leave nothing."""

from __future__ import annotations

import io
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_decoder, tiny_deployment
from onnx import helper, numpy_helper
from rich.console import Console

from engine_build.compile import builder, engine_folder, targets
from engine_build.compile import rebuild_check as decisions
from engine_build.compile import targets as compilers
from engine_build.compile.builder import build, build_deployment
from engine_build.compile.environment import BuildEnvironment, build_environment
from engine_build.compile.rebuild_check import RebuildDecision, check_rebuilds
from engine_build.compile.targets import BuildTask
from engine_build.config import ALL_STEP_FEATURES
from engine_build.graphs import reference_session
from engine_build.reports import inventory
from engine_build.reports.console import ConsoleReport, print_entries, print_inspection
from engine_build.request import load_request
from runtime.base.errors import BuildError, EngineMismatchError
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.engine import run_once
from runtime.engines.loading import open_engine
from runtime.engines.manifest import (
    Manifest,
    manifest_path,
    measurement_path,
    read_manifest,
    read_measurement,
    verify_file,
    write_manifest,
)

FEW = '[build]\nstep_variants = ["plain"]\n'


class Notes:
    """A report that remembers."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.notes: list[str] = []

    @contextmanager
    def building(self, decision: RebuildDecision) -> Iterator[None]:
        yield

    def built(self, decision: RebuildDecision, manifest: Manifest) -> None:
        self.lines[decision.spec.name] = decision.reason

    def reused(self, decision: RebuildDecision) -> None:
        self.lines[decision.spec.name] = "reused"

    def measured(self, decision: RebuildDecision, error: Mapping[str, float]) -> None:
        self.lines[decision.spec.name] = "measured"

    def removed(self, name: str) -> None:
        self.lines[name] = "removed"

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def fresh(self) -> dict[str, str]:
        return {name: reason for name, reason in self.lines.items() if reason != "reused"}


def run(path: Path, **options: Any) -> dict[str, str]:
    """Build; gives what was not reused, with the reason."""
    notes = Notes()
    build(load_request(path), report=notes, **options)
    return notes.fresh


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment that is built once and only read."""
    deployment = load_deployment(tiny_deployment(tmp_path_factory.mktemp("shared")))
    build_deployment(deployment)
    return deployment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small deployment of the test's own."""
    return tiny_deployment(tmp_path, more=FEW)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The same small deployment, built once; tests copy its engines."""
    path = tiny_deployment(tmp_path_factory.mktemp("small"), more=FEW)
    run(path)
    return load_deployment(path)


@pytest.fixture
def folder(path: Path, small: Deployment) -> Path:
    """Its engines, built."""
    shutil.copytree(small.engines, load_deployment(path).engines)
    return load_deployment(path).engine_folder()


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_every_engine_opens_with_its_manifest(shared: Deployment) -> None:
    folder = shared.engine_folder()
    names = sorted(file.name.removesuffix(".manifest.json") for file in folder.glob("*.manifest.json"))
    assert sorted(file.name.removesuffix(".onnx") for file in folder.glob("*.onnx")) == names
    assert len(list(folder.iterdir())) == 2 * len(names) == 2 * 31
    for name in names:
        engine = open_engine(folder, name, open_device("cpu"), threads=1)
        manifest = engine.manifest
        assert (manifest.name, manifest.target) == (name, "cpu")
        assert manifest.error["max_rel"] <= 1e-5
        assert manifest.build_s >= 0
        assert set(manifest.tool_versions) == {"onnxruntime"}
        verify_file(manifest, folder)
        engine.close()


def test_a_second_build_reuses_everything(path: Path, folder: Path) -> None:
    before = snapshot(folder)
    assert run(path) == {}
    assert snapshot(folder) == before


def test_a_changed_graph_rebuilds_its_engine_only(path: Path, folder: Path) -> None:
    onnx.save(tiny_decoder(TinySpec(seed=5)), load_deployment(path).bundle / "decoder.onnx")
    assert run(path) == {"decoder": "the graph changed"}


def test_other_ranges_rebuild_the_decoder(path: Path, folder: Path) -> None:
    edit(path, "opt = 32, max = 64", "opt = 32, max = 48")
    fresh = run(path)
    assert list(fresh) == ["decoder"]
    assert fresh["decoder"].startswith("shapes is")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ('optimization = "basic"', "build.optimization is 'extended', wanted 'basic'"),
        ("tolerance = 1e-3", "build.tolerance is 0.0001, wanted 0.001"),
    ],
)
def test_other_options_rebuild_everything(path: Path, folder: Path, option: str, reason: str) -> None:
    path.write_text(path.read_text() + option + "\n")
    fresh = run(path)
    assert len(fresh) == 12
    assert all(reason in found for found in fresh.values())
    assert run(path) == {}


def test_threads_do_not_make_another_engine(path: Path, folder: Path) -> None:
    path.write_text(path.read_text() + "threads = 1\n")
    assert run(path) == {}


def test_another_onnx_runtime_rebuilds_everything(path: Path, folder: Path) -> None:
    here = build_environment("cpu", load_request(path).options)
    fresh = run(path, environment=replace(here, tool_versions={"onnxruntime": "99.0"}))
    assert len(fresh) == 12
    assert "tool_versions.onnxruntime" in fresh["decoder"]
    assert fresh["decoder"].endswith("wanted '99.0'")


def test_damaged_engines_are_rebuilt(path: Path, folder: Path) -> None:
    (folder / "text_encoder.manifest.json").write_text("{")
    (folder / "codec_decode.onnx").write_bytes(b"damaged")
    (folder / "codec_encode.onnx").unlink()
    (folder / "rows.gain.manifest.json").unlink()
    fresh = run(path)
    assert set(fresh) == {"text_encoder", "codec_decode", "codec_encode", "rows.gain"}
    assert "damaged" in fresh["text_encoder"]
    assert "SHA-256" in fresh["codec_decode"]
    assert "missing" in fresh["codec_encode"]
    assert fresh["rows.gain"] == "not built yet"
    assert run(path) == {}


def test_engines_that_are_no_longer_wanted_are_removed(path: Path, folder: Path) -> None:
    edit(path, '["plain"]', "[]")
    assert run(path) == {"step.plain": "removed"}
    assert not list(folder.glob("step.plain*"))
    assert (folder / f"step.{ALL_STEP_FEATURES}.onnx").exists()


def test_weights_of_a_data_file_go_into_another(path: Path) -> None:
    graph = load_deployment(path).bundle / "codec_decode.onnx"
    onnx.save(onnx.load(graph), graph, save_as_external_data=True, location="codec.data", size_threshold=1024)
    manifests = {manifest.name: manifest for manifest in build_deployment(load_deployment(path))}
    folder = load_deployment(path).engine_folder()
    assert set(manifests["codec_decode"].data_files) == {"codec_decode.onnx.data"}
    assert manifests["decoder"].data_files == {}
    files = [folder / "codec_decode.onnx", folder / "codec_decode.onnx.data"]
    assert manifests["codec_decode"].size_bytes == sum(file.stat().st_size for file in files)
    assert files[1].stat().st_size > 40_000 > files[0].stat().st_size
    engine = open_engine(folder, "codec_decode", open_device("cpu"), threads=1)
    audio = run_once(engine, {"latents": np.ones((1, 4, 8), np.float32), "start_frame": np.zeros(1, np.int64)})["audio"]
    assert np.isfinite(audio).all()
    assert np.abs(audio).max() > 0
    first = snapshot(folder)
    run(path, force=True)
    assert snapshot(folder)["codec_decode.onnx.data"][0] == first["codec_decode.onnx.data"][0]
    files[1].write_bytes(bytes(files[1].stat().st_size))
    with pytest.raises(EngineMismatchError, match=r"codec_decode\.onnx\.data"):
        open_engine(folder, "codec_decode", open_device("cpu"), threads=1)


def unknown_operator(file: Path) -> None:
    model = onnx.load(file)
    model.graph.node[0].domain = "com.example"
    model.graph.node[0].op_type = "Magic"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(model, file)


def weights_that_are_not_finite(file: Path) -> None:
    model = onnx.load(file)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w_out")
    weight.CopyFrom(numpy_helper.from_array(np.full(tuple(weight.dims), np.nan, np.float32), "w_out"))
    onnx.save(model, file)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (unknown_operator, "ONNX Runtime does not load .*decoder.onnx"),
        (weights_that_are_not_finite, "the graph gives values that are not finite"),
    ],
)
def test_a_graph_that_cannot_be_built_leaves_nothing(path: Path, damage: Any, says: str) -> None:
    damage(load_deployment(path).bundle / "decoder.onnx")
    with pytest.raises(BuildError, match=says) as caught:
        run(path)
    assert caught.value.fix
    assert list(load_deployment(path).engine_folder().iterdir()) == []


def test_a_full_disk_is_told_from_a_wrong_graph(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that may not grow are what a full disk is to ONNX Runtime, which says that the graph is wrong."""
    limit = (load_deployment(path).bundle / "decoder.onnx").stat().st_size // 2
    compile_cpu, limits = compilers.COMPILERS["cpu"].compile, resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_full_disk(task: BuildTask) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        return compile_cpu(task)

    table: Any = compilers.COMPILERS
    monkeypatch.setitem(table, "cpu", compilers.Compiler(".onnx", on_full_disk, table["cpu"].measure))
    try:
        with pytest.raises(BuildError, match=r"engine 'decoder' cannot be written to .*: File too large"):
            run(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(load_deployment(path).engine_folder().iterdir()) == []


def compile_something_else(task: BuildTask) -> dict[str, Any]:
    """A miscompilation: the engine is another model."""
    onnx.save(tiny_decoder(TinySpec(seed=9)), task.engine)
    return {}


def fail_half_way(task: BuildTask) -> dict[str, Any]:
    task.engine.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def interrupt(task: BuildTask) -> dict[str, Any]:
    task.engine.write_bytes(b"half")
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("compile_", "error", "says"),
    [
        (compile_something_else, BuildError, "is off by .* of its largest output, expected at most 0.0001"),
        (fail_half_way, BuildError, "cannot be written to .*: No space left"),
        (interrupt, KeyboardInterrupt, None),
    ],
)
def test_a_failure_leaves_the_folder_unchanged(
    path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    compile_: Any,
    error: type[BaseException],
    says: str | None,
) -> None:
    before = snapshot(folder)
    table: Any = compilers.COMPILERS
    monkeypatch.setitem(table, "cpu", compilers.Compiler(".onnx", compile_, table["cpu"].measure))
    with pytest.raises(error, match=says):
        run(path, force=True)
    assert snapshot(folder) == before
    monkeypatch.undo()
    assert run(path) == {}


def test_an_interruption_while_publishing_gives_the_engine_before_it_back(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder)
    published: list[str] = []

    def publish(partial: Path, final: Path) -> None:
        if published:
            raise KeyboardInterrupt
        published.append(final.name)
        partial.replace(final)

    monkeypatch.setattr(engine_folder, "publish", publish)
    with pytest.raises(KeyboardInterrupt):
        run(path, force=True)
    assert published == ["decoder.onnx"]
    assert snapshot(folder) == before
    monkeypatch.undo()
    assert run(path) == {}


def test_a_second_concurrent_build_is_refused(path: Path, folder: Path) -> None:
    with engine_folder.locked(folder), pytest.raises(BuildError, match="another build is running"):
        run(path)
    assert run(path) == {}


def test_a_folder_that_cannot_be_made_is_an_error(path: Path) -> None:
    (path.parent / ".engines").write_text("a file where a folder should be")
    with pytest.raises(BuildError, match=r"cannot use .*for engines"):
        run(path)


def test_without_onnx_runtime_the_error_has_the_install_command(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match="not installed") as caught:
        run(path)
    assert caught.value.fix == "pip install 'tickrt[cpu]'"


def test_decisions_count_files_and_memory(shared: Deployment) -> None:
    found = {decision.spec.name: decision for decision in check_rebuilds(load_request(shared.path), "cpu")}
    decoder = found["decoder"]
    assert decoder.size_bytes == (shared.engine_folder() / "decoder.onnx").stat().st_size
    rows, frames, tokens = 8, 64, 32
    tensors = 4 * rows * (frames * 8 + 1 + tokens * 12 + tokens + frames * 16 + frames * 8)
    assert decoder.memory_bytes == decoder.size_bytes + tensors
    steps = [decision for name, decision in found.items() if name.startswith("step.")]
    together = decisions.total_memory_bytes(steps)
    assert together < sum(decision.memory_bytes for decision in steps) / 4
    assert decisions.total_memory_bytes([decoder]) == decoder.memory_bytes
    assert decisions.total_memory_bytes([*steps, decoder]) == together + decoder.memory_bytes


RELEASE = {"tensorrt-rtx": "1.7.1.116"}
ELSEWHERE = BuildEnvironment(RELEASE, {}, "a processor", cannot_run="there is no NVIDIA driver")
WITH_CARD = BuildEnvironment(RELEASE, {}, "another processor", {"gpu": "RTX 4090"})
ENGINES = 9

Build = Callable[..., list[str]]


@pytest.fixture
def portable(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, codec=False, text_encoder=False, more='[build]\nstep_variants = ["plain"]\n')


@pytest.fixture
def build_rtx(portable: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds for tensorrt-rtx on a machine of this environment; engines are compiled and run by ONNX Runtime."""
    monkeypatch.setitem(targets.COMPILERS, "tensorrt-rtx", targets.COMPILERS["cpu"])

    def build(environment: BuildEnvironment, **more: Any) -> list[str]:
        text = io.StringIO()
        report = ConsoleReport(Console(file=text, width=300))
        builder.build(load_request(portable), target="tensorrt-rtx", report=report, environment=environment, **more)
        report.summary("engines", 0.0)
        return text.getvalue().splitlines()

    return build


def folder_of(portable: Path) -> Path:
    return load_deployment(portable).engine_folder("tensorrt-rtx")


def listed(portable: Path, environment: BuildEnvironment) -> list[str]:
    text = io.StringIO()
    print_entries(Console(file=text, width=300), list(inventory.entries(folder_of(portable), environment)), "engines")
    return text.getvalue().splitlines()


def inspected(portable: Path) -> str:
    text = io.StringIO()
    print_inspection(Console(file=text, width=300), inventory.inspect(portable))
    return text.getvalue()


def test_what_cannot_run_where_it_is_built_is_not_measured_and_says_so(portable: Path, build_rtx: Build) -> None:
    lines = build_rtx(ELSEWHERE)
    assert f"{ENGINES} built" in lines[-1]
    (note,) = [line for line in lines if "not measured here" in line]
    assert "because there is no NVIDIA driver" in note
    assert note.endswith("--target tensorrt-rtx")
    manifest = read_manifest(manifest_path(folder_of(portable), "decoder"))
    assert (manifest.error, manifest.device, manifest.tool_versions) == ({}, {}, RELEASE)
    table = [line.rstrip() for line in listed(portable, ELSEWHERE)]
    assert table[-2].startswith("error -: not measured yet")
    assert "(1) there is no NVIDIA driver" in table
    assert "0 of them run here" in table[-1]
    *_, note, last = build_rtx(ELSEWHERE)
    assert "not measured here" in note
    assert f"{ENGINES} reused: " in last
    assert "measured  error -: not measured yet" in inspected(folder_of(portable) / "decoder.onnx")


def test_the_first_machine_that_runs_engines_measures_them(portable: Path, build_rtx: Build) -> None:
    build_rtx(ELSEWHERE)
    folder = folder_of(portable)
    engines = {file: file.read_bytes() for file in folder.iterdir()}
    lines = build_rtx(WITH_CARD)
    assert f"{ENGINES} reused, {ENGINES} measured" in lines[-1]
    assert not [line for line in lines if "not measured" in line]
    assert {file: file.read_bytes() for file in engines} == engines
    found = read_measurement(folder, read_manifest(manifest_path(folder, "decoder")))
    assert found is not None
    assert (set(found.error), found.measured_on) == ({"max_abs", "max_rel", "rms_rel"}, "RTX 4090")
    table = listed(portable, WITH_CARD)
    assert not [line for line in table if "not measured" in line]
    assert f"{ENGINES} of them run here" in table[-1]
    assert "on RTX 4090" in inspected(folder / "decoder.onnx")
    assert f"{ENGINES} reused: " in build_rtx(WITH_CARD)[-1]
    assert not [line for line in build_rtx(ELSEWHERE) if "not measured" in line]


def test_a_measurement_is_of_one_engine_file(portable: Path, build_rtx: Build) -> None:
    build_rtx(ELSEWHERE)
    build_rtx(WITH_CARD)
    folder = folder_of(portable)
    manifest = read_manifest(manifest_path(folder, "decoder"))
    assert read_measurement(folder, manifest.model_copy(update={"engine_sha256": "0" * 64})) is None
    measurement_path(folder, "decoder").write_text("{")
    assert read_measurement(folder, manifest) is None
    assert f"{ENGINES} reused, 1 measured" in build_rtx(WITH_CARD)[-1]


def test_an_engine_that_is_off_is_refused_when_it_is_measured(portable: Path, build_rtx: Build) -> None:
    build_rtx(ELSEWHERE)
    folder = folder_of(portable)
    manifest = read_manifest(manifest_path(folder, "decoder"))
    tight = {**manifest.build, "tolerance": 1e-12}
    portable.write_text(portable.read_text().replace("[build]", "[build]\ntolerance = 1e-12"))
    write_manifest(manifest_path(folder, "decoder"), manifest.model_copy(update={"build": tight}))
    with pytest.raises(BuildError, match="engine 'decoder' is off by"):
        build_rtx(WITH_CARD)
    assert not measurement_path(folder, "decoder").exists()


def test_measurements_go_with_their_engines(portable: Path, build_rtx: Build) -> None:
    build_rtx(ELSEWHERE)
    build_rtx(WITH_CARD)
    inventory.clean(load_deployment(portable), "tensorrt-rtx")
    assert not folder_of(portable).exists()
