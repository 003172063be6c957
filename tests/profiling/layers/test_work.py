"""Work of layers, rooflines, and the machine's ceilings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.recorded_profiles import FOREIGN_NODE, SHAPES, VERSIONS, recorded_nodes, transformer
from onnx import TensorProto
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from profiling.layers.ceilings import (
    COPY_BYTES,
    GEMM_SIZE,
    best_of,
    best_time,
    busy_text,
    measure_ceilings,
    parse_peaks,
)
from profiling.layers.origins import OriginGraph, Origins, read_origin_graph
from profiling.layers.timings import LayerTiming, Profile, Wall
from profiling.layers.work import (
    Ceilings,
    LayerWork,
    Value,
    float_bytes,
    layer_works,
    measured_roof,
    operator_bytes,
    operator_flops,
)
from runtime.base.errors import ConfigError
from runtime.config.deployment import Target
from runtime.devices.device import HostDevice
from runtime.devices.machine import open_device
from runtime.engines.node_times import NodeTimes

ROWS, FRAMES, WIDTH = SHAPES["x"]
NUMBERS = ROWS * FRAMES * WIDTH
PRODUCT = 2 * NUMBERS * WIDTH
HALF = 2


def works(version: str, folder: Path) -> dict[str, LayerWork | None]:
    """By the layer's name up to its kernel's number."""
    nodes = recorded_nodes(version)
    found = layer_works(nodes, Origins(transformer(folder)), SHAPES)
    return {node.name.split("_myl")[0].split(" [")[0]: work for node, work in zip(nodes, found, strict=True)}


@pytest.mark.parametrize("version", VERSIONS)
def test_tensorrt_layers_have_the_work_of_their_nodes(version: str, tmp_path: Path) -> None:
    found = works(version, tmp_path)
    # One product in fp16: its input, its weight, its output.
    assert found["up_0"] == LayerWork(PRODUCT, HALF * (2 * NUMBERS + WIDTH * WIDTH))
    # A fused attention: both products and the softmax; scores stay inside, q, k and v come in, the result goes out.
    scores = ROWS * FRAMES * FRAMES
    inside = found["_gemm_mha_v2"]
    assert inside == LayerWork(2 * PRODUCT // WIDTH * FRAMES + 5 * scores, HALF * 4 * NUMBERS)
    subgraph = found[FOREIGN_NODE]
    assert subgraph is not None
    assert subgraph.flops > PRODUCT


@pytest.mark.parametrize("version", VERSIONS)
def test_an_inserted_reformat_moves_its_tensors(version: str, tmp_path: Path) -> None:
    nodes = recorded_nodes(version)
    (copy,) = (node for node in nodes if node.op_type == "Reformat")
    assert layer_works([copy], Origins(transformer(tmp_path)), SHAPES) == [LayerWork(0, HALF * 2 * NUMBERS)]
    free = NodeTimes(copy.name, copy.op_type, (1.0,), {"Inputs": [{"Dimensions": [-1, 2], "Datatype": "Half"}]})
    assert layer_works([free], Origins(transformer(tmp_path)), SHAPES) == [None]
    one = {"Inputs": [{"Dimensions": [], "Datatype": "Int64"}], "Outputs": [{"Dimensions": [0, 2], "Datatype": "Half"}]}
    scalar = NodeTimes(copy.name, copy.op_type, (1.0,), one)
    assert layer_works([scalar], Origins(transformer(tmp_path)), SHAPES) == [LayerWork(0, 8)], (
        "of a scalar, and of nothing"
    )


def test_a_fused_onnxruntime_kernel_has_the_operations_of_its_nodes(tmp_path: Path) -> None:
    """An attention in one node: its operator's name says nothing of its two products."""
    source = transformer(tmp_path)
    parts = [source.by_name[f"{name}_0"] for name in ("scores", "weights", "mixed")]
    inputs = ["to_q_0", "turned_0", "normed_0"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MultiHeadAttention", inputs, ["mixed_0"], "fused", domain="com.microsoft")],
        "engine",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in inputs],
        [onnx.helper.make_tensor_value_info("mixed_0", onnx.TensorProto.FLOAT, None)],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "engine.onnx")
    origins = Origins(source, read_origin_graph(tmp_path / "engine.onnx"))
    facts = {"provider": "CUDAExecutionProvider", "output_type_shape": [{"float": list(SHAPES["x"])}]}
    shapes = {"x": SHAPES["x"], "to_q_0": SHAPES["x"], "turned_0": (2, 16, 8), "normed_0": SHAPES["x"]}
    (work,) = layer_works([NodeTimes("fused", "MultiHeadAttention", (1.0,), facts)], origins, shapes)
    assert {node.name for node in origins.of(NodeTimes("fused", "MultiHeadAttention", (1.0,), facts))} == {
        node.name for node in parts
    }
    assert work == LayerWork(2 * PRODUCT // WIDTH * FRAMES + 5 * ROWS * FRAMES * FRAMES, 4 * 4 * NUMBERS)


def test_a_plain_operator_has_its_own_operations_alone(tmp_path: Path) -> None:
    """The last operator of several that compute a node of the model has not the node's operations."""
    value = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=None)
    node = onnx.helper.make_node

    def saved(name: str, *nodes: onnx.NodeProto) -> OriginGraph:
        graph = onnx.helper.make_graph(nodes, name, [value("x"), value("w"), value("b")], [value("y")])
        onnx.save(onnx.helper.make_model(graph), tmp_path / name)
        return read_origin_graph(tmp_path / name)

    source = saved("source", node("MatMul", ["x", "w"], ["z"], "product"), node("Sum", ["z", "b"], ["y"], "sum"))
    engine = saved("engine", node("MatMul", ["x", "w"], ["p"], "kernel"), node("Add", ["p", "b"], ["y"], "bias"))
    facts = {"provider": "CPUExecutionProvider", "output_type_shape": [{"float": [4, 2]}]}
    layers = [NodeTimes(name, op_type, (1.0,), facts) for name, op_type in (("kernel", "MatMul"), ("bias", "Add"))]
    works = layer_works(layers, Origins(source, engine), {"x": (4, 3), "w": (3, 2), "b": (2,)})
    assert [work and work.flops for work in works] == [2 * 4 * 3 * 2, 4 * 2]


