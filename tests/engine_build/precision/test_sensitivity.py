"""Which products run in 8 bits: measured one by one, within a budget."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import tiny_bundle
from helpers.paths import DEMO_BUNDLE

from engine_build.compile.environment import INT8_FLAGS
from engine_build.graphs.graph_file import graph_of, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision import sensitivity
from engine_build.precision.quantization import EightBits
from engine_build.precision.recipe import apply_recipe, node_precisions
from engine_build.precision.sensitivity import (
    BUDGET,
    CPU_BUDGET,
    _probed,
    _within_budget,
    quantization_by_token,
    quantization_for,
    quantization_of,
)
from runtime.config.bundle import load_bundle
from runtime.devices.machine import cpu_flags

RANDOM = np.random.default_rng(6)
NAMES = ("good", "narrow", "hard")


def model() -> onnx.ModelProto:
    """Three products of one input, and one of two activations. What "hard" multiplies has one huge channel."""
    graph = GraphWriter("products")
    x = graph.input("x", ("rows", "frames", 64))
    spikes = np.ones(64, np.float32)
    spikes[3] = 1e4
    spiked = graph.op("Mul", x, graph.constant(spikes))
    weights = {name: RANDOM.standard_normal((64, 4 if name == "narrow" else 64)) for name in NAMES}
    weights["hard"][3] = 0
    parts = {n: graph.op("MatMul", spiked if n == "hard" else x, graph.constant(weights[n], name=n)) for n in NAMES}
    total = graph.op("Add", parts["good"], parts["hard"])
    scores = graph.op("MatMul", total, graph.op("Transpose", x, perm=[0, 2, 1]))
    mixed = graph.op("Add", graph.op("Mul", graph.op("MatMul", scores, x), graph.constant(1e-3)), total)
    graph.output("y", graph.op("Concat", mixed, parts["narrow"], axis=-1), ("rows", "frames", 68))
    result = graph.model()
    for node in result.graph.node:
        node.name = node.input[1] if node.op_type == "MatMul" and node.input[1] in NAMES else node.name
    return result


def hidden_products() -> onnx.ModelProto:
    """Two products of what the graph computes first; "hard" has a huge channel whose weights are 0."""
    graph = GraphWriter("products")
    hidden = graph.op("Neg", graph.input("x", ("rows", "frames", 64)))
    spikes, weights = np.ones(64, np.float32), RANDOM.standard_normal((2, 64, 64))
    spikes[3], weights[1, 3] = 1e4, 0
    parts = [
        graph.op("MatMul", value, graph.constant(weight, name=name))
        for value, weight, name in zip(
            (hidden, graph.op("Mul", hidden, graph.constant(spikes))), weights, ("good", "hard"), strict=True
        )
    ]
    graph.output("y", graph.op("Add", *parts), ("rows", "frames", 64))
    result = graph.model()
    for node in result.graph.node:
        node.name = node.input[1] if node.op_type == "MatMul" else node.name
    return result


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    result: np.ndarray = ort.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    return result


def rms(values: np.ndarray) -> float:
    return sqrt(float(np.mean(values.astype(np.float64) ** 2)))


@pytest.fixture(scope="module")
def feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": RANDOM.standard_normal((2, 16, 64)).astype(np.float32)} for _ in range(3)]


def test_a_product_that_8_bits_harm_is_kept_out_of_them(feeds: list[dict[str, np.ndarray]]) -> None:
    """In int8 one scale cannot hold a channel of 10 000 beside those of 1; fp8 has exponents."""
    found = quantization_of(graph_of(model()), "int8", feeds, feeds[:1])
    assert set(found.errors) == set(NAMES), "attention's own product is no candidate"
    assert found.errors["hard"] > 0.3
    assert found.errors["good"] < 0.02
    assert "hard" in found.kept
    assert "good" in found.products
    assert found.predicted <= BUDGET
    assert found.peaks["x"] == pytest.approx(max(float(np.abs(feed["x"]).max()) for feed in feeds))
    floating = quantization_of(graph_of(model()), "fp8", feeds, feeds[:1])
    assert floating.errors["hard"] < 0.1


def test_the_budget_is_spent_in_the_order_of_error_per_work(
    feeds: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(model())
    whole = quantization_of(graph, "fp8", feeds, feeds[:1])
    assert whole.work["good"] == pytest.approx(16 * whole.work["narrow"])
    order = sorted(NAMES, key=lambda name: whole.errors[name] ** 2 / whole.work[name])
    for count in range(4):
        spent = sqrt(sum(whole.errors[name] ** 2 for name in order[:count]))
        monkeypatch.setattr(sensitivity, "BUDGET", spent * 1.0001)
        found = quantization_of(graph, "fp8", feeds, feeds[:1])
        assert found.products == frozenset(order[:count])
        assert found.predicted == pytest.approx(spent)
        kept = {node.name for node in node_precisions(model(), "fp8", quantization=found) if node.precision == "fp8"}
        assert kept == set(order[:count])


@pytest.mark.skipif(not INT8_FLAGS & cpu_flags(), reason="this processor's products of 8 bits overflow: none is chosen")
def test_on_a_cpu_each_products_error_is_that_of_the_graph_with_it_alone(feeds: list[dict[str, np.ndarray]]) -> None:
    """One scale for a token's features cannot hold one of 10 000 beside those of 1."""
    made = hidden_products()
    found = quantization_by_token(graph_of(made), feeds, threads=1)
    exact = [run(made, feed) for feed in feeds]
    for name, error in found.errors.items():
        changed = apply_recipe(made, "int8", quantization=replace(found, products=frozenset({name})))
        pairs = zip(exact, (run(changed, feed) for feed in feeds), strict=True)
        assert error == pytest.approx(max(rms(got - wanted) / rms(wanted) for wanted, got in pairs), rel=1e-3)
    assert found.errors.keys() == {"good", "hard"}
    assert found.products == {"good"}
    assert found.predicted < CPU_BUDGET < found.errors["hard"]
    kinds = [node.op_type for node in apply_recipe(made, "int8", quantization=found).graph.node]
    assert (kinds.count("MatMulIntegerToFloat"), kinds.count("MatMul")) == (1, 1)
    told = {node.name: node.precision for node in node_precisions(made, "int8", quantization=found)}
    assert (told["good"], told["hard"]) == ("int8", "fp32")


