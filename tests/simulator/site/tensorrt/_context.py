"""Execution contexts, and most of the rules."""

from __future__ import annotations

import os
import signal
import weakref
from typing import TYPE_CHECKING

from ._basics import Dims, IProfiler
from ._enums import DataType, Severity
from ._launch import Launch, Operand
from ._rules import Answer, machine, remember

if TYPE_CHECKING:
    from ._engine import ICudaEngine

ALIGNMENT_BYTES = 256
# The device's textureAlignment.
ACTIVATION_ALIGNMENT_BYTES = 512
Shape = tuple[int, ...]


class IExecutionContext:
    """Shapes, addresses and activation memory of one engine; one execute at a time, one captured graph at a time."""

    def __init__(self, engine: ICudaEngine, address: int) -> None:
        self.sim_engine = weakref.ref(engine)
        self.sim_machine = engine.sim_machine
        self.sim_inputs = {item.name: item for item in engine.sim_inputs()}
        self._shapes: dict[str, Shape | None] = {
            name: None if -1 in item.shape else item.shape for name, item in self.sim_inputs.items()
        }
        self._addresses: dict[str, int] = {}
        self._activation = (address, engine.device_memory_size_v2 if address else 0)
        self._own_activation = address
        self.sim_own = 0  # the address of its persistent memory
        self._profile = 0
        self._profile_stream: int | None = None
        self._is_warm = False
        self._set_shape_since_enqueue = False
        self.sim_version = 0
        self._launches: list[Launch] = []
        self.sim_captured: weakref.WeakSet[Launch] = weakref.WeakSet()
        self._unreported: Launch | None = None
        self.profiler: IProfiler | None = None
        self.enqueue_emits_profile = True

    @property
    def engine(self) -> ICudaEngine:
        engine = self.sim_engine()
        if engine is None:
            self.sim_machine.break_rule("a context is used after its engine was destroyed")
        assert engine is not None
        return engine

    # Setting up.

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """To be called before the shapes are set; the execute must be on the same stream."""
        what = "set_optimization_profile_async"
        if not 0 <= profile_index < self.engine.num_optimization_profiles:
            return self._fail(what, f"profile {profile_index} does not exist")
        if self._set_shape_since_enqueue:
            self.sim_machine.break_rule(
                "the profile is set after shapes were set: they are lost; set the profile first"
            )
        self.sim_machine.stream(int(stream_handle))
        if self.sim_machine.is_capturing(int(stream_handle)):
            self.sim_machine.break_rule("the profile is switched during a capture")
        self._profile, self._profile_stream = profile_index, int(stream_handle)
        self._shapes = {name: None if -1 in i.shape else i.shape for name, i in self.sim_inputs.items()}
        self._changed()
        return Answer(True, what)

    def set_input_shape(self, name: str, shape: tuple[int, ...] | list[int] | Dims) -> bool:
        """False where the shape lies outside the profile."""
        what = f"set_input_shape({name!r}, {tuple(shape)})"
        if not isinstance(shape, (tuple, list, Dims)) or not isinstance(name, str):
            raise TypeError("set_input_shape(): incompatible function arguments")
        if name not in self.sim_inputs:
            return self._fail(what, f"{name} is not an input tensor")
        wanted, item = tuple(int(size) for size in shape), self.sim_inputs[name]
        if -1 not in item.shape:
            self.sim_machine.break_rule(f"{what}: {name} is fully static; its shape is not to be set")
        low, _, high = self.engine.sim_plan.profiles[self._profile][name]
        if len(wanted) != len(low) or not all(a <= b <= c for a, b, c in zip(low, wanted, high, strict=True)):
            self._shapes[name] = None
            self._changed()
            return self._fail(
                what,
                f"Set dimension {list(wanted)} for tensor {name} does not satisfy any optimization profiles. "
                f"Valid range for profile {self._profile}: {list(low)}..{list(high)}.",
            )
        self._set_shape_since_enqueue = True
        if self._shapes[name] != wanted:
            self._shapes[name] = wanted
            self._changed()
        return Answer(True, what)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Set the address, 256-byte aligned, of an input or output."""
        what = f"set_tensor_address({name!r})"
        if name not in self.engine.sim_tensors:
            return self._fail(what, f"{name} is not an input or output tensor")
        self.sim_machine.require_aligned(int(memory), ALIGNMENT_BYTES, what)
        if self._addresses.get(name) != int(memory):
            self._addresses[name] = int(memory)
            self.sim_version += 1
        return Answer(True, what)

    def set_device_memory(self, memory: int, size: int) -> None:
        """Memory of at least the current profile's size, 512-byte aligned; in use until the execute completes."""
        needed = self.engine.get_device_memory_size_for_profile_v2(self._profile)
        self.sim_machine.require_aligned(int(memory), ACTIVATION_ALIGNMENT_BYTES, "set_device_memory")
        if self._own_activation:
            self.sim_machine.break_rule("set_device_memory on a context that is not USER_MANAGED")
        if size < needed:
            self.sim_machine.break_rule(
                f"set_device_memory: {size} bytes of activation memory, the engine needs {needed}"
            )
        if self._activation != (int(memory), int(size)):
            self._activation = (int(memory), int(size))
            self.sim_version += 1

    # Queries.

    def infer_shapes(self) -> list[str]:
        return [name for name, shape in self._shapes.items() if shape is None]

    def get_tensor_shape(self, name: str) -> Dims:
        if name in self._shapes:
            return Dims(self._shapes[name] or self.sim_inputs[name].shape)
        if self.infer_shapes():
            return self.engine.get_tensor_shape(name)
        return Dims(self.engine.sim_output_shapes(self.sim_known_shapes())[name])

    # Executing.

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Put one execute on the stream, or into its capture."""
        what, here = "execute_async_v3", self.sim_machine
        if stream_handle is None or isinstance(stream_handle, (str, float)):
            raise TypeError("execute_async_v3(): incompatible function arguments")
        stream = int(stream_handle)
        if stream == 0:
            here.break_rule("an execute on the default stream")
        here.stream(stream)
        engine = self.sim_engine()
        if engine is not None and engine.sim_plan.level > here.faults.get("crash_above_level", 5):
            os.kill(os.getpid(), signal.SIGSEGV)
        launch = self.sim_launch()
        self._check_concurrency(stream)
        if here.strikes("enqueue_oom_at"):
            return self._fail(what, "Error Code 1: Cuda Runtime (out of memory)")
        if here.strikes("enqueue_false_at"):
            return self._fail(what, "Error Code 2: Internal Error (the execute was refused)")
        capturing = here.is_capturing(stream)
        if capturing and not self.sim_may_capture(stream):
            return self._fail(
                what, "The CUDA stream is in capturing mode, but this TRT engine is not stream capturable."
            )
        if not here.enqueue(
            stream, launch, reads=launch.reads, writes=launch.writes, what=f"execute {launch.what}",
            check=launch.check if capturing else None,
        ):  # fmt: skip
            return self._fail(what, f"Error Code 1: Cuda Runtime ({_words(here.last_error)})")
        self.sim_enqueued(launch, stream, capturing)
        return Answer(True, what)

    def report_to_profiler(self) -> bool:
        """Report the last execute to the profiler; its stream must exist, and the execute must be done."""
        what, launch = "report_to_profiler", self._unreported
        if self.profiler is None or launch is None:
            return Answer(False, what)
        if not self.enqueue_emits_profile:
            self.sim_machine.stream(launch.stream)
            if not launch.is_done:
                self.sim_machine.break_rule("report_to_profiler before the execute is done")
            self._report(launch)
        return Answer(True, what)

    def sim_launch(self) -> Launch:
        """The execute with the current shapes and addresses. Raises RuleBroken where something is not set."""
        missing = self.infer_shapes()
        if missing:
            self.sim_machine.break_rule(f"an execute with unset shapes of {missing} (or shapes that were refused)")
        engine, shapes = self.engine, self.sim_known_shapes()
        outputs = engine.sim_output_shapes(shapes)
        operands = []
        for item in engine.sim_plan.tensors:
            if item.name not in self._addresses:
                self.sim_machine.break_rule(f"an execute with an unset address of {item.name!r}")
            dtype = DataType[item.dtype]
            shape = shapes[item.name] if item.is_input else outputs[item.name]
            operands.append(Operand(item.name, self._addresses[item.name], shape, dtype, item.is_input))
        needed = engine.get_device_memory_size_for_profile_v2(self._profile)
        if needed and not self._activation[0]:
            self.sim_machine.break_rule("an execute without activation memory")
        if needed > self._activation[1]:
            self.sim_machine.break_rule(
                f"an execute with {self._activation[1]} bytes of activation memory, it needs {needed}"
            )
        return Launch(self, operands, (self._activation[0], needed))

    def _check_concurrency(self, stream: int) -> None:
        self._launches = [launch for launch in self._launches if not launch.is_done]
        if any(launch.stream != stream for launch in self._launches) and not self.sim_machine.sticky:
            self.sim_machine.break_rule("one context has executes in flight on two streams")
        if self._profile_stream not in (None, stream):
            self.sim_machine.break_rule("the profile was switched on another stream than the one of the execute")
        if len(self.sim_captured):
            self.sim_machine.break_rule("a context executes while a captured graph of it lives: one context per graph")

    def sim_may_capture(self, stream: int) -> bool:
        """Whether the engine can be captured. Raises RuleBroken where an execute must not be captured now."""
        if not self._is_warm:
            self.sim_machine.break_rule("a capture without a normal execute after the last change of shape or profile")
        if self.profiler is not None and self.enqueue_emits_profile:
            self.sim_machine.break_rule("a capture with a profiler and enqueue_emits_profile: the enqueue synchronizes")
        if self.sim_machine.faults.get("uncapturable") or self.sim_machine.strikes("uncapturable_at"):
            self.sim_machine.capture_broken(stream, "this engine is not stream capturable")
            return False
        return True

    def sim_enqueued(self, launch: Launch, stream: int, capturing: bool) -> None:
        launch.stream = stream
        self._set_shape_since_enqueue = False
        if capturing:
            launch.version = self.sim_version
            self.sim_captured.add(launch)
            return
        self._is_warm = True
        self._profile_stream = None
        self._launches.append(launch)
        if self.profiler is not None:
            self._unreported = launch
            if self.enqueue_emits_profile:
                self.sim_machine.synchronize(stream)
                self._report(launch)

    def _report(self, launch: Launch) -> None:
        from ._engine import layer_names

        assert self.profiler is not None
        names = layer_names(self.engine.sim_plan)
        for name in names:
            self.profiler.report_layer_time(name, launch.duration_ms / len(names))

    def sim_known_shapes(self) -> dict[str, Shape]:
        return {name: shape for name, shape in self._shapes.items() if shape is not None}

    def _changed(self) -> None:
        self._is_warm = False
        self.sim_version += 1

    def _fail(self, what: str, message: str) -> bool:
        self.engine.sim_log(Severity.ERROR, f"IExecutionContext::{what}: {message}")
        return Answer(False, what)

    def __del__(self) -> None:
        here = self.sim_machine
        if not here.sticky and any(not launch.is_done for launch in self._launches):
            remember("a context was destroyed while its work is pending", here)
        if not here.sticky and len(self.sim_captured):
            remember("a context was destroyed while a captured graph of it lives", here)
        here.spend("end of a context")
        for address in filter(None, (self._own_activation, self.sim_own)):
            if not here.sticky and machine() is here:
                here.free(address)


def _words(code: int) -> str:
    words = {
        700: "an illegal memory access was encountered",
        901: "operation failed due to a previous error during capture",
    }
    return words.get(code, f"error {code}")
