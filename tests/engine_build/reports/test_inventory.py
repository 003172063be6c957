"""tickrt-build list, inspect and clean: built engines, whether they run here, what is removed."""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from rich.console import Console
from typer.testing import CliRunner, Result

from engine_build.cli import app
from engine_build.compile import environment as environment
from engine_build.compile.builder import build, build_deployment
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import BuildEnvironment, probe_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.reports import inventory
from engine_build.reports.console import UNMEASURED, ConsoleReport, print_decisions, print_inspection, size
from engine_build.reports.dry_run import ranges_without_bundle
from engine_build.request import load_request, read_options
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError
from runtime.commands.terminal import EXIT_INTERRUPTED
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import (
    EngineMeasurement,
    Manifest,
    file_sha256,
    manifest_path,
    read_manifest,
    write_manifest,
)
from runtime.engines.tensorrt.engine_file import HEADER_BYTES

FEW = '[build]\nstep_variants = ["plain"]\n'
GPU = {"arch": "x86_64", "gpu": "NVIDIA H200", "compute_capability": "9.0"}
TRT = {"tensorrt": "11.4.0.106"}
HERE = BuildEnvironment(tool_versions=TRT, device=GPU, facts={"gpu": "NVIDIA H200", "compute_capability": "9.0"})


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment, built for cpu; tests copy its folder."""
    path = tiny_deployment(tmp_path_factory.mktemp("built"), codec=False, text_encoder=False, more=FEW)
    build_deployment(load_deployment(path))
    return path


@pytest.fixture
def path(tmp_path: Path, built_once: Path) -> Path:
    """A deployment of the test's own, built for cpu."""
    shutil.copytree(built_once.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / built_once.name


@pytest.fixture
def plan(path: Path) -> Path:
    """A plan beside the cpu engines: the header is real, the rest is not."""
    folder = load_deployment(path).engine_folder("tensorrt")
    folder.mkdir(parents=True)
    file = folder / "decoder.plan"
    file.write_bytes(b"ftrt" + bytes(HEADER_BYTES - 8) + bytes([11, 4, 0, 106]) + b"content")
    cpu = read_manifest(manifest_path(load_deployment(path).engine_folder("cpu"), "decoder"))
    build = {"precision": "bf16", "profiles": [{"hidden_states": "1x2x8 4x32x8 8x64x8"}]}
    changes = {"target": "tensorrt", "tool_versions": TRT, "device": GPU, "build": build, "engine_file": file.name}
    sizes = {"engine_sha256": file_sha256(file), "size_bytes": file.stat().st_size, "facts": {"flags": ["REFIT"]}}
    manifest = Manifest.model_validate({**cpu.model_dump(), **changes, **sizes})
    write_manifest(manifest_path(folder, "decoder"), manifest)
    return file


def unusable_reason(plan: Path, environment: BuildEnvironment) -> str:
    (entry,) = inventory.entries(plan.parent, environment)
    return entry.unusable_reason


def test_an_engine_for_this_machine_has_no_reason(plan: Path) -> None:
    assert unusable_reason(plan, HERE) == ""


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (BuildEnvironment(TRT, {**GPU, "gpu": "NVIDIA L4"}), "built for gpu NVIDIA H200, this machine has NVIDIA L4"),
        (
            BuildEnvironment({"tensorrt": "10.16.1.11"}, GPU),
            "built for tensorrt 11.4.0.106, this machine has 10.16.1.11",
        ),
        (BuildEnvironment(missing=BuildError("there is no GPU", fix="buy one")), "there is no GPU"),
    ],
)
def test_an_engine_for_another_machine_has_a_reason(plan: Path, environment: BuildEnvironment, says: str) -> None:
    assert unusable_reason(plan, environment) == says


def test_version_compatible_plans_run_on_later_versions(plan: Path) -> None:
    path = manifest_path(plan.parent, "decoder")
    manifest = read_manifest(path)
    build = {**manifest.build, "version_compatible": True}
    write_manifest(path, manifest.model_copy(update={"build": build, "device": {"arch": GPU["arch"]}}))
    assert unusable_reason(plan, BuildEnvironment({"tensorrt": "11.5.0.1"}, {**GPU, "gpu": "NVIDIA L4"})) == ""


