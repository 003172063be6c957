"""The simulated TensorRT: networks, builds and whole commands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.paths import ROOT, TESTS
from simulator.fixture import SITE, Machine, RuleBroken, child_environment, provoked, simulated
from simulator.plans import CHANNELS, Lines, build_plan, cache_graph, small_graph

from engine_build.compile.worker import BuildLog, Worker
from engine_build.graphs.graph_writer import GraphWriter

# Without a driver.


@pytest.mark.parametrize("name", ["Runtime", "Builder"])
def test_construction_without_a_driver(name: str) -> None:
    with simulated(no_driver=True) as machine:
        import tensorrt as trt

        with provoked(machine, name, "constructed without a driver"):
            getattr(trt, name)(Lines())


# Networks.


def test_a_network_of_version_10_must_be_strongly_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_TENSORRT", "10.16.1.11")
    with simulated() as machine:
        import tensorrt as trt

        log = Lines()
        network = trt.Builder(log).create_network()
        with provoked(machine, "not strongly typed"):
            trt.OnnxParser(network, log).parse(small_graph().SerializeToString())


# Whole commands.


@pytest.mark.shipped
@pytest.mark.parametrize(("call", "status"), [("assert builder.create_builder_config()", 0), ("broken", 70)])
def test_a_command_that_breaks_a_rule_fails(call: str, status: int) -> None:
    lines = [
        "import sys, tensorrt as trt",
        "builder = trt.Builder(trt.Logger())",
        "config = builder.create_builder_config()",
        "config.set_tactic_sources(0)" if call == "broken" else call,
        "sys.exit(0)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env=child_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stderr
    assert ("an ignored True" in done.stderr) == (status != 0)


BUILDS = """
import sys
from engine_build.compile.worker import BuildLog, Worker
from simulator.test_tensorrt_builds import break_a_rule

with Worker() as worker:
    worker.run(break_a_rule, None, BuildLog())
