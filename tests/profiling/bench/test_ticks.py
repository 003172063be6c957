"""Ticks of the production path, verified and timed beside the bare engine: workloads, streams, statistics, results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count, pairwise
from mmap import mmap
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import Built, resized
from helpers.backends import CPU, SIMULATED, SIMULATED_RTX, Backend
from rich.console import Console

from profiling.bench.result import (
    NOISY_SPREAD,
    against_budget,
    budget_of,
    budget_text,
    phases,
    print_result,
    resident_bytes,
)
from profiling.bench.session import BenchSession, open_bench
from profiling.bench.statistics import (
    Quartiles,
    mean_ms,
    neighbour_ratio,
    paired_difference,
    paired_ratio,
    ratios_to_neighbours,
    time_in_turn,
)
from profiling.bench.steady_stream import (
    VERIFY_TOLERANCE,
    DecoderBaseline,
    Latents,
    Measurement,
    Site,
    SteadyStream,
    latents_tolerance,
)
from profiling.bench.workload import FEATURES, Workload, make_request, with_runtime, workload_of
from profiling.provenance import this_commit
from runtime.base.errors import ConfigError, EngineError, NonFiniteError
from runtime.config.deployment import Target
from runtime.requests.request import NEUTRAL, GenerationRequest
from runtime.tick.clock import PHASES
from runtime.tick.denoise.prepared import row_features, step_features
from runtime.tick.loop.events import Event, Finished
from runtime.tick.loop.record import TickRecord

LOAD = Workload(depth=3, frames=64, steps=6, guidance=2.0, dcw=True)
SMALL = Workload(depth=2, frames=32, steps=4)


@pytest.fixture
def session(built: Built) -> Iterator[BenchSession]:
    with open_bench(built()) as opened:
        yield opened


@pytest.fixture
def stream(session: BenchSession) -> Iterator[SteadyStream]:
    with session.stream(LOAD) as opened:
        yield opened


def test_a_run_has_all_slots_taken(stream: SteadyStream) -> None:
    result = stream.run(ticks=10, probe_ticks=12)
    assert (len(result.ticks_ms), len(result.engine_ms)) == (10, 11)
    assert {(record.slots, record.rows) for record in result.records} == {(3, 6)}
    assert sum(len(record.finished) for record in result.records) > 0
    assert all(0.0 < record.engine_ms < sample for record, sample in zip(result.records, result.ticks_ms, strict=True))
    assert result.worst_difference <= VERIFY_TOLERANCE
    assert result.finished_per_s == pytest.approx(3 / 6 / (np.mean(result.ticks_ms) / 1e3))


@pytest.mark.parametrize("load", [Workload(3, 64, 6), LOAD], ids=["plain", "guidance+dcw"])
def test_a_steady_tick_allocates_nothing(session: BenchSession, load: Workload) -> None:
    with session.stream(load) as stream:
        result = stream.run(ticks=4, probe_ticks=4 * load.steps)
    assert (result.allocations, result.sites) == ([0] * 4 * load.steps, [])


def test_a_copy_in_the_tick_is_counted_with_its_source_line(stream: SteadyStream) -> None:
    latents = np.ones((64, 8), np.float32)
    stream.loop.observers.append(lambda _: latents.copy())
    result = stream.run(ticks=4, probe_ticks=5)
    assert result.allocations == [1] * 5
    ((times, size_bytes, site),) = result.sites
    assert (times, size_bytes) == (5, 5 * latents.nbytes)
    assert "latents.copy()" in site[-1]


class Allocating(SteadyStream):
    """Takes memory of the device for every generation that ends."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.device.staging((4,), np.float32)
        super().on_event(event)


class Mixing(SteadyStream):
    """Generations that share their ticks change each other."""

    def play(self, requests: list[GenerationRequest] | None = None) -> list[Latents]:
        found = super().play(requests)
        return found if requests else [latents + np.float32(0.01) for latents in found]


def test_a_device_allocation_in_the_tick_is_counted(session: BenchSession) -> None:
    with replace(session, kind=Allocating).stream(LOAD) as stream:
        assert sum(stream.run(ticks=4, probe_ticks=LOAD.steps).allocations) == LOAD.depth


