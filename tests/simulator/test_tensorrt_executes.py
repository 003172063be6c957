"""The simulated TensorRT: executes, and the rules for shapes, addresses, memory and streams."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from simulator.fixture import provoked
from simulator.plans import CHANNELS, build_plan, cache_graph
from simulator.rig import SIZES, THREAD_LOCAL, Rig

# Executes.


def test_an_execute_writes_its_outputs_when_it_is_waited_for(rig: Rig) -> None:
    rig.execute()
    y = rig.machine.memory(rig.addresses["y"], SIZES["y"], "a test").view(np.float32)
    assert np.isnan(y).all(), "it has not run yet"
    np.testing.assert_allclose(rig.result(), rig.expected(), rtol=1e-6)


def test_an_execute_overwrites_its_activation_memory(rig: Rig) -> None:
    size = rig.engine.device_memory_size_v2
    rig.machine.memory(rig.memory, size, "a test").fill(0)
    rig.execute()
    rig.result()
    used = rig.engine.get_device_memory_size_for_profile_v2(0)
    assert (rig.machine.memory(rig.memory, used, "a test") == 0xFF).all()


Act = Callable[[Rig], Any]


def ignored(call: Act) -> Act:
    """The result of a call that nothing looks at."""

    def act(rig: Rig) -> None:
        call(rig)
        rig.machine.finish()

    return act


def overlapping(outputs: str, inputs: str) -> Act:
    return lambda rig: rig.context.set_tensor_address(outputs, rig.addresses[inputs]) or rig.machine.finish()


def activation(offset: int, more: int) -> Act:
    """Activation memory at another place, and of another size, than the first profile needs."""
    return lambda rig: rig.context.set_device_memory(
        rig.memory + offset, rig.engine.get_device_memory_size_for_profile_v2(0) + more
    )


# Of a context that is ready to execute: what is done before, what breaks the rule, and what is said.
RULES: dict[str, tuple[Act | None, Act, tuple[str, ...]]] = {
    "a static input's shape": (
        None, lambda rig: rig.context.set_input_shape("bias", (CHANNELS,)), ("bias", "fully static"),
    ),
    "an ignored False": (
        None, ignored(lambda rig: rig.context.set_input_shape("x", (9, 4, CHANNELS))), ("an ignored False",),
    ),
    "an ignored True": (
        None, ignored(lambda rig: rig.context.set_tensor_address("x", rig.addresses["x"])), ("an ignored True",),
    ),
    "a profile after the shapes": (
        None, lambda rig: rig.context.set_optimization_profile_async(1, rig.stream), ("set after shapes were set",),
    ),
    "a misaligned address": (
        None, lambda rig: rig.context.set_tensor_address("x", rig.addresses["x"] + 128), ("misaligned",),
    ),
    "misaligned activation memory": (None, activation(256, 0), ("misaligned",)),
    "small activation memory": (None, activation(0, -256), ("the engine needs",)),
    "the default stream": (None, lambda rig: rig.execute(0), ("default stream",)),
    "a destroyed stream": (
        lambda rig: rig.machine.destroy_stream(rig.other), lambda rig: rig.execute(rig.other), ("not a stream",),
    ),
    "a stale address": (lambda rig: rig.machine.free(rig.addresses["x"]), Rig.execute, ("stale address",)),
    "freed activation memory": (lambda rig: rig.machine.free(rig.memory), Rig.execute, ("stale address",)),
    "memory that is too small": (lambda rig: rig.set_shapes(rig.context, rows=3), Rig.execute, ("outside its alloc",)),
    "an output over an input": (overlapping("y", "x"), Rig.execute, ("writes over its own input",)),
    "another output over an input": (overlapping("positive", "t"), Rig.execute, ("writes over its own input",)),
    "outputs that overlap": (overlapping("positive", "y"), Rig.execute, ("overlap",)),
    "two streams at once": (Rig.execute, lambda rig: rig.execute(rig.other), ("in flight on two streams",)),
    "memory that is freed in flight": (
        Rig.execute, lambda rig: rig.machine.free(rig.addresses["x"]), ("freed while pending work uses it",),
    ),
    "a capture before an execute": (None, Rig.capture, ("a capture without a normal execute",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", RULES)
def test_a_broken_rule_is_found(rig: Rig, kind: str) -> None:
    before, act, says = RULES[kind]
    if before is not None:
        before(rig)
    with provoked(rig.machine, *says):
        act(rig)
    rig.set_shapes(rig.context)


def test_a_profile_is_switched_before_the_shapes_and_outside_of_captures(rig: Rig) -> None:
    rig.execute()
    rig.machine.begin_capture(rig.stream, THREAD_LOCAL)
    with provoked(rig.machine, "switched during a capture"):
        rig.context.set_optimization_profile_async(1, rig.stream)
    rig.machine.destroy_graph(rig.machine.end_capture(rig.stream), executable=False)
    assert rig.context.set_optimization_profile_async(1, rig.stream)
    with provoked(rig.machine, "unset shapes"):
        rig.execute()


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


def test_no_activation_memory(rig: Rig) -> None:
    context = rig.engine.create_execution_context(rig.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    rig.set_shapes(context)
    for name, address in rig.addresses.items():
        assert context.set_tensor_address(name, address)
    with provoked(rig.machine, "without activation memory"):
        context.execute_async_v3(rig.stream)


def test_activation_memory_of_a_smaller_profile(rig: Rig) -> None:
    rig.context.set_device_memory(rig.memory, rig.engine.get_device_memory_size_for_profile_v2(0))
    rig.execute()
    assert rig.context.set_optimization_profile_async(1, rig.stream)
    rig.set_shapes(rig.context, rows=8)
    with provoked(rig.machine, "bytes of activation memory, it needs"):
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


# Streams.