def test_without_a_graph_no_work_is_known() -> None:
    nodes = recorded_nodes("10")
    assert layer_works(nodes, Origins(), SHAPES) == [None] * len(nodes)


@pytest.mark.parametrize(
    ("tensor", "width"),
    [
        ({"Format/Datatype": "Row-major linear FP16 format"}, 2.0),
        ({"Format/Datatype": "Channel major FP32 format where C % 32 == 0"}, 4.0),
        ({"Format": "Row-major linear", "Datatype": "BFloat16"}, 2.0),
        ({"Format": "Row-major linear", "Datatype": "FP8"}, 1.0),
        ({"Format": "Row-major linear", "Datatype": "FP4"}, 0.5),
        ({"Format": "Row-major linear", "Datatype": "Half"}, 2.0),
        ({"Format": "Row-major linear", "Datatype": "Float"}, 4.0),
        ({"Format": "Row-major linear", "Datatype": "Int64"}, 4.0),
        ({}, 4.0),
    ],
)
def test_widths_in_both_schemas(tensor: dict[str, str], width: float) -> None:
    assert float_bytes({"Inputs": [tensor]}) == width


@pytest.mark.parametrize(
    ("datatype", "size_bytes"),
    [("Int64", 48), ("Int32", 24), ("BF16", 12), ("FP8", 6), ("UINT8", 6), ("Int8", 6), ("Bool", 6), ("FP4", 3),
     ("INT4", 3), ("Quux", None)],
)  # fmt: skip
def test_a_copy_moves_bytes_by_the_type_of_its_elements(datatype: str, size_bytes: int | None, tmp_path: Path) -> None:
    copy = NodeTimes("copy", "Reformat", (1.0,), {"Outputs": [{"Dimensions": [2, 3], "Datatype": datatype}]})
    expected = None if size_bytes is None else LayerWork(0, size_bytes)
    assert layer_works([copy], Origins(transformer(tmp_path)), SHAPES) == [expected]


TOP = Ceilings(100e9, 10e9)


def values(*shapes: tuple[int, ...], item_bytes: float = 4.0) -> list[Value]:
    return [Value(shape, item_bytes) for shape in shapes]


