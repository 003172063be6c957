"""An engine on the simulated TensorRT that is ready to execute."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
from simulator.fixture import Machine
from simulator.plans import CHANNELS, MANY_ROWS, ROWS, Lines, build_plan, small_graph

THREAD_LOCAL = 1
SHAPES = {"x": (2, 4, CHANNELS), "t": (2,), "bias": (CHANNELS,)}
SIZES = {"x": 2 * 4 * CHANNELS * 4, "t": 8, "bias": CHANNELS * 4, "y": 2 * 4 * CHANNELS * 4, "positive": 2}


class Rig:
    """An engine of `small_graph` with a context that is ready to execute, its buffers and its streams."""

    def __init__(self, machine: Machine) -> None:
        from runtime.engines.tensorrt.binding import trt

        self.trt, self.machine = trt, machine
        self.log = Lines()
        self.runtime = trt.Runtime(self.log)
        self.engine = self.runtime.deserialize_cuda_engine(build_plan(small_graph(), [ROWS, MANY_ROWS]))
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
        if self.context is not None and len(self.context.sim_captured):
            gc.collect()
        self.context = None
        if self.engine is not None and len(self.engine.sim_contexts):
            gc.collect()
        self.engine = None
        self.runtime = None


def times(rig: Rig) -> Any:
    class Times(rig.trt.IProfiler):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            rig.trt.IProfiler.__init__(self)
            self.names: list[str] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.names.append(layer_name)

    return Times()
