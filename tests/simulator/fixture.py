"""The simulated GPU for tests: in `with simulated() as machine:` `cuda`, `tensorrt` and `nvtx` are the simulator's, and
with `simulated(rtx=True)` our modules use its `tensorrt_rtx`.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.devices.memory import Block

SITE = Path(__file__).resolve().parent / "site"
# By library and version the modules that were loaded with it: loading them takes longer than most tests.
_loaded: dict[tuple[bool, str], dict[str, Any]] = {}
RTX_CAPABILITY = "8.9"
REPLACED = (
    "cuda",
    "tensorrt",
    "tensorrt_rtx",
    "runtime.devices.cuda",
    "runtime.devices.cuda_calls",
    "runtime.devices.cuda",
    "runtime.engines.tensorrt",
    "nvtx",
)
_FOLDERS = tuple(f"{name}." for name in REPLACED)

sys.path.insert(0, str(SITE))
# Loaded once: RuleBroken must stay one class for the tests that raise it and those that expect it.
import simulated_machine  # noqa: E402
from simulated_machine import Machine, RefusedError, RuleBroken  # noqa: E402

sys.path.remove(str(SITE))

__all__ = ["SITE", "Machine", "RefusedError", "RuleBroken", "child_environment", "provoked", "simulated"]


@contextmanager
def simulated(*, fresh: bool = False, rtx: bool = False, **options: Any) -> Iterator[Machine]:
    """A new machine (options: see simulated_machine); `Machine.finish` checks it if the block raised nothing.

    fresh: modules are loaded again, and not kept: for blocks that replace some of them. rtx: our modules use the
    simulated TensorRT-RTX, on a GPU that it supports.
    """
    before = _take_modules()
    key = rtx, os.environ.get("SIMULATED_TENSORRT_RTX" if rtx else "SIMULATED_TENSORRT", "")
    options = {"cc": RTX_CAPABILITY, **options} if rtx else options
    loaded = {} if fresh else _loaded.get(key, {})
    sys.path.insert(0, str(SITE))
    importlib.invalidate_caches()
    _put_modules(loaded)
    if "runtime.engines.tensorrt.library" in loaded:
        loaded["runtime.engines.tensorrt.library"]._library = None  # the process's TensorRT, of an earlier machine
    try:
        if rtx:
            importlib.import_module("runtime.engines.tensorrt.binding").bind("tensorrt-rtx")
        if not fresh:
            _use_small_chunks()
        machine = simulated_machine.reset(**options)
        with _watched_blocks(machine), _watched_children():
            yield machine
        machine.finish()
    finally:
        sys.path.remove(str(SITE))
        taken = _take_modules()
        if not fresh:
            _loaded[key] = {name: module for name, module in taken.items() if name != "nvtx"}  # has its ranges
        _put_modules(before)


def _use_small_chunks() -> None:
    """Devices take little memory at once: to poison and clear 100 MiB takes longer than most tests."""
    device = importlib.import_module("runtime.devices.cuda")
    device.CudaDevice.__init__.__kwdefaults__.update(ring_bytes=1 << 20, chunk_bytes=2 << 20)


@contextmanager
def _watched_children() -> Iterator[None]:
    """Rules that processes break which are started in the block, such as the one that builds, are broken by it."""
    before = os.environ.get(simulated_machine.CHILDREN)
    folder = os.environ[simulated_machine.CHILDREN] = tempfile.mkdtemp()
    try:
        yield
    finally:
        del os.environ[simulated_machine.CHILDREN]
        if before is not None:
            os.environ[simulated_machine.CHILDREN] = before
        broken = simulated_machine.broken_by_children(folder)
    if broken:
        raise RuleBroken(broken[0])


@contextmanager
def _watched_blocks(machine: Machine) -> Iterator[None]:
    """Report the blocks that arenas allocate and free to the machine; memory outside of them counts as freed."""
    create, forget = Block.__init__, Block.__del__
    known: set[int] = set()  # blocks of an earlier machine may have the same addresses

    def lend(block: Block, address: int, size_bytes: int, home: Any) -> None:
        create(block, address, size_bytes, home)
        if machine.kind_of(address) != "pageable":
            machine.lend(address, size_bytes)
            known.add(id(block))

    def take_back(block: Block) -> None:
        if id(block) in known:
            known.remove(id(block))
            machine.came_back.append((block.address, block.size_bytes))
        forget(block)

    Block.__init__, Block.__del__ = lend, take_back  # type: ignore[method-assign]
    try:
        yield
    finally:
        Block.__init__, Block.__del__ = create, forget  # type: ignore[method-assign]


@contextmanager
def provoked(machine: Machine, *words: str) -> Iterator[None]:
    """Expects that the block breaks a rule whose message has all the words, and removes it from the machine's list."""
    count = len(machine.broken)
    with pytest.raises(RuleBroken) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"broke another rule: {caught.value}"
    machine.broken[:] = [error for error in machine.broken[:count] if error is not caught.value]


def child_environment(**options: str) -> dict[str, str]:
    """The environment of a child process on the simulator: `child_environment(SIMULATED_CC="8.6")`."""
    paths = [str(SITE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **options}


def _take_modules() -> dict[str, Any]:
    names = [name for name in sys.modules if name.startswith(REPLACED) and f"{name}.".startswith(_FOLDERS)]
    taken = {name: sys.modules.pop(name) for name in names}
    for name in taken:
        package, _, leaf = name.rpartition(".")
        if package in sys.modules and hasattr(sys.modules[package], leaf):
            delattr(sys.modules[package], leaf)
    return taken


def _put_modules(modules: dict[str, Any]) -> None:
    for name, module in modules.items():
        sys.modules[name] = module
        package, _, leaf = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], leaf, module)