@pytest.mark.parametrize(
    ("op_type", "attributes", "inputs", "output", "flops"),
    [
        ("MatMul", {}, [(2, 3, 5), (5, 7)], (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("FusedMatMul", {}, [(2, 3, 5), (2, 5, 7)], (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("FusedMatMul", {"transA": 1}, [(2, 5, 3), (2, 5, 7)], (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("FusedGemm", {}, [(3, 5), (5, 7)], (3, 7), 2 * 3 * 7 * 5),
        ("Add", {}, [(3, 5), (5,)], (3, 5), 15),
        ("ReduceMean", {}, [(3, 5)], (3,), 15),
        ("Softmax", {}, [(3, 5)], (3, 5), 75),
        ("SimplifiedLayerNormalization", {}, [(3, 5), (5,)], (3, 5), 75),
        ("Transpose", {}, [(3, 5)], (5, 3), 0),
        ("Quux", {}, [(3, 5)], (5, 3), 0),
    ],
)
def test_operations(
    op_type: str, attributes: dict[str, Any], inputs: list[tuple[int, ...]], output: tuple[int, ...], flops: int
) -> None:
    assert operator_flops(op_type, attributes, values(*inputs), values(output)) == flops


def test_bytes_are_inputs_and_outputs() -> None:
    assert operator_bytes("Add", values((3, 5), (5,)), values((3, 5))) == 4 * (15 + 5 + 15)
    assert operator_bytes("Reshape", values((3, 5)), values((15,))) == 0
    # A gather reads the lines that it takes, not the table.
    assert operator_bytes("Gather", [*values((1000, 8)), *values((2,), item_bytes=8)], values((2, 8))) == 2 * 64 + 16
    assert Value((3,), 0.5).size_bytes == 2


@pytest.mark.parametrize(
    ("flops", "size_bytes", "bound", "reached"),
    [
        (10**9, 10**6, "compute", pytest.approx(0.5)),
        (10**6, 10**8, "memory", pytest.approx(0.5)),
        (0, 10**8, "memory", pytest.approx(0.5)),
        (10**9, 0, "compute", pytest.approx(0.5)),
    ],
)
def test_the_lower_ceiling_bounds(flops: int, size_bytes: int, bound: str, reached: float) -> None:
    roof = measured_roof(LayerWork(flops, size_bytes), 20.0, TOP)
    assert roof is not None
    assert (roof.bound, roof.reached) == (bound, reached)
    assert (roof.flops_per_s, roof.bytes_per_s) == pytest.approx((flops / 0.02, size_bytes / 0.02))
    without = measured_roof(LayerWork(flops, size_bytes), 20.0, None)
    assert without is not None
    assert (without.bound, without.reached) == (None, None)


def test_a_roof_needs_time_and_some_work() -> None:
    assert measured_roof(LayerWork(0, 0), 20.0, TOP) is measured_roof(LayerWork(10, 10), 0.0, TOP) is None


def test_given_ceilings() -> None:
    top = parse_peaks("989000,4800")
    assert (top.flops_per_s, top.bytes_per_s) == (989e12, 4.8e12)
    assert top.source == "given"


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", "0,1", "1,-1", "nan,1", "1,inf"])
def test_other_than_two_positive_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--peaks is[\s\S]*fix: --peaks"):
        parse_peaks(text)


def test_the_best_of_all_measurements() -> None:
    first, second = Ceilings(2.0, 30.0, "measured", 0.5), Ceilings(3.0, 20.0, "measured", 0.9)
    assert best_of([first, second]) == Ceilings(3.0, 30.0, "measured", 0.7)
    assert best_of([first]) == first


def profile_of(*runs_ms: float, target: str = "cpu", precision: str = "fp32") -> Profile:
    """Of one layer with 2e8 operations on few bytes: 200 GFLOP/s in 1 ms."""
    layer = LayerTiming("up", "MatMul", "gemm", runs_ms, 1.0, work=LayerWork(200_000_000, 1000))
    about = {"target": target, "precision": precision}
    return Profile("decoder", len(runs_ms), (layer,), Wall(runs_ms), about)


def test_a_busy_machine_is_called_busy() -> None:
    quiet, slowed = Ceilings(220e9, 20e9, "measured", 0.97), Ceilings(69e9, 20e9, "measured", 0.9)
    profile = profile_of(1.0, 1.1, 1.2)
    assert busy_text(profile, [quiet] * 6) == ""
    assert busy_text(profile, [quiet] * 4 + [slowed] * 2) == "", "the best ones count"
    assert "69 to 220 GFLOP/s" in busy_text(profile, [slowed] * 4 + [quiet] * 2)
    always = busy_text(profile, [slowed] * 6)
    assert always.startswith("machine busy: a layer computes at 290%"), "equally slow measurements, and faster layers"
    assert "45% of the cores' time" in busy_text(profile, [Ceilings(220e9, 20e9, "measured", 0.45)] * 6)


def test_only_float32_on_a_cpu_cannot_compute_faster_than_its_ceiling() -> None:
    measured = [Ceilings(69e9, 20e9, "measured")]
    assert busy_text(profile_of(1.0), measured)
    assert busy_text(profile_of(1.0, precision="int8"), measured) == ""
    assert busy_text(profile_of(1.0, target="cuda"), measured) == ""


def test_a_layer_that_was_interrupted_is_judged_by_its_fastest_execute() -> None:
    roof = profile_of(9.0, 1.0, 8.0).layers[0].roof(Ceilings(250e9, 20e9))
    assert roof is not None
    assert roof.reached == pytest.approx(0.8)


def test_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GEMM_SIZE, "cpu", 64)
    monkeypatch.setitem(COPY_BYTES, "cpu", 1 << 20)
    top = measure_ceilings("cpu", HostDevice(), half=True, threads=1)
    assert top.flops_per_s > 0
    assert top.bytes_per_s > 0
    assert "64 x 64" in top.source


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_unmeasurable_ceilings_can_be_given(target: str) -> None:
    """Without the CUDA provider, as where only TensorRT is installed."""
    with pytest.raises(ConfigError, match=r"the ceilings of target[\s\S]*fix: --peaks"):
        measure_ceilings(target, HostDevice(), half=False, threads=1)  # type: ignore[arg-type]


def test_the_cuda_provider_measures_for_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GEMM_SIZE, "cuda", 32)
    monkeypatch.setitem(COPY_BYTES, "cuda", 1 << 16)
    with simulated() as machine, simulated_provider(machine):
        device = open_device("tensorrt")
        top = measure_ceilings("tensorrt", device, half=True, threads=1)
        device.close()
    assert top.flops_per_s > 0
    assert "32 x 32" in top.source


@pytest.mark.parametrize(("target", "element"), [("cpu", TensorProto.FLOAT), ("tensorrt", TensorProto.FLOAT16)])
def test_ceilings_are_operations_and_bytes_over_the_best_times(target: Any, element: int) -> None:
    asked: list[Any] = []

    def best(kind: str, device: Any, op_type: str, shapes: Any, element: int, threads: int) -> tuple[float, float]:
        asked.append((kind, op_type, shapes, element, threads))
        return {"MatMul": (0.5, 0.9), "Neg": (0.25, 0.1)}[op_type]

    kind: Target = "cpu" if target == "cpu" else "cuda"
    size, copied = GEMM_SIZE[kind], COPY_BYTES[kind]
    found = measure_ceilings(target, HostDevice(), half=True, threads=3, best=best)
    source = f"measured: {size} x {size} matrix product, {copied >> 20} MiB negated"
    # A product is 2 N^3 operations, a copy reads and writes.
    assert found == Ceilings(2 * size**3 / 0.5, 2 * copied / 0.25, source, 0.9)
    assert asked == [
        (kind, "MatMul", {"a": (size, size), "b": (size, size)}, element, 3),
        (kind, "Neg", {"a": (copied // 4,)}, TensorProto.FLOAT, 3),
    ]


@pytest.mark.parametrize(
    ("kind", "threads", "best"), [("cpu", 1, (2.0, 0.75)), ("cpu", 2, (3.0, 0.375)), ("cuda", 2, (3.0, 1.0))]
)
def test_one_thread_is_measured_in_cpu_time(kind: Target, threads: int, best: tuple[float, float]) -> None:
    walls_s, cpus_s = [5.0, 3.0, *[4.0] * 6], [2.0, 2.5, *[3.25] * 6]
    assert best_time(list(zip(walls_s, cpus_s, strict=True)), kind, threads) == pytest.approx(best)
