"""8-bit products as QDQ: what they compute, against numpy and ml_dtypes, and how they are stored."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import sqrt
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.building import build_engine
from helpers.factories import tiny_bundle
from helpers.paths import DEMO_BUNDLE, ROOT
from onnx import TensorProto, numpy_helper

from engine_build.compile.environment import INT8_FLAGS, build_environment, probe_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.config import BuildConfig
from engine_build.graphs.adapter_graph import adapter_graph, linear_matrices
from engine_build.graphs.cpu_graph import cpu_graph
from engine_build.graphs.graph_file import graph_of, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.tensorrt_preparation import prepare_model
from engine_build.precision import sensitivity
from engine_build.precision.error import emulated, write_emulated
from engine_build.precision.int8 import int8_products
from engine_build.precision.quantization import EightBits, Quantization
from engine_build.precision.recipe import apply_recipe, changes_anything, node_precisions, write_recipe
from engine_build.precision.sensitivity import (
    BUDGET,
    CPU_BUDGET,
    _within_budget,
    probes_of,
    quantization_by_token,
    quantization_for,
    quantization_of,
)
from engine_build.request import load_request
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.devices.machine import cpu_flags

RANDOM = np.random.default_rng(5)
FIRST, SECOND = (RANDOM.standard_normal((80, 64)).astype(np.float32) * np.geomspace(0.01, 10, 64) for _ in range(2))
KERNEL = RANDOM.standard_normal((6, 64, 2)).astype(np.float32)
X = RANDOM.standard_normal((2, 8, 80)).astype(np.float32)
PEAKS = {"x": 3.0, "swapped": 40.0}
DTYPES: dict[EightBits, Any] = {"fp8": ml_dtypes.float8_e4m3fn, "int8": np.int8}
LARGEST: dict[EightBits, float] = {"fp8": 448.0, "int8": 127.0}
HEADROOM: dict[EightBits, float] = {"fp8": 2.0, "int8": 1.1}


def products() -> onnx.ModelProto:
    """Two products of the input, one of which is convolved. Sums of one term: so none is an output projection."""
    graph = GraphWriter("products")
    x = graph.input("x", ("rows", "frames", 80))
    first = graph.op("MatMul", x, graph.constant(FIRST, name="first"))
    second = graph.op("MatMul", x, graph.constant(SECOND, name="second"))
    swapped = graph.op("Transpose", first, perm=[0, 2, 1])
    convolved = graph.op("Conv", swapped, graph.constant(KERNEL, name="kernel"))
    axis = graph.constant([0], np.int64)
    for name, value in (("y", second), ("u", swapped), ("z", convolved)):
        summed = graph.op("ReduceSum", graph.op("Unsqueeze", value, axis), axis, keepdims=0)
        graph.output(name, summed, ("rows", f"{name}1", f"{name}2"))
    model = graph.model()
    for node in model.graph.node:
        node.name = {"first": "f", "second": "s", "kernel": "k"}.get(node.input[-1], node.name)
        node.input[:] = ["swapped" if name == swapped else name for name in node.input]
        node.output[:] = ["swapped" if name == swapped else name for name in node.output]
    return model


def decided(recipe: EightBits, *chosen: str) -> Quantization:
    names = ("f", "s", "k")
    return Quantization(recipe, PEAKS, dict.fromkeys(names, 0.1), dict.fromkeys(names, 0.3), frozenset(chosen or names))


def run(model: onnx.ModelProto, x: Any = X) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return dict(zip((item.name for item in session.get_outputs()), session.run(None, {"x": x}), strict=True))


def bf16(values: Any) -> Any:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def eight(values: Any, peak: Any, recipe: EightBits) -> Any:
    """What values become in 8 bits, with a scale that bfloat16 has."""
    scale = bf16(peak / LARGEST[recipe])
    smallest = np.iinfo(np.int8).min if recipe == "int8" else -LARGEST[recipe]
    scaled = np.clip(np.asarray(values, np.float32) / scale, smallest, LARGEST[recipe])
    return (np.rint(scaled) if recipe == "int8" else scaled).astype(DTYPES[recipe]).astype(np.float32) * scale


@pytest.mark.parametrize("recipe", ["fp8", "int8"])
def test_products_are_those_of_8_bit_numbers(recipe: EightBits) -> None:
    found = run(emulated(apply_recipe(products(), recipe, quantization=decided(recipe))))
    x = eight(bf16(X), HEADROOM[recipe] * PEAKS["x"], recipe)
    second = x @ eight(SECOND, np.abs(SECOND).max(0), recipe)
    np.testing.assert_allclose(found["y"], second, rtol=2**-7, atol=2e-3)
    swapped = found["u"]
    kernel = eight(KERNEL, np.abs(KERNEL).max((1, 2))[:, None, None], recipe)
    frames = eight(swapped, HEADROOM[recipe] * PEAKS["swapped"], recipe)
    convolved = np.stack([np.einsum("rck,ock->ro", frames[..., t : t + 2], kernel) for t in range(7)], -1)
    np.testing.assert_allclose(found["z"], convolved, rtol=2**-6, atol=0.5)
    exact = run(products())
    assert 1e-3 < np.abs(found["y"] - exact["y"]).max() / np.abs(exact["y"]).max() < 0.1


@pytest.mark.parametrize("recipe", ["fp8", "int8"])
def test_a_value_beyond_calibration_saturates(recipe: EightBits) -> None:
    """It is the largest there is, and other rows are what they were."""
    model = emulated(apply_recipe(products(), recipe, quantization=decided(recipe)))
    larger = X.copy()
    larger[1, 0, 0] = 1e6
    limit = X.copy()
    limit[1, 0, 0] = HEADROOM[recipe] * PEAKS["x"]
    found, expected = run(model, larger)["y"], run(model, limit)["y"]
    np.testing.assert_allclose(found[1, 0], expected[1, 0], rtol=0.02, atol=0.02)
    np.testing.assert_array_equal(found[0], run(model)["y"][0])


@pytest.mark.parametrize("recipe", ["fp8", "int8"])
def test_weights_are_stored_in_8_bits_alone_also_beside_the_graph(recipe: EightBits, tmp_path: Path) -> None:
    onnx.save(products(), tmp_path / "in.onnx", save_as_external_data=True, location="out.onnx.data", size_threshold=64)
    source = tmp_path / "out.onnx.data"
    (tmp_path / "out").mkdir()
    write_recipe(
        read_graph(tmp_path / "in.onnx"), tmp_path / "out" / "out.onnx", recipe, quantization=decided(recipe, "f", "k")
    )
    model = onnx.load(tmp_path / "out" / "out.onnx")
    stored = {item.name: item.data_type for item in model.graph.initializer if np.prod(item.dims) > 64}
    kind = {"fp8": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}[recipe]
    assert sorted(stored.values()) == sorted([kind, kind, TensorProto.BFLOAT16])
    aligned = 3 * 4096
    assert (tmp_path / "out" / "out.onnx.data").stat().st_size < 0.4 * source.stat().st_size + aligned
    inline = apply_recipe(products(), recipe, quantization=decided(recipe, "f", "k"))
    np.testing.assert_array_equal(run(emulated(model))["z"], run(emulated(inline))["z"])


def test_scales_of_many_features_are_read_from_the_new_file_of_weights(tmp_path: Path) -> None:
    """Also where the source's file has the same name: there lies another number at their place."""
    graph = GraphWriter("wide")
    weight = np.random.default_rng(1).standard_normal((16, 1024)).astype(np.float32)
    product = graph.op("MatMul", graph.input("x", ("rows", 16)), graph.constant(weight, name="w"))
    last = graph.constant(np.ones((1024, 4), np.float32), name="last")
    graph.output("y", graph.op("MatMul", graph.op("Relu", product), last), ("rows", 4))
    source, made = tmp_path / "source" / "decoder.onnx", tmp_path / "made" / "decoder.onnx"
    for path in (source, made):
        path.parent.mkdir()
    model = graph.model()
    next(node for node in model.graph.node if "w" in node.input).name = "wide"
    onnx.save(model, source, save_as_external_data=True, location="decoder.onnx.data", size_threshold=64)
    chosen = Quantization("int8", {"x": 1.0}, {"wide": 0.1}, {"wide": 1.0}, frozenset({"wide"}))
    write_recipe(read_graph(source), made, "int8", quantization=chosen)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(made).graph.initializer}
    (scale,) = (values for name, values in found.items() if values.shape == (1024,) and "scale" in name)
    np.testing.assert_allclose(scale.astype(np.float32), np.abs(weight).max(axis=0) / 127, rtol=0.01)


