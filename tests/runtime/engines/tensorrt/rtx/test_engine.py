"""Engines on the simulated TensorRT-RTX: which kernels an execute has, and that no launch waits for a compiler."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine_behaviour import *  # noqa: F403  (tests that every TensorRT engine passes)
from helpers.engine_behaviour import CLOSE, Bench, expected, feeds_of, written
from simulator.fixture import Machine, simulated
from simulator.plans import MANY_ROWS, ROWS, cache_graph, small_graph, write_engine

from runtime.base.errors import CaptureError, EngineDeadError, EngineError
from runtime.engines.loading import settle_kernels

# Where a test that should not wait does, it fails after this time.
MOST_S = 20.0


@pytest.fixture(params=[True, False], ids=["late", "early"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with simulated(rtx=True, late=request.param) as machine:
        yield machine


@pytest.fixture
def bench(gpu: Machine, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "engines", gpu)
    yield bench
    bench.close()
    assert gpu.alive() == {}


@contextmanager
def compiler_busy(engine: Any) -> Iterator[None]:
    """Kernels that are asked for in the block are compiled behind it."""
    go_on = threading.Event()
    busy = engine._specializer.submit(lambda: go_on.wait(MOST_S))
    try:
        yield
        assert not busy.done(), "waited for the compiler"
    finally:
        go_on.set()


def test_engines_of_one_device_share_activation_memory(bench: Bench) -> None:
    written(bench.folder)
    written(bench.folder, MANY_ROWS, name="step", scale=3.0)
    engines = [bench.open(name) for name in ("step", "decoder")]
    addresses = {engine._pool.shared(0)._memory.address for engine in engines}
    assert len(addresses) == 1
    assert engines[0]._specializer._activation.address not in addresses


def test_an_opened_engine_has_executed_with_its_fallback_kernels(gpu: Machine, bench: Bench) -> None:
    """What a first execute may load is not left to a tick."""
    engine = bench.build(ROWS, MANY_ROWS)
    assert gpu.compiled == [("context", "kernels_0")]
    assert (gpu.counters["kernels_loaded"], gpu.counters["fallback_executes"]) == (1, 2)
    engine.bind(bench.tensors()).launch(bench.stream)
    assert gpu.counters["kernels_loaded"] == 1
    bench.stream.record().wait()


def test_launches_have_fallback_kernels_until_the_shape_s_are_there(gpu: Machine, bench: Bench) -> None:
    engine = bench.build()
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    before = gpu.counters["fallback_executes"]
    with compiler_busy(engine):
        for _ in range(3):
            execution.launch(bench.stream)
        assert gpu.counters["fallback_executes"] == before + 3
    settle_kernels("tensorrt-rtx")
    for _ in range(3):
        execution.launch(bench.stream)
    assert gpu.counters["fallback_executes"] == before + 3
    engine.bind(tensors).launch(bench.stream)
    assert gpu.counters["fallback_executes"] == before + 3, "the kernels are the shape's, not the execution's"
    assert gpu.compiled == [("context", "kernels_0"), ("execute", "kernels_0")]
    bench.check(tensors, feeds_of(2, 4))


def test_what_is_launched_once_compiles_nothing(gpu: Machine, bench: Bench) -> None:
    engine = bench.build()
    engine.bind(bench.tensors()).launch(bench.stream)
    bench.stream.record().wait()
    settle_kernels("tensorrt-rtx")
    assert gpu.compiled == [("context", "kernels_0")]


def test_executions_of_the_same_shapes_share_a_context_without_a_graph(gpu: Machine, bench: Bench) -> None:
    engine = bench.build()
    executions = [engine.bind(bench.tensors(2, seed=seed)) for seed in range(4)]
    for execution in executions * 2:
        execution.launch(bench.stream)
    bench.stream.record().wait()
    settle_kernels("tensorrt-rtx")
    assert len(gpu.compiled) == 2, "of the fallback kernels, and of the shape"
    before = gpu.counters["fallback_executes"]
    for execution in executions:
        execution.launch(bench.stream)
    assert gpu.counters["fallback_executes"] == before
    bench.stream.record().wait()


def test_kernels_of_a_shape_are_used_while_a_context_for_one_execution_is_made(gpu: Machine, bench: Bench) -> None:
    engine = bench.build()
    first, second = (engine.bind(bench.tensors(seed=seed)) for seed in range(2))
    for _ in range(2):
        first.launch(bench.stream)
    settle_kernels("tensorrt-rtx")
    before = gpu.counters["fallback_executes"]
    with compiler_busy(engine):
        assert not second.prepare(bench.stream)
        second.launch(bench.stream)
    assert gpu.counters["fallback_executes"] == before
    bench.stream.record().wait()
    second.release()


def test_an_execution_is_ready_for_a_capture_once_its_kernels_are_there(gpu: Machine, bench: Bench) -> None:
    engine = bench.build()
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    with compiler_busy(engine):
        assert [execution.prepare(bench.stream) for _ in range(3)] == [False] * 3
        execution.launch(bench.stream)
    settle_kernels("tensorrt-rtx")
    assert execution.prepare(bench.stream)
    execution.warm_up(bench.stream)
    replay = bench.capture(execution)
    replay.launch(bench.stream)
    bench.check(tensors, feeds_of(2, 4))
    assert gpu.counters["frozen_fallbacks"] == gpu.counters["slow_replays"] == 0
    replay.close()
    execution.release()


def test_without_asking_before_no_execute_is_captured(gpu: Machine, bench: Bench) -> None:
    """Of an engine that takes memory itself, and of one that refuses: it launches with kernels of its own."""
    gpu.faults["uncapturable"] = True
    engine = bench.build()
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    with pytest.raises(CaptureError, match="not stream capturable"):
        execution.warm_up(bench.stream)
    assert not execution.prepare(bench.stream)
    for _ in range(2):
        execution.launch(bench.stream)
    settle_kernels("tensorrt-rtx")
    before = gpu.counters["fallback_executes"]
    execution.launch(bench.stream)
    assert gpu.counters["fallback_executes"] == before
    bench.check(tensors, feeds_of(2, 4))
    execution.release()


def test_an_engine_is_closed_without_a_wait_for_the_compiler(bench: Bench) -> None:
    """A tick closes the engines that others replace."""
    written(bench.folder)
    old, _ = (bench.open() for _ in range(2))
    running, go_on = threading.Event(), threading.Event()
    execute = old._specializer.execute

    def slow(*args: Any) -> Any:
        running.set()
        assert go_on.wait(MOST_S), "waited for the compiler"
        return execute(*args)

    old._specializer.execute = slow
    executions = [old.bind(bench.tensors(rows)) for rows in (1, 2, 3)]
    for execution in executions:
        execution.prepare(bench.stream)
    running.wait()
    jobs = [executions[0]._job]
    for execution in executions[1:]:
        execution.release()
    old.close()
    executions[0].release()
    assert not any(job.done() for job in jobs), "waited for the compiler"
    go_on.set()


def test_where_kernels_cannot_be_compiled_fallback_kernels_go_on(
    gpu: Machine, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    engine = bench.build()
    gpu.faults["context_none_at"] = list(range(2, 20))
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    for _ in range(2):
        assert not execution.prepare(bench.stream)
        settle_kernels("tensorrt-rtx")
    execution.launch(bench.stream)
    with pytest.raises(EngineError, match="not compiled"):
        execution.warm_up(bench.stream)
    bench.check(tensors, feeds_of(2, 4))
    assert sum("goes on with slower kernels" in record.message for record in caplog.records) == 1
    execution.release()
    engine.close()
    caplog.clear()
    del execution, engine
    gc.collect()  # exceptions keep the objects of their frames


@pytest.mark.parametrize("error", [EngineDeadError("illegal address"), ZeroDivisionError("a defect")])
def test_a_device_that_is_lost_while_kernels_are_compiled_ends_the_ticks(error: Exception, bench: Bench) -> None:
    """So does what is no error of the engine."""
    engine = bench.build()
    execution = engine.bind(bench.tensors())

    go_on = threading.Event()

    def lose(*args: Any) -> Any:
        assert go_on.wait(MOST_S), "waited for the compiler"
        raise error

    engine._specializer.execute = lose
    assert not execution.prepare(bench.stream)
    go_on.set()
    settle_kernels("tensorrt-rtx")
    with pytest.raises(type(error), match=str(error)):
        execution.prepare(bench.stream)
    execution.release()


def test_a_cache_that_is_updated_in_place_is_compiled_for(gpu: Machine, bench: Bench) -> None:
    write_engine(bench.folder, "cache", cache_graph(), [{"rows": (1, 2, 2)}])
    engine = bench.open("cache")
    past = bench.device.zeros((2, 2, 8, 64), np.float32)
    tensors = {
        "past": past, "present": past, "new": bench.device.zeros((2, 2, 1, 64), np.float32),
        "write": bench.device.zeros((2,), np.int64), "sum": bench.device.zeros((), np.float32),
    }  # fmt: skip
    execution = engine.bind(tensors)
    execution.warm_up(bench.stream)
    assert gpu.compiled[-1] == ("execute", "kernels_0")
    assert bench.read(past).sum() == 0, "kernels are compiled on other memory"
    execution.release()


def test_a_run_outside_of_ticks_does_not_wait_for_the_kernels_of_its_shape(gpu: Machine, bench: Bench) -> None:
    engine = bench.build(in_tick=False)
    for _ in range(6):
        np.testing.assert_allclose(engine.run(feeds_of(2, 4))["y"], expected(feeds_of(2, 4)), **CLOSE)
    assert [when for when, _ in gpu.compiled] == ["context", "background"]
    assert gpu.counters["fallback_executes"] == 3


@pytest.mark.parametrize("logs_to_python", [False, True])
def test_the_end_of_a_context_waits_for_no_thread_that_logs_to_python(
    gpu: Machine, bench: Bench, monkeypatch: pytest.MonkeyPatch, logs_to_python: bool
) -> None:
    """The thread that compiles would wait for the lock that a destructor holds; with the other logger it does."""
    from runtime.engines.tensorrt import library

    if logs_to_python:
        monkeypatch.setattr(library, "_library", None)
        monkeypatch.setattr(library, "NativeLogger", library.RecentMessagesLogger)
    engine = bench.build(in_tick=False)
    engine.run(feeds_of(2, 4))
    engine.close()
    gc.collect()
    assert [str(error)[:8] for error in gpu.broken] == ["deadlock"] * logs_to_python
    gpu.broken.clear()


def test_a_run_of_an_engine_of_ticks_begins_no_compilation(gpu: Machine, bench: Bench) -> None:
    """Its context ends behind it, and would wait for that: so does a reload."""
    engine = bench.build()
    spent_ms = sum(ms for (what, _), ms in gpu.spent_ms.items() if what == "kernels")
    np.testing.assert_allclose(engine.run(feeds_of(2, 4))["y"], expected(feeds_of(2, 4)), **CLOSE)
    assert sum(ms for (what, _), ms in gpu.spent_ms.items() if what == "kernels") == spent_ms
    assert [when for when, _ in gpu.compiled] == ["context"]


def test_what_fails_without_a_reason_is_for_want_of_memory_where_that_is_short(gpu: Machine) -> None:
    from runtime.engines.tensorrt.library import library

    log = library().logger
    assert log.take() == ""
    gpu.memory_bytes -= gpu.free_bytes - (64 << 20)  # what is allocated is filled, which takes long
    address = gpu.allocate(gpu.free_bytes - (8 << 20), "device")
    assert "out of memory: 8 MiB" in log.take()
    gpu.free(address)


@pytest.mark.parametrize("verbosity", ["DETAILED", "LAYER_NAMES_ONLY", "NONE"])
def test_a_profile_has_the_time_of_every_layer_with_the_shape_s_kernels(
    verbosity: str, gpu: Machine, bench: Bench
) -> None:
    engine = bench.build(verbosity=verbosity, in_tick=False)
    nodes = engine.profile(feeds_of(2, 4), 5)
    assert all(len(node.runs_ms) == 5 and min(node.runs_ms) > 0 for node in nodes)
    assert gpu.counters["fallback_executes"] == 0
    if verbosity == "DETAILED":
        assert len(nodes) == len(small_graph().graph.node)
        assert all("[ONNX Layer: " in node.facts["Metadata"] for node in nodes)
        sizes = {tensor["Name"]: tensor["Dimensions"] for node in nodes for tensor in node.facts["Inputs"]}
        assert sizes["x"] == [2, 4, 64]
