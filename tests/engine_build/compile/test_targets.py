"""Engines of each target: compiled, measured and refused; TensorRT's on the simulated GPU."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.factories import cache_of, folder_of, tiny_deployment, with_option
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
from engine_build.precision import error, sensitivity
from engine_build.request import load_request
from runtime.audio.codec import MAX_BATCH, windows_per_execute
from runtime.base.errors import BuildError
from runtime.config.deployment import load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engine
from runtime.engines.manifest import Manifest, manifest_path, verify_file
from runtime.engines.tensorrt.engine_file import read_engine_header
from runtime.engines.tensorrt.trials import first_executes, read_trials

VERSION = "11.4.0.106"
FEW = '[build]\nstep_variants = ["plain"]\n'

Build = Callable[..., Manifest]


def command(path: Path, *more: str, target: str = "tensorrt", **options: str) -> subprocess.CompletedProcess[str]:
    """tickrt-build on the simulator."""
    words = [sys.executable, "-m", "engine_build.cli", *more, str(path), "--target", target]
    environment = child_environment(**options)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.shipped
def test_a_deployment_is_built_and_reused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, codec=False, text_encoder=False, more=FEW)
    first = command(path, SIMULATED_TENSORRT=VERSION)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1].startswith("9 built")
    again = command(path, SIMULATED_TENSORRT=VERSION)
    assert again.stdout.splitlines()[-1].startswith("9 reused")
    for file in folder_of(path).glob("*.plan"):
        assert read_engine_header(file).version_text == VERSION
    other = command(path, "--dry-run", SIMULATED_TENSORRT="11.0.0.114")
    assert other.stdout.count(f"tool_versions.tensorrt is '{VERSION}', wanted '11.0.0.114'") == 9


@pytest.mark.shipped
@pytest.mark.parametrize("faults", ["{}", '{"crash_above_level": 2}'])
def test_where_there_is_no_card_engines_are_as_wanted_for_the_card_that_they_were_built_for(
    faults: str, tmp_path: Path
) -> None:
    """What [build] leaves to the card: precisions, levels of codecs, and levels that end a plan's process there."""
    path = tiny_deployment(
        tmp_path, text_encoder=False, more='[build]\nstep_variants = ["plain"]\nprecision = "auto"\n'
    )
    card = {"SIMULATED_GPU_NAME": "NVIDIA GeForce RTX 5090", "SIMULATED_CC": "12.0"}
    built = command(path, **card, SIMULATED_FAULTS=faults)
    assert built.returncode == 0, built.stderr
    for nowhere in ({"SIMULATED_NO_DRIVER": "1"}, {"SIMULATED_DEVICES": "0"}):
        found = command(path, "--dry-run", **nowhere).stdout
        assert (found.count("  reuse  "), found.count("  build  ")) == (11, 0), found
        listed = command(path, "list", **nowhere).stdout
        assert 'precision = "auto" on the target tensorrt: fp16, NVIDIA GeForce RTX 5090 is a consumer\'s' in listed
    path.write_text(path.read_text().replace('"auto"', '"bf16"'))
    assert "build.precision is 'fp16', wanted 'bf16'" in command(path, "--dry-run", SIMULATED_NO_DRIVER="1").stdout


@pytest.mark.shipped
def test_engines_of_tensorrt_rtx_are_built_without_a_gpu_and_measured_on_the_first_card(tmp_path: Path) -> None:
    more = FEW + 'capabilities = ["SM89"]\n'
    path = tiny_deployment(tmp_path / "here", codec=False, text_encoder=False, more=more)
    out = tmp_path / "there"
    built = command(path, "--out", str(out), target="tensorrt-rtx", SIMULATED_NO_DRIVER="1")
    assert built.returncode == 0, built.stderr
    assert (
        "not measured here, because an NVIDIA GPU with its driver is needed: there is no NVIDIA driver" in built.stdout
    )
    shutil.rmtree(tmp_path / "here")
    shipped = out / "deployment.toml"
    other = command(shipped, "list", target="tensorrt-rtx", SIMULATED_CC="8.6").stdout
    assert "(1) built for SM89, this machine's GPU is SM86" in other
    assert "error -: not measured yet" in other
    first = command(shipped, target="tensorrt-rtx", SIMULATED_CC="8.9", SIMULATED_GPU_NAME="RTX 4090")
    assert "9 reused, 9 measured" in first.stdout, first.stderr
    table = command(shipped, "list", target="tensorrt-rtx", SIMULATED_CC="8.9").stdout
    assert "9 of them run here" in table
    assert "not measured" not in table


