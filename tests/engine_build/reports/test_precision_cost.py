"""The command precision_cost: rules, errors, messages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from conftest import Built
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from typer.testing import CliRunner

from configs.demo.recipe.evaluation.evaluate import held_out_requests, score
from configs.demo.recipe.latents import levels_from_latents
from engine_build.cli import app
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import decoder_graph, graph_of
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.reference_session import model_of
from engine_build.precision.recipe import RecipeName, apply_recipe, without_kernel
from engine_build.precision.sensitivity import quantization_for
from engine_build.reports import precision_cost
from engine_build.reports.device_memory import cache_bytes, expected_memory, kernel_bytes, peak_bytes
from engine_build.reports.end_to_end import (
    HOP,
    NUM_MELS,
    SAMPLE_RATE_HZ,
    EndToEndComparison,
    compare_end_to_end,
    mel_bands,
    mel_distance_db,
)
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec, Port
from engine_build.specs.engine_specs import engine_specs
from runtime.config.deployment import PLAN_TARGETS, Target, load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.value_shapes import value_shapes
from runtime.tick.language.kv_cache import KvCache

DEMO = ROOT / "configs/demo.toml"


@pytest.mark.shipped
def test_the_command_prints_rules_and_errors() -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost"]
    command += [str(DEMO), "--recipe", "bf16", "--target", "cuda"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    for wanted in ("bf16 on cuda", "time embedding and AdaLN tables", "no kernel", "0.900", "of the work in bf16"):
        assert wanted in result.stdout


def test_whole_generations_are_compared_prompt_by_prompt() -> None:
    exact, silence = np.resize(np.array([1, -1], np.float32), (3, 4, 2)), np.zeros((4096, 2), np.float32)
    rounded = exact + np.array([0.25, 0.125, 0.5], np.float32)[:, None, None]
    found = precision_cost.end_to_end_rows("abc", EndToEndComparison(exact, rounded, [(silence, silence)] * 3))
    assert found == [("a", "0.00 dB", "2.50e-01"), ("b", "0.00 dB", "1.25e-01"), ("c", "0.00 dB", "5.00e-01")]
    assert precision_cost.end_to_end_rows("abc", EndToEndComparison(exact, rounded))[0] == ("a", "", "2.50e-01")


@pytest.mark.shipped
def test_a_missing_deployment_is_an_error_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost", str(tmp_path / "none.toml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert "none.toml" in result.stderr
    assert "Traceback" not in result.stderr


PROMPTS = ("pads and arpeggios in E minor at 90 bpm", "techno drums, bass and lead at 120 bpm")


@pytest.mark.shipped
@pytest.mark.parametrize(("recipe", "limit"), [pytest.param("bf16", 0.05, marks=pytest.mark.slow), ("fp16", 0.01)])
def test_four_steps_in_low_precision_stay_close(recipe: str, limit: float) -> None:
    """Within 5% (bf16) and 1% (fp16) of the latents' standard deviation, with guidance."""
    found = compare_end_to_end(load_deployment(DEMO), recipe, PROMPTS, steps=4)
    assert found.exact.shape == (2, 256, 64)
    assert (found.rms_rel < limit).all(), found.rms_rel
    assert (found.rms_rel > 1e-4).all(), "the recipe changed nothing"
    assert (found.mel_db < 100 * limit).all(), found.mel_db


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fp8", "int8"])
def test_the_demo_plays_what_it_is_asked_for_in_8_bits_too(recipe: RecipeName) -> None:
    """As the demo's evaluation measures it, on as many of its held-out prompts as PROMPTS_PLAYED says (default 16)."""
    requests = held_out_requests(int(os.environ.get("PROMPTS_PLAYED", "16")))
    deployment, prompts = load_deployment(DEMO), [item.prompt for item in requests]
    decided = quantization_for("tensorrt", recipe, deployment.loaded_bundle, decoder_graph(deployment.loaded_bundle))
    found = compare_end_to_end(deployment, recipe, prompts, quantization=decided, seed=1000)
    exact, rounded = (score(requests, levels_from_latents(latents)) for latents in (found.exact, found.rounded))
    medians = f"latents {np.median(found.rms_rel):.3f}, audio {np.median(found.mel_db):.2f} dB"
    others = [mel_distance_db(one, other) for (one, _), (other, _) in pairwise(found.audio)]
    print(f"{recipe}: {medians} (another piece: {np.median(others):.1f} dB); {exact} -> {rounded}")
    for name, value in vars(exact).items():
        assert getattr(rounded, name) > value - 0.01, name
    assert np.median(found.rms_rel) < 0.15


