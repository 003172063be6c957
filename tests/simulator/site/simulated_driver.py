"""The base of the simulated machine: its options, rules, errors and memory."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import Counter, deque
from typing import Any

import numpy as np
from simulated_memory import Allocation, Lent, Memory, RuleBroken
from simulated_parts import (
    CAPTURE_UNSUPPORTED,
    COSTS_MS,
    GLOBAL,
    GREATEST_PRIORITY,
    INSUFFICIENT_DRIVER,
    MEMORY_ALLOCATION,
    NO_DEVICE,
    OLDEST_DRIVER,
    SUCCESS,
    THREAD_LOCAL,
    Clock,
    Event,
    Graph,
    RefusedError,
    Stream,
)  # fmt: skip


def _option(name: str, default: Any) -> Any:
    value = os.environ.get(f"SIMULATED_{name.upper()}")
    if value is None:
        return default
    return json.loads(value) if name == "faults" else type(default)(int(value) if isinstance(default, bool) else value)


class Driver:
    """Options, rules, errors and memory. Streams, events and graphs are stored here and handled by subclasses."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "late": True, "gpu_name": "Simulated GPU", "cc": "9.0", "sm_count": 132, "memory_bytes": 2 << 30,
            "devices": 1, "greatest_priority": GREATEST_PRIORITY, "no_driver": False, "driver": 13000, "faults": {},
        }  # fmt: skip
        unknown = options.keys() - defaults.keys()
        assert not unknown, f"unknown options {sorted(unknown)}"
        for name, default in defaults.items():
            setattr(self, name, options.get(name, _option(name, default)))
        self.counters: Counter[str] = Counter()
        # What TensorRT-RTX compiled: (when, thread), in order; see tensorrt_rtx.
        self.compiled: list[tuple[str, str]] = []
        # Milliseconds that (what, thread) would have taken; see COSTS_MS.
        self.spent_ms: Counter[tuple[str, str]] = Counter()
        self.broken: list[RuleBroken] = []
        self.came_back: deque[tuple[int, int]] = deque()
        self.streams: dict[int, Stream] = {0: Stream(0)}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, Graph] = {}
        self.sticky = SUCCESS
        self._memory = Memory()
        self._lock = threading.RLock()
        self._host: Clock = {}
        self._errors: dict[int, int] = {}
        self.struck: Counter[str] = Counter()
        self._handles = itertools.count(0x51000, 0x10)

    # Rules and errors.

    def break_rule(self, message: str) -> None:
        """Raise RuleBroken, and keep it for `finish`."""
        error = RuleBroken(message)
        self.broken.append(error)
        raise error

    @property
    def last_error(self) -> int:
        """This thread's last error, until it is cleared."""
        return self._errors.get(threading.get_ident(), SUCCESS)

    @last_error.setter
    def last_error(self, code: int) -> None:
        self._errors[threading.get_ident()] = code

    def strikes(self, fault: str) -> bool:
        """Count one call that a fault may hit; whether the options list this number."""
        self.struck[fault] += 1
        return self.struck[fault] in self.faults.get(fault, ())

    def spend(self, what: str) -> None:
        """Note that the calling thread waits for what takes long."""
        self.spent_ms[what, threading.current_thread().name] += COSTS_MS[what]

    def check_alive(self) -> None:
        """Raises RefusedError after an asynchronous error, and without a driver or device."""
        if self.no_driver or self.driver < OLDEST_DRIVER:
            raise RefusedError(INSUFFICIENT_DRIVER)
        if self.devices == 0:
            raise RefusedError(NO_DEVICE)
        if self.sticky:
            raise RefusedError(self.sticky, "an earlier launch failed")

    def unsafe_call(self, what: str, stream: Stream | None = None) -> None:
        """Invalidate the captures that forbid this call: on its stream, in its thread, in any thread in global mode."""
        thread = threading.get_ident()
        for other in self.streams.values():
            capture = other.capture
            if capture is None:
                continue
            forbids = capture.mode == GLOBAL or (capture.mode == THREAD_LOCAL and capture.thread == thread)
            if forbids or other is stream:
                capture.broken = capture.broken or f"{what} during a capture"
                raise RefusedError(CAPTURE_UNSUPPORTED, capture.broken)

    # Memory.

    def allocate(self, size: int, kind: str) -> int:
        """Allocate poisoned "device" or "pinned" memory. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self.unsafe_call(f"allocating {kind} memory")
            self.counters["allocations"] += 1
            self.counters[f"{kind}_allocations"] += 1
            is_too_large = kind == "device" and size > self.free_bytes
            if self.strikes("oom_at_allocation") or is_too_large:
                raise RefusedError(MEMORY_ALLOCATION, f"{size} bytes of {kind} memory")
            return self._memory.allocate(size, kind).address

    def free(self, address: int) -> None:
        """Free memory. Raises RefusedError."""
        with self._lock:
            self.unsafe_call("freeing memory")
            allocation = self._memory.find(address)
            if allocation is None or allocation.address != address:
                return self.break_rule(f"{address:#x} is freed, but no allocation begins there")
            if allocation.is_freed:
                return self.break_rule(f"the memory at {address:#x} is freed twice")
            if allocation.pending and not self.sticky:
                self.break_rule(f"the memory at {address:#x} is freed while pending work uses it")
            if not allocation.guards_are_whole():
                self.break_rule(f"written outside of the memory at {address:#x}")
            self._memory.free(allocation)
            return None

    def memory(self, address: int, size: int, why: str) -> np.ndarray[Any, Any]:
        """The bytes at an address, `[size]` uint8, as work on the device reads them."""
        with self._lock:
            allocation = self._find(address, size, why)
            return allocation.bytes(address - allocation.address, size)

    @property
    def free_bytes(self) -> int:
        """Free device memory."""
        return int(self.memory_bytes) - self._memory.device_bytes

    def kind_of(self, address: int) -> str:
        """ "device", "pinned" or, for memory that was not allocated here, "pageable"."""
        allocation = self._memory.find(address)
        return "pageable" if allocation is None else allocation.kind

    def require_aligned(self, address: int, alignment_bytes: int, why: str) -> None:
        """Raise RuleBroken for an address that is not a multiple of the alignment."""
        if address % alignment_bytes:
            self.break_rule(f"{why}: misaligned address {address:#x}, must be a multiple of {alignment_bytes}")

    def lend(self, address: int, size: int) -> None:
        """An arena has handed out this piece of an allocation; from now on only handed-out pieces may be used."""
        with self._lock:
            allocation = self._find(address, size, "handing out")
            allocation.lent = allocation.lent or Lent()
            self._take_back()
            allocation.lent.add(address - allocation.address, address - allocation.address + size)

    def _take_back(self) -> None:
        """Remove the pieces that were returned. Finalizers only append them: they run at any point."""
        while self.came_back:
            address, size = self.came_back.popleft()
            allocation = self._memory.find(address)
            if allocation is not None and allocation.lent is not None and not allocation.is_freed:
                begin = address - allocation.address
                allocation.lent.remove(begin, begin + size)

    def _check_lent(self, allocation: Allocation, address: int, size: int, what: str) -> None:
        begin = address - allocation.address
        if allocation.lent is not None and not allocation.lent.covers(begin, begin + size):
            self.break_rule(f"{what}: stale address {address:#x}, its piece of the memory was returned")

    def _find(self, address: int, size: int, why: str) -> Allocation:
        allocation = self._memory.find(address)
        if allocation is None:
            self.break_rule(f"{why}: {address:#x} is not memory of this device")
        assert allocation is not None
        if allocation.is_freed:
            self.break_rule(f"{why}: stale address {address:#x}, its memory was freed")
        if address + size > allocation.address + allocation.size:
            end = address + size - allocation.address
            self.break_rule(
                f"{why}: outside its allocation, byte {end} of {allocation.size} at {allocation.address:#x}"
            )
        return allocation
