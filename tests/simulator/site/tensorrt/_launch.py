"""One execute with the shapes and addresses of its enqueue or capture; later changes of its context do not apply."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from ._enums import DataType
from ._graph import ELEMENTS

if TYPE_CHECKING:
    from ._context import IExecutionContext

POISON = 0xFF


@dataclass(frozen=True)
class Operand:
    """One input or output of an execute."""

    name: str
    address: int
    shape: tuple[int, ...]
    dtype: DataType
    is_input: bool

    @property
    def range(self) -> tuple[int, int]:
        """(address, size)."""
        return self.address, int(prod(self.shape) * (self.dtype.itemsize or 0))


class Launch:
    """Work for a stream or a graph: reads inputs, executes, writes outputs, overwrites the activation memory."""

    def __init__(self, context: IExecutionContext, operands: list[Operand], activation: tuple[int, int]) -> None:
        self.sim_machine = context.sim_machine
        self._context = weakref.ref(context)
        self.sim_session = context.engine.sim_session
        self._operands, self._activation = operands, activation
        self.sim_aliases = self._checked_aliases(context.engine.sim_aliases)
        self.what = ", ".join(f"{o.name}{list(o.shape)}" for o in operands if o.is_input)
        self.reads = [operand.range for operand in operands if operand.is_input]
        self.writes = [operand.range for operand in operands if not operand.is_input] + [activation]
        self.stream, self.version, self.duration_ms, self.is_done = 0, 0, 0.0, False
        self.has_fallback_kernels = False
        self._check_overlap()

    def __call__(self) -> None:
        """Execute in place: copies would count as allocations of the program under test."""
        started = time.perf_counter()
        for address, size in self._new_memory():
            self.sim_machine.memory(address, size, self.what).fill(POISON)
        binding = self.sim_session.io_binding()
        for operand in self._operands:
            bind = binding.bind_input if operand.is_input else binding.bind_output
            bind(operand.name, "cpu", 0, ELEMENTS[operand.dtype], operand.shape, self._host_address(operand))
        try:
            self.sim_session.run_with_iobinding(binding)
        except RuntimeError as error:
            self.sim_machine.break_rule(f"an execute read invalid input: {error}")
        self.duration_ms = (time.perf_counter() - started) * 1e3
        self.is_done = True

    def check(self) -> None:
        """Check, when a graph with this execute is launched, that its context is unchanged."""
        self.sim_machine.counters["slow_replays"] += self.has_fallback_kernels
        context = self._context()
        if context is None or context.sim_engine() is None:
            self.sim_machine.break_rule("a graph is launched after a context or engine that it captured was destroyed")
        assert context is not None
        if context.sim_version != self.version:
            self.sim_machine.break_rule(
                "a context was modified (shape, address, memory or profile) while a captured graph of it lives"
            )

    def _host_address(self, operand: Operand) -> int:
        address, size = operand.range
        return int(self.sim_machine.memory(address, size, f"{operand.name} of an execute").ctypes.data)

    def _checked_aliases(self, aliases: dict[str, str]) -> set[tuple[int, int]]:
        """The memory that is updated in place. Raises RuleBroken where an output lies elsewhere than its input."""
        addresses = {operand.name: operand.range for operand in self._operands}
        for output, source in aliases.items():
            if addresses[output] != addresses[source]:
                self.sim_machine.break_rule(
                    f"{output} must be bound to the memory of {source}, which it updates in place"
                )
        return {addresses[source] for source in aliases.values()}

    def _new_memory(self) -> list[tuple[int, int]]:
        return [found for found in self.writes if found not in self.sim_aliases]

    def _check_overlap(self) -> None:
        for address, size in (*self.reads, *self.writes):
            self.sim_machine.memory(address, size, f"an execute of {self.what}")
        writes = [pair for pair in self._new_memory() if pair[1]]
        for read in self.reads:
            if any(_overlap(read, write) for write in writes):
                self.sim_machine.break_rule(f"an execute writes over its own input ({self.what})")
        if any(_overlap(a, b) for a, b in pairwise(sorted(writes))):
            self.sim_machine.break_rule(f"outputs or activation memory of an execute overlap ({self.what})")


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