def test_the_difference_is_measured_against_the_variation() -> None:
    exact = np.random.default_rng(0).standard_normal((1, 64, 8)).astype(np.float32) + 100
    assert EndToEndComparison(exact, exact * 1).rms_rel == pytest.approx(0)
    assert EndToEndComparison(exact, exact + np.float32(0.5)).rms_rel == pytest.approx(0.5, rel=0.1)


def test_the_distance_of_mel_spectra_is_in_db() -> None:
    audio = 0.1 * np.random.default_rng(0).standard_normal((48_000, 2)).astype(np.float32)
    assert mel_distance_db(audio, audio) == 0
    assert mel_distance_db(audio, audio * np.float32(2)) == pytest.approx(6.02, abs=0.01)


def test_mel_bands_are_in_the_order_of_frequencies() -> None:
    times_s = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    tones = [np.sin(2 * np.pi * hz * times_s).astype(np.float32) for hz in (100.0, 500.0, 2000.0, 9000.0)]
    found = [mel_bands(np.stack([tone, tone], axis=1)) for tone in tones]
    assert {bands.shape[1] for bands in found} == {NUM_MELS}
    assert len(found[0]) == (SAMPLE_RATE_HZ - 2048) // HOP + 1
    assert mel_bands(np.ones((9, 2), np.float32)).shape == (1, NUM_MELS), "silence follows what is too short"
    loudest = [int(bands.mean(axis=0).argmax()) for bands in found]
    assert loudest == sorted(set(loudest))


def test_both_decoders_make_the_same_requests(built: Built) -> None:
    found = compare_end_to_end(built(), "fp16", ["a", "b"], steps=2)
    assert found.exact.shape == found.rounded.shape == (2, 32, 8)
    assert len(found.audio) == 2
    assert np.abs(found.exact[0] - found.exact[1]).max() > 0.1
    assert (found.rms_rel > 1e-6).all()
    assert (found.rms_rel < 0.05).all()


GIB = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    more = '[build]\nstep_variants = ["plain"]\n'
    return tiny_deployment(tmp_path, conditions=True, planner={"draft": True}, more=more)


def planner_of(path: Path) -> EngineSpec:
    return next(spec for spec in engine_specs(load_request(path)) if spec.name == "planner")


@pytest.mark.parametrize(("target", "precision", "width"), [
    ("cpu", "fp32", 4), ("cuda", "fp16", 2), ("cuda", "bf16", 4),
    *((target, *pair) for target in PLAN_TARGETS for pair in (("fp32", 4), ("fp16", 2), ("bf16", 2))),
])  # fmt: skip
def test_caches_are_counted_as_the_runtime_takes_them(
    path: Path, target: Target, precision: RecipeName, width: int
) -> None:
    spec, request = planner_of(path), load_request(path)
    planner = request.bundle.planner
    assert planner is not None

    built = graph_of(apply_recipe(model_of(spec.graph), precision, without=without_kernel(target, precision)))
    inputs = {info.name: info for info in built.inputs}
    device = HostDevice()
    rows = 2 * request.deployment.runtime.planner_sequences
    cache = KvCache(device, device.stream(), SimpleNamespace(inputs=inputs), planner, rows)  # type: ignore[arg-type]
    assert {tensor.dtype.itemsize for tensor in cache._tensors} == {width}
    assert sum(tensor.size_bytes for tensor in cache._tensors) == cache_bytes(spec, target, precision) > 0


