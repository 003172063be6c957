"""Graphs for ONNX Runtime's CPU kernels: the same function with fewer operators; what does not fit stays."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.paths import ROOT
from onnx import helper, numpy_helper

from engine_build.graphs.adapter_graph import adapter_graph, linear_matrices
from engine_build.graphs.cpu_graph import OPSET, _patch_length, cpu_graph, with_slot_sums
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.step_graph import step_graph
from runtime.config.decoder import AdapterSpec
from runtime.engines.graph_bodies import reads

LAYERS = 4
Change = Callable[[onnx.GraphProto], None]


@pytest.fixture(scope="module")
def decoder() -> onnx.ModelProto:
    return onnx.load(ROOT / "configs/demo/decoder.onnx")


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """The first output, of the graph as it is written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def inputs(model: onnx.ModelProto, **sizes: int) -> dict[str, Any]:
    random = np.random.default_rng(sum(sizes.values()))
    feeds = {}
    for value in model.graph.input:
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.standard_normal(shape).astype(np.float32)
    feeds["timestep"] = np.linspace(0.1, 0.9, sizes["rows"], dtype=np.float32)
    feeds["condition_mask"] = (random.random(feeds["condition_mask"].shape) < 0.6).astype(np.float32)
    return feeds


def assert_same(model: onnx.ModelProto, rewritten: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    expected = run(model, feeds)
    np.testing.assert_allclose(run(rewritten, feeds), expected, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize(("rows", "frames", "tokens"), [(1, 2, 1), (2, 80, 7), (3, 34, 16)])
def test_the_demo_s_decoder_is_the_same_function(decoder: onnx.ModelProto, rows: int, frames: int, tokens: int) -> None:
    """80 frames are 40 patches, more than the window of attention; one row has no condition at all."""
    feeds = inputs(decoder, rows=rows, frames=frames, tokens=tokens)
    feeds["condition_mask"][0] = 0
    assert_same(decoder, cpu_graph(decoder), feeds)


def test_attention_rotary_embedding_and_patches_are_single_operators(decoder: onnx.ModelProto) -> None:
    before = decoder.SerializeToString()
    rewritten = cpu_graph(decoder)
    found, left = kinds(rewritten), kinds(decoder)
    assert decoder.SerializeToString() == before, "the graph itself was changed"
    assert found["Attention"] == found["RotaryEmbedding"] == 2 * LAYERS
    assert left["Softmax"] == 2 * LAYERS
    assert not {"Softmax", "Neg", "Conv", "ConvTranspose"} & found.keys()
    assert found["Transpose"] == 2, "of the weights of patches, which are folded"
    assert found.total() < 0.7 * left.total()
    assert {item.domain: item.version for item in rewritten.opset_import} == {"": OPSET, "com.microsoft": 1}
    heads = {(node.attribute[0].i, node.attribute[1].i) for node in rewritten.graph.node if node.op_type == "Attention"}
    assert heads == {(2, 4)}


def test_weights_of_linear_layers_keep_their_names_and_nodes_their_modules(decoder: onnx.ModelProto) -> None:
    rewritten = cpu_graph(decoder)
    assert linear_matrices(rewritten) == linear_matrices(decoder)
    paths = {entry.value for node in rewritten.graph.node for entry in node.metadata_props if entry.key == "namespace"}
    attention = [node for node in rewritten.graph.node if node.op_type == "Attention"]
    assert all("attn" in next(e.value for e in node.metadata_props if e.key == "namespace") for node in attention)
    assert len(paths) > 20


def test_the_decoder_for_adapters_is_the_same_function(decoder: onnx.ModelProto) -> None:
    adapted = adapter_graph(decoder, AdapterSpec(matrices=linear_matrices(decoder)), "hidden_states")
    feeds = inputs(adapted, rows=2, frames=12, tokens=3, adapter_rank=8)
    feeds["adapter_b"] *= 0.01
    rewritten = cpu_graph(adapted)
    assert kinds(rewritten)["Attention"] == 2 * LAYERS
    assert_same(adapted, rewritten, feeds)


@pytest.mark.parametrize("name", ["codec_decode", "codec_encode", "text_encoder"])
def test_graphs_without_the_patterns_stay(name: str) -> None:
    model = onnx.load(ROOT / f"configs/demo/{name}.onnx")
    assert cpu_graph(model) is model


def test_step_graphs_and_older_opsets_stay(decoder: onnx.ModelProto) -> None:
    model = step_graph(8, {"guidance"})
    assert cpu_graph(model) is model
    old = onnx.ModelProto()
    old.CopyFrom(decoder)
    old.opset_import[0].version = 17
    assert cpu_graph(old) is old


def test_what_a_body_reads_of_a_fused_pattern_stays(decoder: onnx.ModelProto) -> None:
    branching = onnx.ModelProto()
    branching.CopyFrom(decoder)
    weights = next(node.output[0] for node in decoder.graph.node if node.op_type == "Softmax")
    flag = onnx.numpy_helper.from_array(np.array(True), "flag")
    branching.graph.initializer.append(flag)
    result = helper.make_tensor_value_info("seen", onnx.TensorProto.FLOAT, None)
    inside = helper.make_graph([helper.make_node("Neg", [weights], ["seen"])], "inside", [], [result])
    branching.graph.node.append(helper.make_node("If", ["flag"], ["peeked"], then_branch=inside, else_branch=inside))
    branching.graph.output.append(helper.make_tensor_value_info("peeked", onnx.TensorProto.FLOAT, None))
    made = cpu_graph(branching).graph
    assert len(made.node) < len(branching.graph.node)
    known = {value.name for value in (*made.input, *made.initializer)} | {n for node in made.node for n in node.output}
    assert {name for node in made.node for name in reads(node) if name} <= known


def test_external_weights_are_not_read(decoder: onnx.ModelProto) -> None:
    outside = onnx.ModelProto()
    outside.CopyFrom(decoder)
    for tensor in outside.graph.initializer:
        if len(tensor.raw_data) > 1024:
            tensor.ClearField("raw_data")
            tensor.data_location = tensor.EXTERNAL
            tensor.external_data.add(key="location", value="nowhere.data")
    assert kinds(cpu_graph(outside)) == kinds(cpu_graph(decoder))


def test_the_example_in_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "engine_build/README.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"^```python\n(>>>.*?)^```", text, re.M | re.S) if "cpu_graph" in block)
    example = doctest.DocTestParser().get_doctest(block, {}, "README", None, None)
    assert doctest.DocTestRunner().run(example) == (0, 5)


def first(graph: onnx.GraphProto, kind: str) -> onnx.NodeProto:
    return next(node for node in graph.node if node.op_type == kind)


def swap_halves(graph: onnx.GraphProto) -> None:
    """Rotates the other way."""
    node = next(node for node in graph.node if any(name == first(graph, "Neg").output[0] for name in node.input))
    node.input[:] = list(node.input)[::-1]


def other_scale(graph: onnx.GraphProto) -> None:
    """A scale of its own for each head."""
    maker = {name: node for node in graph.node for name in node.output}
    scores = next(
        maker[name] for name in maker[first(graph, "Softmax").input[0]].input if maker[name].op_type == "MatMul"
    )
    graph.initializer.append(
        numpy_helper.from_array(np.geomspace(0.1, 0.5, 4, dtype=np.float32)[:, None, None], "scales")
    )
    maker[scores.input[0]].input[1] = "scales"


def other_axis(graph: onnx.GraphProto) -> None:
    """Softmax over the queries."""
    first(graph, "Softmax").attribute[0].i = -2


def unknown_shape(graph: onnx.GraphProto) -> None:
    """Heads come from an operator whose shapes ONNX does not infer."""
    maker = {name: node for node in graph.node for name in node.output}
    node = first(graph, "Neg")
    while node.op_type != "Reshape":
        node = maker[node.input[0]]
    heads, index = node.input[0], list(graph.node).index(maker[node.input[0]])
    for reader in graph.node:
        reader.input[:] = ["opaque" if name == heads else name for name in reader.input]
    graph.node.insert(index + 1, helper.make_node("FastGelu", [heads], ["opaque"], domain="com.microsoft"))


@pytest.mark.parametrize(
    ("change", "kind", "number"),
    [
        (unknown_shape, "RotaryEmbedding", 2 * LAYERS - 1),
        (swap_halves, "RotaryEmbedding", 2 * LAYERS - 1),
        (other_scale, "Attention", 2 * LAYERS - 1),
        (other_axis, "Attention", 2 * LAYERS - 1),
    ],
)
def test_what_does_not_fit_stays(decoder: onnx.ModelProto, change: Change, kind: str, number: int) -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(decoder)
    changed.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    change(changed.graph)
    feeds = inputs(changed, rows=2, frames=12, tokens=3)
    assert np.abs(run(changed, feeds) - run(decoder, feeds)).max() > 1e-4, "the change does nothing"
    rewritten = cpu_graph(changed)
    assert kinds(rewritten)[kind] == number
    assert_same(changed, rewritten, feeds)


@pytest.mark.parametrize(
    ("attributes", "length"),
    [
        ({}, 4),
        ({"pads": [0, 0], "dilations": [1], "group": 1, "auto_pad": "NOTSET", "output_padding": [0]}, 4),
        ({"strides": [2]}, 0),
        ({"pads": [1, 1]}, 0),
        ({"dilations": [2]}, 0),
        ({"group": 2}, 0),
        ({"auto_pad": "SAME_UPPER"}, 0),
        ({"output_padding": [1]}, 0),
        ({"kernel_shape": [4, 4], "strides": [4, 4]}, 0),
    ],
    ids=str,
)
def test_patches_are_of_kernels_that_do_not_overlap(attributes: dict[str, Any], length: int) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **{"kernel_shape": [4], "strides": [4], **attributes})
    assert _patch_length(node) == length


HEADS, SIZE, ROTATED = 2, 8, 4
END = np.iinfo(np.int64).max


def differential(
    *, first: int = 0, rest: int = ROTATED, end: int = END, halves: int = 2, own_values: bool = False
) -> onnx.ModelProto:
    """Attn(q, k, v) - Attn(q2, k2, v) of x `[R, T, 16]`, whose first channels of every head are rotated by angles
    `[T, 2]`, as torch's exporter writes it. Arguments change a part of it: the place of slices, how many angles are
    repeated, a second v.
    """
    writer, random, width = GraphWriter("attention"), np.random.default_rng(0), HEADS * SIZE

    def ints(*values: int) -> str:
        return writer.constant(values, np.int64)

    def sliced(value: str, begin: int, stop: int) -> str:
        return writer.op("Slice", value, ints(begin), ints(stop), ints(3), ints(1))

    x = writer.input("x", ["rows", "frames", width])
    angles = writer.input("angles", ["frames", ROTATED // 2])
    other = writer.input("other", ["frames", ROTATED // 2])
    weight = writer.constant(random.standard_normal((width, 6 * width)) / 2)
    split = writer.ops("Split", 6, writer.op("MatMul", x, weight), axis=-1, num_outputs=6)
    q, q2, k, k2, v, v2 = (writer.op("Reshape", part, ints(0, 0, HEADS, SIZE)) for part in split)
    twice = writer.op(
        "Unsqueeze",
        writer.op("Concat", angles, angles if halves == 2 else other, axis=-1),
        writer.constant(1, np.int64),
    )

    def rotated(value: str) -> str:
        part = sliced(value, first, first + ROTATED)
        pair = writer.op("Reshape", part, ints(0, 0, HEADS, 2, ROTATED // 2))
        parts = [writer.op("Slice", pair, ints(index), ints(index + 1), ints(-2)) for index in (1, 0)]
        high, low = (writer.op("Squeeze", each, ints(-2)) for each in parts)
        turned = writer.op("Concat", writer.op("Neg", high), low, axis=-1)
        cos, sin = writer.op("Cos", twice), writer.op("Sin", twice)
        sums = writer.op("Add", writer.op("Mul", part, cos), writer.op("Mul", turned, sin))
        return writer.op("Concat", sums, sliced(value, rest, end), axis=-1)

    def attended(queries: str, keys: str, values: str) -> str:
        queries, keys, values = (writer.op("Transpose", each, perm=[0, 2, 1, 3]) for each in (queries, keys, values))
        length, scale = writer.op("Shape", keys, start=2, end=3), writer.constant(SIZE**-0.25)
        three = writer.op("Concat", ints(-1), length, ints(SIZE), axis=0)
        four = writer.op("Concat", writer.op("Shape", keys, start=0, end=2), ints(SIZE), length, axis=0)
        turned = writer.op("Transpose", writer.op("Reshape", keys, three), perm=[0, 2, 1])
        scaled = writer.op("Mul", queries, scale), writer.op("Mul", writer.op("Reshape", turned, four), scale)
        weights = writer.op("Softmax", writer.op("MatMul", *scaled), axis=-1)
        return writer.op("Transpose", writer.op("MatMul", weights, values), perm=[0, 2, 1, 3])

    outputs = attended(rotated(q), rotated(k), v), attended(rotated(q2), rotated(k2), v2 if own_values else v)
    result = writer.op("Reshape", writer.op("Sub", *outputs), ints(0, 0, width))
    writer.output("y", result, ["rows", "frames", width])
    return writer.model()


def attention_feeds(rows: int, frames: int) -> dict[str, Any]:
    random = np.random.default_rng(rows)
    sizes = {"x": (rows, frames, HEADS * SIZE), "angles": (frames, ROTATED // 2), "other": (frames, ROTATED // 2)}
    return {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}


def test_differential_attention_and_partial_rotary_embedding_are_single_operators() -> None:
    model = differential()
    rewritten = cpu_graph(model)
    found = kinds(rewritten)
    assert (found["Attention"], found["RotaryEmbedding"], found["Sub"]) == (2, 4, 1)
    assert (found["Cos"], found["Sin"]) == (1, 1), "of the angles, once for all"
    assert not {"Softmax", "Neg", "Slice", "Concat", "Transpose"} & found.keys()
    for rows, frames in ((1, 1), (3, 37)):
        assert_same(model, rewritten, attention_feeds(rows, frames))


def test_a_row_of_a_batch_is_the_row_alone_bit_by_bit() -> None:
    rewritten, feeds = cpu_graph(differential()), attention_feeds(3, 37)
    found = run(rewritten, feeds)
    for row in range(3):
        np.testing.assert_array_equal(run(rewritten, {**feeds, "x": feeds["x"][row : row + 1]})[0], found[row])


def rotated_channels(model: onnx.ModelProto) -> list[int]:
    """Of each rotary embedding, where it is of some of a head's channels."""
    nodes = [node for node in model.graph.node if node.op_type == "RotaryEmbedding"]
    attributes = [{item.name: item.i for item in node.attribute} for node in nodes]
    return [each["rotary_embedding_dim"] for each in attributes if "rotary_embedding_dim" in each]


@pytest.mark.parametrize(
    ("changes", "partial", "rotary", "attention"),
    [
        ({}, 4, 4, 2),
        ({"own_values": True}, 4, 4, 0),
        ({"first": 1}, 0, 4, 2),
        ({"rest": 0, "end": SIZE - ROTATED}, 0, 4, 2),
        ({"halves": 1}, 0, 0, 2),
    ],
    ids=str,
)
def test_what_is_almost_differential_or_partial_stays(
    changes: dict[str, Any], partial: int, rotary: int, attention: int
) -> None:
    model, feeds = differential(**changes), attention_feeds(2, 9)
    assert not changes or np.abs(run(model, feeds) - run(differential(), feeds)).max() > 1e-4, "nothing changes"
    rewritten = cpu_graph(model)
    found = kinds(rewritten)
    assert (found["RotaryEmbedding"], found["Attention"]) == (rotary, attention)
    assert rotated_channels(rewritten) == [ROTATED] * partial
    assert_same(model, rewritten, feeds)


RANDOM = np.random.default_rng(3)


def sums() -> onnx.ModelProto:
    """Over a slot's frames, over its conditions, and over all of it, with a mean."""
    graph = GraphWriter("sums")
    frames, parts = graph.input("frames", ("S", "T", 64)), graph.input("parts", ("S", "K", "T", 8))
    second = graph.constant([1], np.int64)
    graph.output("over_frames", graph.op("ReduceSum", frames, second, keepdims=1), ("S", 1, 64))
    graph.output("over_parts", graph.op("ReduceSum", parts, second, keepdims=0), ("S", "T", 8))
    whole = graph.op("ReduceSum", frames, graph.constant([1, 2], np.int64), keepdims=0)
    graph.output("of_all", whole, ("S",))
    mean = graph.op("ReduceMean", frames, graph.constant([1, 2], np.int64), keepdims=0)
    graph.output("mean", mean, ("S",))
    return graph.model()


@pytest.mark.parametrize("num_frames", [2, 64, 125, 256, 750])
@pytest.mark.parametrize("num_parts", [1, 5, 8])
def test_one_slot_is_added_up_as_several_are(num_frames: int, num_parts: int) -> None:
    frames = RANDOM.standard_normal((3, num_frames, 64)).astype(np.float32)
    parts = RANDOM.standard_normal((3, num_parts, num_frames, 8)).astype(np.float32)
    session = ort.InferenceSession(with_slot_sums(sums()).SerializeToString())
    together = session.run(None, {"frames": frames, "parts": parts})
    alone = session.run(None, {"frames": frames[:1], "parts": parts[:1]})
    for one, all_of_them in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, all_of_them[:1])
    exact = frames.sum(1, dtype=np.float64, keepdims=True), parts.sum(1, dtype=np.float64)
    for found, wanted in zip(together, exact, strict=False):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_only_sums_over_the_second_axis_change() -> None:
    model = with_slot_sums(sums())
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("If"), kinds.count("ReduceSum")) == (2, 1)
    onnx.checker.check_model(model)
    plain = step_graph(4, frozenset())
    assert [node.op_type for node in with_slot_sums(plain).graph.node] == [node.op_type for node in plain.graph.node]