"""


def break_a_rule(request: None, cancelled: threading.Event, on_log: Any) -> None:
    """Task."""
    import tensorrt as trt

    trt.Builder(trt.Logger()).create_builder_config().set_tactic_sources(0)


def test_a_rule_that_the_build_process_breaks_is_broken_by_its_parent() -> None:
    with pytest.raises(RuleBroken, match="an ignored True"), simulated(), Worker() as worker:
        worker.run(break_a_rule, None, BuildLog())


@pytest.mark.shipped
def test_a_command_whose_build_process_breaks_a_rule_fails() -> None:
    lines = f"from simulated_machine import machine\nmachine()\n{BUILDS}"
    environment = child_environment(PYTHONPATH=os.pathsep.join([str(SITE), str(TESTS), str(ROOT)]))
    done = subprocess.run(
        [sys.executable, "-c", lines], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 70, done.stderr
    assert "an ignored True" in done.stderr


# Builds.


class Build:
    """A network with a builder configuration."""

    def __init__(self, model: onnx.ModelProto | None = None) -> None:
        import tensorrt as trt

        self.trt, self.log = trt, Lines()
        self.builder = trt.Builder(self.log)
        self.network = self.builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        assert trt.OnnxParser(self.network, self.log).parse((model or small_graph()).SerializeToString())
        self.config = self.builder.create_builder_config()

    def add_profile(self, **shapes: tuple[Any, Any, Any]) -> int:
        profile = self.builder.create_optimization_profile()
        for name, ranges in shapes.items():
            profile.set_shape(name, *ranges)
        return int(self.config.add_optimization_profile(profile))

    def run(self) -> Any:
        return self.builder.build_serialized_network(self.network, self.config)

    def add_good_profile(self) -> None:
        x = tuple((rows, 4, CHANNELS) for rows in (1, 2, 4))
        assert self.add_profile(x=x, t=((1,), (2,), (4,))) == 0  # type: ignore[arg-type]

    @property
    def log_text(self) -> str:
        return "\n".join(text for _, text in self.log.lines)


def test_a_build_needs_ranges_for_free_dimensions(machine: Machine) -> None:
    build = Build()
    assert build.run() is None
    assert "no optimization profile has been defined" in build.log_text
    assert build.add_profile() == -1, "a profile without shapes is not valid"
    assert build.add_profile(x=tuple((1, 1, CHANNELS) for _ in range(3))) == 0  # type: ignore[arg-type]
    assert build.run() is None
    assert "t does not have shapes in optimization profile 0" in build.log_text


def test_ranges_must_be_in_order(machine: Machine) -> None:
    with pytest.raises(ValueError, match="inconsistent"):
        Build().add_profile(t=((2,), (1,), (3,)))


def test_a_range_of_a_static_dimension(machine: Machine) -> None:
    build = Build()
    x = tuple((1, 1, channels) for channels in (1, 2, CHANNELS))
    build.add_profile(x=x, t=((1,), (1,), (1,)))  # type: ignore[arg-type]
    assert build.run() is None
    assert "a static dimension 64 has the range" in build.log_text


def test_an_operator_that_does_not_exist_is_a_parser_error(machine: Machine) -> None:
    import tensorrt as trt

    model = small_graph()
    model.graph.node[0].op_type, model.graph.node[0].name = "Unknown", "the node"
    log = Lines()
    network = trt.Builder(log).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert not parser.parse(model.SerializeToString())
    error = parser.get_error(0)
    assert (parser.num_errors, error.node_operator(), error.node_name()) == (1, "Unknown", "the node")


def test_the_parser_takes_a_path_as_str(machine: Machine, tmp_path: Path) -> None:
    import tensorrt as trt

    path = tmp_path / "small.onnx"
    onnx.save(small_graph(), path, save_as_external_data=True, size_threshold=0)
    log = Lines()
    network = trt.Builder(log).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    with pytest.raises(TypeError):
        trt.OnnxParser(network, log).parse_from_file(path)
    assert not trt.OnnxParser(network, log).parse_from_file(str(tmp_path / "none.onnx"))
    assert trt.OnnxParser(network, log).parse_from_file(str(path))


def test_a_graph_that_cannot_be_executed_does_not_build(machine: Machine) -> None:
    graph = GraphWriter("wrong")
    x = graph.input("x", (2, 3))
    graph.output("y", graph.op("MatMul", x, x), (2, 3))
    build = Build(graph.model())
    assert build.run() is None
    assert "Could not find any implementation" in build.log_text


def monitor(trt: Any, cancel_at: int | None = None) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.threads: set[int] = set()
            self.phases: list[str] = []
            self.steps = 0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.threads.add(threading.get_ident())
            self.phases.append(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self.steps += 1
            return self.steps != cancel_at

        def phase_finish(self, phase_name: str) -> None:
            self.phases.remove(phase_name)

    return Monitor()


def test_a_monitor_is_called_from_another_thread_and_can_cancel(machine: Machine) -> None:
    build = Build()
    build.add_good_profile()
    completed = build.config.progress_monitor = monitor(build.trt)
    assert build.run() is not None
    assert threading.get_ident() not in completed.threads
    assert completed.phases == []
    build.config.progress_monitor = monitor(build.trt, cancel_at=3)
    assert build.run() is None
    assert build.config.progress_monitor.steps == 3


@pytest.mark.parametrize("taken", [1.0, 0.5])
def test_a_plan_is_written_in_pieces(machine: Machine, taken: float) -> None:
    build = Build()
    build.add_good_profile()
    pieces: list[bytes] = []

    class Writer(build.trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            build.trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            pieces.append(bytes(data))
            return int(len(data) * taken)

    done = build.builder.build_serialized_network_to_stream(build.network, build.config, Writer())
    assert bool(done) == (taken == 1.0)
    if done:
        assert b"".join(pieces) == bytes(build.run())


def test_a_timing_cache_that_is_destroyed_before_the_build(machine: Machine) -> None:
    build = Build()
    build.add_good_profile()
    assert build.config.set_timing_cache(build.config.create_timing_cache(b""), False)
    with provoked(machine, "timing cache was destroyed"):
        build.run()


def test_a_timing_cache_is_filled_and_used(machine: Machine) -> None:
    build = Build()
    build.add_good_profile()
    cache = build.config.create_timing_cache(b"")
    assert build.config.set_timing_cache(cache, False)
    assert build.run() is not None
    assert len(cache.queryKeys()) > 0
    build.config.set_flag(build.trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    again = build.config.create_timing_cache(bytes(cache.serialize()))
    assert build.config.set_timing_cache(again, False)
    assert build.run() is not None
    empty = build.config.create_timing_cache(b"")
    assert build.config.set_timing_cache(empty, False)
    assert build.run() is None


def test_a_timing_cache_of_another_device_and_invalid_bytes_are_refused() -> None:
    with simulated(gpu_name="Another"):
        foreign = bytes(Build().config.create_timing_cache(b"").serialize())
    with simulated():
        config = Build().config
        cache, own = config.create_timing_cache(foreign), config.create_timing_cache(b"")
        assert not config.set_timing_cache(cache, False)
        assert config.set_timing_cache(cache, True)
        assert not own.combine(cache, False)
        assert config.create_timing_cache(b"no cache") is None


def test_bfloat16_is_rounded_where_the_graph_casts() -> None:
    graph = GraphWriter("rounding")
    x = graph.input("x", (256,))
    narrow = graph.op("Cast", x, to=onnx.TensorProto.BFLOAT16)
    product = graph.op("Mul", narrow, narrow)
    graph.output("y", graph.op("Cast", product, to=onnx.TensorProto.FLOAT), (256,))
    with simulated() as machine:
        import tensorrt as trt

        log = Lines()
        runtime = trt.Runtime(log)
        engine = runtime.deserialize_cuda_engine(build_plan(graph.model(), []))
        context = engine.create_execution_context()
        values = np.random.default_rng(0).standard_normal(256).astype(np.float32)
        addresses = [machine.allocate(1024, "device") for _ in range(2)]
        machine.memory(addresses[0], 1024, "a test")[...] = values.view(np.uint8)
        for name, address in zip("xy", addresses, strict=True):
            assert context.set_tensor_address(name, address)
        stream = machine.create_stream()
        assert context.execute_async_v3(stream)
        machine.synchronize()
        y = machine.memory(addresses[1], 1024, "a test").view(np.float32)
        rounded = (values.view(np.uint32) + 0x7FFF + (values.view(np.uint32) >> 16 & 1) & 0xFFFF0000).view(np.float32)
        np.testing.assert_allclose(y, rounded**2, rtol=1e-6)
        assert not np.allclose(y, values**2, rtol=1e-4)
        del context, engine, runtime


# What only shows when a graph is parsed and built.


def one_layer(op: str, x: tuple[int | str, ...], *constants: Any) -> onnx.ModelProto:
    graph = GraphWriter("layer")
    inputs = [graph.constant(value, np.asarray(value).dtype) for value in constants]
    if op == "Range":
        length = graph.op("Gather", graph.op("Shape", graph.input("x", x)), inputs.pop())
        graph.output("y", graph.op("Range", inputs[0], length, inputs[1]), ("length",), np.int64)
    else:
        graph.output("y", graph.op(op, graph.input("x", x), *inputs), ("a", "b", "c"))
    return graph.model()


def best(count: int) -> onnx.ModelProto:
    graph = GraphWriter("best")
    largest, _ = graph.ops("TopK", 2, graph.input("x", (2, 8000)), graph.constant([count], np.int64))
    graph.output("y", largest, (2, count))
    return graph.model()


def computed_kernel() -> onnx.ModelProto:
    graph = GraphWriter("conv")
    kernel = graph.op("Neg", graph.constant(np.ones((4, 2, 3))))
    graph.output("y", graph.op("Conv", graph.input("x", (1, 2, 8)), kernel), (1, 4, 6))
    return graph.model()


def scattered(reduction: str) -> onnx.ModelProto:
    graph = GraphWriter("scatter")
    x, places = graph.input("x", (2, 8)), graph.input("places", (2, 8), np.int64)
    graph.output("y", graph.op("ScatterElements", x, places, graph.input("new", (2, 8)), reduction=reduction), (2, 8))
    return graph.model()


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (one_layer("Range", ("n", 4), [0], 1, 0), "LINSPACE requires that input at index 0 have rank 0"),
        (one_layer("Range", ("n", 4), 0, 1, 0), None),
        (one_layer("Expand", ("n", 1, 1), np.asarray([1, 1 << 12, 1 << 17])), "tensor volume exceeds 2147483647"),
        (one_layer("Expand", ("n", 1, 1), np.asarray([1, 1 << 12, 1 << 16])), None),
        (best(3840), None),
        (best(3841), ""),
        (computed_kernel(), "kernel weights of Conv that are computed at run time"),
        (scattered("none"), None),
        (scattered("add"), "not supported in this form"),
    ],
)
def test_layers_that_the_builder_refuses(machine: Machine, model: onnx.ModelProto, says: str | None) -> None:
    build = Build(model)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    if dims[0].dim_param:
        shape = tuple(dim.dim_value or 4 for dim in dims)
        build.add_profile(x=((1, *shape[1:]), shape, shape))
    assert (build.run() is None) == (says is not None)
    assert says is None or says in build.log_text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"axis": 2}, None),
        ({"mode": "circular"}, "only KVCacheMode::kLINEAR"),
        ({"moved": True}, "cache must be a network input"),
        ({"rank": 3}, "cache must have 4 dimensions"),
        ({"axis": 1}, "cache must have 4 dimensions"),
        ({"capacity": "capacity"}, "must be static"),
    ],
)
def test_caches_that_the_builder_refuses(machine: Machine, changes: dict[str, Any], says: str | None) -> None:
    model = cache_graph(**changes)
    build, sizes = Build(model), {"rows": 2, "capacity": 8}
    shapes = {
        item.name: tuple(sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims)
        for item in model.graph.input
        if (dims := item.type.tensor_type.shape.dim)
    }
    build.add_profile(**{name: (shape, shape, shape) for name, shape in shapes.items()})
    assert (build.run() is None) == (says is not None)
    assert says is None or says in build.log_text


def in_rtx(model: onnx.ModelProto, flags: Sequence[str] = (), cards: Sequence[str] = ()) -> str:
    """What the simulated TensorRT-RTX says against a build without a driver; "" where it builds."""
    with simulated(rtx=True, no_driver=True):
        import tensorrt_rtx as rtx

        log = Lines()
        builder = rtx.Builder(log)
        network = builder.create_network(1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        assert rtx.OnnxParser(network, log).parse(model.SerializeToString())
        config = builder.create_builder_config()
        for flag in flags:
            config.set_flag(rtx.BuilderFlag[flag])
        config.num_compute_capabilities = len(cards)
        for index, card in enumerate(cards):
            assert config.set_compute_capability(rtx.ComputeCapability[card], index)
        plan = builder.build_serialized_network(network, config)
        return "" if plan is not None else log.lines[-1][1]


def product(kind: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    graph = GraphWriter("product")
    weight = graph.constant(np.ones((8, 8)))
    if kind == onnx.TensorProto.FLOAT8E4M3FN:
        scale, zero = graph.constant(1.0), graph.constant(0, onnx.helper.tensor_dtype_to_np_dtype(kind))
        weight = graph.op("DequantizeLinear", graph.op("QuantizeLinear", weight, scale, zero), scale, zero)
    graph.output("y", graph.op("MatMul", graph.input("x", (2, 8)), weight), (2, 8))
    return graph.model()


def test_options_that_tensorrt_rtx_refuses_without_a_driver() -> None:
    fp8 = product(onnx.TensorProto.FLOAT8E4M3FN)
    assert in_rtx(product()) == in_rtx(product(), cards=["SM86", "SM89"]) == in_rtx(fp8, cards=["SM89"]) == ""
    assert "CHECK(status == CUDA_SUCCESS)" in in_rtx(product(), ["REFIT"])
    assert "libnvinfer_lean" in in_rtx(product(), ["VERSION_COMPATIBLE"])
    assert "FP32 GEMM" in in_rtx(product(), cards=["SM75"])
    assert "error: 35" in in_rtx(product(), cards=["CURRENT"])
    assert "fp8_e4m3" in in_rtx(fp8)
    assert "fp8_e4m3" in in_rtx(fp8, cards=["SM86", "SM89"])


@pytest.mark.parametrize(("operator", "kind", "is_refused"), [
    ("Mish", onnx.TensorProto.BFLOAT16, True), ("HardSwish", onnx.TensorProto.BFLOAT16, True),
    ("Mish", onnx.TensorProto.FLOAT, False),
])  # fmt: skip
def test_pointwise_operators_that_tensorrt_rtx_does_not_have_in_bf16(
    operator: str, kind: int, is_refused: bool
) -> None:
    values = [onnx.helper.make_tensor_value_info(name, kind, (2, 8)) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ["x"], ["y"])], "one", values[:1], values[1:])
    opset = onnx.helper.make_opsetid("", 22)
    said = in_rtx(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10))
    assert (f"{operator} is not supported in this form" in said) == is_refused


@pytest.mark.parametrize("decomposable", [False, True])
@pytest.mark.parametrize(
    ("kind", "width", "is_fused"), [("float32", 8, False), ("float16", 8, True), ("float16", 512, False)]
)
def test_attention_without_a_fused_kernel(
    machine: Machine, kind: str, width: int, is_fused: bool, decomposable: bool
) -> None:
    graph = GraphWriter("attention", 24)
    heads = [graph.input(name, (1, 2, 4, width), kind) for name in ("q", "k", "v")]
    graph.output("y", graph.op("Attention", *heads), (1, 2, 4, width), kind)
    build = Build(graph.model())
    (layer,) = (build.network.get_layer(index) for index in range(build.network.num_layers))
    assert layer.type == build.trt.LayerType.ATTENTION_INPUT
    with pytest.raises(AttributeError):
        layer.attention  # noqa: B018
    layer.__class__ = build.trt.IAttentionInputLayer
    layer.attention.decomposable = decomposable
    assert (build.run() is not None) == (is_fused or decomposable)
    assert ("not supported by a dedicated kernel" in build.log_text) == (not is_fused and not decomposable)


@pytest.mark.parametrize("through", ["", "Shape"])
def test_an_input_that_decides_a_shape_is_a_shape_tensor(machine: Machine, through: str) -> None:
    graph = GraphWriter("shape")
    x, shape = graph.input("x", ("n", 4)), graph.input("s", (2,), np.int64)
    if through:
        shape = graph.op("Shape", shape)
    graph.output("y", graph.op("Reshape", x, graph.op("Abs", shape)), ("a", "b"))
    network = Build(graph.model()).network
    found = {network.get_input(index).name: network.get_input(index).is_shape_tensor for index in range(2)}
    assert found == {"x": False, "s": not through}
