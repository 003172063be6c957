"""A dry run for TensorRT without a GPU, without TensorRT, without the bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from typer.testing import CliRunner

from engine_build.cli import app
from engine_build.compile import environment as environment
from engine_build.compile.environment import probe_environment
from engine_build.reports.dry_run import ranges_without_bundle
from engine_build.request import load_request, read_options
from engine_build.specs.engine_specs import engine_specs
from runtime.config.deployment import load_deployment


def dry_run(path: Path) -> str:
    result = CliRunner().invoke(app, [str(path), "--target", "tensorrt", "--dry-run"])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    more = '[build]\nstep_variants = ["plain"]\noptimization_level = 5\n'
    return tiny_deployment(tmp_path, channels=32, more=more)


def test_a_dry_run_shows_engines_ranges_and_options(path: Path) -> None:
    text = dry_run(path)
    for part in (
        "decoder ", "not built yet", "rows 1..4..8, frames 2..32..64, tokens 1..8..32",
        "slots 1..4..4, rows 1..8..128, frames 2..32..64", "optimization_level = 5", "refit = false",
        "workspace_mib = TensorRT's choice", "missing here: ", "package tensorrt", "pip install 'tickrt[tensorrt]'",
    ):  # fmt: skip
        assert part in text
    ranges = {line for line in text.splitlines() if line.startswith("    slots")}
    assert "    slots 1..4..4, rows 1..8..128, frames 2..32..64" in ranges, "without what is 1 in every tick"
    assert not (path.parent / ".engines").exists()


def test_a_dry_run_shows_the_values_per_kind_of_engine(tmp_path: Path) -> None:
    more = '[build]\nprecision = { decoder = "bf16", codec = "fp16" }\nworkspace_mib.planner = 64\n'
    text = dry_run(tiny_deployment(tmp_path, more=more))
    assert "precision = decoder bf16, codec fp16, encoders fp32, planner fp32" in text
    assert "optimization_level = 3" in text
    assert "planner 64" in text


def test_without_the_bundle_a_dry_run_shows_known_ranges(path: Path) -> None:
    whole = dry_run(path)
    (path.parent / "tiny").rename(path.parent / "elsewhere")
    text = dry_run(path)
    for part in (
        "unknown without the bundle", "decoder", "codec_decode  (where the bundle has one)", "step.plain",
        "rows 1..4..8, frames 2..32..64, tokens 1..8..32", "no bundle at ", "engine_build.export",
        "optimization_level = 5", "missing here: ",
    ):  # fmt: skip
        assert part in text
    ranges = {line for line in whole.splitlines() if line.startswith("    slots")}
    assert ranges == {line for line in text.splitlines() if line.startswith("    slots")}


def test_without_a_bundle_engines_and_known_ranges_are_the_same(tmp_path: Path) -> None:
    more = 'adapter_rank = 16\n[build]\nstep_variants = ["plain"]\n'
    path = tiny_deployment(tmp_path, more=more, channels=32, conditions=True, planner={"draft": True}, adapters=True)
    deployment = load_deployment(path)
    engines = {item.name: item.ranges for item in ranges_without_bundle(deployment, read_options(deployment))}
    specs = {spec.name: spec.ranges for spec in engine_specs(load_request(path))}
    assert list(engines) == list(specs)
    known = {name: ranges for name, ranges in engines.items() if ranges is not None}
    assert known == {name: specs[name] for name in known}
    assert len(known) == 8 < len(specs)


def test_a_build_lists_all_missing_packages(path: Path) -> None:
    result = CliRunner().invoke(app, [str(path), "--target", "tensorrt"])
    assert result.exit_code == 3
    assert "package tensorrt, which is not installed; an NVIDIA GPU with its driver is needed" in result.stderr
    assert "fix: pip install 'tickrt[tensorrt]'" in result.stderr
    assert not (path.parent / ".engines").exists()


def test_libraries_that_do_not_load_are_reported(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site" / "tensorrt"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("raise ImportError('libnvinfer.so.11: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(site.parent))
    found = probe_environment("tensorrt", read_options(load_deployment(path)))
    assert found.missing is not None
    assert "its libraries do not load: libnvinfer.so.11" in found.missing.what


def test_the_cpu_still_needs_the_bundle(path: Path) -> None:
    (path.parent / "tiny").rename(path.parent / "elsewhere")
    result = CliRunner().invoke(app, [str(path), "--dry-run"])
    assert result.exit_code == 2
    assert "no bundle at" in result.stderr
