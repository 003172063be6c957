"""An engine with injected faults at chosen executes: delays, NaN outputs, errors, a lost device, a hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from runtime.base.errors import EngineDeadError, EngineError
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.engine import Engine, Execution

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Faults:
    """The faults, by execute, counted from 0.

    delay_s: before every execute. nan_at: execute -> rows whose outputs become NaN. fail_at: executes that raise a
    recoverable EngineError; so do those of tensors, name -> shape, that it `refuses`. die_at: the execute that raises
    EngineDeadError. hang_at: the execute that blocks until `release` is set.
    """

    delay_s: float = 0.0
    nan_at: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    fail_at: frozenset[int] = frozenset()
    refuses: Callable[[Shapes], bool] = lambda shapes: False
    die_at: int | None = None
    hang_at: int | None = None
    release: threading.Event = field(default_factory=threading.Event)
    executes: int = 0


class FaultyEngine:
    """Wraps an engine, with faults in its launches. `device`: needed where the host cannot access the outputs."""

    def __init__(self, engine: Engine, faults: Faults, device: Device | None = None) -> None:
        self._engine, self._faults, self._device = engine, faults, device
        self.name, self.manifest = engine.name, engine.manifest
        self.inputs, self.outputs = engine.inputs, engine.outputs
        self.run, self.profile, self.close = engine.run, engine.profile, engine.close

    def bind(self, tensors: Mapping[str, Tensor]) -> FaultyExecution:
        """Bind the wrapped engine."""
        outputs = [tensors[name] for name in self.outputs]
        refused = self._faults.refuses({name: tuple(tensor.shape) for name, tensor in tensors.items()})
        return FaultyExecution(self.name, self._engine.bind(tensors), outputs, self._faults, self._device, refused)


class FaultyExecution:
    """Launches the wrapped execution with faults; replays of a captured graph have none."""

    def __init__(
        self,
        name: str,
        execution: Execution,
        outputs: list[Tensor],
        faults: Faults,
        device: Device | None,
        is_refused: bool,
    ) -> None:
        self._name, self._execution, self._outputs, self._is_refused = name, execution, outputs, is_refused
        self._faults, self._device = faults, device
        self.release = execution.release

    def prepare(self, stream: Stream) -> bool:
        """As the wrapped execution."""
        return self._execution.prepare(stream)

    def launch(self, stream: Stream) -> None:
        """One execute with its faults. Raises EngineError, EngineDeadError."""
        number = self._begin()
        self._execution.launch(stream)
        self._write_nan(number, stream)

    def make(self) -> None:
        self._execution.make()

    def warm_up(self, stream: Stream) -> None:
        """As launch, with the wrapped execution's warm_up."""
        number = self._begin()
        self._execution.warm_up(stream)
        self._write_nan(number, stream)

    def _begin(self) -> int:
        faults, number = self._faults, self._faults.executes
        faults.executes += 1
        time.sleep(faults.delay_s)
        if number == faults.hang_at:
            faults.release.wait()
        if number == faults.die_at:
            raise EngineDeadError(f"{self._name} died at execute {number}")
        if number in faults.fail_at or self._is_refused:
            raise EngineError(f"{self._name} failed at execute {number}")
        return number

    def _write_nan(self, number: int, stream: Stream) -> None:
        for row in self._faults.nan_at.get(number, ()):
            for output in self._outputs:
                if output.host is not None:
                    output.host[row] = np.nan
                else:
                    self._upload_nan(output, row, stream)

    def _upload_nan(self, output: Tensor, row: int, stream: Stream) -> None:
        assert self._device is not None, "writing NaN to device memory needs the device"
        shape = output.shape[1:]
        values = np.full(shape, np.nan).astype(output.dtype)
        self._device.upload(output.view(*shape, start=row * prod(shape)), values, stream)
