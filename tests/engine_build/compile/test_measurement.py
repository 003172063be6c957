"""Engines of tensorrt-rtx are measured on the first machine that runs them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from rich.console import Console

from engine_build.compile import builder, targets
from engine_build.compile.environment import BuildEnvironment
from engine_build.reports import inventory
from engine_build.reports.console import ConsoleReport, print_entries, print_inspection
from engine_build.request import load_request
from runtime.base.errors import BuildError
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import manifest_path, measurement_path, read_manifest, read_measurement, write_manifest

RELEASE = {"tensorrt-rtx": "1.7.1.116"}
ELSEWHERE = BuildEnvironment(RELEASE, {}, "a processor", cannot_run="there is no NVIDIA driver")
WITH_CARD = BuildEnvironment(RELEASE, {}, "another processor", {"gpu": "RTX 4090"})
ENGINES = 7

Build = Callable[..., list[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, codec=False, text_encoder=False, more='[build]\nstep_variants = ["plain"]\n')


@pytest.fixture
def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds for tensorrt-rtx on a machine of this environment; engines are compiled and run by ONNX Runtime."""
    monkeypatch.setitem(targets.COMPILERS, "tensorrt-rtx", targets.COMPILERS["cpu"])

    def build(environment: BuildEnvironment, **more: Any) -> list[str]:
        text = io.StringIO()
        report = ConsoleReport(Console(file=text, width=300))
        builder.build(load_request(path), target="tensorrt-rtx", report=report, environment=environment, **more)
        report.summary("engines", 0.0)
        return text.getvalue().splitlines()

    return build


def folder_of(path: Path) -> Path:
    return load_deployment(path).engine_folder("tensorrt-rtx")


def listed(path: Path, environment: BuildEnvironment) -> list[str]:
    text = io.StringIO()
    print_entries(Console(file=text, width=300), list(inventory.entries(folder_of(path), environment)), "engines")
    return text.getvalue().splitlines()


def inspected(path: Path) -> str:
    text = io.StringIO()
    print_inspection(Console(file=text, width=300), inventory.inspect(path))
    return text.getvalue()


def test_what_cannot_run_where_it_is_built_is_not_measured_and_says_so(path: Path, run: Build) -> None:
    lines = run(ELSEWHERE)
    assert f"{ENGINES} built" in lines[-1]
    (note,) = [line for line in lines if "not measured here" in line]
    assert "because there is no NVIDIA driver" in note
    assert note.endswith("--target tensorrt-rtx")
    manifest = read_manifest(manifest_path(folder_of(path), "decoder"))
    assert (manifest.error, manifest.device, manifest.tool_versions) == ({}, {}, RELEASE)
    table = [line.rstrip() for line in listed(path, ELSEWHERE)]
    assert table[-2].startswith("error -: not measured yet")
    assert "(1) there is no NVIDIA driver" in table
    assert "0 of them run here" in table[-1]
    assert "measured  error -: not measured yet" in inspected(folder_of(path) / "decoder.onnx")


def test_the_first_machine_that_runs_engines_measures_them(path: Path, run: Build) -> None:
    run(ELSEWHERE)
    folder = folder_of(path)
    engines = {file: file.read_bytes() for file in folder.iterdir()}
    lines = run(WITH_CARD)
    assert f"{ENGINES} reused, {ENGINES} measured" in lines[-1]
    assert not [line for line in lines if "not measured" in line]
    assert {file: file.read_bytes() for file in engines} == engines
    found = read_measurement(folder, read_manifest(manifest_path(folder, "decoder")))
    assert found is not None
    assert (set(found.error), found.measured_on) == ({"max_abs", "max_rel", "rms_rel"}, "RTX 4090")
    table = listed(path, WITH_CARD)
    assert not [line for line in table if "not measured" in line]
    assert f"{ENGINES} of them run here" in table[-1]
    assert "on RTX 4090" in inspected(folder / "decoder.onnx")
    assert f"{ENGINES} reused: " in run(WITH_CARD)[-1]
    assert not [line for line in run(ELSEWHERE) if "not measured" in line]


def test_a_measurement_is_of_one_engine_file(path: Path, run: Build) -> None:
    run(ELSEWHERE)
    run(WITH_CARD)
    folder = folder_of(path)
    manifest = read_manifest(manifest_path(folder, "decoder"))
    assert read_measurement(folder, manifest.model_copy(update={"engine_sha256": "0" * 64})) is None
    measurement_path(folder, "decoder").write_text("{")
    assert read_measurement(folder, manifest) is None
    assert f"{ENGINES} reused, 1 measured" in run(WITH_CARD)[-1]


def test_a_machine_that_runs_what_it_builds_measures_it_at_once(path: Path, run: Build) -> None:
    lines = run(WITH_CARD)
    assert f"{ENGINES} built: " in lines[-1]
    folder = folder_of(path)
    assert "max_rel" in read_manifest(manifest_path(folder, "decoder")).error
    assert not measurement_path(folder, "decoder").exists()


def test_an_engine_that_is_off_is_refused_when_it_is_measured(path: Path, run: Build) -> None:
    run(ELSEWHERE)
    folder = folder_of(path)
    manifest = read_manifest(manifest_path(folder, "decoder"))
    tight = {**manifest.build, "tolerance": 1e-12}
    path.write_text(path.read_text().replace("[build]", "[build]\ntolerance = 1e-12"))
    write_manifest(manifest_path(folder, "decoder"), manifest.model_copy(update={"build": tight}))
    with pytest.raises(BuildError, match="engine 'decoder' is off by"):
        run(WITH_CARD)
    assert not measurement_path(folder, "decoder").exists()


def test_measurements_go_with_their_engines(path: Path, run: Build) -> None:
    run(ELSEWHERE)
    run(WITH_CARD)
    inventory.clean(load_deployment(path), "tensorrt-rtx")
    assert not folder_of(path).exists()
