"""Engines on the simulated TensorRT, which raises where a rule of the real one is broken."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine_behaviour import *  # noqa: F403  (tests that every TensorRT engine passes)
from helpers.engine_behaviour import BUILD, Bench, benched, expected, feeds_of, written
from helpers.factories import tiny_deployment
from simulator.fixture import Machine, simulated
from simulator.plans import MANY_ROWS, ROWS, small_graph

from runtime.base.errors import CaptureError, EngineDeadError, EngineError, EngineMismatchError, OutOfMemoryError
from runtime.config.deployment import load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engine, open_engines
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
def bench(gpu: Machine, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, gpu)
    yield bench
    bench.close()
    assert gpu.alive() == {}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Bench]:
    with benched(tmp_path) as bench:
        yield bench


def test_a_launch_does_not_block_the_host(tmp_path: Path) -> None:
    with benched(tmp_path, late=True) as bench:
        execution = bench.build().bind(bench.tensors())
        before = bench.gpu.counters["host_waits"] + bench.gpu.counters["synchronizes"]
        for _ in range(3):
            execution.launch(bench.stream)
        done = bench.stream.record()
        assert bench.gpu.counters["host_waits"] + bench.gpu.counters["synchronizes"] == before
        assert not done.is_done
        done.wait()


def test_shapes_and_addresses_are_set_only_when_they_change(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = one.build(in_tick=False)
    first, second = engine.bind(one.tensors()), engine.bind(one.tensors(frames=5))
    calls = count_calls(monkeypatch, "set_input_shape", "set_tensor_address", "set_optimization_profile_async")
    first.launch(one.stream)
    assert calls == {"set_input_shape": 2, "set_tensor_address": 5}
    first.launch(one.stream)
    assert calls == {"set_input_shape": 2, "set_tensor_address": 5}
    second.launch(one.stream)
    assert calls["set_input_shape"] == 3, "rows did not change"
    one.stream.record().wait()


def test_launches_allocate_nothing(bench: Bench, gpu: Machine) -> None:
    engine = bench.build()
    executions = [engine.bind(bench.tensors(rows)) for rows in (1, 2, 3)]
    before = (bench.device.allocations, gpu.counters["allocations"])
    for execution in executions * 3:
        execution.launch(bench.stream)
    assert (bench.device.allocations, gpu.counters["allocations"]) == before
    bench.stream.record().wait()


def test_a_released_context_is_reused_by_the_next_warm_up(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = one.build()
    made = count_calls(monkeypatch, "create_execution_context", of="ICudaEngine")
    for rows in (1, 2, 3, 2):
        tensors = one.tensors(rows)
        execution = engine.bind(tensors)
        execution.warm_up(one.stream)
        replay = one.capture(execution)
        replay.launch(one.stream)
        one.check(tensors, feeds_of(rows, 4))
        replay.close()
        execution.release()
        execution.release()
    assert made == {"create_execution_context": 1}


def test_an_engine_that_cannot_be_captured_still_launches(one: Bench) -> None:
    engine, tensors = one.build(), one.tensors()
    one.gpu.faults = {"uncapturable": True}
    execution = engine.bind(tensors)
    execution.warm_up(one.stream)
    with pytest.raises(CaptureError, match="not stream capturable"):
        one.capture(execution)
    execution.launch(one.stream)
    one.check(tensors, feeds_of(2, 4))
    execution.release()


@pytest.mark.parametrize("verbosity", ["DETAILED", "LAYER_NAMES_ONLY", "NONE"])
def test_a_profile_has_the_time_of_every_layer(version: str, verbosity: str, one: Bench) -> None:
    engine = one.build(verbosity=verbosity, in_tick=False)
    before = one.gpu.counters["synchronizes"]
    nodes = engine.profile(feeds_of(2, 4), 5)
    assert one.gpu.counters["synchronizes"] == before, "not in every enqueue"
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


def change_manifest(folder: Path, **change: Any) -> None:
    path = manifest_path(folder, "decoder")
    write_manifest(path, read_manifest(path).model_copy(update=change))


def replace_plan(folder: Path, data: bytes) -> None:
    """Put other bytes in place of a plan, with their hash in the manifest."""
    (folder / "decoder.plan").write_bytes(data)
    change_manifest(folder, engine_sha256=hashlib.sha256(data).hexdigest())


def rename_outputs(folder: Path) -> None:
    outputs = read_manifest(manifest_path(folder, "decoder")).outputs
    change_manifest(folder, outputs=tuple(each.model_copy(update={"name": f"{each.name}2"}) for each in outputs))


OLDER = "10.16.1.11"
# What is changed in the folder, where it was built, where it is opened, and what is said.
MISFITS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any], str]] = {
    "damaged": (
        lambda folder: (folder / "decoder.plan").write_bytes(b"changed"), "", {}, r"SHA-256[\s\S]*fix: .*--force"
    ),
    "no plan": (
        lambda folder: replace_plan(folder, b"PK\3\4" + bytes(100)),
        "", {}, rf"is not a TensorRT plan[\s\S]*fix: {BUILD}",
    ),
    "truncated, as is logged": (
        lambda folder: replace_plan(folder, (folder / "decoder.plan").read_bytes()[:-8]),
        "", {}, rf"decoder\.plan does not load: .*truncated[\s\S]*fix: {BUILD}",
    ),
    "other tensors than its manifest's": (rename_outputs, "", {}, r"its manifest says .*y2"),
    "another version": (
        lambda folder: None, OLDER, {}, rf"was built for .*10\.16\.1\.11.*has.*11\.4[\s\S]*fix: {BUILD}"
    ),
    "another version than its manifest's": (
        lambda folder: change_manifest(folder, tool_versions={"tensorrt": "11.4.0.106"}),
        OLDER, {}, r"was built by TensorRT 10\.16\.1\.11 and needs that exactly",
    ),
    "another capability": (
        lambda folder: None, "", {"cc": "8.6"}, rf"was built for .*this machine has[\s\S]*fix: {BUILD}"
    ),
    "another GPU": (
        lambda folder: None, "", {"gpu_name": "Other"}, rf"was built for .*this machine has[\s\S]*fix: {BUILD}"
    ),
    "another capability than its manifest's": (
        lambda folder: change_manifest(folder, device={}),
        "", {"cc": "8.6"}, r"generated on an incompatible device, expecting compute 8.6",
    ),
}  # fmt: skip


def built_by(version: str, folder: Path, **how: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if version:
            patch.setenv("SIMULATED_TENSORRT", version)
        with simulated():
            written(folder, **how)


@pytest.mark.parametrize("kind", MISFITS)
def test_a_plan_that_does_not_fit_is_refused(kind: str, tmp_path: Path) -> None:
    change, version, options, says = MISFITS[kind]
    built_by(version, tmp_path)
    change(tmp_path)
    with benched(tmp_path, **options) as bench, pytest.raises(EngineMismatchError, match=says):
        bench.open(in_tick=False)


def test_a_version_compatible_plan_runs_on_a_later_version(tmp_path: Path) -> None:
    built_by(OLDER, tmp_path, version_compatible=True)
    with benched(tmp_path) as bench:
        found = bench.open(in_tick=False).run(feeds_of(2, 4))["y"]
        np.testing.assert_allclose(found, expected(feeds_of(2, 4)), rtol=1e-6)


def test_a_process_has_engines_of_one_library_and_a_device_of_its_kind(one: Bench) -> None:
    one.build(in_tick=False).close()
    with pytest.raises(EngineMismatchError, match="needs a cuda device, this one is a cpu device"):
        open_engine(one.folder, "decoder", open_device("cpu"))
    change_manifest(one.folder, target="tensorrt-rtx")
    with pytest.raises(EngineError, match="engines of target tensorrt, those of tensorrt-rtx need another process"):
        one.open(in_tick=False)


def test_without_a_driver_no_tensorrt_object_is_constructed() -> None:
    with simulated(no_driver=True):
        from runtime.engines.tensorrt.library import library

        with pytest.raises(EngineError, match="no NVIDIA driver"):
            library()


def test_out_of_memory_at_load_leaves_other_engines_usable(one: Bench) -> None:
    engine, tensors = one.build(), one.tensors()
    one.gpu.memory_bytes = 0
    with pytest.raises(OutOfMemoryError, match=r"does not load: .*out of memory[\s\S]*fix: lower rows"):
        one.open(in_tick=False)
    engine.bind(tensors).launch(one.stream)
    one.check(tensors, feeds_of(2, 4))


def test_out_of_memory_for_a_context(one: Bench) -> None:
    one.gpu.faults = {"context_none_at": [2]}
    with pytest.raises(OutOfMemoryError, match="no execution context for shape range 1"):
        one.build(ROWS, MANY_ROWS)


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("enqueue_oom_at", OutOfMemoryError, r"decoder: failed to execute: .*out of memory"),
        ("enqueue_false_at", EngineError, r"decoder: failed to execute: .*the execute was refused"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_an_execute_that_fails_is_told_as_logged_and_the_next_is_launched(
    fault: str, kind: type[EngineError], says: str, number: int, tmp_path: Path
) -> None:
    with benched(tmp_path, faults={fault: [number]}) as bench:
        tensors = bench.tensors()
        execution = bench.build().bind(tensors)
        for _ in range(number - 1):
            execution.launch(bench.stream)
        with pytest.raises(EngineError, match=says) as caught:
            execution.launch(bench.stream)
        assert type(caught.value) is kind
        execution.launch(bench.stream)
        bench.check(tensors, feeds_of(2, 4))


def test_a_failed_warm_up_can_be_released(one: Bench) -> None:
    one.gpu.faults = {"enqueue_false_at": [1]}
    execution = one.build().bind(one.tensors())
    with pytest.raises(EngineError, match="the execute was refused"):
        execution.warm_up(one.stream)
    execution.release()


def test_an_asynchronous_error_is_raised_by_events_and_later_launches(one: Bench) -> None:
    execution = one.build().bind(one.tensors())
    one.stream.record().wait()
    one.gpu.faults = {"async_error_at": [one.gpu.struck["async_error_at"] + 1]}
    execution.launch(one.stream)
    done = one.stream.record()
    with pytest.raises(EngineDeadError):
        done.wait()
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        execution.launch(one.stream)


def test_opened_engines_are_closed_when_another_fails_to_open(one: Bench, tmp_path: Path) -> None:
    one.gpu.faults = {"context_none_at": [3]}
    deployment = load_deployment(tiny_deployment(tmp_path)).model_copy(update={"target": "tensorrt"})
    for name in ("decoder", "rows.plain", "step.plain"):
        written(deployment.engine_folder(), name=name)
    with pytest.raises(OutOfMemoryError, match=r"step\.plain: no execution context") as caught:
        open_engines(deployment, one.device)
    traceback.clear_frames(caught.value.__traceback__)
    one.close()
    assert one.gpu.alive() == {}
    engines = open_engines(deployment, device := open_device("tensorrt"))
    assert engines.decoder.name == "decoder"
    engines.close()
    device.close()


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
