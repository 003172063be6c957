"""The simulated TensorRT: the rules for captures, lifetimes and callbacks."""

from __future__ import annotations

import numpy as np
import pytest
from simulator.fixture import Machine, provoked
from simulator.plans import CHANNELS
from simulator.rig import SHAPES, SIZES, THREAD_LOCAL, Rig, times

# Captures.


def test_a_capture_needs_an_execute_of_its_shapes_and_a_context_of_its_own(rig: Rig) -> None:
    rig.execute()
    rig.set_shapes(rig.context, rows=1)
    with provoked(rig.machine, "a capture without a normal execute after the last change of shape"):
        rig.capture()
    rig.execute()
    graph = rig.capture()
    with provoked(rig.machine, "one context per graph"):
        rig.execute()
    rig.destroy(graph)
    rig.execute()


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


# Callbacks.


@pytest.mark.parametrize("name", ["ILogger", "IProfiler", "IProgressMonitor", "IStreamWriter"])
def test_a_callback_that_does_not_call_its_base(machine: Machine, name: str) -> None:
    import tensorrt as trt

    forgetful = type("Forgetful", (getattr(trt, name),), {"__init__": lambda self: None})
    with pytest.raises(TypeError, match=rf"{name}\.__init__\(\) must be called"):
        forgetful()


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