def test_slots_that_change_each_other_fail_the_verification(session: BenchSession) -> None:
    with (
        replace(session, kind=Mixing).stream(LOAD) as stream,
        pytest.raises(EngineError, match="shares its ticks differs by"),
    ):
        stream.run(ticks=4, probe_ticks=5)


def test_a_generation_that_fails_ends_the_run(stream: SteadyStream) -> None:
    (condition,) = stream.requests[1].conditions
    broken = replace(condition, tokens=np.full_like(condition.tokens, 3e38))
    stream.requests[1] = replace(stream.requests[1], conditions=(broken,))
    with pytest.raises(NonFiniteError, match="became non-finite"):
        stream.run(ticks=1, probe_ticks=1)


def test_the_share_of_a_run_grows_through_all_its_parts(stream: SteadyStream) -> None:
    """Verifying, warming up, timing, counting: none of them is silent, and the share is near to the steps done."""
    shares = list[float]()
    stream.run(ticks=6, probe_ticks=2 * LOAD.steps, on_share=shares.append)
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1.0
    assert sum(share < 0.2 for share in shares) >= 4
    assert max(after - before for before, after in pairwise([0.0, *shares])) < 0.1


@pytest.mark.parametrize(
    ("target", "precision", "allowed"),
    [("tensorrt", "fp16", 5e-3 * 4), ("tensorrt", "fp32", VERIFY_TOLERANCE), ("cpu", "int8", VERIFY_TOLERANCE)],
)
def test_low_precision_may_differ_by_a_share_of_the_largest_latent_on_a_gpu(
    session: BenchSession, target: Target, precision: str, allowed: float
) -> None:
    manifest = session.engines.decoder.manifest.model_copy(update={"target": target, "build": {"precision": precision}})
    latents = [np.array([[1.0, -4.0]], np.float32), np.array([[2.0, 0.0]], np.float32)]
    assert latents_tolerance(manifest, latents) == pytest.approx(allowed)


def test_a_sample_on_a_gpu_is_of_several_ticks_and_of_one_schedule_at_most(session: BenchSession) -> None:
    for steps, block in ((6, 6), (40, 16)):
        with session.stream(replace(LOAD, steps=steps)) as stream:
            assert stream.block == 1
            stream.device = cast(Any, SimpleNamespace(kind="gpu"))
            assert stream.block == block


def test_a_sample_of_several_ticks_is_compared_with_their_mean() -> None:
    records = [SimpleNamespace(engine_ms=float(ms)) for ms in (1, 3, 5, 7, 1, 1)]
    found = Measurement(LOAD, [3.0, 18.0, 4.0], [1.0] * 4, cast(list[TickRecord], records), [], [], 0.0, block=2)
    assert found.overhead_inside_tick == 3.0  # of 3 / 2, 18 / 6 and 4 / 1
    assert found.finished_per_s == pytest.approx(LOAD.depth / LOAD.steps / (25.0 / 3 / 1e3))