def test_damage_is_found_without_loading_an_engine(plan: Path) -> None:
    content = plan.read_bytes()
    for damaged, says in (
        (content[:-1], "the files have 34 bytes, the manifest says 35"),
        (b"x" + content[1:], "is not a TensorRT plan"),
        (content.replace(bytes([11, 4, 0, 106]), bytes([10, 16, 1, 11])), "was made by TensorRT 10.16.1.11"),
    ):
        plan.write_bytes(damaged)
        assert says in unusable_reason(plan, HERE)
    plan.unlink()
    assert unusable_reason(plan, HERE) == "decoder.plan is missing"
    manifest_path(plan.parent, "decoder").write_text("{")
    assert "is not a manifest" in unusable_reason(plan, HERE)


def test_list_shows_engines_and_whether_they_run(path: Path, plan: Path) -> None:
    result = invoke("list", path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if re.match(r"rows\.plain +cpu +x86_64, onnxruntime .* yes$", line)]
    assert [line for line in lines if re.match(r"decoder +tensorrt +x86_64, NVIDIA H200, 9.0, .* no \(1\)$", line)]
    assert [line for line in lines if line.startswith("(1) target tensorrt needs the package tensorrt")]
    assert re.match(r"10 engines, [\d.]+ KiB in .*; 9 of them run here$", lines[-1])
    assert UNMEASURED not in result.stdout
    of_plan = manifest_path(plan.parent, "decoder")
    write_manifest(of_plan, read_manifest(of_plan).model_copy(update={"error": {}}))
    assert UNMEASURED in invoke("list", path).stdout
    assert UNMEASURED not in invoke("list", path, "--target", "cpu").stdout
    of_plan.write_text("{")
    assert UNMEASURED not in invoke("list", path).stdout
    only = invoke("list", path, "--target", "tensorrt").stdout
    assert "cpu" not in only.splitlines()[1]


def test_the_error_is_that_of_the_build_or_what_a_machine_that_runs_the_engine_has_measured(plan: Path) -> None:
    measured = EngineMeasurement(engine_sha256=file_sha256(plan), error={"max_rel": 0.5}, measured_on="here")
    (entry,) = inventory.entries(plan.parent, HERE)
    assert entry.manifest is not None
    assert entry.error == entry.manifest.error != {}
    unmeasured = replace(entry, manifest=entry.manifest.model_copy(update={"error": {}}))
    assert unmeasured.error == {}
    assert replace(unmeasured, measurement=measured).error == {"max_rel": 0.5}
    assert replace(entry, manifest=None).error == {}


def test_list_as_json(path: Path, plan: Path) -> None:
    entries = json.loads(invoke("list", path, "--json").stdout)
    assert len(entries) == 10
    (found,) = [entry for entry in entries if entry["target"] == "tensorrt"]
    assert (found["name"], found["fits"], found["build"]["precision"]) == ("decoder", False, "bf16")
    assert found["why_not"]