@pytest.mark.parametrize(("precision", "most_gib"), [("fp16", 3.7), ("bf16", 3.7), ("fp32", 7.3)])
def test_a_planner_of_published_size_is_bounded(path: Path, precision: str, most_gib: float) -> None:
    """1.7 B parameters: 28 layers of 8 key heads of width 128, 4096 positions, 4 sequences with guidance."""
    names = [f"past.{index}" for index in range(2 * 28)]
    spec = replace(
        planner_of(path),
        inputs=tuple(Port(name, name, "RHMJ") for name in names),
        largest={"R": 8, "H": 8, "M": 4096, "J": 128},
    )
    caches, kernels = cache_bytes(spec, "tensorrt-rtx", precision), kernel_bytes(spec, precision)
    assert most_gib / 1.2 * GIB < caches + kernels < most_gib * GIB
    assert kernels < caches / 20, "kernels are compiled on the memory of one cache, not of all"


def test_values_count_while_something_reads_them() -> None:
    graph = GraphWriter("chain", 20)
    x = graph.input("x", ("n", 4))
    first = graph.op("Add", x, graph.constant(1.0))  # 16 n bytes
    wide = graph.op("Concat", first, first, axis=1)  # 32 n
    viewed = graph.op("Reshape", wide, graph.constant([-1], np.int64))  # none
    small = graph.op("ReduceSum", viewed, keepdims=1)  # 4
    graph.output("y", graph.op("Add", small, first), ("n", 4))
    model = graph.model()
    values = value_shapes(model, {"x": (10, 4)})
    assert peak_bytes(model, values, 4) == 160 + 320 + 4
    assert peak_bytes(model, values, 2) == 80 + 160 + 2


def test_attention_in_16_bits_keeps_no_scores() -> None:
    graph = GraphWriter("attention", 20)
    q, k = graph.input("q", (2, 64, 4)), graph.input("k", (2, 4, 64))
    scores = graph.op("Softmax", graph.op("MatMul", q, k))
    graph.output("y", graph.op("MatMul", scores, q), (2, 64, 4))
    model: onnx.ModelProto = graph.model()
    values = value_shapes(model, {"q": (2, 64, 4), "k": (2, 4, 64)})
    assert peak_bytes(model, values, 4) == 2 * (2 * 64 * 64 * 4)
    assert peak_bytes(model, values, 2) == 0


@pytest.mark.parametrize("target", ["cpu", "cuda", "tensorrt", "tensorrt-rtx"])
def test_every_target_has_its_parts(path: Path, target: Target) -> None:
    request = load_request(path)
    environment = BuildEnvironment(device={}, tool_versions={}, facts={}, missing=None)
    decisions = check_rebuilds(request, target, environment=environment)
    runtime = request.deployment.runtime.model_copy(update={"captured_graphs": 10})
    options = BuildConfig(precision="fp32" if target == "cpu" else "fp16")
    parts = {part.name: part for part in expected_memory(decisions, target, options, runtime)}
    wanted = {"engines", "tensors", "caches"} | ({"activation"} if target != "cpu" else set())
    assert parts.keys() == wanted | ({"contexts", "graphs"} if target.startswith("tensorrt") else set())
    plain = runtime.model_copy(update={"capture": False})
    assert "graphs" not in {part.name for part in expected_memory(decisions, target, options, plain)}
    weights = sum(decision.weights_bytes for decision in decisions)
    assert parts["engines"].size_bytes <= weights * (1 + (target == "cuda"))


def test_kernels_that_are_compiled_on_the_card_take_memory_of_their_own(path: Path) -> None:
    request = load_request(path)
    environment = BuildEnvironment(device={}, tool_versions={}, facts={}, missing=None)

    def activation(target: Target) -> int:
        decisions = check_rebuilds(request, target, environment=environment)
        parts = expected_memory(decisions, target, BuildConfig(precision="fp16"), request.deployment.runtime)
        return next(part.size_bytes for part in parts if part.name == "activation")

    assert activation("tensorrt-rtx") > activation("tensorrt")


def test_a_dry_run_prints_the_memory_of_its_target(path: Path) -> None:
    for target in ("cpu", "cuda", "tensorrt", "tensorrt-rtx"):
        result = CliRunner().invoke(app, [str(path), "--target", target, "--dry-run"])
        assert result.exit_code == 0, result.output
        lines = result.stdout.partition(f"as expected on the target {target}:\n")[2].splitlines()
        names = [line.split()[0] for line in lines if line.strip()]
        assert {"engines", "tensors", "caches"} <= set(names[: names.index("total")])
