"""The steady stream: the production tick path, verified and timed; its allocations are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from helpers.factories import tiny_deployment

from engine_build.compile import builder
from profiling.bench import steady_stream
from profiling.bench.steady_stream import VERIFY_TOLERANCE, Measurement, SteadyStream, tolerance_of
from profiling.bench.workload import Workload
from runtime.base.errors import EngineError, NonFiniteError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, Target
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines
from runtime.tick.loop.events import Event, Finished
from runtime.tick.loop.record import TickRecord

Streams = Callable[..., SteadyStream]
LOAD = Workload(depth=3, frames=64, steps=6, guidance=2.0, dcw=True)


@pytest.fixture
def streams(built: Callable[..., Deployment]) -> Iterator[Streams]:
    """`streams(load)` gives a stream over a tiny deployment of 256 frames and more, closed at the end of the test."""
    opened: list[SteadyStream] = []

    def open_stream(load: Workload = LOAD, path: Path | None = None) -> SteadyStream:
        deployment = built(path)
        device = open_device("cpu")
        bundle = load_bundle(deployment.bundle)
        opened.append(SteadyStream(bundle, deployment, open_engines(deployment, device), device, load))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.loop.close()


def test_a_run_has_all_slots_taken(streams: Streams) -> None:
    result = streams().run(ticks=10, probe_ticks=12)
    assert (len(result.ticks_ms), len(result.engine_ms)) == (10, 11)
    assert {(record.slots, record.rows) for record in result.records} == {(3, 6)}
    assert sum(len(record.finished) for record in result.records) > 0
    assert all(0.0 < record.engine_ms < sample for record, sample in zip(result.records, result.ticks_ms, strict=True))
    assert result.worst_difference <= VERIFY_TOLERANCE
    assert result.finished_per_s == pytest.approx(3 / 6 / (np.mean(result.ticks_ms) / 1e3))


@pytest.mark.parametrize("load", [Workload(3, 64, 6), LOAD], ids=["plain", "guidance+dcw"])
def test_a_steady_tick_allocates_nothing(streams: Streams, load: Workload) -> None:
    result = streams(load).run(ticks=4, probe_ticks=4 * load.steps)
    assert (result.allocations, result.sites) == ([0] * 4 * load.steps, [])


def test_a_copy_in_the_tick_is_counted_with_its_source_line(streams: Streams) -> None:
    stream, latents = streams(), np.ones((64, 8), np.float32)
    stream.loop.observers.append(lambda _: latents.copy())
    result = stream.run(ticks=4, probe_ticks=5)
    assert result.allocations == [1] * 5
    ((times, size_bytes, site),) = result.sites
    assert (times, size_bytes) == (5, 5 * latents.nbytes)
    assert "latents.copy()" in site[-1]


def test_a_device_allocation_in_the_tick_is_counted(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = streams()
    on_event = stream._on_event

    def allocate(event: Event) -> None:
        if isinstance(event, Finished):
            stream.device.staging((4,), np.float32)
        on_event(event)

    monkeypatch.setattr(stream, "_on_event", allocate)
    result = stream.run(ticks=4, probe_ticks=LOAD.steps)
    assert sum(result.allocations) == LOAD.depth


def test_slots_that_change_each_other_fail_the_verification(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine that was built by a release that did not look.
    monkeypatch.setattr(builder, "check_rows", lambda specs, options: None)
    path = tiny_deployment(tmp_path)
    _mix_rows(tmp_path / "tiny" / "decoder.onnx")
    with pytest.raises(EngineError, match="differs by"):
        streams(Workload(3, 32, 4), path).run(ticks=4, probe_ticks=5)


def test_the_share_of_a_run_grows_through_all_its_parts(streams: Streams) -> None:
    """Verifying, warming up, timing, counting: none of them is silent, and the share is near to the steps done."""
    stream, shares = streams(), list[float]()
    stream.run(ticks=6, probe_ticks=2 * LOAD.steps, on_share=shares.append)
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1.0
    assert sum(share < 0.2 for share in shares) >= 4
    assert max(after - before for before, after in pairwise([0.0, *shares])) < 0.1


def _mix_rows(path: Path) -> None:
    """Add a little of the rows' mean to every row's velocity."""
    model = onnx.load(path)
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["alone" if name == output.name else name for name in node.output]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], np.int64), "row_axis"))
    model.graph.node.append(onnx.helper.make_node("ReduceMean", ["alone", "row_axis"], ["mean"], keepdims=1))
    model.graph.node.append(onnx.helper.make_node("Add", ["alone", "mean"], [output.name]))
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("target", "precision", "allowed"),
    [("tensorrt", "fp16", 5e-3 * 4), ("tensorrt", "fp32", VERIFY_TOLERANCE), ("cpu", "int8", VERIFY_TOLERANCE)],
)
def test_low_precision_may_differ_by_a_share_of_the_largest_latent_on_a_gpu(
    streams: Streams, target: Target, precision: str, allowed: float
) -> None:
    engines = streams().engines
    manifest = engines.decoder.manifest.model_copy(update={"target": target, "build": {"precision": precision}})
    latents = [np.array([[1.0, -4.0]], np.float32), np.array([[2.0, 0.0]], np.float32)]
    assert tolerance_of(manifest, latents) == pytest.approx(allowed)


def test_a_sample_on_a_gpu_is_of_several_ticks_and_of_one_schedule_at_most(streams: Streams) -> None:
    for steps, block in ((6, 6), (40, 16)):
        stream = streams(replace(LOAD, steps=steps))
        assert stream.block == 1
        stream.device = cast(Any, SimpleNamespace(kind="gpu"))
        assert stream.block == block


def test_a_sample_of_several_ticks_is_compared_with_their_mean() -> None:
    records = [SimpleNamespace(engine_ms=float(ms)) for ms in (1, 3, 5, 7, 1, 1)]
    found = Measurement(LOAD, [3.0, 18.0, 4.0], [1.0] * 4, cast(list[TickRecord], records), [], [], 0.0, block=2)
    assert found.overhead_inside_tick == 3.0  # of 3 / 2, 18 / 6 and 4 / 1
    assert found.finished_per_s == pytest.approx(LOAD.depth / LOAD.steps / (25.0 / 3 / 1e3))


@pytest.mark.parametrize("compiles", [False, True])
def test_a_warm_stream_has_ticked_for_two_schedules_and_for_two_more_with_compiled_kernels(
    compiles: bool, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady_stream, "settle_kernels", lambda target: compiles)
    stream, ticks = streams(), list[None]()
    tick = stream.tick
    monkeypatch.setattr(stream, "tick", lambda: (ticks.append(None), tick())[1])
    assert stream.warm_up() == 2 * LOAD.depth
    assert len(ticks) == 1 + 2 * LOAD.steps * (2 if compiles else 1)


def test_a_generation_that_fails_ends_the_run(streams: Streams) -> None:
    stream = streams()
    (condition,) = stream._requests[1].conditions
    broken = replace(condition, tokens=np.full_like(condition.tokens, 3e38))
    stream._requests[1] = replace(stream._requests[1], conditions=(broken,))
    with pytest.raises(NonFiniteError, match="became non-finite"):
        stream.run(ticks=1, probe_ticks=1)