def test_nothing_built_is_no_error(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    assert invoke("list", path).stdout.startswith("nothing is built in ")
    assert json.loads(invoke("list", path, "--json").stdout) == []
    assert invoke("clean", path).stdout.startswith("nothing to remove in ")


def test_inspect_shows_a_plan_and_its_manifest(plan: Path) -> None:
    result = invoke("inspect", plan)
    assert result.exit_code == 0
    for part in (
        "made by TensorRT 11.4.0.106", "engine    decoder, target tensorrt", "gpu NVIDIA H200", "precision bf16",
        "hidden_states float32[rows, frames, 8]", "1x2x8 .. 4x32x8 .. 8x64x8", "output    velocity", "max_rel", "REFIT",
    ):  # fmt: skip
        assert part in result.stdout
    about = json.loads(invoke("inspect", plan, "--json").stdout)
    assert about["plan_version"] == "11.4.0.106"
    assert about["manifest"]["facts"] == {"flags": ["REFIT"]}


def test_inspect_without_a_manifest_and_of_damaged_files(plan: Path, tmp_path: Path) -> None:
    copy = tmp_path / "some.plan"
    copy.write_bytes(plan.read_bytes())
    assert "none beside the file" in invoke("inspect", copy).stdout
    plan.write_bytes(plan.read_bytes()[:-1] + b"!")
    damaged = invoke("inspect", plan)
    assert damaged.exit_code == 3
    assert "SHA-256" in damaged.stderr
    copy.write_bytes(b"not a plan, but long enough for a header")
    assert "is not a TensorRT plan" in invoke("inspect", copy).stderr
    assert "no engine at" in invoke("inspect", tmp_path / "none.plan").stderr


def test_clean_removes_engines_and_leftovers_only(path: Path, plan: Path) -> None:
    folder = load_deployment(path).engine_folder()
    (folder / "notes.txt").write_text("mine")
    (folder / "other.onnx").write_bytes(b"no manifest: not ours")
    (folder / "decoder.abc.partial").mkdir()
    (folder / "decoder.abc.partial" / "decoder.onnx").write_bytes(b"half")
    (folder / "rows.gain.manifest.json").write_text("{")
    result = invoke("clean", path, "--target", "cpu", "--yes")
    assert result.exit_code == 0
    assert re.match(r"19 files removed, [\d.]+ KiB, from ", result.stdout)
    assert {file.name for file in folder.iterdir()} == {"notes.txt", "other.onnx"}
    assert plan.exists()


def test_clean_removes_kernels_that_were_compiled_for_the_engines(path: Path, plan: Path) -> None:
    engines = load_deployment(path).engines
    kernels = [engines / f"{name}.1.7.1.116-sm89.kernels" for name in ("tensorrt", "tensorrt-rtx")]
    for file in (*kernels, kernels[0].with_name(f"{kernels[0].name}.lock")):
        file.write_bytes(b"kernels")
    invoke("clean", path, "--yes", "--target", "cpu")
    assert all(file.exists() for file in kernels)
    invoke("clean", path, "--yes")
    assert [file.name for file in engines.iterdir()] == ["tensorrt-rtx.1.7.1.116-sm89.kernels"], "has no engines"


def test_clean_keeps_the_timing_cache_by_default(path: Path, plan: Path) -> None:
    times = load_deployment(path).engines / "timing-cache" / "tensorrt-11.4.0.106-gpu-cc9.0.timing"
    times.parent.mkdir()
    times.write_bytes(b"times")
    invoke("clean", path, "--yes")
    assert times.exists()
    invoke("clean", path, "--yes", "--timing-cache")
    assert not load_deployment(path).engines.exists()


def test_clean_asks_for_confirmation(path: Path) -> None:
    folder = load_deployment(path).engine_folder()
    before = sorted(folder.iterdir())
    refused = CliRunner().invoke(app, ["clean", str(path)], input="n\n")
    assert refused.exit_code == EXIT_INTERRUPTED
    assert sorted(folder.iterdir()) == before
    assert CliRunner().invoke(app, ["clean", str(path)], input="y\n").exit_code == 0
    assert not folder.exists()


def test_what_is_being_built_is_left_alone(path: Path, plan: Path) -> None:
    with locked(plan.parent):
        refused = invoke("clean", path, "--yes")
    assert (refused.exit_code, "another build is running" in refused.stderr) == (3, True)
    assert plan.exists()
    assert invoke("clean", path, "--yes").exit_code == 0
    assert not plan.exists()


@pytest.mark.parametrize(
    ("flags", "says"), [({"avx512_vnni"}, "int8, this processor has avx512_vnni"), (set(), "fp32")]
)
def test_list_says_what_auto_is_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: set[str], says: str
) -> None:
    monkeypatch.setattr("engine_build.config.cpu_flags", lambda: flags)
    path = tiny_deployment(tmp_path, more='[build]\nprecision = "auto"')
    load_deployment(path).engine_folder("cpu").mkdir(parents=True)
    assert f'precision = "auto" on the target cpu: {says}' in invoke("list", path).stdout
    path.write_text(path.read_text().replace('"auto"', '"fp32"'))
    assert '"auto"' not in invoke("list", path).stdout