def test_a_manifest_is_complete(path: Path, version: str, build_one: Build) -> None:
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
    assert (facts["tried_shapes"], facts["compared_shapes"]) == (6, 4)
    assert {"driver", "cuda", "sm_count"} <= set(facts)
    verify_file(manifest, folder_of(path))
    assert {file.suffix for file in folder_of(path).iterdir()} == {".plan", ".json"}


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
    assert build_one(path, "codec_decode").build["precision"] == "fp16"


@pytest.mark.parametrize("location", ["decoder.weights", "weights/of/decoder.bin"])
def test_weights_in_files_of_their_own_are_found(path: Path, build_one: Build, location: str) -> None:
    file = load_deployment(path).bundle / "decoder.onnx"
    (file.parent / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.load(file), file, save_as_external_data=True, location=location, size_threshold=64)
    assert build_one(path).error["max_rel"] <= 1e-5
    assert build_one(with_option(path, 'precision = "fp16"')).error["max_rel"] > 0


@pytest.mark.parametrize(("precision", "rest"), [("int8", "bf16"), ("bf16", "")])
def test_8_bits_without_a_product_in_them_are_named(
    path: Path, build_one: Build, monkeypatch: pytest.MonkeyPatch, precision: str, rest: str
) -> None:
    monkeypatch.setattr(sensitivity, "BUDGET", 0.0)
    log = BuildLog()
    build_one(with_option(path, f'precision = "{precision}"'), log=log)
    said = [line for line in log.summary() if "changes nothing" in line]
    assert [line.split()[-1] for line in said] == ([rest] if rest else [])


def test_the_timing_cache_may_be_moved_or_turned_off(path: Path, build_one: Build, tmp_path: Path) -> None:
    manifest = build_one(with_option(path, "timing_cache = false"))
    assert "DISABLE_TIMING_CACHE" in manifest.facts["flags"]
    assert cache_of(path) == []
    path.write_text(path.read_text().replace("timing_cache = false", 'timing_cache = "times"'))
    build_one(path)
    assert cache_of(path) == []
    assert len(list((tmp_path / "times").glob("*.timing"))) == 1


@pytest.mark.shipped
def test_without_a_driver_nothing_is_built(path: Path) -> None:
    result = command(path, SIMULATED_NO_DRIVER="1")
    assert result.returncode == 3
    assert "no NVIDIA driver" in result.stderr
    assert "fix: " in result.stderr
    assert "--target cpu" in result.stderr
    assert not folder_of(path).exists()
    dry = command(path, "--dry-run", SIMULATED_NO_DRIVER="1")
    assert dry.returncode == 0
    assert "missing here: an NVIDIA GPU" in dry.stdout


def test_a_decoder_in_fp8_names_in_its_manifest_what_is_not_in_8_bits(tmp_path: Path, build_one: Build) -> None:
    manifest = build_one(tiny_deployment(tmp_path, more='[build]\nprecision = "fp8"\n'))
    kept = manifest.facts["not_in_8_bits"]
    assert kept
    assert all(error > 0 for error in kept.values())
    assert 0.01 < manifest.error["recipe_rms_rel"] < 0.1
    assert 0.3 < manifest.error["recipe_low_work"] < 1
    assert manifest.error["max_rel"] < manifest.build["tolerance"]


def test_a_codecs_plan_decodes_several_short_windows_in_one_execute(path: Path, build_one: Build) -> None:
    manifest, codec = build_one(path, "codec_decode"), load_deployment(path).loaded_bundle.codec
    assert codec is not None
    assert windows_per_execute(manifest, codec.decode, 8) == MAX_BATCH
    assert windows_per_execute(manifest, codec.decode, codec.decode.window_frames) == 1
    device = open_device("tensorrt")
    engine = open_engine(folder_of(path), "codec_decode", device)
    latents, starts = np.random.default_rng(0).standard_normal((3, 8, 8)).astype(np.float32), np.arange(3) * 5
    names = codec.decode.inputs
    feeds = {names.latents: latents, str(names.start_frame): starts}
    together = engine.run(feeds)[codec.decode.outputs.audio]
    for place in range(3):
        alone = engine.run({name: values[place : place + 1] for name, values in feeds.items()})
        np.testing.assert_allclose(together[place], alone[codec.decode.outputs.audio][0], atol=1e-6)
    engine.close()
    device.close()


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
    options = BuildConfig().of("decoder").model_dump(include=set(TENSORRT_OPTIONS))
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
