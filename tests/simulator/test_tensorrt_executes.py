"""The simulated TensorRT: executes, and the rules for shapes, addresses, memory and streams."""

from __future__ import annotations

import gc
from math import prod
from typing import Any

import numpy as np
import pytest
from simulator.fixture import provoked
from simulator.plans import CHANNELS, build_plan, cache_graph
from simulator.rig import SHAPES, SIZES, Rig

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


def test_a_cache_is_updated_in_place_and_nowhere_else(rig: Rig) -> None:
    machine, trt = rig.machine, rig.trt
    engine = rig.runtime.deserialize_cuda_engine(build_plan(cache_graph(), [{"rows": (1, 2, 2)}]))
    assert engine.get_aliased_input_tensor("present") == "past"
    assert engine.get_aliased_input_tensor("sum") is None
    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.STATIC)
    shapes = {"past": (2, 2, 8, CHANNELS), "new": (2, 2, 1, CHANNELS), "write": (2,)}
    addresses = {name: machine.allocate(4 * prod(shape), "device") for name, shape in shapes.items() if name != "write"}
    addresses |= {"write": machine.allocate(16, "device"), "sum": machine.allocate(4, "device")}
    for name, shape in shapes.items():
        assert context.set_input_shape(name, shape)
    for name, address in addresses.items():
        assert context.set_tensor_address(name, address)
    cache = machine.memory(addresses["past"], 4 * prod(shapes["past"]), "a test").view(np.float32)
    cache[...] = 1
    machine.memory(addresses["new"], 4 * prod(shapes["new"]), "a test").view(np.float32)[...] = 5
    machine.memory(addresses["write"], 16, "a test").view(np.int64)[...] = (3, 6)
    elsewhere = machine.allocate(cache.nbytes, "device")
    assert context.set_tensor_address("present", elsewhere)
    with provoked(machine, "present must be bound to the memory of past"):
        context.execute_async_v3(rig.stream)
    assert context.set_tensor_address("present", addresses["past"])
    assert context.execute_async_v3(rig.stream)
    machine.synchronize()
    changed = np.argwhere(cache.reshape(shapes["past"]) == 5)
    assert {(row, slot) for row, _, slot, _ in changed.tolist()} == {(0, 3), (1, 6)}
    del context
    gc.collect()  # the exception that was caught keeps the objects of its frames alive
    del engine


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


@pytest.mark.parametrize(("offset", "size", "says"), [(256, 0, "misaligned"), (0, -256, "the engine needs")])
def test_activation_memory_that_does_not_fit(rig: Rig, offset: int, size: int, says: str) -> None:
    with provoked(rig.machine, says):
        rig.context.set_device_memory(rig.memory + offset, rig.engine.get_device_memory_size_for_profile_v2(0) + size)


def test_activation_memory_of_a_smaller_profile(rig: Rig) -> None:
    rig.context.set_device_memory(rig.memory, rig.engine.get_device_memory_size_for_profile_v2(0))
    rig.execute()
    assert rig.context.set_optimization_profile_async(1, rig.stream)
    rig.set_shapes(rig.context, rows=8)
    with provoked(rig.machine, "bytes of activation memory, it needs"):
        rig.execute()


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


def test_sizes_of_the_rig_are_those_of_its_shapes() -> None:
    assert all(SIZES[name] == 4 * prod(shape) for name, shape in SHAPES.items())