def console(*, terminal: bool, width: int = 200) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=width, color_system=None), file


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, more='[build]\nstep_variants = ["plain"]\n')


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (74_800_000, "71.3 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_a_file_gets_plain_lines_one_per_engine(tiny: Path) -> None:
    out, file = console(terminal=False, width=40)
    report = ConsoleReport(out)
    build(load_request(tiny), report=report)
    report.summary("here", 1.25)
    lines = file.getvalue().splitlines()
    assert "\x1b" not in file.getvalue()
    assert len(lines) == 1 + 12 + 1
    assert lines[1].startswith("built ")
    assert lines[1].endswith("decoder  (not built yet)")
    assert lines[-1].startswith("12 built: ")
    assert lines[-1].endswith("in here, 1.2 s")


def test_reused_and_removed_engines_are_printed(tiny: Path) -> None:
    build(load_request(tiny))
    tiny.write_text(tiny.read_text().replace('["plain"]', "[]"))
    out, file = console(terminal=False)
    report = ConsoleReport(out)
    build(load_request(tiny), report=report)
    report.summary("here", 0.0)
    assert file.getvalue().count("\nreused ") == 11
    assert "step.plain  (the deployment no longer has it)" in file.getvalue()
    assert "11 reused, 1 removed" in file.getvalue()


def test_a_terminal_gets_a_spinner_with_the_last_known_time(tiny: Path) -> None:
    for force, last in ((False, "first time"), (True, "last time")):
        out, file = console(terminal=True)
        build(load_request(tiny), force=force, report=ConsoleReport(out))
        assert "building decoder" in file.getvalue()
        assert last in file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_of_a_dry_run(tiny: Path, terminal: bool) -> None:
    out, file = console(terminal=terminal)
    print_decisions(out, check_rebuilds(load_request(tiny), "cpu"), "there")
    text = file.getvalue()
    for part in ("engine", "memory", "decoder", "not built yet", "codec_encode", "total", "there", "KiB"):
        assert part in text
    assert text.count("build ") >= 10


def inspected(error: dict[str, float], **more: Any) -> list[str]:
    """The lines of `inspect` for an engine with this error in its manifest."""
    manifest = {
        "name": "decoder", "target": "tensorrt-rtx", "device": {}, "tool_versions": {"tensorrt-rtx": "1.7"},
        "graph_sha256": "ab" * 32, "build": {"precision": "bf16"}, "inputs": (), "outputs": (), "error": error,
        "build_s": 2.25, "built_on": "a CPU", "facts": {},
    }  # fmt: skip
    out, file = console(terminal=False)
    print_inspection(out, {"file": "decoder.plan", "size_bytes": 2048, "manifest": manifest, **more})
    return file.getvalue().splitlines()


def test_an_inspection_says_where_the_error_was_measured_or_that_it_was_not() -> None:
    own, elsewhere, nowhere = (
        inspected({"max_rel": 0.0125}),
        inspected({}, measured={"error": {"max_rel": 0.5}, "measured_on": "a card"}),
        inspected({}),
    )
    assert [line for line in own if line.startswith(("error", "measured", "facts"))] == ["error     max_rel 1.25e-02"]
    assert [line for line in elsewhere if line.startswith(("error", "measured"))] == [
        "measured  max_rel 5.00e-01, on a card"
    ]
    assert [line for line in nowhere if line.startswith(("error", "measured"))] == [f"measured  {UNMEASURED}"]
    assert nowhere[0] == "file      decoder.plan, 2.0 KiB"
    assert "built     in 2.2 s on a CPU" in nowhere


def test_a_note_is_printed_once_a_build() -> None:
    out, file = console(terminal=False)
    report = ConsoleReport(out)
    for text in ("one", "two", "one"):
        report.note(text)
    assert [line.split() for line in file.getvalue().splitlines()] == [["note:", "one"], ["note:", "two"]]


def test_what_a_build_does_for_long_is_told_unless_a_spinner_shows_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runtime.commands.progress.SILENT_S", 0.001)
    (decision, *_) = check_rebuilds(load_request(tiny), "cpu")

    def is_told(part: str) -> bool:
        """Within a time that no load exceeds."""
        end_s = time.monotonic() + 60.0
        while time.monotonic() < end_s:
            if part in capsys.readouterr().err:
                return True
        return False

    for terminal in (False, True):
        out, file = console(terminal=terminal)
        report = ConsoleReport(out)
        with report.telling():
            assert is_told("checking graphs and engines: 0 s so far")
            with report.building(decision):
                assert terminal or is_told("building decoder (first time): 0 s so far")
            assert is_told("checking graphs and engines: 0 s so far")
        assert ("building decoder" in file.getvalue()) == terminal


def dry_run(dry: Path) -> str:
    result = CliRunner().invoke(app, [str(dry), "--target", "tensorrt", "--dry-run"])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def dry(tmp_path: Path) -> Path:
    more = '[build]\nstep_variants = ["plain"]\noptimization_level = 5\n'
    return tiny_deployment(tmp_path, channels=32, more=more)


def test_a_dry_run_shows_engines_ranges_and_options(dry: Path) -> None:
    text = dry_run(dry)
    for part in (
        "decoder ", "not built yet", "rows 1..4..8, frames 2..32..64, tokens 1..8..32",
        "slots 1..4..4, rows 1..8..128, frames 2..32..64", "optimization_level = 5", "refit = false",
        "workspace_mib = TensorRT's choice", "missing here: ", "package tensorrt", "pip install 'tickrt[tensorrt]'",
    ):  # fmt: skip
        assert part in text
    ranges = {line for line in text.splitlines() if line.startswith("    slots")}
    assert "    slots 1..4..4, rows 1..8..128, frames 2..32..64" in ranges, "without what is 1 in every tick"
    assert not (dry.parent / ".engines").exists()


def test_a_dry_run_shows_the_values_per_kind_of_engine(tmp_path: Path) -> None:
    more = '[build]\nprecision = { decoder = "bf16", codec = "fp16" }\nworkspace_mib.planner = 64\n'
    text = dry_run(tiny_deployment(tmp_path, more=more))
    assert "precision = decoder bf16, codec fp16, encoders fp32, planner fp32" in text
    assert "optimization_level = 3" in text
    assert "planner 64" in text


def test_without_the_bundle_a_dry_run_shows_known_ranges(dry: Path) -> None:
    whole = dry_run(dry)
    (dry.parent / "tiny").rename(dry.parent / "elsewhere")
    text = dry_run(dry)
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
    dry = tiny_deployment(tmp_path, more=more, channels=32, conditions=True, planner={"draft": True}, adapters=True)
    deployment = load_deployment(dry)
    engines = {item.name: item.ranges for item in ranges_without_bundle(deployment, read_options(deployment))}
    specs = {spec.name: spec.ranges for spec in engine_specs(load_request(dry))}
    assert list(engines) == list(specs)
    known = {name: ranges for name, ranges in engines.items() if ranges is not None}
    assert known == {name: specs[name] for name in known}
    assert len(known) == 10 < len(specs)


def test_a_build_lists_all_missing_packages(dry: Path) -> None:
    result = CliRunner().invoke(app, [str(dry), "--target", "tensorrt"])
    assert result.exit_code == 3
    assert "package tensorrt, which is not installed; an NVIDIA GPU with its driver is needed" in result.stderr
    assert "fix: pip install 'tickrt[tensorrt]'" in result.stderr
    assert not (dry.parent / ".engines").exists()


def test_libraries_that_do_not_load_are_reported(dry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site" / "tensorrt"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("raise ImportError('libnvinfer.so.11: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(site.parent))
    found = probe_environment("tensorrt", read_options(load_deployment(dry)))
    assert found.missing is not None
    assert "its libraries do not load: libnvinfer.so.11" in found.missing.what
