"""Engines on the simulated TensorRT, which raises where a rule of the real one is broken."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine_behaviour import *  # noqa: F403  (tests that every TensorRT engine passes)
from helpers.engine_behaviour import BUILD, Bench, expected, feeds_of, opened, written
from helpers.factories import tiny_deployment
from simulator.fixture import Machine, simulated
from simulator.plans import MANY_ROWS, ROWS, small_graph

from runtime.base.errors import CaptureError, EngineDeadError, EngineError, EngineMismatchError, OutOfMemoryError
from runtime.config.deployment import load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines
from runtime.engines.manifest import manifest_path, read_manifest, write_manifest


@pytest.fixture(params=["11.4.0.106", "10.16.1.11"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SIMULATED_TENSORRT", request.param)
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["late", "early"])
def gpu(request: pytest.FixtureRequest, version: str) -> Iterator[Machine]:
    with simulated(late=request.param) as machine:
        yield machine


@pytest.fixture
def bench(gpu: Machine) -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()
    assert gpu.alive() == {}


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One machine, for tests that do not depend on version or timing."""
    with simulated() as machine:
        yield machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def test_a_launch_does_not_block_the_host(folder: Path) -> None:
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


def test_launches_allocate_nothing(gpu: Machine, folder: Path) -> None:
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


def test_a_released_context_is_reused_by_the_next_warm_up(
    one: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder)
    bench = Bench()
    engine = opened(folder, bench.device, in_tick=True)
    made = count_calls(monkeypatch, "create_execution_context", of="ICudaEngine")
    for rows in (1, 2, 3, 2):
        tensors = bench.tensors(rows)
        execution = engine.bind(tensors)
        execution.warm_up(bench.stream)
        replay = bench.device.capture(bench.stream, lambda: execution.warm_up(bench.stream))  # noqa: B023
        assert replay is not None
        replay.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(rows, 4)), rtol=1e-6)
        replay.close()
        execution.release()
        execution.release()
    assert made == {"create_execution_context": 1}
    engine.close()
    bench.close()


def test_an_engine_that_cannot_be_captured_still_launches(folder: Path) -> None:
    with simulated(faults={"uncapturable": True}):
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        tensors = bench.tensors()
        execution = engine.bind(tensors)
        execution.warm_up(bench.stream)
        with pytest.raises(CaptureError, match="not stream capturable"):
            bench.device.capture(bench.stream, lambda: execution.warm_up(bench.stream))
        execution.launch(bench.stream)
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
        execution.release()
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
            assert all("[ONNX Layer: " in node.facts["Metadata"] for node in nodes)
            # The inspector takes free dimensions from the profiled context.
            sizes = {tensor["Name"]: tensor["Dimensions"] for node in nodes for tensor in node.facts["Inputs"]}
            assert sizes["x"] == [2, 4, 64]
        else:
            assert [node.op_type for node in nodes] == ["ForeignNode" if verbosity == "LAYER_NAMES_ONLY" else "unknown"]
        np.testing.assert_allclose(engine.run(feeds_of(2, 4))["y"], expected(feeds_of(2, 4)), rtol=1e-6)
        engine.close()
        bench.close()


def test_a_damaged_plan_is_refused(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    path = folder / "decoder.plan"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(EngineMismatchError, match=r"SHA-256[\s\S]*fix: .*--force"):
        opened(folder, bench.device)
    bench.close()


def test_a_file_that_is_not_a_plan_is_refused(one: Machine, folder: Path) -> None:
    written(folder)
    bench = Bench()
    replace_plan(folder, b"PK\3\4" + bytes(100))
    with pytest.raises(EngineMismatchError, match=rf"is not a TensorRT plan[\s\S]*fix: {BUILD}"):
        opened(folder, bench.device)
    bench.close()


def test_a_truncated_plan_is_refused_with_the_logged_message(one: Machine, folder: Path) -> None:
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
        with pytest.raises(EngineMismatchError, match=r"was built by TensorRT 10\.16\.1\.11 and needs that exactly"):
            opened(folder, bench.device)
        bench.close()


def test_a_process_has_engines_of_one_library(folder: Path) -> None:
    with simulated():
        written(folder)
        bench = Bench()
        opened(folder, bench.device).close()
        change_manifest(folder, target="tensorrt-rtx")
        with pytest.raises(EngineError, match="engines of target tensorrt, those of tensorrt-rtx need another process"):
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
    with pytest.raises(EngineMismatchError, match="needs a cuda device, this one is a cpu device"):
        opened(folder, open_device("cpu"))


def test_without_a_driver_no_tensorrt_object_is_constructed(folder: Path) -> None:
    with simulated():
        written(folder)
    with simulated(no_driver=True):
        from runtime.engines.tensorrt.library import library

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


def test_out_of_memory_at_load_leaves_other_engines_usable(folder: Path) -> None:
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


def test_out_of_memory_for_a_context(folder: Path) -> None:
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


def test_a_refused_execute_is_recoverable_and_has_the_logged_message(folder: Path) -> None:
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


def test_a_failed_warm_up_can_be_released(folder: Path) -> None:
    with simulated(faults={"enqueue_false_at": [1]}):
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        execution = engine.bind(bench.tensors())
        with pytest.raises(EngineError, match="the execute was refused"):
            execution.warm_up(bench.stream)
        execution.release()
        engine.close()
        bench.close()


def test_an_asynchronous_error_is_raised_by_events_and_later_launches(folder: Path) -> None:
    with simulated() as machine:
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device, in_tick=True)
        execution = engine.bind(bench.tensors())
        bench.stream.record().wait()
        machine.faults = {"async_error_at": [machine.struck["async_error_at"] + 1]}
        execution.launch(bench.stream)
        done = bench.stream.record()
        with pytest.raises(EngineDeadError):
            done.wait()
        with pytest.raises(EngineDeadError, match="illegal memory access"):
            execution.launch(bench.stream)
        engine.close()
        bench.close()


def test_opened_engines_are_closed_when_another_fails_to_open(tmp_path: Path) -> None:
    with simulated(faults={"context_none_at": [3]}) as machine:
        deployment = load_deployment(tiny_deployment(tmp_path)).model_copy(update={"target": "tensorrt"})
        for name in ("decoder", "rows.plain", "step.plain"):
            written(deployment.engine_folder(), name=name)
        bench = Bench()
        with pytest.raises(OutOfMemoryError, match=r"step\.plain: no execution context") as caught:
            open_engines(deployment, bench.device)
        traceback.clear_frames(caught.value.__traceback__)
        bench.close()
        assert machine.alive() == {}
        engines = open_engines(deployment, device := open_device("tensorrt"))
        assert engines.decoder.name == "decoder"
        engines.close()
        device.close()


def test_a_profile_does_not_synchronize_in_every_enqueue(folder: Path) -> None:
    with simulated() as machine:
        written(folder)
        bench = Bench()
        engine = opened(folder, bench.device)
        before = machine.counters["synchronizes"]
        engine.profile(feeds_of(2, 4), 3)
        assert machine.counters["synchronizes"] == before
        engine.close()
        bench.close()


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
