"""Building plans, on the simulated GPU, with both versions of TensorRT."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.factories import TinySpec, tiny_decoder, tiny_deployment
from onnx import helper, numpy_helper
from simulator.fixture import child_environment, simulated

from engine_build.build.builder import build_engine
from engine_build.build.engine_folder import locked
from engine_build.build.environment import place_of
from engine_build.build.rebuild_check import decide
from engine_build.build.worker import BuildLog
from engine_build.config import load_request
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import Manifest, verify_file
from runtime.engines.tensorrt.plan_file import read_plan_header
from runtime.errors import BuildError

VERSIONS = ("10.16.1.11", "11.4.0.106")
FEW = '[build]\nstep_variants = ["plain"]\n'

Build = Callable[..., Manifest]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which TensorRT is simulated."""
    monkeypatch.setenv("SIMULATED_TENSORRT", request.param)
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, more=FEW)


@pytest.fixture
def gpu() -> Iterator[None]:
    """A simulated GPU in this process; build processes have one of their own, with the same options."""
    with simulated():
        yield


@pytest.fixture
def build_one(gpu: None) -> Build:
    """`build_one(path)` builds one engine of a deployment; `log` takes what the builder said."""

    def build(path: Path, name: str = "decoder", log: BuildLog | None = None) -> Manifest:
        request = load_request(path)
        place = place_of("tensorrt", request.options)
        folder = request.deployment.engine_folder("tensorrt")
        with locked(folder):
            decisions = {item.job.name: item for item in decide(request, "tensorrt", place=place)}
            return build_engine(decisions[name], request, folder, place, log)

    return build


def with_option(path: Path, line: str) -> Path:
    path.write_text(path.read_text() + line + "\n")
    return path


def folder_of(path: Path) -> Path:
    return load_deployment(path).engine_folder("tensorrt")


def command(path: Path, *more: str, **options: str) -> subprocess.CompletedProcess[str]:
    """tickrt-build on the simulator."""
    words = [sys.executable, "-m", "engine_build.cli", *more, str(path), "--target", "tensorrt"]
    environment = child_environment(**options)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


def faults(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    monkeypatch.setenv("SIMULATED_FAULTS", json.dumps(found))


def test_a_deployment_is_built_and_reused(tmp_path: Path) -> None:
    version = VERSIONS[-1]
    path = tiny_deployment(tmp_path, codec=False, text_encoder=False, more=FEW)
    first = command(path, SIMULATED_TENSORRT=version)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1].startswith("7 built")
    again = command(path, SIMULATED_TENSORRT=version)
    assert again.stdout.splitlines()[-1].startswith("7 reused")
    for file in folder_of(path).glob("*.plan"):
        assert read_plan_header(file).version_text == version
    other = command(path, "--dry-run", SIMULATED_TENSORRT="11.0.0.114")
    assert other.stdout.count(f"tool_versions.tensorrt is '{version}', wanted '11.0.0.114'") == 7


def test_a_manifest_says_all_of_it(path: Path, version: str, build_one: Build) -> None:
    manifest = build_one(path)
    assert manifest.tool_versions == {"tensorrt": version}
    assert manifest.device == {"arch": os.uname().machine, "gpu": "Simulated GPU", "compute_capability": "9.0"}
    assert manifest.build["profiles"][0]["hidden_states"] == "1x2x8 4x32x8 8x64x8"
    assert manifest.build["profiles"][0]["encoder_hidden_states"] == "1x1x12 4x8x12 8x32x12"
    assert manifest.error["max_rel"] <= manifest.build["tolerance"] == 1e-3
    facts = manifest.facts
    assert facts["flags"] == ["STRONGLY_TYPED"] or facts["flags"] == []
    assert facts["versions"]["tensorrt"] == version
    assert facts["memory_bytes"] > 0
    assert facts["tried_shapes"] == facts["compared_shapes"] == 4
    assert {"driver", "cuda", "sm_count"} <= set(facts)
    verify_file(manifest, folder_of(path))
    assert {file.suffix for file in folder_of(path).iterdir()} == {".plan", ".json"}


