"""The grid of budgets: its workloads, medians over repeats, and the table."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from conftest import Built
from rich.console import Console

from profiling.bench.budget_grid import grid_workloads, measure_grid, print_grid
from profiling.bench.result import BUSY, budget_of
from profiling.bench.session import BenchSession, open_session
from profiling.bench.workload import Workload


def test_the_grid_has_every_budget(built: Built) -> None:
    loads = grid_workloads(built(), 16, 2)
    shapes = {(load.depth, load.variant) for load in loads}
    assert shapes == set(product((1, 4, 8), ("plain", "guidance", "guidance+dcw")))
    assert all((load.frames, load.steps) == (16, 2) and budget_of("cpu", load) for load in loads)


def scripted(monkeypatch: pytest.MonkeyPatch, *runs: tuple[float, float, int]) -> None:
    """Let runs have these overheads, ratios and allocations, in order."""
    measure, script = BenchSession.measure, iter(runs)

    def changed(session: BenchSession, load: Workload, ticks: int) -> tuple[dict[str, Any], object]:
        result, measured = measure(session, load, ticks)
        overhead_ms, ratio, allocations = next(script)
        figures = {"overhead_ms": overhead_ms, "overhead_ratio": ratio, "allocations_per_tick": allocations}
        return {**result, **figures, "is_noisy": False}, measured

    monkeypatch.setattr(BenchSession, "measure", changed)


def test_points_are_medians_over_repeats(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, (0.1, 1.0, 0), (5.0, 1.0, 0), (0.2, 1.04, 0), (0.6, 1.2, 0), (9.0, 1.09, 2), (0.5, 1.01, 0))
    monkeypatch.setattr("profiling.bench.budget_grid.MAX_SAMPLES", 2)
    with open_session(built()) as session:
        loads = [Workload(1, 32, 4), Workload(4, 32, 4, guidance=3.0)]
        result = measure_grid(session, loads, ticks=1, repeats=3)
    assert (result["kind"], result["repeats"], result["bundle"], result["frames"]) == ("budgets", 3, "tiny", 32)
    first, second = result["points"]
    assert [len(samples) for samples in first["samples"]["overhead_ratio"]] == [1, 1, 1]
    assert (first["overhead_ms"], first["overhead_ms_runs"]) == (0.2, [0.1, 0.2, 9.0])
    assert (first["overhead_ratio"], first["allocations_per_tick"], first["within_budget"]) == (1.04, 2, True)
    assert (second["overhead_ms"], second["overhead_ratio"], second["within_budget"]) == (0.6, 1.01, True)
    assert second["budget"] == {"overhead_ms": 0.70, "overhead_ratio": 1.08}
    text = printed(result)
    assert BUSY not in " ".join(text.split())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any("1 plain" in line and "0.200 0.10..9.00 1.040 0.20, 1.08 kept 2" in line for line in lines)
    assert any("4 guidance" in line and "0.600 0.50..5.00 1.010 0.70, 1.08 kept 0" in line for line in lines)
    second["is_noisy"] = True
    assert BUSY in " ".join(printed(result).split())


def printed(result: dict[str, Any]) -> str:
    console = Console(record=True, width=80)
    print_grid(console, result)
    return console.export_text()