def test_an_activation_is_rounded_once_for_all_its_products_and_weights_stay_in_8_bits() -> None:
    model = prepare_model(apply_recipe(products(), "fp8", quantization=decided("fp8")), [{"x": (2, 8, 80)}])
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (2, 5)
    assert changes_anything(model, "fp8")
    assert not changes_anything(apply_recipe(products(), "bf16"), "fp8")


def test_what_is_not_chosen_is_as_in_bf16() -> None:
    quantization = decided("int8", "s")
    found = {node.name: node.precision for node in node_precisions(products(), "int8", quantization=quantization)}
    assert {name: found[name] for name in "fsk"} == {"f": "bf16", "s": "int8", "k": "bf16"}
    model = run(emulated(apply_recipe(products(), "int8", quantization=quantization)))
    np.testing.assert_array_equal(model["u"], run(emulated(apply_recipe(products(), "bf16")))["u"])


def test_the_decoder_for_adapters_gets_what_was_decided_for_the_decoder() -> None:
    spec = AdapterSpec(matrices={"m": AdapterMatrix(weight="second", inputs=80, outputs=64)})
    adapted = apply_recipe(adapter_graph(products(), spec, "x"), "fp8", quantization=decided("fp8"))
    kinds = [node.op_type for node in adapted.graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("MatMul")) == (2, 4)
    weights = [numpy_helper.to_array(item) for item in adapted.graph.initializer if len(item.dims) > 1]
    assert {weight.dtype.name for weight in weights} == {"float8_e4m3fn"}