def test_options_reach_the_builder(path: Path, version: str, build_one: Build) -> None:
    with_option(path, 'refit = true\ntf32 = true\nversion_compatible = true\nverbosity = "detailed"')
    with_option(path, 'hardware_compatibility = "ampere_plus"\nmax_aux_streams = 0\nworkspace_mib = 64')
    manifest = build_one(path)
    assert {"REFIT", "TF32", "VERSION_COMPATIBLE"} <= set(manifest.facts["flags"])
    assert manifest.device == {"arch": os.uname().machine}
    plan = (folder_of(path) / "decoder.plan").read_bytes()
    for word in (b'"DETAILED"', b'"AMPERE_PLUS"', b'"VERSION_COMPATIBLE"', b'"aux_streams": 0'):
        assert word in plan
    assert "TF32" not in build_one(path, "rows.plain").facts["flags"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("optimization_level = 6", "optimization_level: .*less than or equal to 5"),
        ("workspace_mib = 0", "workspace_mib: .*greater than or equal to 1"),
        ('verbosity = "loud"', "verbosity: .*'none', 'layer_names' or 'detailed'"),
        ('precision = "int8"', "precision: .*'fp32', 'fp16' or 'bf16'"),
        ("max_aux_streams = -1", "max_aux_streams: .*greater than or equal to 0"),
        ("timing_cash = true", "timing_cash: Extra inputs are not permitted"),
    ],
)
def test_wrong_options_are_named(path: Path, line: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        load_request(with_option(path, line))


def test_every_shape_range_is_a_profile(path: Path, build_one: Build) -> None:
    more = "[[shapes]]\nrows = { min = 9, opt = 9, max = 16 }\nframes = { min = 2, opt = 2, max = 8 }\n"
    text = path.read_text().replace("[runtime]", f"{more}tokens = {{ min = 1, opt = 1, max = 4 }}\n\n[runtime]")
    path.write_text(text)
    profiles = build_one(path).build["profiles"]
    assert [profile["hidden_states"] for profile in profiles] == ["1x2x8 4x32x8 8x64x8", "9x2x8 9x2x8 16x8x8"]


def test_low_precision_has_its_own_tolerance_and_error(path: Path, build_one: Build) -> None:
    manifest = build_one(with_option(path, 'precision = "bf16"'))
    assert 1e-4 < manifest.error["max_rel"] <= manifest.build["tolerance"]
    assert manifest.build["precision"] == "bf16"
    assert build_one(path, "rows.plain").build["precision"] == "fp32"
    assert build_one(path, "codec_decode").build["precision"] == "fp32"


def test_weights_in_files_of_their_own_are_found(path: Path, build_one: Build) -> None:
    file = load_deployment(path).bundle / "decoder.onnx"
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="decoder.weights", size_threshold=64)
    assert build_one(path).error["max_rel"] <= 1e-5
    assert build_one(with_option(path, 'precision = "fp16"')).error["max_rel"] > 0


