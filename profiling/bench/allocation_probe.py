"""Counts NumPy's data buffers when they are allocated, temporaries included.

NumPy lets a program replace the functions that allocate array data (NEP 49). The probe installs functions that count
and then call NumPy's own, so arrays stay valid after the probe. NumPy keeps the functions per thread and context: the
probe counts the allocations of the thread that entered it.
"""

from __future__ import annotations

import ctypes
import importlib
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

MIN_BYTES = 1024

# Indices in NumPy's C-API table (numpy/__multiarray_api.h).
_SET_HANDLER, _GET_HANDLER = 304, 305
_CAPSULE_NAME = b"mem_handler"

# PYFUNCTYPE holds the interpreter lock during the call, as NumPy's own functions require.
_Malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Calloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Realloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, version 1 (numpy/ndarraytypes.h). `free` stays NumPy's own."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", _Malloc),
        ("calloc", _Calloc),
        ("realloc", _Realloc),
        ("free", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Allocation:
    """One buffer: its size and, from a tracing probe, the call stack, innermost line last."""

    size_bytes: int
    site: tuple[str, ...] = ()


class AllocationProbe:
    """Context manager: every NumPy data buffer of `min_bytes` or more that this thread allocates inside is in `seen`.

    With `trace=True` each has a call stack of `depth` lines. Probes cannot be nested.
    """

    def __init__(self, *, min_bytes: int = MIN_BYTES, trace: bool = False, depth: int = 6) -> None:
        self.min_bytes = min_bytes
        self.seen: list[Allocation] = []
        self._trace = trace
        self._depth = depth
        self._previous: Any = None

    def __enter__(self) -> Self:
        if _Active.probe is not None:
            raise RuntimeError("an allocation probe is already active: leave it before you enter another")
        _Active.probe = self
        self._previous = _set_handler(_counting_handler())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _set_handler(self._previous)
        _Active.probe = None

    @property
    def count(self) -> int:
        """Buffers allocated so far."""
        return len(self.seen)

    @property
    def sizes(self) -> list[int]:
        """Sizes in bytes, in order of allocation."""
        return [allocation.size_bytes for allocation in self.seen]

    def sites(self) -> list[tuple[int, int, tuple[str, ...]]]:
        """(times, bytes, call stack) of each allocating line, most frequent first."""
        times = Counter(allocation.site for allocation in self.seen)
        total = Counter[tuple[str, ...]]()
        for allocation in self.seen:
            total[allocation.site] += allocation.size_bytes
        return [(count, total[site], site) for site, count in times.most_common()]

    def record(self, size_bytes: int) -> None:
        """Count one buffer. Called right before NumPy allocates it."""
        if size_bytes >= self.min_bytes:
            self.seen.append(Allocation(size_bytes, _call_stack(self._depth) if self._trace else ()))


class _Active:
    """The active probe, and the handler that every probe installs; arrays keep a reference to it."""

    probe: AllocationProbe | None = None
    capsule: Any = None
    keep: tuple[Any, ...] = ()


def _call_stack(depth: int) -> tuple[str, ...]:
    frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
    return tuple(f"{frame.filename}:{frame.lineno} {frame.line}" for frame in frames[-depth:])


def _counting_handler() -> Any:
    if _Active.capsule is None:
        _Active.capsule = _make_handler()
    return _Active.capsule


def _make_handler() -> Any:
    original = _Handler.from_address(_capsule_pointer(_get_handler(), _CAPSULE_NAME))
    if original.version != 1:
        raise RuntimeError(f"NumPy's memory handler has version {original.version}, the probe supports version 1")
    handler = _Handler(b"tickrt_probe", 1, original.context, *_counting_functions(original), original.free)
    _Active.keep = (original, handler)
    return _new_capsule(ctypes.addressof(handler), _CAPSULE_NAME, None)


def _counting_functions(original: _Handler) -> tuple[Any, Any, Any]:
    def malloc(context: int | None, size: int) -> Any:
        _count(size)
        return original.malloc(context, size)

    def calloc(context: int | None, items: int, item_size: int) -> Any:
        _count(items * item_size)
        return original.calloc(context, items, item_size)

    def realloc(context: int | None, pointer: int | None, size: int) -> Any:
        _count(size)
        return original.realloc(context, pointer, size)

    return _Malloc(malloc), _Calloc(calloc), _Realloc(realloc)


def _count(size_bytes: int) -> None:
    if _Active.probe is not None:
        _Active.probe.record(size_bytes)


# PyDataMem_Handler is passed in a capsule: Python's calls to open and make one, and NumPy's to set and get it.
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _api(index: int, prototype: Any) -> Callable[..., Any]:
    table = _capsule_pointer(importlib.import_module("numpy._core._multiarray_umath")._ARRAY_API, None)
    entry = ctypes.c_void_p.from_address(table + index * ctypes.sizeof(ctypes.c_void_p))
    function: Callable[..., Any] = prototype(entry.value)
    return function


_set_handler = _api(_SET_HANDLER, ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object))
_get_handler = _api(_GET_HANDLER, ctypes.PYFUNCTYPE(ctypes.py_object))
