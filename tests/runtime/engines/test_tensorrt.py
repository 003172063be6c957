"""Plans on the simulated GPU: every rule of TensorRT's is one that breaks the test when the engine breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulator.fixture import Machine, simulated
from simulator.plans import CHANNELS, MANY_ROWS, ROWS, small_graph, write_engine

from runtime.device import Device, Stream, Tensor, open_device
from runtime.engine import open_engine, run_once
from runtime.errors import (
    CaptureError,
    EngineDeadError,
    EngineError,
    EngineMismatchError,
    OutOfMemoryError,
    ShapeError,
)
from runtime.manifest import manifest_path, read_manifest, write_manifest

BUILD = "tickrt-build x.toml --target tensorrt"
BIAS = np.linspace(-1, 1, CHANNELS, dtype=np.float32)


@pytest.fixture(params=["11.4.0.106", "10.16.1.11"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SIMULATED_TENSORRT", request.param)
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["late", "early"])
def gpu(request: pytest.FixtureRequest, version: str) -> Iterator[Machine]:
    with simulated(late=request.param) as machine:
        yield machine


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One machine, for what does not depend on version or lateness."""
    with simulated() as machine:
        yield machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "engines"


class Bench:
    """A device, a stream, and tensors of one shape on it."""

    def __init__(self) -> None:
        self.device: Device = open_device("tensorrt")
        self.stream: Stream = self.device.stream()

    def tensors(self, rows: int = 2, frames: int = 4, seed: int = 0) -> dict[str, Tensor]:
        feeds = feeds_of(rows, frames, seed)
        tensors = {name: self.device.zeros(values.shape, values.dtype) for name, values in feeds.items()}
        for name, values in feeds.items():
            self.device.upload(tensors[name], values, self.stream)
        outputs = {
            "y": self.device.zeros((rows, frames, CHANNELS), np.float32),
            "positive": self.device.zeros((rows,), np.bool_),
        }
        return {**tensors, **outputs}

    def read(self, tensor: Tensor) -> NDArray[Any]:
        array = self.device.staging(tensor.shape, tensor.dtype)
        self.device.download(array, tensor, self.stream)
        self.stream.record().wait()
        return array.copy()

    def close(self) -> None:
        self.device.close()


def feeds_of(rows: int, frames: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, frames, CHANNELS)).astype(np.float32)
    return {"x": x, "t": 100.0 * np.arange(-1, rows - 1, dtype=np.float32), "bias": BIAS}


def expected(feeds: dict[str, NDArray[Any]], scale: float = 2.0) -> NDArray[np.float32]:
    result: NDArray[np.float32] = np.float32(scale) * feeds["x"] + feeds["t"][:, None, None] + feeds["bias"]
    return result


def written(folder: Path, *ranges: Any, name: str = "decoder", scale: float = 2.0, **how: Any) -> None:
    write_engine(folder, name, small_graph(scale), ranges or (ROWS,), **how)


def opened(folder: Path, device: Device, name: str = "decoder", **how: Any) -> Any:
    return open_engine(folder, name, device, fix=BUILD, **how)


# Executes.


def test_a_bound_execution_gives_what_the_graph_gives_and_can_be_repeated(gpu: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    for seed in range(3):
        feeds = feeds_of(2, 4, seed)
        bench.device.upload(tensors["x"], feeds["x"], bench.stream)
        execution.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds), rtol=1e-6)
        np.testing.assert_array_equal(bench.read(tensors["positive"]), (expected(feeds) > 0).all((1, 2)))
    engine.close()
    bench.close()
    assert gpu.alive() == {}


def test_the_host_does_not_wait_for_a_launch(folder: Path) -> None:
    with simulated(late=True) as machine:
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        execution = engine.bind(bench.tensors())
        before = machine.counters["host_waits"] + machine.counters["synchronizes"]
        for _ in range(3):
            execution.launch(bench.stream)
        done = bench.stream.record()
        assert machine.counters["host_waits"] + machine.counters["synchronizes"] == before
        assert not done.is_done
        done.wait()
        engine.close()
        bench.close()


