"""The simulated TensorRT: results of the graph, and for every rule a test that breaks it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from simulator.fixture import Machine, child_environment, provoked, simulated
from simulator.plans import CHANNELS, MANY_ROWS, ROWS, Lines, build_plan, small_graph

from engine_build.graphs.graph_writer import GraphWriter

THREAD_LOCAL = 1
SHAPES = {"x": (2, 4, CHANNELS), "t": (2,), "bias": (CHANNELS,)}
SIZES = {"x": 2 * 4 * CHANNELS * 4, "t": 8, "bias": CHANNELS * 4, "y": 2 * 4 * CHANNELS * 4, "positive": 2}


class Rig:
    """An engine of `small_graph` with a context that is ready to execute, its buffers and its streams."""

    def __init__(self, machine: Machine, *, flags: tuple[str, ...] = ()) -> None:
        import tensorrt as trt

        self.trt, self.machine = trt, machine
        self.log = Lines()
        self.runtime = trt.Runtime(self.log)
        self.engine = self.runtime.deserialize_cuda_engine(build_plan(small_graph(), [ROWS, MANY_ROWS], flags=flags))
        assert self.engine is not None
        self.stream, self.other = machine.create_stream(), machine.create_stream()
        self.memory = machine.allocate(self.engine.device_memory_size_v2, "device")
        self.addresses = {name: machine.allocate(size, "device") for name, size in SIZES.items()}
        random = np.random.default_rng(0)
        self.values = {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        for name, values in self.values.items():
            machine.memory(self.addresses[name], SIZES[name], "a test")[...] = values.reshape(-1).view(np.uint8)
        self.context = self.new_context()

    def new_context(self) -> Any:
        context = self.engine.create_execution_context(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        assert context is not None
        context.set_device_memory(self.memory, self.engine.device_memory_size_v2)
        self.set_shapes(context)
        for name, address in self.addresses.items():
            assert context.set_tensor_address(name, address)
        return context

    def set_shapes(self, context: Any, rows: int = 2) -> None:
        assert context.set_input_shape("x", (rows, 4, CHANNELS))
        assert context.set_input_shape("t", (rows,))

    def execute(self, stream: int | None = None) -> None:
        assert self.context.execute_async_v3(self.stream if stream is None else stream)

    def capture(self) -> int:
        """An executable graph of one execute; the caller destroys it."""
        self.machine.begin_capture(self.stream, THREAD_LOCAL)
        try:
            self.execute()
        except BaseException:
            self.machine.end_capture(self.stream)
            raise
        captured = self.machine.end_capture(self.stream)
        graph = self.machine.instantiate(captured)
        self.machine.destroy_graph(captured, executable=False)
        return graph

    def destroy(self, graph: int) -> None:
        self.machine.synchronize()
        self.machine.destroy_graph(graph, executable=True)

    def result(self) -> np.ndarray[Any, Any]:
        self.machine.synchronize(self.stream)
        return self.machine.memory(self.addresses["y"], SIZES["y"], "a test").view(np.float32).reshape(SHAPES["x"])

    def expected(self) -> np.ndarray[Any, Any]:
        values = self.values
        return np.asarray(np.float32(2.0) * values["x"] + values["t"][:, None, None] + values["bias"])

    def close(self) -> None:
        self.machine.synchronize()
        # An exception that a test caught keeps the objects of its frames alive.
        if self.context is not None and len(self.context._captured):
            gc.collect()
        self.context = None
        if self.engine is not None and len(self.engine._contexts):
            gc.collect()
        self.engine = None
        self.runtime = None


@pytest.fixture(params=["11.4.0.106", "10.16.1.11"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("SIMULATED_TENSORRT", request.param)
    with simulated() as machine:
        yield machine


@pytest.fixture
def rig(machine: Machine) -> Iterator[Rig]:
    rig = Rig(machine)
    yield rig
    rig.close()


# Executes.


def test_an_execute_writes_its_outputs_when_it_is_waited_for(rig: Rig) -> None:
    rig.execute()
    y = rig.machine.memory(rig.addresses["y"], SIZES["y"], "a test").view(np.float32)
    assert np.isnan(y).all(), "it has not run yet"
    np.testing.assert_allclose(rig.result(), rig.expected(), rtol=1e-6)


def test_an_execute_reads_its_inputs_when_it_runs(rig: Rig) -> None:
    rig.execute()
    rig.values["x"] += 1
    data = rig.values["x"].reshape(-1).view(np.uint8)
    rig.machine.memory(rig.addresses["x"], SIZES["x"], "a test")[...] = data
    np.testing.assert_allclose(rig.result(), rig.expected(), rtol=1e-6)


def test_an_execute_overwrites_its_activation_memory(rig: Rig) -> None:
    size = rig.engine.device_memory_size_v2
    rig.machine.memory(rig.memory, size, "a test").fill(0)
    rig.execute()
    rig.result()
    used = rig.engine.get_device_memory_size_for_profile_v2(0)
    assert (rig.machine.memory(rig.memory, used, "a test") == 0xFF).all()


def test_a_captured_graph_gives_the_same_outputs(rig: Rig) -> None:
    rig.execute()
    plain = rig.result().copy()
    graph = rig.capture()
    rig.machine.memory(rig.addresses["y"], SIZES["y"], "a test").fill(0)
    rig.machine.launch_graph(graph, rig.stream)
    np.testing.assert_array_equal(rig.result(), plain)
    rig.destroy(graph)


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


def test_a_network_of_version_11_is_always_strongly_typed() -> None:
    with simulated():
        import tensorrt as trt

        log = Lines()
        network = trt.Builder(log).create_network(0)
        assert trt.OnnxParser(network, log).parse(small_graph().SerializeToString())


def test_flags_are_not_integers(machine: Machine) -> None:
    import tensorrt as trt

    flag = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    with pytest.raises(TypeError):
        1 << flag
    assert 1 << int(flag) == (2 if trt.__version__.startswith("10.") else 1)
    assert ("FP16" in trt.BuilderFlag.__members__) == trt.__version__.startswith("10.")


def test_comparing_dims_raises(rig: Rig) -> None:
    shape = rig.engine.get_tensor_shape("x")
    assert tuple(shape) == (-1, -1, CHANNELS)
    with pytest.raises(TypeError, match="tuple"):
        _ = shape == rig.engine.get_tensor_shape("x")


# Shapes and profiles.


def test_an_unset_shape(rig: Rig) -> None:
    context = rig.engine.create_execution_context(rig.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    assert context.infer_shapes() == ["x", "t"]
    with provoked(rig.machine, "unset shapes", "'x', 't'"):
        context.execute_async_v3(rig.stream)


@pytest.mark.parametrize("shape", [(5, 4, CHANNELS), (2, 17, CHANNELS), (2, 4, CHANNELS + 1), (2, 4)])
def test_a_shape_outside_the_range_is_refused(rig: Rig, shape: tuple[int, ...]) -> None:
    assert not rig.context.set_input_shape("x", shape)
    severity, text = rig.log.lines[-1]
    assert severity == "ERROR"
    assert "does not satisfy any optimization profiles" in text
    with provoked(rig.machine, "unset shapes", "'x'", "refused"):
        rig.execute()


def test_an_ignored_false(rig: Rig) -> None:
    with provoked(rig.machine, "an ignored False", "set_input_shape"):
        rig.context.set_input_shape("x", (9, 4, CHANNELS))
        rig.machine.finish()
    rig.set_shapes(rig.context)


def test_an_ignored_true(rig: Rig) -> None:
    with provoked(rig.machine, "an ignored True", "set_tensor_address"):
        rig.context.set_tensor_address("x", rig.addresses["x"])
        rig.machine.finish()


def test_an_unknown_tensor_name_is_refused(rig: Rig) -> None:
    assert not rig.context.set_input_shape("y", (2, 4, CHANNELS))
    assert not rig.context.set_tensor_address("z", rig.memory)


def test_setting_the_shape_of_a_static_input(rig: Rig) -> None:
    with provoked(rig.machine, "bias", "fully static"):
        rig.context.set_input_shape("bias", (CHANNELS,))


def test_setting_the_profile_after_the_shapes(rig: Rig) -> None:
    with provoked(rig.machine, "the profile is set after shapes were set"):
        rig.context.set_optimization_profile_async(1, rig.stream)


def test_setting_a_profile_resets_the_shapes(rig: Rig) -> None:
    rig.execute()
    assert rig.context.set_optimization_profile_async(1, rig.stream)
    with provoked(rig.machine, "unset shapes"):
        rig.execute()


def test_a_profile_that_does_not_exist_is_refused(rig: Rig) -> None:
    assert not rig.context.set_optimization_profile_async(2, rig.stream)


def test_a_profile_that_is_switched_on_another_stream(rig: Rig) -> None:
    rig.execute()
    rig.machine.synchronize()
    assert rig.context.set_optimization_profile_async(0, rig.other)
    rig.set_shapes(rig.context)
    with provoked(rig.machine, "switched on another stream"):
        rig.execute()


# Addresses and memory.


def test_an_unset_address(rig: Rig) -> None:
    context = rig.engine.create_execution_context(rig.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    context.set_device_memory(rig.memory, rig.engine.device_memory_size_v2)
    rig.set_shapes(context)
    with provoked(rig.machine, "unset address"):
        context.execute_async_v3(rig.stream)


def test_a_misaligned_address(rig: Rig) -> None:
    with provoked(rig.machine, "misaligned"):
        rig.context.set_tensor_address("x", rig.addresses["x"] + 128)


def test_a_stale_address(rig: Rig) -> None:
    rig.machine.free(rig.addresses["x"])
    with provoked(rig.machine, "stale address"):
        rig.execute()


def test_freeing_memory_of_a_pending_execute(rig: Rig) -> None:
    rig.execute()
    with provoked(rig.machine, "freed while pending work uses it"):
        rig.machine.free(rig.addresses["x"])


def test_memory_that_is_too_small_for_the_shape(rig: Rig) -> None:
    rig.set_shapes(rig.context, rows=3)
    with provoked(rig.machine, "outside its allocation"):
        rig.execute()


@pytest.mark.parametrize(("inputs", "outputs"), [("x", "y"), ("t", "positive")])
def test_an_output_that_overlaps_an_input(rig: Rig, inputs: str, outputs: str) -> None:
    assert rig.context.set_tensor_address(outputs, rig.addresses[inputs])
    with provoked(rig.machine, "writes over its own input"):
        rig.execute()


def test_outputs_that_overlap(rig: Rig) -> None:
    assert rig.context.set_tensor_address("positive", rig.addresses["y"])
    with provoked(rig.machine, "overlap"):
        rig.execute()


def test_no_activation_memory(rig: Rig) -> None:
    context = rig.engine.create_execution_context(rig.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    rig.set_shapes(context)
    for name, address in rig.addresses.items():
        assert context.set_tensor_address(name, address)
    with provoked(rig.machine, "without activation memory"):
        context.execute_async_v3(rig.stream)


def test_a_context_of_the_default_strategy_has_its_own_activation_memory(rig: Rig) -> None:
    context = rig.engine.create_execution_context()
    rig.set_shapes(context)
    for name, address in rig.addresses.items():
        assert context.set_tensor_address(name, address)
    assert context.execute_async_v3(rig.stream)
    np.testing.assert_allclose(rig.result(), rig.expected(), rtol=1e-6)
    with provoked(rig.machine, "not USER_MANAGED"):
        context.set_device_memory(rig.memory, rig.engine.device_memory_size_v2)


@pytest.mark.parametrize(("offset", "size", "says"), [(128, 0, "misaligned"), (0, -256, "the engine needs")])
def test_activation_memory_that_does_not_fit(rig: Rig, offset: int, size: int, says: str) -> None:
    with provoked(rig.machine, says):
        rig.context.set_device_memory(rig.memory + offset, rig.engine.device_memory_size_v2 + size)


def test_activation_memory_that_was_freed(rig: Rig) -> None:
    rig.machine.free(rig.memory)
    with provoked(rig.machine, "stale address"):
        rig.execute()


def second_context(rig: Rig) -> Any:
    """Another context on the same activation memory, with outputs of its own."""
    second = rig.new_context()
    for name in ("y", "positive"):
        assert second.set_tensor_address(name, rig.machine.allocate(SIZES[name], "device"))
    return second


def test_activation_memory_of_two_contexts_without_order(rig: Rig) -> None:
    second = second_context(rig)
    rig.execute()
    with provoked(rig.machine, "unordered access"):
        second.execute_async_v3(rig.other)


def test_activation_memory_may_be_shared_by_ordered_executes(rig: Rig) -> None:
    second = second_context(rig)
    rig.execute()
    rig.machine.synchronize(rig.stream)
    assert second.execute_async_v3(rig.other)
    rig.machine.synchronize()
    assert second.execute_async_v3(rig.stream)
    rig.execute()
    rig.machine.synchronize()


# Streams.


def test_one_context_on_two_streams_at_once(rig: Rig) -> None:
    rig.execute()
    with provoked(rig.machine, "in flight on two streams"):
        rig.execute(rig.other)


def test_the_default_stream(rig: Rig) -> None:
    with provoked(rig.machine, "default stream"):
        rig.execute(0)


def test_a_stream_that_was_destroyed(rig: Rig) -> None:
    rig.machine.destroy_stream(rig.other)
    with provoked(rig.machine, "not a stream"):
        rig.execute(rig.other)


@pytest.mark.parametrize("handle", [None, "1", 1.0])
def test_a_stream_handle_of_the_wrong_type(rig: Rig, handle: Any) -> None:
    with pytest.raises(TypeError):
        rig.context.execute_async_v3(handle)


# Captures.


def test_a_capture_before_any_execute(rig: Rig) -> None:
    with provoked(rig.machine, "a capture without a normal execute"):
        rig.capture()


def test_a_capture_after_a_change_of_shape(rig: Rig) -> None:
    rig.execute()
    rig.set_shapes(rig.context, rows=1)
    with provoked(rig.machine, "a capture without a normal execute after the last change of shape"):
        rig.capture()


def test_a_capture_after_a_change_of_address_is_allowed(rig: Rig) -> None:
    rig.execute()
    assert rig.context.set_tensor_address("y", rig.machine.allocate(SIZES["y"], "device"))
    rig.destroy(rig.capture())


def test_switching_the_profile_in_a_capture(rig: Rig) -> None:
    rig.execute()
    rig.machine.begin_capture(rig.stream, THREAD_LOCAL)
    with provoked(rig.machine, "switched during a capture"):
        rig.context.set_optimization_profile_async(1, rig.stream)
    rig.machine.destroy_graph(rig.machine.end_capture(rig.stream), executable=False)


@pytest.mark.parametrize("change", ["shape", "address", "memory", "profile"])
def test_modifying_a_context_with_a_captured_graph(rig: Rig, change: str) -> None:
    rig.execute()
    graph = rig.capture()
    rig.machine.launch_graph(graph, rig.stream)
    if change == "shape":
        rig.set_shapes(rig.context, rows=1)
    elif change == "address":
        assert rig.context.set_tensor_address("y", rig.machine.allocate(SIZES["y"], "device"))
    elif change == "memory":
        size = rig.engine.device_memory_size_v2
        rig.context.set_device_memory(rig.machine.allocate(size, "device"), size)
    else:
        rig.machine.synchronize()
        assert rig.context.set_optimization_profile_async(1, rig.stream)
    with provoked(rig.machine, "modified", "while a captured graph of it lives"):
        rig.machine.launch_graph(graph, rig.stream)
    rig.destroy(graph)


def test_setting_the_same_shapes_and_addresses_is_no_change(rig: Rig) -> None:
    rig.execute()
    graph = rig.capture()
    rig.set_shapes(rig.context)
    assert rig.context.set_tensor_address("y", rig.addresses["y"])
    rig.machine.launch_graph(graph, rig.stream)
    rig.destroy(graph)


def test_an_execute_on_a_context_with_a_captured_graph(rig: Rig) -> None:
    rig.execute()
    graph = rig.capture()
    with provoked(rig.machine, "one context per graph"):
        rig.execute()
    rig.destroy(graph)
    rig.execute()


def test_launching_a_graph_whose_memory_was_freed(rig: Rig) -> None:
    rig.execute()
    graph = rig.capture()
    rig.machine.synchronize()
    rig.machine.free(rig.addresses["x"])
    with provoked(rig.machine, "it uses was freed"):
        rig.machine.launch_graph(graph, rig.stream)
    rig.destroy(graph)


def test_a_capture_with_a_synchronizing_profiler(rig: Rig) -> None:
    rig.execute()
    rig.context.profiler = times(rig)
    with provoked(rig.machine, "enqueue_emits_profile"):
        rig.capture()
    rig.context.enqueue_emits_profile = False
    rig.destroy(rig.capture())


def test_executing_an_uncapturable_engine_in_a_capture_returns_false(rig: Rig) -> None:
    rig.execute()
    rig.machine.faults = {"uncapturable": True}
    rig.machine.begin_capture(rig.stream, THREAD_LOCAL)
    assert not rig.context.execute_async_v3(rig.stream)
    assert "not stream capturable" in rig.log.lines[-1][1]
    with pytest.raises(Exception, match="not stream capturable"):
        rig.machine.end_capture(rig.stream)
    rig.execute()


# Lifetimes.


def test_destroying_a_context_with_pending_work(rig: Rig) -> None:
    rig.execute()
    with provoked(rig.machine, "destroyed while its work is pending"):
        rig.context = None
        rig.machine.finish()


def test_destroying_a_context_with_a_captured_graph(rig: Rig) -> None:
    rig.execute()
    graph = rig.capture()
    rig.machine.synchronize()
    with provoked(rig.machine, "destroyed while a captured graph of it lives"):
        rig.context = None
        rig.machine.finish()
    with provoked(rig.machine, "context or engine that it captured was destroyed"):
        rig.machine.launch_graph(graph, rig.stream)


def test_destroying_an_engine_before_its_contexts(rig: Rig) -> None:
    with provoked(rig.machine, "destroyed before its contexts"):
        rig.engine = None
        rig.machine.finish()
    with provoked(rig.machine, "used after its engine was destroyed"):
        rig.execute()


def test_destroying_a_runtime_before_its_engines(rig: Rig) -> None:
    with provoked(rig.machine, "destroyed before its engines"):
        rig.runtime = None
        rig.machine.finish()
    with provoked(rig.machine, "used after its Runtime was destroyed"):
        rig.engine.create_execution_context()


def test_destroying_a_logger_before_its_engines(rig: Rig) -> None:
    rig.log = None
    with provoked(rig.machine, "after its logger was destroyed"):
        rig.context.set_input_shape("x", (9, 4, CHANNELS))
    rig.set_shapes(rig.context)


def test_an_engine_frees_its_weights(machine: Machine) -> None:
    rig = Rig(machine)
    before = machine.alive()["device"]
    rig.close()
    gc.collect()
    assert machine.alive()["device"] == before - 1


# Callbacks.


@pytest.mark.parametrize("name", ["ILogger", "IProfiler", "IProgressMonitor", "IStreamWriter"])
def test_a_callback_that_does_not_call_its_base(machine: Machine, name: str) -> None:
    import tensorrt as trt

    forgetful = type("Forgetful", (getattr(trt, name),), {"__init__": lambda self: None})
    with pytest.raises(TypeError, match=rf"{name}\.__init__\(\) must be called"):
        forgetful()


def times(rig: Rig) -> Any:
    class Times(rig.trt.IProfiler):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            rig.trt.IProfiler.__init__(self)
            self.names: list[str] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.names.append(layer_name)

    return Times()


def test_report_to_profiler_reports_every_layer(rig: Rig) -> None:
    rig.context.enqueue_emits_profile = False
    rig.context.profiler = times(rig)
    assert not rig.context.report_to_profiler(), "nothing was executed"
    rig.execute()
    with provoked(rig.machine, "before the execute is done"):
        rig.context.report_to_profiler()
    rig.machine.synchronize()
    assert rig.context.report_to_profiler()
    assert len(rig.context.profiler.names) == rig.engine.num_layers


def test_a_report_needs_its_stream(rig: Rig) -> None:
    rig.context.enqueue_emits_profile = False
    rig.context.profiler = times(rig)
    rig.execute()
    rig.machine.synchronize()
    rig.machine.destroy_stream(rig.stream)
    with provoked(rig.machine, "not a stream"):
        rig.context.report_to_profiler()


def test_a_profiler_makes_an_execute_synchronous_by_default(rig: Rig) -> None:
    rig.context.profiler = times(rig)
    rig.execute()
    assert rig.context.profiler.names
    np.testing.assert_allclose(
        rig.machine.memory(rig.addresses["y"], SIZES["y"], "a test").view(np.float32).reshape(SHAPES["x"]),
        rig.expected(),
        rtol=1e-6,
    )


# Whole commands.


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


def test_the_header_of_a_plan_is_the_real_one(machine: Machine) -> None:
    import tensorrt as trt

    plan = build_plan(small_graph(), [ROWS])
    assert plan[:8] == b"ftrt\0\0\0\0"
    assert ".".join(map(str, plan[24:28])) == trt.__version__


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


def test_options_that_do_not_exist(machine: Machine) -> None:
    config = Build().config
    with pytest.raises(AttributeError):
        config.int8_calibrator = None
    with pytest.raises((TypeError, AttributeError)):
        config.set_flag(config.profiling_verbosity)


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


def test_sizes_of_the_rig_are_those_of_its_shapes() -> None:
    assert all(SIZES[name] == 4 * prod(shape) for name, shape in SHAPES.items())
