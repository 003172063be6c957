"""What a deployment is expected to take of a device: as the runtime takes it, and bounded at published sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from helpers.factories import tiny_deployment
from typer.testing import CliRunner

from engine_build.cli import app
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import graph_of
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.reference_session import model_of
from engine_build.precision.recipe import RecipeName, apply_recipe, without_kernel
from engine_build.reports.device_memory import cache_bytes, expected_memory, kernel_bytes, peak_bytes
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec, Port
from engine_build.specs.engine_specs import engine_specs
from runtime.config.deployment import PLAN_TARGETS, Target
from runtime.devices.device import HostDevice
from runtime.engines.value_shapes import value_shapes
from runtime.tick.language.kv_cache import KvCache

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


def test_a_dry_run_prints_the_memory_of_its_target(path: Path) -> None:
    for target in ("cpu", "cuda", "tensorrt", "tensorrt-rtx"):
        result = CliRunner().invoke(app, [str(path), "--target", target, "--dry-run"])
        assert result.exit_code == 0, result.output
        lines = result.stdout.partition(f"as expected on the target {target}:\n")[2].splitlines()
        names = [line.split()[0] for line in lines if line.strip()]
        assert {"engines", "tensors", "caches"} <= set(names[: names.index("total")])