@pytest.mark.parametrize(("backend", "schedules"), [(CPU, 2), (SIMULATED_RTX, 4)], ids=str)
def test_a_warm_stream_has_ticked_for_two_schedules_and_for_two_more_with_compiled_kernels(
    built: Built, machine: object, backend: Backend, schedules: int
) -> None:
    records = list[TickRecord]()
    with open_bench(built(max_rows=16, backend=backend)) as session, session.stream(SMALL) as stream:
        stream.loop.observers.append(records.append)
        assert stream.warm_up() == SMALL.depth
    filling = SMALL.depth * (SMALL.steps // SMALL.depth)
    assert len(records) == filling + 1 + schedules * SMALL.steps


@pytest.mark.parametrize("backend", [CPU, *SIMULATED[:1]], ids=str)
def test_the_bare_engine_has_as_few_executes_as_fit_and_is_captured_where_the_runtime_captures(
    built: Built, machine: object, backend: Backend
) -> None:
    with open_bench(resized(built(max_rows=16, backend=backend), 4, 8)) as session:

        def baseline(rows: int, *, capture: bool) -> DecoderBaseline:
            deployment = with_runtime(session.deployment, capture=capture)
            return DecoderBaseline(session.engines, session.bundle, deployment, session.device, SMALL, rows)

        for rows, executes in ((8, 1), (17, 3)):
            with closing(baseline(rows, capture=True)) as captured, closing(baseline(rows, capture=False)) as plain:
                assert (len(captured.executions), len(plain.executions)) == (executes, executes)
                assert (captured.replay is not None, plain.replay) == (backend.target != "cpu", None)
                assert min(captured.time_ms(2), plain.time_ms()) > 0.0


@pytest.mark.parametrize("backend", [CPU, *SIMULATED[:1]], ids=str)
def test_loops_share_engines_which_the_session_closes_also_after_an_error(
    built: Built, machine: object, backend: Backend
) -> None:
    """The simulated machine finds what is left of them."""

    def fail() -> None:
        with open_bench(built(max_rows=16, backend=backend)) as session:
            for _ in range(2):
                with session.stream(SMALL) as stream:
                    assert stream.play()[0].shape == (32, session.bundle.latents.channels)
            raise ConfigError("an error in the test")

    with pytest.raises(ConfigError, match="in the test"):
        fail()


def test_a_stream_runs_by_the_deployment_that_it_is_given(session: BenchSession) -> None:
    for other, graphs in ((with_runtime(session.deployment, captured_graphs=3), 3), (None, 256)):
        with session.stream(SMALL, other) as stream:
            assert stream.loop.deployment.runtime.captured_graphs == graphs


def test_a_measurement_and_its_result_agree_and_competitors_are_timed_in_turn(built: Built) -> None:
    class Constant:
        times_ms = iter([900.0])  # it warms up

        def time_ms(self, times: int = 1) -> float:
            return next(self.times_ms, 5.0)

    this_commit.cache_clear()
    with open_bench(built()) as session:
        assert this_commit.cache_info().currsize == 1, "the commit is that at the begin of the run"
        result, measured = session.measure(SMALL, 3, lambda rows: {f"constant for {rows} rows": Constant()})
    assert (result["kind"], result["depth"], result["ticks"], result["free_mib"]) == ("tick", 2, 3, 0)
    assert result["overhead_ms"] == pytest.approx(measured.overhead_ms.median, abs=1e-4)
    assert len(measured.allocations) == 2 * SMALL.steps
    assert measured.competitors_ms == {"constant for 2 rows": [5.0] * 4}
    found = result["competitors"]["constant for 2 rows"]
    over_tick = np.median(5.0 / np.array(measured.ticks_ms))
    assert (found["p50"], found["over_tick"]) == (5.0, pytest.approx(over_tick, abs=1e-4))


@pytest.mark.parametrize("feature", FEATURES)
def test_the_tick_uses_the_named_feature(feature: str, session: BenchSession) -> None:
    load = workload_of(session.deployment, 2, features=[feature])
    request = make_request(load, session.bundle, session.engines, 0)
    parameters = request.parameters.over(NEUTRAL)
    used = step_features(request, parameters) | row_features(request, parameters)
    blends = len(request.conditions) > 1
    ramp = np.linspace(0.0, 1.0, load.frames, dtype=np.float32)
    if blends:
        np.testing.assert_array_equal([part.weight for part in request.conditions], [ramp[::-1], ramp])
    if request.mask is not None:
        np.testing.assert_array_equal(request.mask.mask, ramp)
    guided = {"guidance"} if feature == "rcfg" else set()
    assert used | ({"blend"} if blends else set()) == {feature} | guided
    assert set(load.features) == {feature} | guided
    assert load.variant.split("+") == sorted(load.features, key=("guidance", "dcw", feature).index)


def test_a_workload_has_the_bundle_s_defaults_and_its_sessions_share_the_generations(built: Built) -> None:
    deployment = built()
    assert workload_of(deployment, 3) == Workload(3, 32, 4)
    assert workload_of(deployment, 3, 16, 2, guidance=2.0, sessions=2) == Workload(3, 16, 2, guidance=2.0, sessions=2)
    assert workload_of(deployment, 1, features=["rcfg"], guidance=5.0).guidance == 5.0
    assert [workload_of(deployment, 1, dcw=dcw).dcw for dcw in (False, True)] == [False, True]
    sessions = [Workload(4, 32, 4, sessions=2).session_of(index) for index in range(3)]
    assert sessions == ["session-0", "session-1", "session-0"]
    assert Workload(4, 32, 4).session_of(3) == ""
    assert [Workload(3, 32, 4, guidance=guidance).weight for guidance in (1.0, 2.0)] == [3 * 32 * 4, 2 * 3 * 32 * 4]


def test_a_mean_is_of_works_that_are_waited_for_once() -> None:
    """Of a clock that is read twice, 6 ms apart."""
    done: list[str] = []
    found = mean_ms(lambda: done.append("work"), 3, lambda: done.append("wait"), count(5.0, 0.006).__next__)
    assert found == pytest.approx(2.0)
    assert done == ["work", "work", "work", "wait"]


def test_each_sample_is_between_two_of_every_neighbour() -> None:
    order: list[str] = []

    def timer(name: str, *times_ms: float):
        values = iter(times_ms)
        return lambda: (order.append(name), next(values))[1]

    shares: list[float] = []
    found = time_in_turn(timer("a", 10, 11), [timer("b", 1, 2, 3), timer("c", 4, 5, 6)], 2, shares.append)
    assert "".join(order) == "bcabcabc"
    assert found == ([10, 11], [[1, 2, 3], [4, 5, 6]])
    assert shares == [0.0, 0.5]


def test_ratios_and_differences_are_to_both_neighbours() -> None:
    assert paired_ratio([6.0], [2.0, 3.0]) == Quartiles(2.25, 2.5, 2.75)
    assert ratios_to_neighbours([6.0, 8.0], [2.0, 4.0, 1.0]) == [2.0, 3.2]
    assert neighbour_ratio([2.0, 4.0], [2.0, 8.0, 4.0]) == Quartiles(1.0, 1.5, 2.5)
    assert paired_difference([5.0, 9.0], [2.0, 4.0, 8.0]) == Quartiles(2.25, 2.5, 2.75)
    for paired in (paired_ratio, paired_difference):
        with pytest.raises(ValueError, match="3 samples need 4 neighbours"):
            paired([1.0] * 3, [1.0] * 3)


def test_the_ratio_is_unchanged_on_a_machine_that_slows_down_and_by_single_slow_samples() -> None:
    random = np.random.default_rng(1)
    speed = np.repeat(random.uniform(1.0, 3.0, 21), 10)
    engine, ticks = list(10.0 * speed[:201]), list(10.5 * speed[:200])
    ratio = paired_ratio(ticks, engine)
    assert ratio.spread < NOISY_SPREAD
    assert ratio.median == pytest.approx(1.05, abs=1e-6)
    assert np.median(ticks) / np.median(engine) != pytest.approx(1.05, abs=1e-3)
    ticks, engine = [10.5] * 40, [10.0] * 41
    for index in range(0, 40, 5):
        ticks[index] *= 9.0
        engine[index + 2] *= 7.0
    assert paired_ratio(ticks, engine).median == pytest.approx(1.05)
    assert paired_difference(ticks, engine).median == pytest.approx(0.5)
    noise = paired_ratio(list(random.uniform(10.0, 20.0, 50)), list(random.uniform(10.0, 20.0, 51)))
    assert noise.spread > NOISY_SPREAD


@pytest.mark.parametrize(
    ("load", "overhead_ms"),
    [
        (Workload(1, 32, 4), 0.20),
        (Workload(4, 32, 4, guidance=3.0), 0.70),
        (Workload(8, 32, 4, guidance=3.0, dcw=True), 1.6),
        (Workload(2, 32, 4), None),
        (Workload(1, 32, 4, dcw=True), None),
        (Workload(1, 32, 4, more=frozenset({"mask"})), None),
    ],
)
def test_budgets(load: Workload, overhead_ms: float | None) -> None:
    expected = {} if overhead_ms is None else {"overhead_ms": overhead_ms, "overhead_ratio": 1.08}
    assert budget_of("cpu", load) == expected
    assert budget_of("cuda", load) == budget_of("tensorrt", load) == {"overhead_ratio": 1.02}


BUDGET = {"overhead_ms": 0.35, "overhead_ratio": 1.08}


@pytest.mark.parametrize(
    ("overhead_ms", "ratio", "is_kept"), [(0.35, 1.08, True), (0.36, 1.0, False), (0.0, 1.09, False)]
)
def test_both_figures_are_within_a_kept_budget(overhead_ms: float, ratio: float, is_kept: bool) -> None:
    figures = {"overhead_ms": overhead_ms, "overhead_ratio": ratio}
    entry = against_budget(BUDGET, figures)
    assert entry == {"budget": BUDGET, "within_budget": is_kept}
    assert budget_text(entry).markup == f"0.35, 1.08 {'[green]kept[/green]' if is_kept else '[red]missed[/red]'}"
    without = against_budget({}, figures)
    assert without == {"budget": {}, "within_budget": True}
    assert budget_text(without).plain == "none stated"


def test_phases_are_medians_and_memory_is_in_bytes() -> None:
    records = [TickRecord(0, 1, 1, (16,), 1, ("plain",), 0, marks=(("wait", 0.0), ("", s))) for s in (1, 9, 2)]
    assert phases(records) == {**dict.fromkeys(PHASES, 0.0), "wait": 2000.0}
    before, taken = resident_bytes(), np.frombuffer(mmap(-1, 1 << 25))  # not of memory that was freed before
    assert 20 * 2**20 < before < 2**40
    taken.fill(1.0)
    assert resident_bytes() - before == pytest.approx(taken.nbytes, rel=0.2)


def printed(sites: list[Site], **changes: Any) -> str:
    """A result's table."""
    percentiles = {"p50": 2.0, "p95": 3.0, "p99": 4.0}
    result = {
        "bundle": "b", "target": "cpu", "depth": 4, "variant": "plain", "rows": 4, "frames": 32, "steps": 4,
        "tick_ms": percentiles, "engine_ms": percentiles, "decoder_in_tick_ms": percentiles,
        "overhead_ms": 0.3, "overhead_ms_quartiles": [0.2, 0.4],
        "overhead_ratio": 1.05, "overhead_ratio_quartiles": [1.0, 1.2], "overhead_inside_tick": 1.1, "is_noisy": True,
        **against_budget(BUDGET, {"overhead_ms": 0.3, "overhead_ratio": 1.05}),
        "competitors": {"torch eager": {"p50": 8.0, "over_tick": 4.0}},
        "finished_per_s": 1.0, "audio_s_per_s": 2.0, "allocations_per_tick": 1.0, "shared_vs_alone": 1e-6,
        "phases_ms": {"wait": 0.5}, "commit": None, "engine_sha256": "ab" * 32, **changes,
    }  # fmt: skip
    console = Console(record=True, width=100)
    print_result(console, result, sites)
    return console.export_text()


def test_the_table_has_budget_competitors_and_a_few_allocation_sites() -> None:
    text = printed([(count, 1024 * count, (f"file.py:{count}",)) for count in range(9, 2, -1)])
    for part in (
        "commit unknown, engine abababababab",
        "0.300 ms  (quartiles 0.200 to 0.400)",
        "0.35, 1.08 kept",
        "p50 8.00 ms   (4.00 x the tick)",
        "The machine was busy",
        "allocated 9 times, 9216 bytes in all",
    ):
        assert part in text
    assert [f"file.py:{count}" in text for count in (9, 5, 4)] == [True, True, False]
    quiet = printed([], is_noisy=False, commit="0123456789ab+")
    assert "commit 0123456789ab+, engine abababababab" in quiet
    assert "The machine was busy" not in quiet