def test_8_bits_of_a_gpu_are_emulated_and_those_of_a_cpu_stay_as_it_computes_them(tmp_path: Path) -> None:
    graph = graph_of(products())
    write_emulated(graph, "int8", tmp_path / "gpu.onnx", quantization=decided("int8"))
    found = run(onnx.load(tmp_path / "gpu.onnx"))
    for name, expected in run(emulated(apply_recipe(products(), "int8", quantization=decided("int8")))).items():
        np.testing.assert_array_equal(found[name], expected)
    write_emulated(graph, "int8", tmp_path / "cpu.onnx")
    own = [node.op_type for node in apply_recipe(products(), "int8").graph.node]
    assert [node.op_type for node in onnx.load(tmp_path / "cpu.onnx").graph.node] == own


DEMO = ROOT / "configs/demo"
INT8 = BuildConfig(precision="int8")
WIDE, NARROW = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((80, 64), (80, 8)))


@pytest.fixture(scope="module")
def decoder() -> onnx.ModelProto:
    return onnx.load(DEMO / "decoder.onnx")


def wide_products() -> onnx.ModelProto:
    """Two products of one activation, one of a narrow matrix, and one of the input itself."""
    graph = GraphWriter("products")
    x = graph.input("x", ("rows", "frames", 80))
    twice = graph.op("Mul", x, graph.constant(2.0))
    for index, weight in enumerate((WIDE, WIDE[:, ::-1], NARROW)):
        product = graph.op("MatMul", twice, graph.constant(weight, name=f"w{index}"))
        graph.output(f"y{index}", product, ("rows", "frames", weight.shape[1]))
    graph.output("direct", graph.op("MatMul", x, graph.constant(WIDE, name="w3")), ("rows", "frames", 64))
    return graph.model()