def test_a_crash_is_an_error_message(path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    faults(monkeypatch, build_crash=True)
    with pytest.raises(BuildError, match="ended with signal SIGSEGV; it last said: ") as caught:
        build_one(path)
    assert "same command again" in caught.value.fix
    assert list(folder_of(path).iterdir()) == []
    monkeypatch.delenv("SIMULATED_FAULTS")
    assert build_one(path).name == "decoder"


def test_a_failed_build_says_what_tensorrt_said(path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    faults(monkeypatch, build_fails="Could not find any implementation for node {ForeignNode[a...b]}")
    with pytest.raises(BuildError, match=r"could not build .*Error Code 4: Could not find any implementation for node"):
        build_one(path)
    assert list(folder_of(path).iterdir()) == []


def test_an_operator_that_the_parser_lacks_is_named(path: Path, build_one: Build) -> None:
    file = load_deployment(path).bundle / "decoder.onnx"
    model = onnx.load(file)
    node = helper.make_node("Unique", ["timestep"], ["strange"], name="the_strange_one")
    model.graph.node.append(node)
    onnx.save(model, file)
    with pytest.raises(BuildError, match=r"does not take .*'the_strange_one' \(Unique\)"):
        build_one(path)


def test_an_engine_that_computes_something_else_is_refused(
    path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_build.build import tensorrt_target

    compile_plan = tensorrt_target.compile_plan

    def another_model(process: Any, decision: Any, graph: Any, engine: Path, *more: Any) -> dict[str, Any]:
        other = engine.parent.parent / "other.onnx"
        onnx.save(tiny_decoder(TinySpec(seed=9)), other)
        return compile_plan(process, decision, type(graph)(other, "", 0, 0, (), ()), engine, *more)

    monkeypatch.setattr(tensorrt_target, "compile_plan", another_model)
    with pytest.raises(BuildError, match=r"is off by .* of its largest output, expected at most 0\.001"):
        build_one(path)
    assert not list(folder_of(path).glob("decoder*"))


def test_values_that_are_not_finite_are_refused(path: Path, build_one: Build) -> None:
    file = load_deployment(path).bundle / "decoder.onnx"
    model = onnx.load(file)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w_out")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * float("nan"), "w_out"))
    onnx.save(model, file)
    with pytest.raises(BuildError, match=r"decoder: velocity at .*: values that are not finite"):
        build_one(path)


def test_noise_is_summed_up(path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_SKIPPED_TACTICS", "12")
    log = BuildLog()
    build_one(path, log=log)
    assert log.summary() == ["12 tactics were skipped, mostly for want of memory: others are used"]


def cache_of(path: Path) -> list[Path]:
    return sorted((load_deployment(path).engines / "timing-cache").glob("*.timing"))


def test_times_are_kept_per_version_and_device(path: Path, build_one: Build) -> None:
    build_one(path)
    (first,) = cache_of(path)
    assert first.name == f"tensorrt-{VERSIONS[-1]}-simulated-gpu-cc9.0.timing"
    entries = set(json.loads(first.read_bytes())["entries"])
    build_one(path, "rows.plain")
    assert set(json.loads(first.read_bytes())["entries"]) > entries
    assert oct(first.stat().st_mode)[-3:] == "644"


def test_a_damaged_timing_cache_is_set_aside(path: Path, build_one: Build) -> None:
    build_one(path)
    (cache,) = cache_of(path)
    cache.write_bytes(b"damaged")
    log = BuildLog()
    build_one(path, log=log)
    assert any("timing cache was damaged" in line for line in log.summary())
    assert cache.with_name(f"{cache.name}.damaged").read_bytes() == b"damaged"
    assert json.loads(cache.read_bytes())["entries"]


def test_a_deployment_may_name_or_refuse_a_timing_cache(path: Path, build_one: Build, tmp_path: Path) -> None:
    build_one(with_option(path, "timing_cache = false"))
    assert cache_of(path) == []
    path.write_text(path.read_text().replace("timing_cache = false", 'timing_cache = "times"'))
    build_one(path)
    assert cache_of(path) == []
    assert len(list((tmp_path / "times").glob("*.timing"))) == 1


@pytest.mark.parametrize("seconds", ["60", "4000"], ids=["at the next step", "no step comes"])
def test_ctrl_c_ends_a_build_within_two_seconds(path: Path, seconds: str) -> None:
    words = [sys.executable, "-m", "engine_build.cli", str(path), "--target", "tensorrt"]
    environment = child_environment(SIMULATED_BUILD_S=seconds)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, text=True, **pipes) as process:
        deadline = time.monotonic() + 60
        while not list(folder_of(path).glob("decoder*.partial/decoder.plan")) and time.monotonic() < deadline:
            time.sleep(0.05)
        children = children_of(process.pid)
        assert children
        process.send_signal(signal.SIGINT)
        asked_at = time.monotonic()
        _, stderr = process.communicate(timeout=30)
        took_s = time.monotonic() - asked_at
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert took_s < 2.0
    assert not [child for child in children if is_running(child)]
    assert list(folder_of(path).iterdir()) == []


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()


def is_running(pid: str) -> bool:
    """Whether a process is there and not just waiting for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_build_process_ends_with_its_parent(path: Path) -> None:
    words = [sys.executable, "-m", "engine_build.cli", str(path), "--target", "tensorrt"]
    with subprocess.Popen(words, env=child_environment(SIMULATED_BUILD_S="20"), stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not children_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        children = children_of(process.pid)
        process.kill()
    deadline = time.monotonic() + 20
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children
    assert not [child for child in children if is_running(child)]


def test_without_a_driver_nothing_is_begun(path: Path) -> None:
    result = command(path, SIMULATED_NO_DRIVER="1")
    assert result.returncode == 3
    assert "no NVIDIA driver" in result.stderr
    assert "fix: " in result.stderr
    assert "--target cpu" in result.stderr
    assert not folder_of(path).exists()
    dry = command(path, "--dry-run", SIMULATED_NO_DRIVER="1")
    assert dry.returncode == 0
    assert "missing here: an NVIDIA GPU" in dry.stdout


def test_a_disk_that_takes_no_more_is_said(path: Path) -> None:
    words = [sys.executable, "-m", "engine_build.cli", str(path), "--target", "tensorrt"]

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    options: dict[str, Any] = {"env": child_environment(), "preexec_fn": small_files_only}
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **options)
    assert result.returncode == 3
    assert "decoder.plan cannot be written: File too large" in result.stderr
    assert list(folder_of(path).iterdir()) == []
