"""What the engines of a folder share on a device: one thread, one cache of kernels, and memory beside the ticks'."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.engine_behaviour import Bench, opened, written
from simulator.fixture import Machine, simulated
from simulator.plans import CHANNELS, write_engine

from engine_build.graphs.graph_writer import GraphWriter


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with simulated(rtx=True) as machine:
        yield machine


def test_engines_of_a_folder_share_one_until_the_last_is_closed(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        written(tmp_path / folder)
    bench = Bench()
    one, two, other = (opened(tmp_path / folder, bench.device, in_tick=True) for folder in ("a", "a", "b"))
    assert one._specializer is two._specializer is not other._specializer
    one.close()
    two._specializer.submit(threading.Event)
    two.close()
    again = opened(tmp_path / "a", bench.device, in_tick=True)
    assert again._specializer is not two._specializer
    again.close()
    other.close()
    bench.close()


def test_an_engine_that_does_not_open_is_no_user(machine: Machine, tmp_path: Path) -> None:
    from runtime.base.errors import EngineMismatchError
    from runtime.engines.tensorrt.rtx import specializer

    written(tmp_path / "a")
    bench = Bench()
    machine.faults["deserialize_none"] = True
    with pytest.raises(EngineMismatchError):
        opened(tmp_path / "a", bench.device, in_tick=True)
    assert specializer._open == {}
    bench.close()


def test_memory_for_new_shapes_grows_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a")
    bench = Bench()
    engine = opened(tmp_path / "a", bench.device, in_tick=True)

    def compile_for(rows: int, frames: int) -> int:
        execution = engine.bind(bench.tensors(rows, frames))
        before = bench.device.allocations
        execution.prepare(bench.stream)
        engine._specializer.settle()
        execution.release()
        return bench.device.allocations - before

    assert compile_for(4, 16) == 2
    monkeypatch.setattr(engine._plan, "new_context", None)  # The context that was given back is used again.
    assert compile_for(3, 16) == compile_for(4, 8) == 0
    engine.close()
    bench.close()


def test_kernels_for_many_caches_take_the_memory_of_one(tmp_path: Path) -> None:
    """A planner has 56 of them, as large as its weights together: while kernels are compiled they are one piece."""
    number, capacity = 12, 64
    graph = GraphWriter("caches", 24)
    new, write = graph.input("new", ("rows", 2, 1, CHANNELS)), graph.input("write", ("rows",), "int64")
    shape = ("rows", 2, capacity, CHANNELS)
    for index in range(number):
        past = graph.input(f"past{index}", shape)
        graph.output(f"present{index}", graph.op("TensorScatter", past, new, write, axis=-2, mode="linear"), shape)
    write_engine(tmp_path / "a", "caches", graph.model(), [{"rows": (1, 2, 4)}])
    bench = Bench()
    engine = opened(tmp_path / "a", bench.device, "caches", in_tick=True)
    caches = [bench.device.zeros((4, 2, capacity, CHANNELS), "float32") for _ in range(number)]
    tensors = {
        "new": bench.device.zeros((4, 2, 1, CHANNELS), "float32"),
        "write": bench.device.zeros((4,), "int64"),
        **{f"past{index}": cache for index, cache in enumerate(caches)},
        **{f"present{index}": cache for index, cache in enumerate(caches)},
    }
    execution = engine.bind(tensors)
    execution.prepare(bench.stream)
    engine._specializer.settle()
    assert execution.prepare(bench.stream)
    specializer = engine._specializer
    assert specializer._written.size_bytes + specializer._zeros.size_bytes < 2 * caches[0].size_bytes
    execution.release()
    engine.close()
    bench.close()


def test_settling_waits_for_all(machine: Machine, tmp_path: Path) -> None:
    from runtime.engines.loading import settle_kernels

    written(tmp_path / "a")
    bench = Bench()
    engine = opened(tmp_path / "a", bench.device, in_tick=True)
    executions = [engine.bind(bench.tensors(rows)) for rows in (1, 2, 3, 4)]
    for execution in executions:
        execution.prepare(bench.stream)
    assert settle_kernels("tensorrt-rtx")
    assert not settle_kernels("tensorrt")
    assert [when for when, _ in machine.compiled] == ["context", *["execute"] * 4]
    assert all(execution.prepare(bench.stream) for execution in executions)
    for execution in executions:
        execution.release()
    engine.close()
    bench.close()


def test_users_are_counted_with_the_lock_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from runtime.engines.tensorrt.rtx import specializer

    class Open(dict[Any, Any]):
        """Notes whether the lock is held where it is used."""

        def get(self, key: Any, default: Any = None) -> Any:
            held.append(("get", specializer._lock.locked()))
            return super().get(key, default)

        def values(self) -> Any:
            held.append(("values", specializer._lock.locked()))
            return super().values()

        def __delitem__(self, key: Any) -> None:
            held.append(("del", specializer._lock.locked()))
            super().__delitem__(key)

    held: list[tuple[str, bool]] = []
    monkeypatch.setattr(specializer, "_open", Open())
    bench = Bench()
    found = specializer.open_specializer(tmp_path, bench.device)
    specializer.settle()
    specializer.close_specializer(found)
    assert held == [("get", True), ("values", True), ("del", True)]
    bench.close()
