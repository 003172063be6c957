"""Results: budgets, phases, and the printed table."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from profiling.bench.result import (
    _competitor,
    against_budget,
    budget_of,
    budget_text,
    phases,
    print_result,
    resident_bytes,
)
from profiling.bench.steady_stream import Measurement, Site
from profiling.bench.workload import Workload
from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord

BUDGET = {"overhead_ms": 0.35, "overhead_ratio": 1.08}


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
def test_budgets_on_a_cpu(load: Workload, overhead_ms: float | None) -> None:
    expected = {} if overhead_ms is None else {"overhead_ms": overhead_ms, "overhead_ratio": 1.08}
    assert budget_of("cpu", load) == expected


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_on_a_gpu_the_budget_is_a_ratio(target: str) -> None:
    budget = budget_of(target, Workload(3, 32, 4, more=frozenset({"mask"})))  # type: ignore[arg-type]
    assert budget == {"overhead_ratio": 1.02}


@pytest.mark.parametrize(
    ("overhead_ms", "ratio", "is_kept"), [(0.35, 1.08, True), (0.36, 1.0, False), (0.0, 1.09, False)]
)
def test_both_figures_are_within_a_kept_budget(overhead_ms: float, ratio: float, is_kept: bool) -> None:
    entry = against_budget(BUDGET, {"overhead_ms": overhead_ms, "overhead_ratio": ratio})
    assert entry == {"budget": BUDGET, "within_budget": is_kept}
    assert budget_text(entry).markup == f"0.35, 1.08 {'[green]kept[/green]' if is_kept else '[red]missed[/red]'}"


def test_without_a_budget_nothing_is_missed() -> None:
    entry = against_budget({}, {"overhead_ms": 100.0, "overhead_ratio": 9.0})
    assert entry == {"budget": {}, "within_budget": True}
    assert budget_text(entry).plain == "none stated"


def test_phases_are_medians() -> None:
    records = [TickRecord(0, 1, 1, (16,), 1, ("plain",), 0, marks=(("wait", 0.0), ("", s))) for s in (1, 9, 2)]
    assert phases(records) == {**dict.fromkeys(PHASES, 0.0), "wait": 2000.0}


def figures() -> dict[str, Any]:
    """A result as it is printed."""
    percentiles = {"p50": 2.0, "p95": 3.0, "p99": 4.0}
    return {
        "bundle": "b", "target": "cpu", "depth": 4, "variant": "plain", "rows": 4, "frames": 32, "steps": 4,
        "tick_ms": percentiles, "engine_ms": percentiles, "decoder_in_tick_ms": percentiles,
        "overhead_ms": 0.3, "overhead_ms_quartiles": [0.2, 0.4],
        "overhead_ratio": 1.05, "overhead_ratio_quartiles": [1.0, 1.2], "overhead_inside_tick": 1.1, "is_noisy": True,
        **against_budget(BUDGET, {"overhead_ms": 0.3, "overhead_ratio": 1.05}),
        "competitors": {"torch eager": {"p50": 8.0, "over_tick": 4.0}},
        "finished_per_s": 1.0, "audio_s_per_s": 2.0, "allocations_per_tick": 1.0, "shared_vs_alone": 1e-6,
        "phases_ms": {"wait": 0.5}, "commit": None, "engine_sha256": "ab" * 32,
    }  # fmt: skip


def printed(result: dict[str, Any], sites: list[Site]) -> str:
    console = Console(record=True, width=100)
    print_result(console, result, sites)
    return console.export_text()


def test_the_table_has_budget_competitors_and_allocation_sites() -> None:
    text = printed(figures(), [(3, 3072, ("file.py:1 np.empty(1024)",))])
    assert "commit unknown, engine abababababab" in text
    assert "0.300 ms  (quartiles 0.200 to 0.400)" in text
    assert "0.35, 1.08 kept" in text
    assert "p50 8.00 ms   (4.00 x the tick)" in text
    assert "The machine was busy" in text
    assert "allocated 3 times, 3072 bytes in all" in text
    assert "np.empty(1024)" in text


def test_a_quiet_machine_and_the_commit_are_told_and_few_of_many_sites() -> None:
    sites = [(count, 1024 * count, (f"file.py:{count}",)) for count in range(9, 2, -1)]
    text = printed({**figures(), "is_noisy": False, "commit": "0123456789ab+"}, sites)
    assert "commit 0123456789ab+, engine abababababab" in text
    assert "The machine was busy" not in text
    assert [f"file.py:{count}" in text for count in (9, 5, 4)] == [True, True, False]


def test_a_competitor_is_compared_with_the_tick_before_each_of_its_samples() -> None:
    measured = Measurement(Workload(1, 32, 4), [2.0, 4.0, 5.0], [1.0] * 4, [], [], [], 0.0)
    found = _competitor([9.0, 3.0, 8.0, 5.0], measured)
    assert (found["p50"], found["over_tick"]) == (6.5, 1.5)


def test_the_memory_of_a_process_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 20 * 2**20 < resident_bytes() < 2**40
    monkeypatch.setattr("profiling.bench.result.Path.read_text", lambda path, encoding: "100 3 1 1 0 9 0\n")
    monkeypatch.setattr("profiling.bench.result.os.sysconf", lambda name: 4096)
    assert resident_bytes() == 3 * 4096
