"""TensorRT's builder, simulated in both versions: options, profiles, parse errors, the timing cache."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.factories import cache_of, folder_of, with_option
from onnx import helper
from simulator.fixture import child_environment

from engine_build.compile.builder import Build as EngineBuild
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import BuildEnvironment, build_environment
from engine_build.compile.rebuild_check import NOISY, RebuildDecision, check_rebuilds
from engine_build.compile.tasks import compile_engine
from engine_build.compile.worker import BuildLog, CompileRequest, Worker
from engine_build.config import TENSORRT_OPTIONS, BuildConfig
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision import error
from engine_build.request import load_request
from runtime.base.errors import BuildError
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import Manifest, manifest_path
from runtime.engines.tensorrt.trials import first_executes, read_trials

Build = Callable[..., Manifest]


def faults(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    monkeypatch.setenv("SIMULATED_FAULTS", json.dumps(found))


def test_options_reach_the_builder(path: Path, version: str, build_one: Build) -> None:
    with_option(path, 'refit = true\nprecision = "tf32"\nversion_compatible = true\nverbosity = "detailed"')
    with_option(path, 'hardware_compatibility = "ampere_plus"\nworkspace_mib = 64')
    manifest = build_one(path)
    assert {"REFIT", "TF32", "VERSION_COMPATIBLE"} <= set(manifest.facts["flags"])
    assert manifest.device == {"arch": os.uname().machine}
    plan = (folder_of(path) / "decoder.plan").read_bytes()
    for word in (b'"DETAILED"', b'"AMPERE_PLUS"', b'"VERSION_COMPATIBLE"', b'"aux_streams": 0'):
        assert word in plan
    assert "TF32" not in build_one(path, "rows.plain").facts["flags"]


def test_a_failed_build_reports_the_log_of_tensorrt(
    path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults(monkeypatch, build_fails="Could not find any implementation for node {ForeignNode[a...b]}")
    with pytest.raises(BuildError, match=r"could not build .*Error Code 4: Could not find any implementation for node"):
        build_one(path)
    assert list(folder_of(path).iterdir()) == []


def test_an_operator_that_the_parser_lacks_is_named(path: Path, build_one: Build) -> None:
    file = load_deployment(path).bundle / "decoder.onnx"
    model = onnx.load(file)
    model.graph.node[-1].output[0] = "alone"
    model.graph.node.extend([
        helper.make_node("Unique", ["timestep"], ["strange"], name="the_strange_one"),
        helper.make_node("ReduceMax", ["strange"], ["largest"]),
        helper.make_node("Add", ["alone", "largest"], ["velocity"]),
    ])  # fmt: skip
    onnx.save(model, file)
    with pytest.raises(BuildError, match=r"cannot parse .*'the_strange_one' \(Unique\)"):
        build_one(path)


def test_skipped_tactics_are_summed_up(path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_SKIPPED_TACTICS", "12")
    log = BuildLog()
    build_one(path, log=log)
    assert log.summary() == ["12 tactics were skipped, most for lack of memory; others were used"]


def test_the_timing_cache_is_per_version_and_device(path: Path, build_one: Build) -> None:
    build_one(path)
    (first,) = cache_of(path)
    assert first.name == "tensorrt-11.4.0.106-simulated-gpu-cc9.0.timing"
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
    assert cache.with_name(f"{cache.name}.damaged-1").read_bytes() == b"damaged"
    assert json.loads(cache.read_bytes())["entries"]


def mixed(rows: int | str) -> GraphWriter:
    """With one input of one size."""
    graph = GraphWriter("mixed")
    graph.output("y", graph.op("Add", graph.input("x", (rows, 4)), graph.input("bias", (1, 4))), (rows, 4))
    return graph


def attention() -> GraphWriter:
    """In float32, for which there is no fused kernel."""
    graph = GraphWriter("attention", 24)
    heads = [graph.input(name, (1, 2, 4, 8)) for name in ("q", "k", "v")]
    graph.output("y", graph.op("Attention", *heads), (1, 2, 4, 8))
    return graph


@pytest.mark.parametrize(
    ("graph", "profile"),
    [(mixed("rows"), {"x": "1x4 2x4 8x4"}), (mixed(2), {}), (attention(), {})],
    ids=["a range for one of two inputs", "no range", "attention"],
)
def test_a_graph_is_built(gpu: None, tmp_path: Path, graph: GraphWriter, profile: dict[str, str]) -> None:
    onnx.save(graph.model(), tmp_path / "graph.onnx")
    options = BuildConfig().of("decoder").model_dump(include=set(TENSORRT_OPTIONS)) | {"max_aux_streams": None}
    request = CompileRequest("tensorrt", "graph", tmp_path / "graph.onnx", tmp_path / "graph.plan", options, [profile])
    with Worker() as worker:
        worker.run(compile_engine, request, BuildLog())
    assert request.engine.stat().st_size > 0


@pytest.mark.shipped
def test_a_full_disk_is_reported(path: Path) -> None:
    words = [sys.executable, "-m", "engine_build.cli", str(path), "--target", "tensorrt"]

    # The graph fits, the plan, which has more than the graph, does not.
    limit = (load_deployment(path).bundle / "decoder.onnx").stat().st_size + 256

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    options: dict[str, Any] = {"env": child_environment(), "preexec_fn": small_files_only}
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **options)
    assert result.returncode == 3
    assert "decoder.plan cannot be written: File too large" in result.stderr
    assert list(folder_of(path).iterdir()) == []


def test_a_codec_whose_noise_would_be_heard_is_in_tf32_unless_its_precision_is_named(
    path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_option(path, 'precision = "bf16"')

    def reason() -> tuple[str, str]:
        found = check_rebuilds(load_request(path), "tensorrt")
        return next((item.action, item.reason) for item in found if item.spec.name == "codec_decode")

    manifest = build_one(path, "codec_decode")
    assert (manifest.build["precision"], manifest.facts["snr_db"] > 55) == ("fp16", True)
    monkeypatch.setattr(error, "AUDIBLE_DB", 500.0)
    log = BuildLog()
    manifest = build_one(path, "codec_decode", log)
    assert (manifest.build["precision"], manifest.build["tf32"], manifest.facts[NOISY]) == ("fp32", True, "fp16")
    assert any("it is built in tf32" in line for line in log.summary())
    assert reason() == ("reuse", "up to date")
    path.write_text(path.read_text().replace('precision = "bf16"', 'precision = { decoder = "bf16", codec = "fp16" }'))
    assert reason()[0] == "build"
    log = BuildLog()
    manifest = build_one(path, "codec_decode", log)
    assert (manifest.build["precision"], NOISY in manifest.facts) == ("fp16", False)
    assert any("better remove the codec" in line for line in log.summary())


def test_a_plan_that_ends_its_process_is_built_at_a_lower_level_and_that_is_remembered(
    path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults(monkeypatch, crash_above_level=1)
    request = load_request(path)
    environment, folder = build_environment("tensorrt", request.options), folder_of(path)

    def decoder(here: BuildEnvironment = environment) -> RebuildDecision:
        return check_rebuilds(load_request(path), "tensorrt", environment=here)[0]

    log = BuildLog()
    with locked(folder), Worker() as worker:
        assert decoder().wanted.build["optimization_level"] == 3
        manifest = EngineBuild(request, folder, environment, worker).build_and_try(decoder(), log)
    assert manifest.build["optimization_level"] == 1
    assert any("decoder at optimization level 3: the build process ended with signal" in line for line in log.summary())
    assert [(trial.level, bool(trial.crash)) for trial in read_trials(folder, "decoder")] == [(3, True), (1, False)]
    assert (decoder().action, decoder().wanted.build["optimization_level"]) == ("reuse", 1)
    other = decoder(replace(environment, card={**environment.card, "driver": "another"}))
    assert (other.action, other.wanted.build["optimization_level"]) == ("build", 3)
    assert first_executes(folder, "tensorrt") == {}, "the build has tried it"


def test_a_plan_that_ends_its_process_at_a_lower_level_too_is_named(
    path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults(monkeypatch, crash_above_level=-1)
    request = load_request(path)
    environment, folder = build_environment("tensorrt", request.options), folder_of(path)
    with locked(folder), Worker() as worker:
        decoder = check_rebuilds(request, "tensorrt", environment=environment)[0]
        with pytest.raises(BuildError, match=r"engine 'decoder': .*signal SIGSEGV.*also at optimization level 1"):
            EngineBuild(request, folder, environment, worker).build_and_try(decoder, BuildLog())
        assert check_rebuilds(request, "tensorrt", environment=environment)[0].wanted.build["optimization_level"] == 0
    assert not manifest_path(folder, "decoder").exists()
