"""Sweeps and the grid of budgets; changes between two runs, and runs that cannot be compared."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Built
from rich.console import Console

from profiling.bench.compare_runs import (
    SAME,
    changes,
    check_comparable,
    print_changes,
    read_result,
    result_figures,
)
from profiling.bench.grids import (
    COMMON,
    Sweep,
    common_of,
    grid_workloads,
    measure_grid,
    parse_sweep,
    print_grid,
    print_sweep,
    sweep_lines,
    sweep_result,
)
from profiling.bench.result import BUSY, budget_of
from profiling.bench.workload import Workload
from profiling.comparison import thinned
from profiling.output import write_json
from runtime.base.errors import ConfigError

BASE: dict[str, Any] = {
    "kind": "tick", "bundle": "tiny", "target": "cpu", "machine": {"cpu": "a"}, "engine_sha256": "00", "depth": 2,
    "variant": "plain", "guidance": 1.0, "frames": 32, "steps": 4, "tokens": 16, "sessions": 0,
    "mode": "loop", "interval_s": 2.0,
    "tick_ms": {"p50": 10.0, "p95": 20.0, "p99": 0.0}, "finished_per_s": 4.0, "phases_ms": {"wait": 2.0},
    "commit": "abc", "versions": {"numpy": "1"},
}  # fmt: skip


def test_changes_of_every_figure_and_what_the_two_differ_in() -> None:
    now = {**BASE, "tick_ms": {"p50": 11.0, "p95": 10.0, "p99": 1.0}, "finished_per_s": 5.0}
    found = {change.name: change.percent for change in changes(BASE, now)}
    figures = {"tick_ms p95": -50.0, "tick_ms p99": None, "finished_per_s": 25.0, "phases_ms wait": 0.0}
    assert {name: found[name] for name in figures} == figures
    assert print_changes(Console(quiet=True), BASE, now)["tick_ms p50"] == {
        "base": 10.0, "now": 11.0, "percent": 10.0, "interval": None, "verdict": None,
    }  # fmt: skip
    other = {**BASE, "commit": "def", "versions": {"numpy": "2"}}
    check_comparable(BASE, other)
    text = compared(BASE, other)
    assert "compared with commit abc" in text
    assert "the two differ in versions: {'numpy': '1'} before, {'numpy': '2'} now" in text


@pytest.mark.parametrize("name", [name for name in SAME if name not in ("over", "values")])
def test_different_properties_are_named(name: str) -> None:
    other = {**BASE, name: "other"}
    check_comparable(BASE, dict(BASE))
    with pytest.raises(ConfigError) as raised:
        check_comparable(BASE, other)
    assert raised.value.what == f"the saved run cannot be compared: {name}: {BASE[name]} before, other now"
    assert "--force" in str(raised.value.fix)


def measured(seed: int, *, ratio: float = 1.05, engine_ms: float = 10.0) -> dict[str, Any]:
    """A result with noisy samples of a tick and of the bare engine."""
    random = np.random.default_rng(seed)
    ratios = ratio * np.exp(random.normal(0.0, 0.03, 64))
    engines_ms = engine_ms * np.exp(random.normal(0.0, 0.03, 65))
    return {
        **BASE,
        "engine_ms": {"p50": float(np.median(engines_ms))},
        "overhead_ratio": float(np.median(ratios)),
        "samples": {"overhead_ratio": [thinned(list(ratios))], "engine_ms p50": [thinned(list(engines_ms))]},
    }


def compared(base: dict[str, Any], now: dict[str, Any], width: int = 100) -> str:
    console = Console(record=True, width=width)
    print_changes(console, base, now)
    return console.export_text()


def test_a_slower_and_a_faster_tick_are_found_and_equal_runs_have_no_difference() -> None:
    text = compared(measured(1), measured(2))
    assert "no difference: no change stands out" in text
    assert "slower" not in text
    assert "faster" not in text
    assert "slower: overhead_ratio, +" in compared(measured(1), measured(2, ratio=1.155))
    assert "faster: overhead_ratio, -" in compared(measured(1), measured(2, ratio=0.945))


def test_another_time_of_the_same_engine_is_the_machines() -> None:
    text = compared(measured(1), measured(2, engine_ms=13.0))
    assert "no difference" in text
    assert "machine: the same engine takes another time" in text
    forced = compared({**measured(1), "engine_sha256": "11"}, measured(2, engine_ms=13.0))
    assert "slower: engine_ms p50" in forced
    assert "machine:" not in forced


def test_a_run_saved_without_samples_is_compared_without_a_verdict() -> None:
    text = compared(BASE, measured(2, ratio=2.0))
    assert "not judged: one of the runs has no samples" in text
    assert "slower" not in text


def test_points_and_ablations_are_judged() -> None:
    base, now = measured(1), measured(2, ratio=1.3)
    point = {"depth": 4, "tick_ms": {"p50": 3.0}, "overhead_ms": 1.0}
    sweeps = [{**BASE, "kind": "sweep", "over": "depth", "points": [{**each, **point}]} for each in (base, now)]
    assert "slower: depth 4, overhead_ratio" in compared(*sweeps)
    entries = [
        {"with_ms": {"p50": 1.0}, "without_ms": {"p50": 2.0}, "ratio": each["overhead_ratio"],
         "samples": {"ratio": each["samples"]["overhead_ratio"]}}
        for each in (base, now)
    ]  # fmt: skip
    ablations = [{**BASE, "kind": "ablations", "ablations": {"batched step": entry}} for entry in entries]
    assert "saves more: batched step, ratio" in compared(*ablations)


def test_figures_of_ablations_sweeps_and_grids() -> None:
    entry = {"with_ms": {"p50": 1.0}, "without_ms": {"p50": 2.0}, "ratio": 1.9}
    assert result_figures({"ablations": {"a": entry}}) == {"a, with, p50": 1.0, "a, without, p50": 2.0, "a, ratio": 1.9}
    figures = {"tick_ms p50": 3.0, "engine_ms p50": 2.0, "overhead_ms": 1.0, "overhead_ratio": 1.5}
    point = {
        "depth": 4, "tick_ms": {"p50": 3.0, "p95": 9.0}, "engine_ms": {"p50": 2.0}, "overhead_ms": 1.0,
        "overhead_ratio": 1.5,
    }  # fmt: skip
    for result, name in (
        ({"kind": "sweep", "over": "depth", "points": [point]}, "depth 4"),
        ({"kind": "budgets", "points": [{**point, "variant": "guidance"}]}, "depth 4, guidance"),
    ):
        assert result_figures(result) == {f"{name}, {figure}": value for figure, value in figures.items()}


def test_figures_of_live_sessions() -> None:
    heard = {"step_parameter": {"first": {"p50": 80.0, "p95": 120.0}, "full": {}}}
    run = {"sessions": 2, "control_to_sound_ms": heard, "underruns": 0, "server_cpu": 0.5}
    wanted = {
        "control_to_sound_ms step_parameter first p50": 80.0,
        "control_to_sound_ms step_parameter first p95": 120.0,
        "underruns": 0.0,
        "server_cpu": 0.5,
    }
    assert result_figures({"kind": "live", **run}) == wanted
    swept = result_figures({"kind": "live sweep", "over": "sessions", "points": [run]})
    assert swept == {f"sessions 2, {name}": value for name, value in wanted.items()}


def test_a_saved_run_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "base.json", BASE)
    assert read_result(tmp_path / "base.json") == BASE
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        read_result(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"no json", b"[1]", b'{"kind": "tick"}', b"\xff\xfe", b"[" * 100_000,
        {"ablations": [1]}, {"ablations": {"a": 1}}, {"samples": {"tick_ms p50": 1}}, {"samples": [1]},
        {"samples": {"tick_ms p50": [["a"], [1]]}}, {"points": [{"depth": 1}]}, {"comparisons": [None]},
        {"tick_ms": "fast"},
    ],
    ids=lambda content: str(content)[:30],
)  # fmt: skip
def test_other_files_and_results_with_other_types_are_refused(content: bytes | dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps({**BASE, **content}).encode())
    with pytest.raises(ConfigError, match="is not a result"):
        read_result(path)


def test_a_sweep_is_a_name_and_different_values() -> None:
    assert parse_sweep("depth=1,2, 4") == Sweep("depth", (1, 2, 4))
    for text in ("", "depth", "depth=", "depth=1,x", "depth=0", "depth=2,2", "colour=1", "=1"):
        with pytest.raises(ConfigError, match="tickrt-bench sweep CONFIG depth=1,2,4,8"):
            parse_sweep(text)


def point(depth: int, tick_ms: float, **changes: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(COMMON, "abc"), "kind": "tick", "depth": depth, "rows": 2 * depth,
        "tick_ms": {"p50": tick_ms}, "engine_ms": {"p50": 1.0}, "overhead_ms": tick_ms - 1, "overhead_ratio": tick_ms,
        "resident_mib": 100.0 + 2.5 * depth, **changes,
    }  # fmt: skip


def lines_of(console: Console) -> list[str]:
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_properties_that_a_sweep_s_points_share_are_stated_once() -> None:
    found = sweep_result(Sweep("depth", (1, 4)), [point(1, 1.5), point(4, 3.0)])
    assert (found["kind"], found["over"], found["values"], found["bundle"]) == ("sweep", "depth", [1, 4], "abc")
    assert [point["depth"] for point in found["points"]] == [1, 4]
    assert ("commit" in found["points"][0], found["commit"]) == (False, "abc")
    assert common_of([point(1, 1.0), point(1, 1.0, commit="def")]).keys() == set(COMMON) - {"commit"}
    console = Console(record=True, width=80)
    print_sweep(console, found)
    lines = lines_of(console)
    assert f"4 8 3.00 1.00 2.00 3.000 0.375 110 {'█' * 12}" in lines
    assert f"1 2 1.50 1.00 0.50 1.500 0.750 102 {'█' * 6}" in lines
    assert "memory: 2.5 MiB per slot" in lines
    assert sweep_lines(found, "rows") == {"tick": [(2.0, 1.5), (8.0, 3.0)], "bare engine": [(2.0, 1.0), (8.0, 1.0)]}


def test_the_grid_has_every_budget(built: Built) -> None:
    loads = grid_workloads(built(), 16, 2)
    shapes = {(load.depth, load.variant) for load in loads}
    assert shapes == set(product((1, 4, 8), ("plain", "guidance", "guidance+dcw")))
    assert all((load.frames, load.steps) == (16, 2) and budget_of("cpu", load) for load in loads)


def test_points_of_the_grid_are_medians_over_repeats() -> None:
    runs = iter([(0.1, 1.0, 0), (5.0, 1.0, 0), (0.2, 1.04, 0), (0.6, 1.2, 0), (9.0, 1.09, 2), (0.5, 1.01, 0)])

    def measure(load: Workload, ticks: int) -> tuple[dict[str, Any], object]:
        overhead_ms, ratio, allocations = next(runs)
        samples = {name: [[1.0] * 150] for name in ("overhead_ratio", "engine_ms p50")}
        figures = {"overhead_ms": overhead_ms, "overhead_ratio": ratio, "allocations_per_tick": allocations}
        return point(load.depth, 2.0, **figures, is_noisy=False, samples=samples), None

    session: Any = SimpleNamespace(measure=measure, deployment=SimpleNamespace(target="cpu"))
    loads = [Workload(1, 32, 4), Workload(4, 32, 4, guidance=3.0)]
    result = measure_grid(session, loads, ticks=1, repeats=3)
    assert (result["kind"], result["repeats"], result["bundle"]) == ("budgets", 3, "abc")
    first, second = result["points"]
    assert [len(samples) for samples in first["samples"]["overhead_ratio"]] == [66] * 3, "200 in all are stored"
    assert (first["overhead_ms"], first["overhead_ms_runs"]) == (0.2, [0.1, 0.2, 9.0])
    assert (first["overhead_ratio"], first["allocations_per_tick"], first["within_budget"]) == (1.04, 2, True)
    assert (second["overhead_ms"], second["overhead_ratio"], second["within_budget"]) == (0.6, 1.01, True)
    assert second["budget"] == {"overhead_ms": 0.70, "overhead_ratio": 1.08}
    console = Console(record=True, width=80)
    print_grid(console, result)
    lines = lines_of(console)
    assert any("1 plain" in line and "0.200 0.10..9.00 1.040 0.20, 1.08 kept 2" in line for line in lines)
    assert any("4 guidance" in line and "0.600 0.50..5.00 1.010 0.70, 1.08 kept 0" in line for line in lines)
    assert BUSY not in " ".join(lines)
    second["is_noisy"] = True
    print_grid(console, result)
    assert BUSY in " ".join(lines_of(console))
