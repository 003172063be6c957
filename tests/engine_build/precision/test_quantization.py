"""8-bit products as QDQ: what they compute, against numpy and ml_dtypes, and how they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from engine_build.graphs.adapter_graph import adapter_graph
from engine_build.graphs.graph_file import graph_of, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.tensorrt_preparation import prepare_model
from engine_build.precision.error import emulated, write_emulated
from engine_build.precision.quantization import EightBits, Quantization
from engine_build.precision.recipe import apply_recipe, changes_anything, node_precisions, write_recipe
from runtime.config.decoder import AdapterMatrix, AdapterSpec

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