def run_fast(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    # Exact also where a processor sums pairs of products in 16 bits, for which int8 is not built.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, feeds))


def in_numpy(x: Any, weight: Any) -> Any:
    scale = np.abs(weight).max(0) / 127
    peak = np.abs(x).max(-1, keepdims=True)
    rounded = np.rint(x * (127 / peak)).clip(-128, 127).astype(np.int64)
    return (rounded @ np.rint(weight / scale).astype(np.int64)) * scale * (peak / 127)


def test_wide_products_are_those_of_8_bits_and_others_stay() -> None:
    x = RANDOM.standard_normal((2, 5, 80)).astype(np.float32) * np.geomspace(1e-3, 1e3, 5)[:, None].astype(np.float32)
    x[1, 2] = 0
    first, second, narrow, direct = run_fast(apply_recipe(wide_products(), "int8"), {"x": x})
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.nan_to_num(in_numpy(2 * x, WIDE))
    peak = np.abs(expected).max(-1, keepdims=True) + 1e-6
    assert (np.abs(first - expected) / peak).max() < 1e-5
    np.testing.assert_allclose(second, first[..., ::-1], atol=1e-6)
    np.testing.assert_array_equal(first[1, 2], 0)
    exact = 2 * x @ WIDE
    assert 1e-3 < (np.abs(first - exact) / peak).max() < 0.03
    np.testing.assert_allclose(narrow, 2 * x @ NARROW, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(direct, x @ WIDE, rtol=1e-4, atol=1e-4)


def test_a_token_depends_on_no_other() -> None:
    model, x = apply_recipe(wide_products(), "int8"), RANDOM.standard_normal((2, 5, 80)).astype(np.float32)
    before = run_fast(model, {"x": x})
    x[1] *= 100
    x[0, 1:] *= 100
    np.testing.assert_array_equal(run_fast(model, {"x": x})[0][0, 0], before[0][0, 0])


def test_the_demo_s_decoder_gives_a_row_the_same_velocity_in_every_batch(decoder: onnx.ModelProto) -> None:
    """Bit for bit, also beside longer prompts; in float32 a row alone differs from the same in a batch."""
    shapes = {"hidden_states": (3, 32, 64), "encoder_hidden_states": (3, 9, 96), "context_latents": (3, 32, 128)}
    feeds = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds |= {
        "timestep": RANDOM.uniform(0.1, 1, 3).astype(np.float32),
        "condition_mask": np.ones((3, 9), np.float32),
        "frame_numbers": np.tile(np.arange(32, dtype=np.float32), (3, 1)),
    }
    feeds["encoder_hidden_states"][:, 6:] = 0
    feeds["condition_mask"][:, 6:] = 0
    alone = {name: value[:1, :6] if value.shape[1:2] == (9,) else value[:1] for name, value in feeds.items()}
    batch = {rows: {name: value[:rows] for name, value in feeds.items()} for rows in (1, 2, 3)}

    def differ(model: onnx.ModelProto) -> list[bool]:
        (expected,) = run_fast(model, alone)
        return [bool((run_fast(model, feeds)[0][0] != expected[0]).any()) for feeds in batch.values()]

    model = apply_recipe(decoder, "int8")
    for made in (model, cpu_graph(model)):
        assert differ(made) == [False] * 3
    assert True in differ(decoder)


def test_activations_are_rounded_once_for_all_their_products() -> None:
    kinds = [node.op_type for node in apply_recipe(wide_products(), "int8").graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("MatMulIntegerToFloat"), kinds.count("MatMul")) == (1, 2, 2)
    assert {node.precision for node in node_precisions(wide_products(), "int8")} == {"int8", "fp32"}


def test_the_demo_s_linear_layers(decoder: onnx.ModelProto) -> None:
    """Four in each attention and three in the MLP of four layers; not what embeds condition, time and patches."""
    found = int8_products(decoder)
    assert len(found) == 4 * 11
    assert not any("condition_embedder" in name or "time_embed" in name for name in found)


def test_it_is_written_with_its_weights_outside(decoder: onnx.ModelProto, tmp_path: Path) -> None:
    copy = onnx.ModelProto()
    copy.CopyFrom(decoder)
    onnx.save(copy, tmp_path / "in.onnx", save_as_external_data=True, location="in.onnx.data")
    write_recipe(read_graph(tmp_path / "in.onnx"), tmp_path / "out.onnx", "int8")
    data = (tmp_path / "out.onnx.data").stat().st_size
    assert data < 0.5 * (tmp_path / "in.onnx.data").stat().st_size
    assert ort.InferenceSession(tmp_path / "out.onnx").get_outputs()[0].name == "velocity"


@pytest.mark.skipif(probe_environment("cpu", INT8).missing is not None, reason="no 8-bit products here")
def test_a_built_engine_has_its_error_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "int8.toml"
    text = (ROOT / "configs/demo.toml").read_text().replace('bundle = "demo"', f'bundle = "{DEMO}"')
    path.write_text(text.replace('precision = "auto"', 'precision = "int8"\nthreads = 1'))
    request = load_request(path)
    environment = build_environment("cpu", request.options)
    manifest = build_engine(check_rebuilds(request, "cpu")[0], request, tmp_path, environment)
    assert (manifest.name, manifest.build["precision"]) == ("decoder", "int8")
    assert 1e-3 < manifest.error["max_rel"] < 0.1
    assert 1e-3 < manifest.error["recipe_rms_rel"] < 0.025
    assert 0.6 < manifest.error["recipe_low_work"] < 0.8
    kept = manifest.facts["not_in_8_bits"]
    assert len(kept) < 10
    assert max(kept.values()) > 0.01, "those that would change the velocity most"
    kinds = {node.op_type for node in onnx.load(tmp_path / manifest.engine_file).graph.node}
    assert {"MatMulIntegerToFloat", "Attention", "RotaryEmbedding"} < kinds
    assert set(manifest.device) == {"arch", "cpu"}


def test_adapters_and_attention_are_as_without_it(decoder: onnx.ModelProto) -> None:
    adapted = adapter_graph(decoder, AdapterSpec(matrices=linear_matrices(decoder)), "hidden_states")
    kinds = [node.op_type for node in cpu_graph(apply_recipe(adapted, "int8")).graph.node]
    assert kinds.count("Attention") == kinds.count("RotaryEmbedding") == 8
    assert kinds.count("MatMulIntegerToFloat") == 44
    assert kinds.count("MatMul") > 2 * 44, "the low-rank terms"


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


def run_session(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
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
    exact = [run_session(made, feed) for feed in feeds]
    for name, error in found.errors.items():
        changed = apply_recipe(made, "int8", quantization=replace(found, products=frozenset({name})))
        pairs = zip(exact, (run_session(changed, feed) for feed in feeds), strict=True)
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


def test_a_product_whose_error_is_no_number_is_not_in_8_bits() -> None:
    assert list(_within_budget({"broken": float("nan")}, {"broken": 1.0}, BUDGET)) == []


@pytest.mark.parametrize(("steps", "expected"), [(8, [0, 11, 22]), (2, [0, 3, 5])])
def test_every_generation_is_probed_over_64_frames_from_its_middle(steps: int, expected: list[int]) -> None:
    bundle = load_bundle(DEMO_BUNDLE)
    names = bundle.decoder.inputs
    assert names.context is not None
    assert names.condition is not None
    frames = np.arange(101, dtype=np.float32)[None, :, None]
    states = [
        {names.latents: 1000 * number + frames, names.context: frames, names.condition: frames}
        for number in range(3 * steps)
    ]
    probes = probes_of(bundle, states, steps)
    assert [probe[names.latents][0, 0, 0] - 18 for probe in probes] == [1000 * number for number in expected]
    for probe in probes:
        assert probe[names.context][0, :, 0].tolist() == list(range(18, 82))
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