def test_shapes_and_addresses_are_set_only_when_they_change(
    one: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device)
    first, second = engine.bind(bench.tensors()), engine.bind(bench.tensors(frames=5))
    calls = count_calls(monkeypatch, "set_input_shape", "set_tensor_address", "set_optimization_profile_async")
    first.launch(bench.stream)
    assert calls == {"set_input_shape": 2, "set_tensor_address": 5}
    first.launch(bench.stream)
    assert calls == {"set_input_shape": 2, "set_tensor_address": 5}
    second.launch(bench.stream)
    assert calls["set_input_shape"] == 3, "rows did not change"
    bench.stream.record().wait()
    engine.close()
    bench.close()


def test_two_shape_ranges_take_turns(gpu: Machine, folder: Path) -> None:
    written(folder, ROWS, MANY_ROWS)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    few, many = bench.tensors(2), bench.tensors(7)
    executions = [engine.bind(few), engine.bind(many)]
    for _ in range(2):
        for execution in executions:
            execution.launch(bench.stream)
    np.testing.assert_allclose(bench.read(few["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
    np.testing.assert_allclose(bench.read(many["y"]), expected(feeds_of(7, 4)), rtol=1e-6)
    engine.close()
    bench.close()


def test_engines_of_one_stream_share_one_activation_memory(gpu: Machine, folder: Path) -> None:
    written(folder)
    written(folder, MANY_ROWS, name="step", scale=3.0)
    bench = Bench()
    before = bench.device.allocations
    engines = [opened(folder, bench.device, name, in_tick=True) for name in ("step", "decoder")]
    assert bench.device.allocations == before + 1, "the larger one's memory serves both"
    step, decoder = bench.tensors(5), bench.tensors(4)
    executions = [engines[0].bind(step), engines[1].bind(decoder)]
    for execution in executions * 2:
        execution.launch(bench.stream)
    np.testing.assert_allclose(bench.read(step["y"]), expected(feeds_of(5, 4), 3.0), rtol=1e-6)
    np.testing.assert_allclose(bench.read(decoder["y"]), expected(feeds_of(4, 4)), rtol=1e-6)
    for engine in engines:
        engine.close()
    bench.close()


def test_a_larger_engine_that_opens_later_leaves_older_contexts_their_memory(gpu: Machine, folder: Path) -> None:
    written(folder)
    written(folder, MANY_ROWS, name="step")
    bench = Bench()
    small = opened(folder, bench.device, in_tick=True)
    tensors = bench.tensors(4)
    execution = small.bind(tensors)
    execution.hold(bench.stream)
    replay = bench.device.capture(bench.stream, lambda: execution.launch(bench.stream))
    assert replay is not None
    large = opened(folder, bench.device, "step", in_tick=True)
    replay.launch(bench.stream)
    np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(4, 4)), rtol=1e-6)
    replay.close()
    execution.release()
    small.close()
    large.close()
    bench.close()


def test_nothing_is_allocated_by_launches(gpu: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    executions = [engine.bind(bench.tensors(rows)) for rows in (1, 2, 3)]
    before = (bench.device.allocations, gpu.counters["allocations"])
    for execution in executions * 3:
        execution.launch(bench.stream)
    assert (bench.device.allocations, gpu.counters["allocations"]) == before
    bench.stream.record().wait()
    engine.close()
    bench.close()


# Captured graphs.


def test_a_captured_execution_equals_a_plain_one(gpu: Machine, folder: Path) -> None:
    written(folder, ROWS, MANY_ROWS)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    tensors = bench.tensors(6)
    execution = engine.bind(tensors)
    execution.launch(bench.stream)
    plain = bench.read(tensors["y"])
    execution.hold(bench.stream)
    replay = bench.device.capture(bench.stream, lambda: execution.launch(bench.stream))
    assert replay is not None
    for seed in (0, 1):
        feeds = feeds_of(6, 4, seed)
        bench.device.upload(tensors["x"], feeds["x"], bench.stream)
        replay.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds), rtol=1e-6)
        if seed == 0:
            np.testing.assert_array_equal(bench.read(tensors["y"]), plain)
    replay.close()
    execution.release()
    engine.close()
    bench.close()
    assert gpu.alive() == {}