def test_on_a_cpu_a_graph_without_large_products_stays_as_it_is(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    decided = quantization_for("cpu", "int8", bundle, read_graph(bundle.graph_path(bundle.decoder.graph)), 1)
    assert decided is not None
    assert (decided.products, decided.kept, decided.by_token) == (frozenset(), {}, True)


def test_much_work_goes_before_a_smaller_error_of_little_work() -> None:
    assert list(_within_budget({"much": 0.02, "little": 0.01}, {"much": 0.9, "little": 0.1}, 0.021)) == ["much"]


def test_a_product_whose_error_is_no_number_is_not_in_8_bits() -> None:
    assert list(_within_budget({"broken": float("nan")}, {"broken": 1.0}, BUDGET)) == []


@pytest.mark.parametrize(("steps", "expected"), [(8, ["a0", "b3", "c6"]), (2, ["a0", "b1", "c1"])])
def test_every_generation_is_probed(steps: int, expected: list[str]) -> None:
    states = [{"x": f"{name}{step}"} for name in "abc" for step in range(steps)]
    assert [state["x"] for state in _probed(states, steps)] == expected  # type: ignore[arg-type]


def test_errors_are_measured_over_64_frames_from_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, graph = load_bundle(DEMO_BUNDLE), SimpleNamespace(sha256="of no graph")
    names, probed = bundle.decoder.inputs, list[Any]()
    assert names.context is not None
    assert names.condition is not None
    frames = np.zeros((1, 101, 1), np.float32) + np.arange(101)[:, None]
    state = {names.latents: frames, names.context: frames, names.condition: frames}
    monkeypatch.setattr(sensitivity, "steps_of", lambda graph: 2)
    monkeypatch.setattr(sensitivity, "calibration_states", lambda *about, **more: [state, state])
    monkeypatch.setattr(sensitivity, "quantization_of", lambda *about, **more: probed.extend(about[3]))
    quantization_for("tensorrt-rtx", "int8", bundle, graph)  # type: ignore[arg-type]
    (probe,) = probed
    assert probe[names.latents][0, :, 0].tolist() == probe[names.context][0, :, 0].tolist() == list(range(18, 82))
    assert probe[names.condition].shape == (1, 101, 1)


@pytest.mark.parametrize("recipe", ["fp8", "int8"])
def test_a_bundle_s_decoder_is_decided_always_the_same(recipe: EightBits, tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    decided = quantization_for("tensorrt-rtx", recipe, bundle, graph, 1)
    assert decided is not None
    assert decided.errors
    assert all(peak > 0 for peak in decided.peaks.values())
    again = quantization_for("tensorrt", recipe, bundle, graph, 1)
    assert again is not None
    assert asdict(again) == asdict(decided)


@pytest.mark.parametrize(("target", "precision"), [("cpu", "fp32"), ("tensorrt", "bf16"), ("tensorrt-rtx", "fp32")])
def test_other_precisions_need_no_decision(target: str, precision: str, tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    assert quantization_for(target, precision, bundle, read_graph(bundle.graph_path(bundle.decoder.graph))) is None