def test_plain_launches_of_other_shapes_leave_a_captured_graph_alone(gpu: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    captured, other = bench.tensors(2), bench.tensors(3, 9, seed=5)
    execution = engine.bind(captured)
    execution.hold(bench.stream)
    replay = bench.device.capture(bench.stream, lambda: execution.launch(bench.stream))
    assert replay is not None
    for _ in range(2):
        engine.bind(other).launch(bench.stream)
        replay.launch(bench.stream)
    np.testing.assert_allclose(bench.read(captured["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
    np.testing.assert_allclose(bench.read(other["y"]), expected(feeds_of(3, 9, 5)), rtol=1e-6)
    replay.close()
    execution.release()
    engine.close()
    bench.close()


def test_two_contexts_of_one_engine_in_one_graph(gpu: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    sides = [bench.tensors(2, seed=1), bench.tensors(3, seed=2)]
    executions = [engine.bind(side) for side in sides]
    for execution in executions:
        execution.hold(bench.stream)

    def launch_both() -> None:
        for execution in executions:
            execution.launch(bench.stream)

    replay = bench.device.capture(bench.stream, launch_both)
    assert replay is not None
    replay.launch(bench.stream)
    for side, rows, seed in zip(sides, (2, 3), (1, 2), strict=True):
        np.testing.assert_allclose(bench.read(side["y"]), expected(feeds_of(rows, 4, seed)), rtol=1e-6)
    replay.close()
    for execution in executions:
        execution.release()
    engine.close()
    bench.close()


def test_a_released_context_serves_the_next_hold(one: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    made = count_calls(monkeypatch, "create_execution_context", of="ICudaEngine")
    for rows in (1, 2, 3, 2):
        tensors = bench.tensors(rows)
        execution = engine.bind(tensors)
        execution.hold(bench.stream)
        replay = bench.device.capture(bench.stream, lambda: execution.launch(bench.stream))  # noqa: B023
        assert replay is not None
        replay.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(rows, 4)), rtol=1e-6)
        replay.close()
        execution.release()
        execution.release()
    assert made == {"create_execution_context": 1}
    engine.close()
    bench.close()


def test_a_context_that_is_held_outlives_its_engine(gpu: Machine, folder: Path) -> None:
    """An engine that was swapped out may be closed while the last graph of it is still on its list."""
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    execution = engine.bind(bench.tensors())
    execution.hold(bench.stream)
    bench.stream.record().wait()
    engine.close()
    execution.release()
    del engine, execution
    bench.close()
    assert gpu.alive() == {}


def test_an_engine_that_cannot_be_captured_still_runs_plainly(folder: Path) -> None:
    with simulated(faults={"uncapturable": True}):
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        tensors = bench.tensors()
        execution = engine.bind(tensors)
        execution.hold(bench.stream)
        with pytest.raises(CaptureError, match="not stream capturable"):
            bench.device.capture(bench.stream, lambda: execution.launch(bench.stream))
        execution.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
        execution.release()
        engine.close()
        bench.close()


# On host arrays.


def test_run_takes_and_gives_host_arrays_of_any_shape(gpu: Machine, folder: Path) -> None:
    written(folder, ROWS, MANY_ROWS)
    bench = Bench()
    engine = opened(folder, bench.device)
    for rows, frames in ((2, 4), (7, 16), (1, 1), (4, 16)):
        feeds = feeds_of(rows, frames, rows)
        outputs = run_once(engine, feeds)
        np.testing.assert_allclose(outputs["y"], expected(feeds), rtol=1e-6)
        assert outputs["positive"].dtype == np.bool_
    engine.close()
    bench.close()
    assert gpu.alive() == {}


def test_run_beside_ticks_disturbs_nothing(gpu: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    tensors = bench.tensors()
    execution = engine.bind(tensors)
    execution.launch(bench.stream)
    feeds = feeds_of(3, 7, 9)
    outputs = engine.run(feeds)
    execution.launch(bench.stream)
    np.testing.assert_allclose(outputs["y"], expected(feeds), rtol=1e-6)
    np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
    engine.close()
    bench.close()


def test_what_run_gives_is_the_caller_s_own(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device)
    first = engine.run(feeds_of(2, 4))
    kept = first["y"].copy()
    engine.run(feeds_of(2, 4, seed=1))
    np.testing.assert_array_equal(first["y"], kept)
    engine.close()
    bench.close()


@pytest.mark.parametrize("verbosity", ["DETAILED", "LAYER_NAMES_ONLY", "NONE"])
def test_a_profile_has_the_time_of_every_layer(version: str, verbosity: str, folder: Path) -> None:
    with simulated():
        written(folder, verbosity=verbosity)
        bench = Bench()
        engine = opened(folder, bench.device)
        nodes = engine.profile(feeds_of(2, 4), 5)
        assert all(len(node.runs_ms) == 5 and min(node.runs_ms) > 0 for node in nodes)
        if verbosity == "DETAILED":
            assert len(nodes) == len(small_graph().graph.node)
            assert {node.op_type for node in nodes} == {"kgen"}
        else:
            assert [node.op_type for node in nodes] == ["ForeignNode" if verbosity == "LAYER_NAMES_ONLY" else "unknown"]
        np.testing.assert_allclose(engine.run(feeds_of(2, 4))["y"], expected(feeds_of(2, 4)), rtol=1e-6)
        engine.close()
        bench.close()


# What does not fit.


def test_a_shape_outside_every_range_is_refused_with_what_is_allowed(one: Machine, folder: Path) -> None:
    written(folder, ROWS, MANY_ROWS)
    bench = Bench()
    engine = opened(folder, bench.device)
    with pytest.raises(ShapeError) as caught:
        engine.bind(bench.tensors(9, 4))
    assert caught.value.what == (
        "decoder: no shape range holds x (9, 4, 64); range 0 allows 1..4 in dimension 0 (rows) of x; "
        "range 1 allows 5..8 in dimension 0 (rows) of x"
    )
    assert caught.value.fix.endswith(BUILD)
    with pytest.raises(ShapeError, match=r"1\.\.16 in dimension 1 \(frames\) of x"):
        engine.run(feeds_of(2, 17))
    with pytest.raises(ShapeError, match="no tensor given for 't'"):
        engine.run({"x": feeds_of(2, 4)["x"]})
    engine.close()
    bench.close()


def test_a_tensor_that_is_not_aligned_is_refused_when_bound(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device)
    tensors = bench.tensors(2)
    tensors["t"] = bench.device.zeros((3,), np.float32).view(2, start=1)
    with pytest.raises(EngineError, match=r"t lies at 0x[0-9a-f]+4, expected a multiple of 256"):
        engine.bind(tensors)
    engine.close()
    bench.close()


# Faults.


def test_a_damaged_plan_is_refused_before_it_is_loaded(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    path = folder / "decoder.plan"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(EngineMismatchError, match=r"SHA-256[\s\S]*fix: .*--force"):
        opened(folder, bench.device)
    bench.close()


def test_a_file_that_is_no_plan_is_refused_before_it_is_loaded(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    replace_plan(folder, b"PK\3\4" + bytes(100))
    with pytest.raises(EngineMismatchError, match=rf"is no TensorRT plan[\s\S]*fix: {BUILD}"):
        opened(folder, bench.device)
    bench.close()


def test_a_plan_that_does_not_load_says_why(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    replace_plan(folder, (folder / "decoder.plan").read_bytes()[:-8])
    with pytest.raises(EngineMismatchError, match=rf"decoder\.plan does not load: .*truncated[\s\S]*fix: {BUILD}"):
        opened(folder, bench.device)
    bench.close()


def test_a_plan_of_another_version_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_TENSORRT", "10.16.1.11")
    with simulated():
        written(folder)
    monkeypatch.delenv("SIMULATED_TENSORRT")
    with simulated():
        bench = Bench()
        with pytest.raises(EngineMismatchError, match=rf"was built for .*10\.16\.1\.11.*has.*11\.4[\s\S]*fix: {BUILD}"):
            opened(folder, bench.device)
        change_manifest(folder, tool_versions={"tensorrt": "11.4.0.106"})
        with pytest.raises(EngineMismatchError, match=r"was made by TensorRT 10\.16\.1\.11 and needs that exactly"):
            opened(folder, bench.device)
        bench.close()


def test_a_version_compatible_plan_runs_on_a_later_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_TENSORRT", "10.16.1.11")
    with simulated():
        written(folder, version_compatible=True)
        written(folder, name="later")
    monkeypatch.delenv("SIMULATED_TENSORRT")
    with simulated():
        bench = Bench()
        engine = opened(folder, bench.device)
        np.testing.assert_allclose(engine.run(feeds_of(2, 4))["y"], expected(feeds_of(2, 4)), rtol=1e-6)
        engine.close()
        bench.close()


@pytest.mark.parametrize("options", [{"cc": "8.6"}, {"gpu_name": "Another GPU"}])
def test_a_plan_of_another_gpu_is_refused(options: dict[str, str], folder: Path) -> None:
    with simulated():
        written(folder)
    with simulated(**options):
        bench = Bench()
        with pytest.raises(EngineMismatchError, match=rf"was built for .*this machine has[\s\S]*fix: {BUILD}"):
            opened(folder, bench.device)
        bench.close()


def test_a_plan_of_another_compute_capability_does_not_load(folder: Path) -> None:
    with simulated():
        written(folder)
    with simulated(cc="8.6"):
        bench = Bench()
        change_manifest(folder, device={})
        with pytest.raises(EngineMismatchError, match=r"generated on an incompatible device, expecting compute 8.6"):
            opened(folder, bench.device)
        bench.close()


def test_an_engine_for_a_gpu_does_not_open_on_the_host_device(one: Machine, folder: Path) -> None:
    written(folder)
    with pytest.raises(EngineMismatchError, match="runs on a cuda device, this one is cpu"):
        opened(folder, open_device("cpu"))


def test_without_a_driver_nothing_of_tensorrt_is_constructed(folder: Path) -> None:
    with simulated():
        written(folder)
    with simulated(no_driver=True):
        from runtime.engines.tensorrt import library

        with pytest.raises(EngineError, match="no NVIDIA driver"):
            library()


def test_a_plan_with_other_tensors_than_its_manifest_is_refused(one: Machine, folder: Path) -> None:
    written(folder)
    manifest = read_manifest(manifest_path(folder, "decoder"))
    change_manifest(
        folder, outputs=tuple(output.model_copy(update={"name": f"{output.name}2"}) for output in manifest.outputs)
    )
    bench = Bench()
    with pytest.raises(EngineMismatchError, match=r"its manifest says .*y2"):
        opened(folder, bench.device)
    bench.close()


def test_deserialize_that_gives_nothing_is_a_mismatch(folder: Path) -> None:
    with simulated(faults={"deserialize_none": True}):
        written(folder)
        bench = Bench()
        with pytest.raises(EngineMismatchError, match=rf"does not load: .*Serialization assertion[\s\S]*fix: {BUILD}"):
            opened(folder, bench.device)
        bench.close()


def test_out_of_memory_at_load_is_said_and_what_runs_goes_on(folder: Path) -> None:
    with simulated() as machine:
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        tensors = bench.tensors()
        machine.memory_bytes = 0
        with pytest.raises(OutOfMemoryError, match=r"does not load: .*out of memory[\s\S]*fix: lower rows"):
            opened(folder, bench.device)
        engine.bind(tensors).launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
        engine.close()
        bench.close()


def test_no_context_for_want_of_memory(folder: Path) -> None:
    with simulated(faults={"context_none_at": [2]}):
        written(folder, ROWS, MANY_ROWS)
        bench = Bench()
        with pytest.raises(OutOfMemoryError, match="no execution context for shape range 1"):
            opened(folder, bench.device, in_tick=True)
        bench.close()


def test_out_of_memory_at_the_first_execute_is_recoverable(folder: Path) -> None:
    with simulated(faults={"enqueue_oom_at": [1]}):
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        tensors = bench.tensors()
        execution = engine.bind(tensors)
        with pytest.raises(OutOfMemoryError, match=r"decoder: failed to execute: .*out of memory") as caught:
            execution.launch(bench.stream)
        assert not isinstance(caught.value, EngineDeadError)
        execution.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
        engine.close()
        bench.close()


def test_an_execute_that_is_refused_is_recoverable_and_says_what_was_logged(folder: Path) -> None:
    with simulated(faults={"enqueue_false_at": [2]}):
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        tensors = bench.tensors()
        execution = engine.bind(tensors)
        execution.launch(bench.stream)
        with pytest.raises(EngineError, match=r"failed to execute: .*the execute was refused") as caught:
            execution.launch(bench.stream)
        assert type(caught.value) is EngineError
        execution.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
        engine.close()
        bench.close()


def test_a_hold_that_fails_can_be_released(folder: Path) -> None:
    with simulated(faults={"enqueue_false_at": [1]}):
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        execution = engine.bind(bench.tensors())
        with pytest.raises(EngineError, match="the execute was refused"):
            execution.hold(bench.stream)
        execution.release()
        engine.close()
        bench.close()


def test_an_asynchronous_error_comes_out_of_events_and_later_launches(folder: Path) -> None:
    with simulated() as machine:
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        execution = engine.bind(bench.tensors())
        bench.stream.record().wait()
        machine.faults = {"async_error_at": [machine._struck["async_error_at"] + 1]}
        execution.launch(bench.stream)
        done = bench.stream.record()
        with pytest.raises(EngineDeadError):
            done.wait()
        with pytest.raises(EngineDeadError, match="illegal memory access"):
            execution.launch(bench.stream)
        engine.close()
        bench.close()


def test_a_failed_open_leaves_nothing_behind(folder: Path) -> None:
    with simulated(faults={"context_none_at": [1]}) as machine:
        written(folder)
        bench = Bench()
        with pytest.raises(EngineError):
            opened(folder, bench.device, in_tick=True)
        bench.close()
        assert machine.alive() == {}


# Tables.


def test_every_data_type_has_a_name(version: str) -> None:
    with simulated():
        import tensorrt as trt

        from runtime.engines.answers import DTYPES, dtype_name

        assert set(trt.DataType.__members__) == set(DTYPES)
        assert dtype_name(trt.DataType.BF16) == "bfloat16"


def test_a_data_type_that_is_not_known_raises() -> None:
    from runtime.engines.answers import dtype_name

    class Fp2:
        name = "FP2"

    with pytest.raises(EngineError, match="data type FP2 is not known here"):
        dtype_name(Fp2())


def test_the_logger_keeps_each_thread_s_last_errors(one: Machine) -> None:
    from runtime.engines.tensorrt import RingLogger

    logger = RingLogger()
    for index in range(20):
        logger.log(logger.ERROR, f"error {index}")
    logger.log(logger.INFO, "all is well")
    assert logger.take() == "; ".join(f"error {index}" for index in range(4, 20))
    assert logger.take() == ""


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str, of: str = "IExecutionContext") -> dict[str, int]:
    import tensorrt as trt

    kind, calls = getattr(trt, of), dict[str, int]()

    def counted(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return method(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(kind, name, counted(name, getattr(kind, name)))
    return calls


def replace_plan(folder: Path, data: bytes) -> None:
    """Put other bytes in place of a plan, with their hash in the manifest."""
    import hashlib

    (folder / "decoder.plan").write_bytes(data)
    change_manifest(folder, engine_sha256=hashlib.sha256(data).hexdigest())


def change_manifest(folder: Path, **change: Any) -> None:
    path = manifest_path(folder, "decoder")
    write_manifest(path, read_manifest(path).model_copy(update=change))
